//! Requests of a worker: a slab whose entries are used again and again, so that a steady stream
//! of requests allocates nothing.

use std::sync::Arc;
use std::task::Waker;

use stepmesh_core::Event;

use crate::error::Error;
use crate::protocol::staging::Outgoing;
use crate::protocol::wire::Tag;
use crate::tensor::Tensor;
use crate::trace::Trace;

/// One push_pull on its way.
#[derive(Debug, Default)]
pub(super) struct Request {
    /// Which use of this entry it is; 0 when it is free.
    pub(super) sequence: u64,
    pub(super) plan: u32,
    pub(super) tag: Tag,
    pub(super) push: Vec<Tensor>,
    /// What must have happened before the pushed memory may be read.
    pub(super) ready: Option<Arc<Event>>,
    /// Copies of pushed tensors in pinned memory, for the fabrics that cannot reach them: the
    /// place of the tensor, and the copy.
    pub(super) outgoing: Vec<(usize, Outgoing)>,
    pub(super) at: Vec<AtServer>,
    /// Servers that have not answered, or whose end is not known.
    pub(super) remaining: u32,
    pub(super) failed: Option<Error>,
    /// Nobody holds the handle any more.
    pub(super) detached: bool,
    pub(super) waker: Option<Waker>,
}

/// How far a request is with one server.
#[derive(Debug)]
pub(super) struct AtServer {
    pub(super) state: State,
    /// Chunks of staged tensors that were posted.
    pub(super) chunks_sent: usize,
    pub(super) trace: Trace,
    /// Rows that came back for each pull tensor.
    pub(super) rows: Vec<u32>,
}

/// Where a request stands with one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Waits for its plan, its slots, its event or the fabric.
    Pending,
    /// The first chunks of staged tensors are in the slots.
    Sending,
    /// Launched; the server owes an answer.
    Launched,
    /// Answered; copies from pinned memory into the pull tensors are under way.
    Landing,
    /// Answered, failed, or the server is gone.
    Done,
}

/// A request, by its place and its use of that place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestId {
    pub(crate) index: u32,
    pub(crate) sequence: u64,
}

impl RequestId {
    /// The number that travels: the place in the low bits, the use above them.
    pub(super) fn wire(self) -> u64 {
        (self.sequence << INDEX_BITS) | u64::from(self.index)
    }

    pub(super) fn from_wire(wire: u64) -> Self {
        // The mask leaves fewer bits than a u32 has.
        let index = u32::try_from(wire & ((1 << INDEX_BITS) - 1)).unwrap_or(u32::MAX);
        Self {
            index,
            sequence: wire >> INDEX_BITS,
        }
    }
}

/// All requests of a worker.
#[derive(Debug)]
pub(super) struct RequestTable {
    entries: Vec<Request>,
    free: Vec<u32>,
    next_sequence: u64,
    requests_max: usize,
}

impl RequestTable {
    pub(super) fn new(requests_max: usize) -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
            next_sequence: 1,
            requests_max: requests_max.min(1 << INDEX_BITS),
        }
    }

    /// Takes a free entry, with room for `servers` servers and no tensors yet.
    pub(super) fn take(&mut self, servers: usize) -> Result<(RequestId, &mut Request), Error> {
        if self.free.is_empty() && self.entries.len() >= self.requests_max {
            return Err(Error::Limit {
                operation: "push_pull",
                what: "requests in flight",
                limit: self.requests_max as u64,
                remedy: "limits.batches_max",
            });
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Request::default());
            u32::try_from(self.entries.len() - 1).unwrap_or(u32::MAX)
        });
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let Some(request) = self.entries.get_mut(index as usize) else {
            return Err(Error::invalid("push_pull", "the request table is damaged"));
        };
        request.sequence = sequence;
        request.at.resize_with(servers, AtServer::new);
        for at in &mut request.at {
            at.reset();
        }
        request.remaining = u32::try_from(servers).unwrap_or(u32::MAX);
        request.failed = None;
        request.detached = false;
        Ok((RequestId { index, sequence }, request))
    }

    pub(super) fn find(&self, id: RequestId) -> Option<&Request> {
        let request = self.entries.get(id.index as usize)?;
        (request.sequence == id.sequence).then_some(request)
    }

    pub(super) fn find_mut(&mut self, id: RequestId) -> Option<&mut Request> {
        let request = self.entries.get_mut(id.index as usize)?;
        (request.sequence == id.sequence).then_some(request)
    }

    /// Gives the entry back when it is over and nobody will ask for it. Returns its plan then.
    pub(super) fn free_if_over(&mut self, id: RequestId) -> Option<u32> {
        let request = self.find_mut(id)?;
        if request.remaining > 0 || !request.detached {
            return None;
        }
        request.sequence = 0;
        request.push.clear();
        request.ready = None;
        request.failed = None;
        request.waker = None;
        let plan = request.plan;
        self.free.push(id.index);
        Some(plan)
    }

    /// Every request that is not over.
    pub(super) fn live(&mut self) -> impl Iterator<Item = (RequestId, &mut Request)> {
        self.entries
            .iter_mut()
            .enumerate()
            .filter_map(|(index, request)| {
                let id = RequestId {
                    index: u32::try_from(index).ok()?,
                    sequence: request.sequence,
                };
                (request.sequence != 0 && request.remaining > 0).then_some((id, request))
            })
    }
}

impl Request {
    /// Notes the first reason for which the request fails.
    pub(super) fn fail(&mut self, error: Error) {
        self.failed.get_or_insert(error);
    }

    /// Ends the request's part at one server. True if that was the last part.
    pub(super) fn finish(&mut self, server: usize) -> bool {
        let Some(at) = self.at.get_mut(server) else {
            return false;
        };
        if at.state == State::Done {
            return false;
        }
        at.state = State::Done;
        self.remaining = self.remaining.saturating_sub(1);
        self.remaining == 0
    }
}

impl AtServer {
    fn new() -> Self {
        Self {
            state: State::Pending,
            chunks_sent: 0,
            trace: Trace::default(),
            rows: Vec::new(),
        }
    }

    fn reset(&mut self) {
        self.state = State::Pending;
        self.chunks_sent = 0;
        self.trace = Trace::default();
        self.rows.clear();
    }
}

/// Bits of a request's number on the wire that say which entry it is: 16 million entries, and
/// 2^40 uses of them, which at a million requests a second is 12 days short of 13 years.
const INDEX_BITS: u32 = 24;
