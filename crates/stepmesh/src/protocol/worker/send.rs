//! Launching: a request leaves for a server once its plan is known there, its slots are free, its
//! tensors are ready and the fabric has room.

use crate::error::Error;
use crate::protocol::fabrics::{Fabrics, PeerRef};
use crate::protocol::staging::Stager;
use crate::protocol::wire::{Define, Grant, PullSpec, Setup, TensorSpec};
use crate::tensor::Tensor;

use super::plan::PlanTable;
use super::request::{Request, RequestId, State};
use super::slots::{PushTarget, Slots, Targets};
use super::staged::{Sender, grant, post};
use super::{Server, WorkerMachine};

/// What a server knows of a plan.
#[derive(Debug, Default)]
pub(super) enum PlanAtServer {
    /// Nothing.
    #[default]
    Unknown,
    /// It was asked.
    Asked,
    /// The slots of the plan's pushes, in their order.
    Granted(Vec<PushTarget>),
    /// It cannot be.
    Refused(Error),
}

/// Why a request did not leave.
pub(super) enum Stay {
    /// Until a message of the server makes it possible.
    Wait,
    /// Until room or an event makes it possible, which nobody announces.
    Retry,
    /// For ever.
    Fail(Error),
}

impl WorkerMachine {
    /// Launches what can be launched at one server, in order; a request whose slots are in use
    /// holds back only the requests behind it that want the same slots.
    pub(super) fn flush(&mut self, fabrics: &mut Fabrics, index: usize) {
        let mut at = 0;
        while let Some(id) = self.pending_at(index, at) {
            match self.launch(fabrics, index, id) {
                Ok(()) => self.unqueue(index, at),
                Err(stay @ (Stay::Wait | Stay::Retry)) => {
                    self.dirty |= matches!(stay, Stay::Retry);
                    self.claim(index, id);
                    at += 1;
                }
                Err(Stay::Fail(error)) => {
                    self.unqueue(index, at);
                    self.fail_at(index, id, error);
                }
            }
        }
        if at > 0
            && let Some(server) = self.servers.get_mut(index)
        {
            server.slots.drop_claims();
            self.dirty |= server.link.has_queued();
        }
    }

    fn pending_at(&self, index: usize, at: usize) -> Option<RequestId> {
        self.servers.get(index)?.pending.get(at).copied()
    }

    fn unqueue(&mut self, index: usize, at: usize) {
        if let Some(server) = self.servers.get_mut(index) {
            server.pending.remove(at);
        }
    }

    fn claim(&mut self, index: usize, id: RequestId) {
        let Some(server) = self.servers.get_mut(index) else {
            return;
        };
        if let Some(request) = self.requests.find(id)
            && let Some(PlanAtServer::Granted(targets)) = server.plans.get(request.plan as usize)
        {
            server.slots.claim(targets);
        }
    }

    fn fail_at(&mut self, index: usize, id: RequestId, error: Error) {
        if let Some(request) = self.requests.find(id) {
            let state = request.at.get(index).map(|at| at.state);
            if let (Some(State::Sending), Some(server)) = (state, self.servers.get_mut(index)) {
                // The server was never told of the request, so it holds no slot for it.
                server.free_slots(request.plan);
            }
        }
        self.finish(id, index, Some(error));
    }

    fn launch(&mut self, fabrics: &mut Fabrics, index: usize, id: RequestId) -> Result<(), Stay> {
        let servers = self.servers.len();
        let Some(server) = self.servers.get_mut(index) else {
            return Err(Stay::Wait);
        };
        let Some(peer) = server.link.peer() else {
            return Err(Stay::Wait);
        };
        // The request is gone if it failed at another server and was given up.
        let Some(request) = self.requests.find_mut(id) else {
            return Ok(());
        };
        if let Some(error) = &request.failed {
            return Err(Stay::Fail(error.clone()));
        }
        let plan = request.plan;
        let state = server.plan_mut(plan);
        if !matches!(state, PlanAtServer::Granted(_)) {
            return server.prepare(
                fabrics,
                peer,
                &mut self.plans,
                &mut self.stager,
                plan,
                servers,
            );
        }
        let Server {
            link, slots, plans, ..
        } = server;
        let Some(PlanAtServer::Granted(targets)) = plans.get_mut(plan as usize) else {
            return Err(Stay::Wait);
        };
        let mut targets = Targets { slots, targets };
        let state = request.at.get(index).map(|at| at.state);
        if state == Some(State::Pending) {
            if !targets.are_free() {
                return Err(Stay::Wait);
            }
            if !is_ready(request)? {
                return Err(Stay::Retry);
            }
        }
        let mut sender = Sender {
            fabrics,
            peer,
            stager: &mut self.stager,
            writes: &mut self.writes,
            message: &mut self.message,
            now_ns: self.now_ns,
        };
        if sender.stage(&targets, request)? {
            sender.staged(link, &mut targets, plan, request, index)?;
        } else {
            sender.direct(&mut targets, request)?;
        }
        let rows = request.push.iter().map(rows_of);
        let message = self.message.launch(plan, id.wire(), request.tag, rows);
        post(link, fabrics, &self.writes, message, self.now_ns)?;
        targets.occupy();
        if let Some(at) = request.at.get_mut(index) {
            at.state = State::Launched;
            if self.limits.trace {
                at.trace.request_postsend_ns = self.clock.now_ns();
            }
        }
        Ok(())
    }
}

impl Server {
    fn plan_mut(&mut self, plan: u32) -> &mut PlanAtServer {
        let known = plan as usize;
        if self.plans.len() <= known {
            self.plans.resize_with(known + 1, PlanAtServer::default);
        }
        &mut self.plans[known]
    }

    /// Asks the server for a plan that it does not know yet.
    fn prepare(
        &mut self,
        fabrics: &mut Fabrics,
        peer: PeerRef,
        plans: &mut PlanTable,
        stager: &mut Stager,
        plan: u32,
        servers: usize,
    ) -> Result<(), Stay> {
        match self.plan_mut(plan) {
            PlanAtServer::Refused(error) => return Err(Stay::Fail(error.clone())),
            PlanAtServer::Unknown => {}
            PlanAtServer::Granted(_) | PlanAtServer::Asked => return Err(Stay::Wait),
        }
        let Some(content) = plans.plan_mut(plan) else {
            return Err(Stay::Wait);
        };
        let mut pull = Vec::new();
        for part in content.pulls_of_mut(self.place, servers) {
            let target = grant(fabrics, peer, stager, part).map_err(Stay::Fail)?;
            pull.push(PullSpec {
                key: part.key,
                tensor: TensorSpec::new(part.tensor.dtype(), part.tensor.shape()),
                target,
            });
        }
        let push = content.push_specs();
        self.link.say(Setup::Define(Define { plan, push, pull }));
        *self.plan_mut(plan) = PlanAtServer::Asked;
        Err(Stay::Wait)
    }

    /// The server said where a plan's pushes go.
    pub(super) fn granted(
        &mut self,
        fabrics: &mut Fabrics,
        plans: &PlanTable,
        plan: u32,
        grants: &[Grant],
    ) -> Result<(), String> {
        let state = self.plans.get_mut(plan as usize);
        let (Some(state), Some(content)) = (state, plans.plan(plan)) else {
            return Err("it granted a plan that it was not asked for".into());
        };
        if !matches!(state, PlanAtServer::Asked) {
            // The plan was replaced while the answer was on its way.
            return Ok(());
        }
        if grants.len() != content.push.len() {
            return Err("it granted another number of slots than it was asked for".into());
        }
        let Some(peer) = self.link.peer() else {
            return Ok(());
        };
        let mut targets = Vec::with_capacity(grants.len());
        for (grant, part) in grants.iter().zip(&content.push) {
            let len_bytes = part.shape.len_bytes(part.dtype);
            if len_bytes.is_none_or(|len_bytes| len_bytes > grant.len_bytes) {
                return Err("it granted a slot that is too small".into());
            }
            let slot = self.slots.add(fabrics, peer, grant);
            targets.push(PushTarget::new(slot.map_err(|error| error.to_string())?));
        }
        *state = PlanAtServer::Granted(targets);
        Ok(())
    }

    pub(super) fn refuse_plan(&mut self, plan: u32, error: Error) {
        if let Some(state) = self.plans.get_mut(plan as usize) {
            *state = PlanAtServer::Refused(error);
        }
    }

    pub(super) fn reset_plan(&mut self, plan: u32) {
        if let Some(state) = self.plans.get_mut(plan as usize) {
            *state = PlanAtServer::Unknown;
        }
    }

    /// The slots of a launched plan are free again.
    pub(super) fn free_slots(&mut self, plan: u32) {
        if let Some(PlanAtServer::Granted(targets)) = self.plans.get(plan as usize) {
            self.slots.free(targets);
        }
    }

    /// Forgets everything that a connection held.
    pub(super) fn clear(&mut self) {
        self.slots = Slots::default();
        self.plans.clear();
        self.pending.clear();
    }
}

fn is_ready(request: &Request) -> Result<bool, Stay> {
    match &request.ready {
        None => Ok(true),
        Some(event) => event
            .is_done()
            .map_err(|error| Stay::Fail(Error::backend("waiting for the pushed tensors")(error))),
    }
}

/// Checked when the request was taken.
fn rows_of(tensor: &Tensor) -> u32 {
    u32::try_from(tensor.shape().rows()).unwrap_or(u32::MAX)
}
