//! The receiving half of a connection: turns what the kernel has into writes and messages. Bytes of
//! large writes go from the kernel straight to where they belong. Nothing is placed before every
//! field that says where was checked.

#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;

use rustix::net::RecvFlags;

use super::Regions;
use super::frame::{CHAIN_HEAD_LEN_BYTES, ChainHead, WRITE_HEAD_LEN_BYTES, WriteHead};
use super::vectored::Scatter;
use crate::fabric::{EventSink, PeerId};

/// What has come and is not yet done with.
#[derive(Debug)]
pub(super) struct Receiver {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    stage: Stage,
    /// What is left of the writes of the chain that is coming in, last first.
    writes: Vec<WriteHead>,
    message_len_bytes: usize,
    message_len_bytes_max: usize,
}

/// Which part of a chain comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Head,
    Payload,
    Message,
}

/// Why receiving ended.
#[derive(Debug)]
pub(super) enum End {
    /// The other side closed the connection.
    Closed,
    /// The system says that the connection is broken.
    Broken(io::Error),
    /// The peer sent what no honest peer sends.
    Invalid(&'static str),
}

/// What receiving needs to know about the peer and about us.
#[derive(Debug)]
pub(super) struct Scope<'a> {
    pub(super) peer: PeerId,
    pub(super) regions: &'a Regions,
    /// Our regions that the peer may write.
    pub(super) shared: &'a HashSet<u32>,
}

impl Receiver {
    /// Begins with the bytes that came together with the hello.
    pub(super) fn new(message_len_bytes_max: usize, early: &[u8]) -> Self {
        let longest = message_len_bytes_max.max(super::WRITES_MAX * WRITE_HEAD_LEN_BYTES);
        let len = (CHAIN_HEAD_LEN_BYTES + longest).max(BUFFER_LEN_BYTES_MIN);
        let mut buffer = vec![0; len].into_boxed_slice();
        buffer[..early.len()].copy_from_slice(early);
        Self {
            buffer,
            start: 0,
            end: early.len(),
            stage: Stage::Head,
            writes: Vec::with_capacity(super::WRITES_MAX),
            message_len_bytes: 0,
            message_len_bytes_max,
        }
    }

    /// Takes what the kernel has, up to a bound, and delivers it. Returns the number of events and,
    /// when nothing more will come, why.
    pub(super) fn receive(
        &mut self,
        socket: &OwnedFd,
        scope: &Scope<'_>,
        events_max: usize,
        sink: &mut dyn EventSink,
    ) -> (usize, Option<End>) {
        let mut events = 0;
        let end = self.receive_until_end(socket, scope, (&mut events, events_max), sink);
        (events, end.err())
    }

    fn receive_until_end(
        &mut self,
        socket: &OwnedFd,
        scope: &Scope<'_>,
        (events, events_max): (&mut usize, usize),
        sink: &mut dyn EventSink,
    ) -> Result<(), End> {
        if self.start < self.end {
            self.deliver(scope, (events, events_max), sink)?;
        }
        for _ in 0..READS_MAX {
            if *events >= events_max {
                break;
            }
            let Some((read, drained)) = self.read(socket, scope)? else {
                break;
            };
            if read == 0 {
                return Err(End::Closed);
            }
            self.deliver(scope, (events, events_max), sink)?;
            if drained {
                break;
            }
        }
        Ok(())
    }

    /// Reads once. Returns how much, and whether that was all there is; `None` for nothing.
    fn read(&mut self, socket: &OwnedFd, scope: &Scope<'_>) -> Result<Option<(usize, bool)>, End> {
        self.compact();
        let result = if self.stage == Stage::Payload && self.start == self.end {
            self.read_payload(socket, scope)?
        } else {
            let room = &mut self.buffer[self.end..];
            let asked = room.len();
            debug_assert!(asked > 0, "the buffer holds the longest part of a chain");
            let read = rustix::net::recv(socket, room, RecvFlags::DONTWAIT);
            read.map_err(io::Error::from).map(|(_, read)| {
                self.end += read;
                (read, read < asked)
            })
        };
        match result {
            Ok(counts) => Ok(Some(counts)),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Err(End::Closed),
                _ => Err(End::Broken(error)),
            },
        }
    }

    /// Reads into the regions that the payload is for, and what follows into the buffer.
    fn read_payload(
        &mut self,
        socket: &OwnedFd,
        scope: &Scope<'_>,
    ) -> Result<io::Result<(usize, bool)>, End> {
        let mut scatter = Scatter::new();
        let mut direct = 0;
        let mut whole = true;
        for write in self.writes.iter().rev() {
            let local = scope.regions.get(write.region);
            let local = local.ok_or(End::Invalid(GONE))?;
            // One range is left for the buffer.
            if !scatter.push_memory(&local.memory, write.offset, write.len_bytes) {
                whole = false;
                break;
            }
            direct += write.len_bytes;
        }
        if direct == 0 {
            return Err(End::Invalid(GONE));
        }
        // Only what follows the last write may go to the buffer.
        if whole {
            scatter.push_bytes(&mut self.buffer);
        }
        let asked = scatter.len_bytes();
        let read = match scatter.receive(socket) {
            Ok(read) => read,
            Err(error) => return Ok(Err(error)),
        };
        let mut left = read as u64;
        while left > 0
            && let Some(write) = self.writes.last_mut()
        {
            let placed = left.min(write.len_bytes);
            left -= placed;
            write.offset += placed;
            write.len_bytes -= placed;
            if write.len_bytes > 0 {
                break;
            }
            self.writes.pop();
        }
        self.end = usize::try_from(left).unwrap_or(0);
        Ok(Ok((read, read < asked)))
    }

    /// Does with the bytes in the buffer what can be done, and counts the events.
    fn deliver(
        &mut self,
        scope: &Scope<'_>,
        (events, events_max): (&mut usize, usize),
        sink: &mut dyn EventSink,
    ) -> Result<(), End> {
        loop {
            let done = match self.stage {
                Stage::Head => self.take_head(scope).map_err(End::Invalid)?,
                Stage::Payload => self.place(scope).map_err(End::Invalid)?,
                Stage::Message => {
                    if *events >= events_max || self.end - self.start < self.message_len_bytes {
                        return Ok(());
                    }
                    let message = self.start..self.start + self.message_len_bytes;
                    self.start = message.end;
                    self.stage = Stage::Head;
                    sink.message(scope.peer, &self.buffer[message]);
                    *events += 1;
                    true
                }
            };
            if !done {
                return Ok(());
            }
        }
    }

    /// Takes the front of a chain with all descriptions of writes, if they are there, and checks
    /// all of them.
    fn take_head(&mut self, scope: &Scope<'_>) -> Result<bool, &'static str> {
        let bytes = &self.buffer[self.start..self.end];
        let Some(head) = ChainHead::decode(bytes)? else {
            return Ok(false);
        };
        if head.write_count > super::WRITES_MAX {
            return Err("a chain has too many writes");
        }
        if head.message_len_bytes > self.message_len_bytes_max {
            return Err("a message is too long");
        }
        let len = CHAIN_HEAD_LEN_BYTES + head.write_count * WRITE_HEAD_LEN_BYTES;
        let Some(writes) = bytes.get(CHAIN_HEAD_LEN_BYTES..len) else {
            return Ok(false);
        };
        self.writes.clear();
        for bytes in writes.chunks_exact(WRITE_HEAD_LEN_BYTES).rev() {
            let write = WriteHead::decode(bytes).ok_or("a write is incomplete")?;
            let local = scope
                .regions
                .get(write.region)
                .filter(|_| scope.shared.contains(&write.region));
            let local = local.ok_or("a write goes to a region that is not shared")?;
            if !local.memory.contains(write.offset, write.len_bytes) {
                return Err("a write reaches outside of its region");
            }
            self.writes.push(write);
        }
        self.start += len;
        self.message_len_bytes = head.message_len_bytes;
        self.stage = Stage::Payload;
        Ok(true)
    }

    /// Places what the buffer has of the payload; true when all of it is placed.
    fn place(&mut self, scope: &Scope<'_>) -> Result<bool, &'static str> {
        while let Some(write) = self.writes.last_mut() {
            let bytes = &self.buffer[self.start..self.end];
            let len = usize::try_from(write.len_bytes)
                .unwrap_or(usize::MAX)
                .min(bytes.len());
            if len > 0 {
                let local = scope.regions.get(write.region).ok_or(GONE)?;
                if !local.memory.copy_in(write.offset, &bytes[..len]) {
                    return Err(GONE);
                }
            }
            self.start += len;
            write.offset += len as u64;
            write.len_bytes -= len as u64;
            if write.len_bytes > 0 {
                return Ok(false);
            }
            self.writes.pop();
        }
        self.stage = Stage::Message;
        Ok(true)
    }

    /// Moves what is left in the buffer to its front, so that the longest part has room.
    fn compact(&mut self) {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
    }
}

const GONE: &str = "a write goes to a region that was deregistered";

/// Reads of one peer in one poll, so that a fast peer cannot keep the engine in one call.
const READS_MAX: usize = 8;

/// The buffer is read into whenever no large write is expected; this much holds a burst of small
/// chains, and is what a large write begins with before its bytes go to their place directly.
const BUFFER_LEN_BYTES_MIN: usize = 16 << 10;
