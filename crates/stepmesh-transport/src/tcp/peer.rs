//! A connected peer: what it shares, its socket, and the two halves of the connection. How the
//! connection came about is in `handshake`.

#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::os::fd::OwnedFd;

use super::frame::WriteHead;
use super::receive::{End, Receiver, Scope};
use super::send::{Payload, Sender};
use super::{Local, Regions};
use crate::error::Error;
use crate::fabric::{
    Chain, EventSink, FabricKind, PeerId, PostError, Posted, RegionId, RemoteId, Write,
};
use crate::table::Table;

/// A connected peer.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) id: PeerId,
    pub(super) socket: OwnedFd,
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
    /// Regions of the peer.
    pub(super) imports: Table<Remote>,
    /// Our regions that the peer may write.
    pub(super) shared: HashSet<u32>,
    /// Longest message that both sides take.
    pub(super) message_len_bytes_max: usize,
    /// Whether the epoll tells when there is room to send.
    pub(super) watches_room: bool,
    /// Whether the last poll left something because it had enough events.
    pub(super) stalled: bool,
    /// Whether the socket takes nothing any more; what has come is still delivered.
    pub(super) send_broken: bool,
}

/// A region of a peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Remote {
    /// Its owner's number for it.
    pub(super) region: u32,
    pub(super) len_bytes: u64,
}

impl Peer {
    /// Posts a chain.
    pub(super) fn post(
        &mut self,
        regions: &Regions,
        chain: &Chain<'_>,
    ) -> Result<Posted, PostError> {
        self.check(regions, chain)?;
        if self.sender.is_full() {
            return Err(PostError::Full);
        }
        let imports = &self.imports;
        let writes = chain
            .writes
            .iter()
            .filter_map(|write| describe(regions, imports, write));
        let (count, message) = (chain.writes.len(), chain.message);
        let posted = self
            .sender
            .post(&self.socket, writes, count, message, chain.token);
        posted.map_err(|_| {
            self.send_broken = true;
            self.closed().into()
        })
    }

    /// Moves what can be moved in both directions. Returns the number of events and, when the
    /// connection has ended, why.
    pub(super) fn poll(
        &mut self,
        regions: &Regions,
        events_max: usize,
        sink: &mut dyn EventSink,
    ) -> (usize, Option<Error>) {
        let mut events = 0;
        while events < events_max && !self.sender.is_empty() {
            match self.sender.flush(&self.socket) {
                Ok(Some(token)) => {
                    sink.sent(self.id, token);
                    events += 1;
                }
                Ok(None) => break,
                // The receiving half has what came before, and sees the end itself.
                Err(_) => {
                    self.send_broken = true;
                    self.sender.clear();
                }
            }
        }
        let scope = Scope {
            peer: self.id,
            regions,
            shared: &self.shared,
        };
        let left = events_max - events;
        let (received, end) = self.receiver.receive(&self.socket, &scope, left, sink);
        events += received;
        self.stalled = events >= events_max;
        (events, end.map(|end| self.reason(end)))
    }

    fn reason(&self, end: End) -> Error {
        match end {
            End::Closed => self.closed(),
            End::Broken(source) => Error::Io {
                fabric: FabricKind::Tcp,
                operation: "receiving",
                object: format!("peer {:?}", self.id),
                source,
            },
            End::Invalid(reason) => Error::InvalidWire {
                fabric: FabricKind::Tcp,
                peer: self.id,
                reason: reason.to_owned(),
            },
        }
    }

    fn closed(&self) -> Error {
        Error::PeerClosed {
            fabric: FabricKind::Tcp,
            peer: self.id,
        }
    }

    /// Checks all of a chain before any of it is sent.
    fn check(&self, regions: &Regions, chain: &Chain<'_>) -> Result<(), Error> {
        if self.send_broken {
            return Err(self.closed());
        }
        let limit = |what, limit| Error::Limit {
            fabric: FabricKind::Tcp,
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
        for write in chain.writes {
            let local = local(regions, write.local)?;
            let remote = self
                .imports
                .get(write.remote.0)
                .ok_or(Error::UnknownRemote {
                    fabric: FabricKind::Tcp,
                    peer: self.id,
                    remote: write.remote,
                })?;
            if !local.memory.contains(write.local_offset, write.len_bytes) {
                let len_bytes = local.memory.len_bytes();
                return Err(outside(
                    "local region",
                    write.local_offset,
                    write,
                    len_bytes,
                ));
            }
            let end = write.remote_offset.checked_add(write.len_bytes);
            if end.is_none_or(|end| end > remote.len_bytes) {
                let len_bytes = remote.len_bytes;
                return Err(outside(
                    "remote region",
                    write.remote_offset,
                    write,
                    len_bytes,
                ));
            }
        }
        Ok(())
    }

    /// Makes a region of the peer's usable as a target.
    pub(super) fn import(&mut self, remote: Remote) -> Result<RemoteId, Error> {
        let id = self.imports.insert_with(|_| remote);
        id.map(RemoteId).ok_or(Error::Limit {
            fabric: FabricKind::Tcp,
            what: "imported regions",
            limit: self.imports.len() as u64,
        })
    }
}

/// A write in the form that travels, and where its bytes are. Both ids were checked.
fn describe(
    regions: &Regions,
    imports: &Table<Remote>,
    write: &Write,
) -> Option<(WriteHead, Payload)> {
    let local = regions.get(write.local.0)?;
    let remote = imports.get(write.remote.0)?;
    let head = WriteHead {
        region: remote.region,
        offset: write.remote_offset,
        len_bytes: write.len_bytes,
    };
    let payload = Payload {
        memory: local.memory.clone(),
        offset: write.local_offset,
        len_bytes: write.len_bytes,
    };
    Some((head, payload))
}

pub(super) fn local(regions: &Regions, region: RegionId) -> Result<&Local, Error> {
    regions.get(region.0).ok_or(Error::UnknownRegion {
        fabric: FabricKind::Tcp,
        region,
    })
}

fn outside(what: &'static str, offset: u64, write: &Write, region_len_bytes: u64) -> Error {
    Error::OutOfBounds {
        fabric: FabricKind::Tcp,
        what,
        offset,
        len_bytes: write.len_bytes,
        region_len_bytes,
    }
}
