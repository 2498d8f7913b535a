//! What comes back from servers: answers, releases, refusals, and the chunks of staged answers.

use crate::error::Error;
use crate::protocol::fabrics::Fabrics;
use crate::protocol::staging;
use crate::protocol::wire::{Chunk, Message, Response, Setup};
use crate::role::{LEFT, Member};
use crate::trace::Staged;

use super::WorkerMachine;
use super::request::{Request, RequestId, State};

/// Which part of a request was answered.
pub(super) struct Answered {
    server: usize,
    member: Member,
    pulls: usize,
}

impl WorkerMachine {
    pub(super) fn on_message(&mut self, index: usize, bytes: &[u8]) -> Result<(), &'static str> {
        let Some(server) = self.servers.get_mut(index) else {
            return Ok(());
        };
        server.link.heard(self.now_ns);
        match Message::decode(bytes).map_err(|error| error.0)? {
            Message::Response(response) => self.on_response(index, &response),
            Message::Release { request } => self.answered(index, request, |request, of| {
                if of.pulls > 0 {
                    request.fail(Error::Released { peer: of.member });
                }
                Ok(())
            }),
            Message::Setup(body) => {
                let setup = Setup::decode(body).map_err(|error| error.0)?;
                self.inbox.push_back((index, setup));
                Ok(())
            }
            Message::Chunk(chunk) => self.on_chunk(index, chunk),
            Message::Heartbeat => Ok(()),
            Message::Launch(_) => Err("it sent a launch, which only workers send"),
        }
    }

    /// Acts on a set-up message, after the poll that brought it.
    pub(super) fn set_up(
        &mut self,
        fabrics: &mut Fabrics,
        index: usize,
        setup: Setup,
    ) -> Result<(), String> {
        let Some(server) = self.servers.get_mut(index) else {
            return Ok(());
        };
        let refused = |reason: String| Error::Refused {
            peer: server.link.member,
            reason: reason.into(),
        };
        match setup {
            Setup::Granted { plan, slots } => server.granted(fabrics, &self.plans, plan, &slots),
            Setup::Refused { plan, reason } => {
                let error = refused(reason);
                server.refuse_plan(plan, error);
                Ok(())
            }
            Setup::Goodbye => Err(LEFT.into()),
            Setup::Define(_) | Setup::Forget { .. } => {
                Err("it sent a message that only workers send".into())
            }
        }
    }

    /// Ends the parts of requests whose copies out of pinned memory are done.
    pub(super) fn land(&mut self) {
        let mut position = 0;
        while let Some((id, server, incoming)) = self.landing.get(position) {
            let (id, server) = (*id, *server);
            let failed = match incoming.is_done() {
                Ok(false) => {
                    position += 1;
                    continue;
                }
                Ok(true) => None,
                Err(error) => Some(error),
            };
            let (_, _, incoming) = self.landing.swap_remove(position);
            self.stager.give_incoming(incoming);
            self.finish(id, server, failed);
        }
    }

    /// Ends the parts of all requests at a server that is lost.
    pub(super) fn fail_all_at(&mut self, index: usize, error: &Error) {
        let mut over = Vec::new();
        for (id, request) in self.requests.live() {
            // What has landed in pinned memory needs the server no more.
            let open = |state| matches!(state, State::Pending | State::Sending | State::Launched);
            if request.at.get(index).is_some_and(|at| open(at.state)) {
                over.push(id);
            }
        }
        for id in over {
            self.finish(id, index, Some(error.clone()));
        }
    }

    fn on_response(&mut self, index: usize, response: &Response<'_>) -> Result<(), &'static str> {
        let now_ns = self.now_ns;
        self.answered(index, response.request, |request, of| {
            if response.rows.len() != of.pulls {
                return Err("its answer has another number of tensors than was asked for");
            }
            let Some(at) = request.at.get_mut(of.server) else {
                return Ok(());
            };
            // More rows than the tensor has cannot have been written: the fabric checked that.
            let rows = response.rows.iter();
            at.rows
                .extend(rows.map(|rows| u32::try_from(rows).unwrap_or(u32::MAX)));
            let [postrecv, process, start, postsend] = response.times_ns;
            at.trace.request_postrecv_ns = postrecv;
            at.trace.request_process_ns = process;
            at.trace.response_start_ns = start;
            at.trace.response_postsend_ns = postsend;
            at.trace.response_postrecv_ns = now_ns;
            at.trace.staged = Staged {
                push_target: response.staged & 1 != 0,
                pull_source: response.staged & 2 != 0,
                ..at.trace.staged
            };
            Ok(())
        })
    }

    /// A part of an answer is in pinned memory: on it goes, while the next is on the wire.
    fn on_chunk(&mut self, index: usize, chunk: Chunk) -> Result<(), &'static str> {
        let unknown = "it sent a chunk of a request that it was not sent";
        let id = RequestId::from_wire(chunk.of);
        let request = self.requests.find(id).ok_or(unknown)?;
        let at = request.at.get(index).ok_or(unknown)?;
        let plan = self.plans.plan_mut(request.plan).ok_or(unknown)?;
        let part = plan
            .pulls_of_mut(index, request.at.len())
            .get_mut(chunk.part as usize);
        let part = part
            .filter(|_| at.state == State::Launched)
            .ok_or(unknown)?;
        let Some(landing) = &mut part.landing else {
            return Ok(());
        };
        let end = chunk.offset.checked_add(chunk.len_bytes);
        if end.is_none_or(|end| end > part.tensor.len_bytes()) {
            return Err("it sent a chunk outside of its tensor");
        }
        let part_of = staging::Chunk {
            offset: chunk.offset,
            len_bytes: chunk.len_bytes,
        };
        let (buffer, offset) = (part.tensor.buffer(), part.tensor.offset_bytes());
        match self
            .stager
            .copy_in(&landing.pinned, buffer, offset, part_of)
        {
            Ok(()) => landing.copied_bytes = landing.copied_bytes.saturating_add(chunk.len_bytes),
            // The answer itself copies everything then, and reports what is wrong.
            Err(error) => tracing::debug!(%error, "a chunk was not copied"),
        }
        Ok(())
    }

    /// Ends a request's part at one server after `change` noted the outcome.
    fn answered(
        &mut self,
        index: usize,
        wire_id: u64,
        change: impl FnOnce(&mut Request, &Answered) -> Result<(), &'static str>,
    ) -> Result<(), &'static str> {
        let servers = self.servers.len();
        let id = RequestId::from_wire(wire_id);
        let unknown = "it answered a request that it was not sent";
        let Some(server) = self.servers.get_mut(index) else {
            return Ok(());
        };
        let request = self.requests.find_mut(id).ok_or(unknown)?;
        let state = request.at.get(index).map(|at| at.state);
        if state != Some(State::Launched) {
            return Err(unknown);
        }
        let plan = self.plans.plan(request.plan);
        let pulls = plan.map_or(0, |plan| plan.pull.len() / servers);
        let of = Answered {
            server: index,
            member: server.link.member,
            pulls,
        };
        change(request, &of)?;
        server.free_slots(request.plan);
        self.dirty |= !server.pending.is_empty();
        match self.copy_from_landing(id, index) {
            Ok(true) => {}
            Ok(false) => self.finish(id, index, None),
            Err(error) => self.finish(id, index, Some(error)),
        }
        Ok(())
    }

    /// Starts the copies out of pinned memory, if this answer went there. False if not.
    fn copy_from_landing(&mut self, id: RequestId, index: usize) -> Result<bool, Error> {
        let Some(request) = self.requests.find_mut(id) else {
            return Ok(false);
        };
        let servers = request.at.len();
        let Some(plan) = self.plans.plan_mut(request.plan) else {
            return Ok(false);
        };
        let Some(at) = request.at.get_mut(index) else {
            return Ok(false);
        };
        let mut device = None;
        for (part, rows) in plan.pulls_of_mut(index, servers).iter_mut().zip(&at.rows) {
            let Some(landing) = &mut part.landing else {
                self.visibility.arrived(part.tensor.buffer());
                continue;
            };
            let rows = u64::from(*rows).min(part.tensor.shape().rows());
            let len_bytes = rows * part.tensor.row_len_bytes();
            if std::mem::take(&mut landing.copied_bytes) < len_bytes {
                let all = staging::Chunk {
                    offset: 0,
                    len_bytes,
                };
                let (buffer, offset) = (part.tensor.buffer(), part.tensor.offset_bytes());
                self.stager.copy_in(&landing.pinned, buffer, offset, all)?;
            }
            device = Some(part.tensor.buffer().device().clone());
        }
        self.visibility.flush()?;
        let Some(device) = device else {
            return Ok(false);
        };
        at.state = State::Landing;
        at.trace.staged.pull_target = true;
        // One mark serves tensors of one device; a request's tensors of one server are on one.
        self.landing
            .push((id, index, self.stager.incoming(&device)?));
        Ok(true)
    }

    /// A request's part at one server is over, well or not.
    pub(super) fn finish(&mut self, id: RequestId, server: usize, failed: Option<Error>) {
        let now_ns = self.now_ns;
        let Some(request) = self.requests.find_mut(id) else {
            return;
        };
        if let Some(error) = failed {
            request.fail(error);
        }
        if let (true, Some(at)) = (self.limits.trace, request.at.get_mut(server)) {
            at.trace.response_process_ns = now_ns;
        }
        let over = request.finish(server);
        if over || request.failed.is_some() {
            self.finished += 1;
            if let Some(waker) = request.waker.take() {
                waker.wake();
            }
        }
        if over {
            for (_, outgoing) in request.outgoing.drain(..) {
                self.stager.give(outgoing);
            }
            self.free_if_over(id);
        }
    }
}
