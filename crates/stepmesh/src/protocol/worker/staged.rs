//! The writes of a launch: straight from the tensors that the fabric reaches, and chunk by chunk
//! through pinned memory from those that it does not.

use std::sync::Arc;

use stepmesh_core::Buffer;
use stepmesh_transport::fabric::{PostError, RegionId, Write};

use crate::error::Error;
use crate::protocol::fabrics::{Fabrics, PeerRef, Reach};
use crate::protocol::link::{Link, TOKEN_NONE};
use crate::protocol::staging::Stager;
use crate::protocol::wire::{Chunk, Grant, MessageBuf};

use super::plan::{Landing, PullPart};
use super::request::{Request, State};
use super::send::Stay;
use super::slots::Targets;

/// What sending needs, apart from the server and the request.
pub(super) struct Sender<'a> {
    pub(super) fabrics: &'a mut Fabrics,
    pub(super) peer: PeerRef,
    pub(super) stager: &'a mut Stager,
    pub(super) writes: &'a mut Vec<Write>,
    pub(super) message: &'a mut MessageBuf,
    pub(super) now_ns: u64,
}

impl Sender<'_> {
    /// Starts to copy those tensors into pinned memory that the fabric cannot reach. Returns
    /// whether there are any.
    pub(super) fn stage(
        &mut self,
        targets: &Targets<'_>,
        request: &mut Request,
    ) -> Result<bool, Stay> {
        let mut any = false;
        for (place, tensor) in request.push.iter().enumerate() {
            if targets.knows_source(place, tensor, self.fabrics.epoch(self.peer.fabric)) {
                continue;
            }
            if self.reach(tensor.buffer())? != Reach::Staged {
                continue;
            }
            any = true;
            if request.outgoing.iter().all(|(of, _)| *of != place) {
                let outgoing = self.stager.copy_out(tensor).map_err(Stay::Fail)?;
                request.outgoing.push((place, outgoing));
            }
        }
        Ok(any)
    }

    /// Prepares the writes of a request whose tensors the fabric reaches itself.
    pub(super) fn direct(
        &mut self,
        targets: &mut Targets<'_>,
        request: &Request,
    ) -> Result<(), Stay> {
        self.writes.clear();
        for (place, tensor) in request.push.iter().enumerate() {
            let write = targets.write(self.fabrics, self.peer, place, tensor)?;
            self.writes.push(write);
        }
        Ok(())
    }

    /// Posts the chunks of staged tensors as they become ready, each with its message, and
    /// prepares the writes of the other tensors for the launch.
    pub(super) fn staged(
        &mut self,
        link: &mut Link,
        targets: &mut Targets<'_>,
        plan: u32,
        request: &mut Request,
        server: usize,
    ) -> Result<(), Stay> {
        let Request {
            push, outgoing, at, ..
        } = request;
        let Some(at) = at.get_mut(server) else {
            return Err(Stay::Wait);
        };
        at.trace.staged.push_source = true;
        self.writes.clear();
        let mut chunks_before = 0;
        for (place, tensor) in push.iter().enumerate() {
            let Some((_, outgoing)) = outgoing.iter().find(|(of, _)| *of == place) else {
                let write = targets.write(self.fabrics, self.peer, place, tensor)?;
                self.writes.push(write);
                continue;
            };
            let source = region(self.fabrics, self.peer, outgoing.pinned()).map_err(Stay::Fail)?;
            let unsent = outgoing
                .chunks()
                .enumerate()
                .skip(at.chunks_sent.saturating_sub(chunks_before));
            for (number, chunk) in unsent {
                if !outgoing.is_ready(number).map_err(Stay::Fail)? {
                    return Err(Stay::Retry);
                }
                let write = targets.chunk_write(place, source, chunk)?;
                let message = self.message.chunk(&Chunk {
                    of: u64::from(plan),
                    part: u32::try_from(place).unwrap_or(u32::MAX),
                    offset: chunk.offset,
                    len_bytes: chunk.len_bytes,
                });
                post(link, self.fabrics, &[write], message, self.now_ns)?;
                at.chunks_sent += 1;
                at.state = State::Sending;
                targets.occupy();
            }
            chunks_before += outgoing.chunks().count();
        }
        Ok(())
    }

    fn reach(&mut self, buffer: &Arc<Buffer>) -> Result<Reach, Stay> {
        let reach = self.fabrics.reach(self.peer.fabric, buffer);
        reach.map_err(|error| Stay::Fail(Error::fabric("registering memory")(error)))
    }
}

/// Posts a chain, and says whether a refusal is for good.
pub(super) fn post(
    link: &mut Link,
    fabrics: &mut Fabrics,
    writes: &[Write],
    message: &[u8],
    now_ns: u64,
) -> Result<(), Stay> {
    match link.post(fabrics, writes, message, TOKEN_NONE, now_ns) {
        Ok(_) => Ok(()),
        Err(PostError::Full) => Err(Stay::Retry),
        Err(PostError::Failed(error)) => {
            Err(Stay::Fail(Error::fabric("launching a request")(error)))
        }
    }
}

/// Registers memory that the fabric is known to reach.
pub(super) fn region(
    fabrics: &mut Fabrics,
    peer: PeerRef,
    buffer: &Arc<Buffer>,
) -> Result<RegionId, Error> {
    let reach = fabrics.reach(peer.fabric, buffer);
    match reach.map_err(Error::fabric("registering memory"))? {
        Reach::Direct(region) => Ok(region),
        Reach::Staged => Err(Error::invalid(
            "push_pull",
            "the fabric reaches neither the tensor nor pinned host memory of its backend",
        )),
    }
}

/// Lets a server write into a pull tensor, or into pinned memory beside it.
pub(super) fn grant(
    fabrics: &mut Fabrics,
    peer: PeerRef,
    stager: &mut Stager,
    part: &mut PullPart,
) -> Result<Grant, Error> {
    let tensor = &part.tensor;
    let reach = fabrics.reach(peer.fabric, tensor.buffer());
    let (region, offset) = match reach.map_err(Error::fabric("registering memory"))? {
        Reach::Direct(region) => (region, tensor.offset_bytes()),
        Reach::Staged => {
            let pinned = stager.pinned(tensor.buffer().device(), tensor.len_bytes())?;
            let region = region(fabrics, peer, &pinned)?;
            part.landing = Some(Landing {
                pinned,
                copied_bytes: 0,
            });
            (region, 0)
        }
    };
    fabrics
        .grant(peer, region, offset, tensor.len_bytes())
        .map_err(Error::fabric("sharing a pull tensor"))
}
