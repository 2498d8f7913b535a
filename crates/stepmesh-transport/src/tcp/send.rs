//! The sending half of a connection: chains that the kernel has not taken yet, and how they go on.

#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;

use rustix::net::SendFlags;

use super::frame::{ChainHead, WriteHead};
use super::vectored::Gather;
use crate::fabric::Posted;
use crate::memory::Memory;

/// What waits to be sent. Buffers are used again.
#[derive(Debug, Default)]
pub(super) struct Sender {
    queue: VecDeque<Outgoing>,
    spare: Vec<Outgoing>,
}

/// A chain on its way: head, payload and message, of which `done` bytes are sent.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    /// Front and descriptions of the writes; of a short chain all of it.
    head: Vec<u8>,
    payload: Vec<Payload>,
    message: Vec<u8>,
    token: u64,
    len_bytes: u64,
    done: u64,
}

/// Where bytes to send are.
#[derive(Debug)]
pub(super) struct Payload {
    pub(super) memory: Memory,
    pub(super) offset: u64,
    pub(super) len_bytes: u64,
}

impl Sender {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.queue.len() >= QUEUE_MAX
    }

    /// Takes a chain that was checked, with the payload that `write_heads` describe, and sends what
    /// can be sent now.
    pub(super) fn post(
        &mut self,
        socket: &OwnedFd,
        writes: impl Iterator<Item = (WriteHead, Payload)>,
        write_count: usize,
        message: &[u8],
        token: u64,
    ) -> io::Result<Posted> {
        let mut chain = self.spare.pop().unwrap_or_default();
        chain.fill(writes, write_count, message, token);
        if self.queue.is_empty() {
            match chain.send(socket) {
                Ok(true) => {
                    self.recycle(chain);
                    return Ok(Posted::Complete);
                }
                Ok(false) => {}
                Err(error) => {
                    self.recycle(chain);
                    return Err(error);
                }
            }
        }
        self.queue.push_back(chain);
        Ok(Posted::Pending)
    }

    /// Goes on sending. Returns the token of the first chain if that is sent now.
    pub(super) fn flush(&mut self, socket: &OwnedFd) -> io::Result<Option<u64>> {
        let Some(chain) = self.queue.front_mut() else {
            return Ok(None);
        };
        if !chain.send(socket)? {
            return Ok(None);
        }
        let token = chain.token;
        if let Some(chain) = self.queue.pop_front() {
            self.recycle(chain);
        }
        Ok(Some(token))
    }

    /// Forgets everything: the connection is broken.
    pub(super) fn clear(&mut self) {
        self.queue.clear();
    }

    fn recycle(&mut self, mut chain: Outgoing) {
        // The memory is free again; only the buffers are kept.
        chain.payload.clear();
        if self.spare.len() < SPARE_MAX {
            self.spare.push(chain);
        }
    }
}

impl Outgoing {
    fn fill(
        &mut self,
        writes: impl Iterator<Item = (WriteHead, Payload)>,
        write_count: usize,
        message: &[u8],
        token: u64,
    ) {
        self.head.clear();
        self.payload.clear();
        self.message.clear();
        self.token = token;
        self.done = 0;
        let head = ChainHead {
            write_count,
            message_len_bytes: message.len(),
        };
        head.encode(&mut self.head);
        let mut payload_len_bytes = 0;
        for (head, payload) in writes {
            head.encode(&mut self.head);
            payload_len_bytes += payload.len_bytes;
            self.payload.push(payload);
        }
        self.len_bytes = (self.head.len() + message.len()) as u64 + payload_len_bytes;
        if payload_len_bytes <= FLAT_LEN_BYTES_MAX {
            self.flatten(message);
        } else {
            self.message.extend_from_slice(message);
        }
    }

    /// Copies a short payload, and the message, behind the head: one range costs the kernel less
    /// than three, and the copy is in the cache.
    fn flatten(&mut self, message: &[u8]) {
        for Payload {
            memory,
            offset,
            len_bytes,
        } in self.payload.drain(..)
        {
            let start = self.head.len();
            let len = usize::try_from(len_bytes).unwrap_or(0);
            self.head.resize(start + len, 0);
            let copied = memory.copy_out(offset, &mut self.head[start..]);
            debug_assert!(copied, "the range was checked when the chain was posted");
        }
        self.head.extend_from_slice(message);
    }

    /// Sends what the socket takes; true when all of the chain is sent.
    fn send(&mut self, socket: &OwnedFd) -> io::Result<bool> {
        loop {
            let (sent, asked) = match self.send_some(socket) {
                Ok(counts) => counts,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            self.done += sent as u64;
            if self.done == self.len_bytes {
                return Ok(true);
            }
            if sent < asked {
                return Ok(false);
            }
        }
    }

    fn send_some(&self, socket: &OwnedFd) -> io::Result<(usize, usize)> {
        let mut skip = self.done;
        if self.payload.is_empty() && self.message.is_empty() {
            let bytes = rest(&self.head, &mut skip);
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            return Ok((rustix::net::send(socket, bytes, flags)?, bytes.len()));
        }
        let mut gather = Gather::new();
        let mut room = true;
        let head = rest(&self.head, &mut skip);
        if !head.is_empty() {
            room = gather.push_bytes(head);
        }
        for payload in &self.payload {
            let skipped = skip.min(payload.len_bytes);
            skip -= skipped;
            let len = payload.len_bytes - skipped;
            if room && len > 0 {
                room = gather.push_memory(&payload.memory, payload.offset + skipped, len);
            }
        }
        let message = rest(&self.message, &mut skip);
        if room && !message.is_empty() {
            gather.push_bytes(message);
        }
        let asked = gather.len_bytes();
        Ok((gather.send(socket)?, asked))
    }
}

/// What is left of `bytes` after skipping; `skip` goes down by what was skipped.
fn rest<'a>(bytes: &'a [u8], skip: &mut u64) -> &'a [u8] {
    let skipped = usize::try_from(*skip)
        .unwrap_or(usize::MAX)
        .min(bytes.len());
    *skip -= skipped as u64;
    &bytes[skipped..]
}

/// Chains that wait for the kernel, for each peer. An engine has a few batches in flight; more than
/// this says that the peer does not read, and the engine should know.
const QUEUE_MAX: usize = 64;

/// Buffers kept for later.
const SPARE_MAX: usize = 8;

/// Payload that is copied beside its message: about what a copy moves in the time of a range.
const FLAT_LEN_BYTES_MAX: u64 = 4096;
