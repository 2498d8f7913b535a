//! A connected peer: its ring and ours, what it shares, what it is still to be told. How the
//! connection came about is in `handshake`.

#![forbid(unsafe_code)]

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::bounce::Bounce;
use super::control::{CONTROL_LEN_BYTES, ChunkHeader, Control, Place};
use super::process::Credentials;
use super::region::{Local, Remote, Target, copy_mapped};
use super::ring::{BrokenRing, Consumer, Producer};
use super::socket::{self, Received};
use crate::doorbell::RemoteDoorbell;
use crate::error::Error;
use crate::fabric::{
    Chain, EventSink, FabricKind, PeerId, PostError, Posted, RemoteId, SharedRegion, Write,
};
use crate::segment::{self, Segment};
use crate::table::Table;

/// A connected peer.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) id: PeerId,
    /// Records to us.
    pub(super) rx: Consumer,
    /// Records to the peer.
    pub(super) tx: Producer,
    pub(super) doorbell: RemoteDoorbell,
    /// Longest message that both sides take.
    pub(super) message_len_bytes_max: usize,
    pub(super) socket: OwnedFd,
    /// Readable once the process has ended.
    pub(super) process: Option<OwnedFd>,
    pub(super) credentials: Credentials,
    /// Whether the kernel lets us write the peer's memory.
    pub(super) reaches_memory: bool,
    /// Whether files that are not sealed may be mapped.
    pub(super) trusts_unsealed: bool,
    pub(super) imports: Table<Remote>,
    /// Files of the peer, mapped.
    pub(super) files: HashMap<u32, Arc<Segment>>,
    /// Our regions that the peer may write.
    pub(super) shared: HashSet<u32>,
    /// Our files that the peer has.
    pub(super) files_sent: HashSet<u32>,
    /// Packets that the socket had no room for.
    pub(super) outbox: VecDeque<(Control, Option<Arc<OwnedFd>>)>,
    /// Regions of ours that the peer will not write any more, to be collected by the fabric.
    pub(super) revoked: Vec<u32>,
    pub(super) bounce: Bounce,
    /// Why the connection is over; what was already in the ring is still delivered.
    pub(super) ended: Option<Error>,
    /// How far in the ring that can be.
    pub(super) end_position: u64,
}

impl Peer {
    /// Posts a chain.
    #[inline]
    pub(super) fn post(
        &mut self,
        regions: &Table<Local>,
        scratch: &mut [u8],
        chain: &Chain<'_>,
    ) -> Result<Posted, PostError> {
        let bounced = self.check(regions, chain)?;
        if self.bounce.is_active() {
            return Err(PostError::Full);
        }
        if bounced {
            return self.post_bounced(regions, scratch, chain);
        }
        match self.tx.has_room(chain.message.len()) {
            Ok(true) => {}
            Ok(false) => return Err(PostError::Full),
            Err(broken) => return Err(self.broke(broken).into()),
        }
        for write in chain.writes {
            self.write(regions, write)?;
        }
        self.tx.push(KIND_MESSAGE, chain.message);
        self.doorbell.ring();
        Ok(Posted::Complete)
    }

    /// Moves what waits in either direction. Returns the number of events.
    #[inline]
    pub(super) fn poll(
        &mut self,
        regions: &Table<Local>,
        scratch: &mut [u8],
        events_max: usize,
        sink: &mut dyn EventSink,
    ) -> usize {
        let mut events = 0;
        if self.bounce.is_waiting() {
            events += self.poll_bounce(scratch, events_max, sink);
        }
        for _ in 0..RECORDS_MAX {
            if events >= events_max {
                break;
            }
            match self.rx.next(scratch) {
                Ok(None) => break,
                Ok(Some(record)) => {
                    let (kind, len_bytes) = (record.kind, record.len_bytes);
                    let delivered = self.deliver(regions, kind, &scratch[..len_bytes], sink);
                    events += usize::from(delivered);
                    if record.returned_lines {
                        self.doorbell.ring();
                    }
                }
                Err(broken) => {
                    self.broke(broken);
                }
            }
            if matches!(self.ended, Some(Error::InvalidWire { .. })) {
                break;
            }
        }
        events
    }

    /// The reason, once the connection has ended and everything of it was delivered.
    pub(super) fn over(&mut self) -> Option<Error> {
        let broken = matches!(self.ended, Some(Error::InvalidWire { .. }));
        if !broken && self.rx.is_ready() && self.rx.position() < self.end_position {
            return None;
        }
        self.ended.take()
    }

    /// Makes a region of the peer's usable as a target.
    pub(super) fn import(
        &mut self,
        shared: &SharedRegion,
        may_reach_memory: bool,
    ) -> Result<RemoteId, Error> {
        let target = match Place::decode(shared.key) {
            Place::File { file, offset } => self.map(file, offset, shared.len_bytes)?,
            Place::Address(address) => {
                if address.checked_add(shared.len_bytes).is_none() {
                    return Err(self.invalid("a region wraps around"));
                }
                if may_reach_memory && self.reaches_memory {
                    Target::Process(address)
                } else {
                    Target::Bounce
                }
            }
        };
        let remote = Remote {
            region: shared.region,
            len_bytes: shared.len_bytes,
            target,
        };
        let id = self.imports.insert_with(|_| remote);
        id.map(RemoteId).ok_or(Error::Limit {
            fabric: FabricKind::Shm,
            what: "imported regions",
            limit: self.imports.len() as u64,
        })
    }

    /// Sends a control packet, now or when the socket has room again.
    pub(super) fn tell(&mut self, control: Control, file: Option<Arc<OwnedFd>>) {
        self.outbox.push_back((control, file));
        self.flush();
    }

    /// Sends what waits for the socket.
    pub(super) fn flush(&mut self) {
        while let Some((control, file)) = self.outbox.front() {
            let file = file.as_ref().map(|file| file.as_fd());
            match socket::send(&self.socket, &control.encode(), file.as_slice()) {
                Ok(true) => self.outbox.pop_front(),
                Ok(false) => break,
                // The end of the connection shows at the reading end, with all that came before.
                Err(_) => {
                    self.outbox.clear();
                    break;
                }
            };
        }
    }

    /// Takes in what the socket has, up to a bound.
    pub(super) fn receive(&mut self) {
        let mut bytes = [0; CONTROL_LEN_BYTES];
        for _ in 0..PACKETS_MAX {
            if self.ended.is_some() {
                return;
            }
            match socket::receive(&self.socket, &mut bytes) {
                Ok(Received::Empty) => return,
                Ok(Received::Closed) => self.end(),
                Ok(Received::Packet(packet)) => {
                    let control = Control::decode(&bytes[..packet.len_bytes]);
                    self.obey(control, packet.descriptors);
                }
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    self.ended = Some(self.invalid(error.to_string()));
                }
                Err(_) => self.end(),
            }
        }
    }

    /// Notes that the peer is gone.
    pub(super) fn end(&mut self) {
        if self.ended.is_none() {
            self.end_position = self.rx.position() + self.rx.lines();
            self.ended = Some(Error::PeerClosed {
                fabric: FabricKind::Shm,
                peer: self.id,
            });
        }
    }

    pub(super) fn broke(&mut self, BrokenRing(reason): BrokenRing) -> Error {
        self.ended = Some(self.invalid(reason));
        self.invalid(reason)
    }

    fn invalid(&self, reason: impl Into<String>) -> Error {
        Error::InvalidWire {
            fabric: FabricKind::Shm,
            peer: self.id,
            reason: reason.into(),
        }
    }

    /// Checks all of a chain before any of it is done. True when a write has to bounce.
    #[inline]
    fn check(&self, regions: &Table<Local>, chain: &Chain<'_>) -> Result<bool, Error> {
        if self.ended.is_some() {
            return Err(Error::PeerClosed {
                fabric: FabricKind::Shm,
                peer: self.id,
            });
        }
        let limit = |what, limit| Error::Limit {
            fabric: FabricKind::Shm,
            what,
            limit,
        };
        if chain.writes.len() > super::WRITES_MAX {
            return Err(limit("writes in a chain", super::WRITES_MAX as u64));
        }
        if chain.message.len() > self.message_len_bytes_max {
            let most = self.message_len_bytes_max as u64;
            return Err(limit("bytes in a message", most));
        }
        let mut bounced = false;
        for write in chain.writes {
            let local = super::local(regions, write.local)?;
            let remote = self.remote(write.remote)?;
            if !local.memory.contains(write.local_offset, write.len_bytes) {
                let len_bytes = local.memory.len_bytes();
                return Err(outside(
                    "local region",
                    write.local_offset,
                    write,
                    len_bytes,
                ));
            }
            if !remote.contains(write.remote_offset, write.len_bytes) {
                let len_bytes = remote.len_bytes;
                return Err(outside(
                    "remote region",
                    write.remote_offset,
                    write,
                    len_bytes,
                ));
            }
            bounced |= matches!(remote.target, Target::Bounce);
        }
        Ok(bounced)
    }

    /// Does one write that was checked.
    #[inline]
    pub(super) fn write(&mut self, regions: &Table<Local>, write: &Write) -> Result<(), Error> {
        let memory = &super::local(regions, write.local)?.memory;
        let len_bytes = write.len_bytes;
        match &self.remote(write.remote)?.target {
            Target::Mapped { segment, offset } => {
                let offset = offset + write.remote_offset;
                let copied = copy_mapped(memory, write.local_offset, segment, offset, len_bytes);
                debug_assert!(copied, "both ranges were checked");
                Ok(())
            }
            Target::Process(address) => {
                let address = address + write.remote_offset;
                // The number of a process that ended may be another's by now.
                let written = if socket::is_hung_up(&self.socket) {
                    Err(io::ErrorKind::NotConnected.into())
                } else {
                    let credentials = self.credentials;
                    credentials.write(address, memory, write.local_offset, len_bytes)
                };
                written.map_err(|source| {
                    self.end();
                    Error::Io {
                        fabric: FabricKind::Shm,
                        operation: "process_vm_writev",
                        object: format!("peer {:?}", self.id),
                        source,
                    }
                })
            }
            Target::Bounce => Ok(()),
        }
    }

    #[inline]
    pub(super) fn remote(&self, remote: RemoteId) -> Result<&Remote, Error> {
        self.imports.get(remote.0).ok_or(Error::UnknownRemote {
            fabric: FabricKind::Shm,
            peer: self.id,
            remote,
        })
    }

    /// Handles one record; true when it became an event.
    #[inline]
    fn deliver(
        &mut self,
        regions: &Table<Local>,
        kind: u8,
        record: &[u8],
        sink: &mut dyn EventSink,
    ) -> bool {
        if matches!(kind, KIND_MESSAGE | KIND_AWAITED) && record.len() <= self.message_len_bytes_max
        {
            if kind == KIND_AWAITED {
                self.rx.publish();
                self.doorbell.ring();
            }
            sink.message(self.id, record);
            return true;
        }
        if kind != KIND_CHUNK || !self.place(regions, record) {
            self.ended = Some(self.invalid("a record is no message, or writes where it may not"));
        }
        false
    }

    /// Puts a chunk in place, if it may go there.
    fn place(&mut self, regions: &Table<Local>, record: &[u8]) -> bool {
        let Some((ChunkHeader { region, offset }, bytes)) = ChunkHeader::decode(record) else {
            return false;
        };
        self.shared.contains(&region)
            && regions
                .get(region)
                .is_some_and(|local| local.memory.copy_in(offset, bytes))
    }

    fn map(&mut self, file: u32, offset: u64, len_bytes: u64) -> Result<Target, Error> {
        if !self.files.contains_key(&file) {
            self.await_file(file);
        }
        let Some(segment) = self.files.get(&file).cloned() else {
            return Err(self.invalid("a region lies in a file that was not sent"));
        };
        if segment.range(offset, len_bytes).is_none() {
            return Err(self.invalid("a region reaches outside of its file"));
        }
        if len_bytes > 0 {
            segment
                .populate(offset, len_bytes)
                .map_err(|source| Error::Io {
                    fabric: FabricKind::Shm,
                    operation: "populating a mapping",
                    object: format!("a region of peer {:?}", self.id),
                    source,
                })?;
        }
        Ok(Target::Mapped { segment, offset })
    }

    /// The packet with the file was sent before the description could be; it may be in the socket.
    fn await_file(&mut self, file: u32) {
        for _ in 0..=FILE_WAITS_MAX {
            self.receive();
            if self.ended.is_some() || self.files.contains_key(&file) {
                return;
            }
            socket::wait_readable(&self.socket, FILE_WAIT_MS);
        }
    }

    fn obey(&mut self, control: Option<Control>, descriptors: Vec<OwnedFd>) {
        let obeyed = match (control, <[OwnedFd; 1]>::try_from(descriptors)) {
            (Some(Control::File { file }), Ok([fd])) => self.take_file(file, &fd),
            (Some(control), Err(none)) if none.is_empty() => self.obey_plain(control),
            _ => Err(segment::invalid("an impossible control packet")),
        };
        if let Err(error) = obeyed {
            self.ended = Some(self.invalid(error.to_string()));
        }
    }

    fn obey_plain(&mut self, control: Control) -> io::Result<()> {
        match control {
            Control::File { .. } => return Err(segment::invalid("a file without descriptor")),
            Control::Forget { file } => {
                self.files.remove(&file);
            }
            Control::Revoke { region } => {
                let stale: Vec<u32> = (self.imports.iter())
                    .filter(|(_, remote)| remote.region == region)
                    .map(|(id, _)| id)
                    .collect();
                for id in stale {
                    self.imports.remove(id);
                }
                self.bounce.forget(region);
                self.tell(Control::Revoked { region }, None);
            }
            Control::Revoked { region } => self.revoked.push(region),
        }
        Ok(())
    }

    fn take_file(&mut self, file: u32, fd: &OwnedFd) -> io::Result<()> {
        if !self.trusts_unsealed && !segment::is_sealed(fd) {
            return Err(segment::invalid("a file that could shrink was offered"));
        }
        if self.files.len() >= FILES_MAX {
            return Err(segment::invalid("too many files were offered"));
        }
        let segment = Arc::new(Segment::map(fd, false)?);
        self.files.insert(file, segment);
        Ok(())
    }
}

fn outside(what: &'static str, offset: u64, write: &Write, region_len_bytes: u64) -> Error {
    Error::OutOfBounds {
        fabric: FabricKind::Shm,
        what,
        offset,
        len_bytes: write.len_bytes,
        region_len_bytes,
    }
}

/// A record that is one message.
pub(super) const KIND_MESSAGE: u8 = 1;

/// A record that is a piece of a write.
pub(super) const KIND_CHUNK: u8 = 2;

/// A message whose sender waits to hear that it, and the chunks before it, were read.
pub(super) const KIND_AWAITED: u8 = 3;

/// Records of one peer in one poll: as many as events, so that chunks are bounded as well.
const RECORDS_MAX: usize = crate::fabric::POLL_EVENTS_MAX;

/// Packets of one peer in one look at its socket.
const PACKETS_MAX: usize = 256;

/// Mapped files of one peer: the kernel's own bound on mappings is 65530.
const FILES_MAX: usize = 1 << 15;

/// How often and how long an import waits for a packet that is sure to come.
const FILE_WAITS_MAX: usize = 10;
const FILE_WAIT_MS: i64 = 10;
