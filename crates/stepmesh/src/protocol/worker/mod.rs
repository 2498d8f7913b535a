//! The worker's side of the protocol: plans, requests, slots and credits, server by server.

mod answer;
mod dial;
mod plan;
mod request;
mod send;
mod slots;
mod staged;

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use stepmesh_core::Event;
use stepmesh_transport::error::Error as FabricError;
use stepmesh_transport::fabric::Write;

use crate::clock::Clock;
use crate::error::{Error, list};
use crate::protocol::fabrics::{Fabrics, LinkSink, PeerRef};
use crate::protocol::hello::Hello;
use crate::protocol::link::{Link, end_of};
use crate::protocol::staging::{Incoming, Stager};
use crate::protocol::visible::Visibility;
use crate::protocol::wire::{MessageBuf, Setup, Tag};
use crate::role::Member;
use crate::trace::Trace;

use dial::Dialer;
pub(crate) use dial::ServerAddress;
pub use plan::Keyed;
use plan::{Found, PlanTable};
pub(crate) use request::RequestId;
use request::{RequestTable, State};
use send::PlanAtServer;
use slots::Slots;

/// The worker's half of the data plane.
#[derive(Debug)]
pub(crate) struct WorkerMachine {
    servers: Vec<Server>,
    plans: PlanTable,
    requests: RequestTable,
    dialer: Dialer,
    limits: WorkerLimits,
    clock: Clock,
    /// The time at the start of the call under way.
    now_ns: u64,
    /// Set-up messages that came in and are acted on after the poll.
    inbox: VecDeque<(usize, Setup)>,
    /// Something changed that may let a pending request go.
    dirty: bool,
    /// Requests that came to their end since the engine last asked.
    finished: u32,
    stager: Stager,
    visibility: Visibility,
    /// Answers whose last bytes are being copied into their tensors.
    landing: Vec<(RequestId, usize, Incoming)>,
    writes: Vec<Write>,
    message: MessageBuf,
}

/// The bounds of a worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkerLimits {
    /// Most requests in flight, and most plans.
    pub(crate) requests_max: usize,
    /// A server silent for longer is lost.
    pub(crate) peer_dead_ns: u64,
    /// How often to say that one is alive.
    pub(crate) heartbeat_ns: u64,
    /// Whether to take times.
    pub(crate) trace: bool,
}

/// A server, with what the worker knows about it.
#[derive(Debug)]
struct Server {
    link: Link,
    /// Its place among the servers of this worker's rail.
    place: usize,
    stage: Stage,
    slots: Slots,
    plans: Vec<PlanAtServer>,
    pending: VecDeque<RequestId>,
}

/// What is known about a server beyond its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It was never there. Its link is down, so that nothing is asked of it.
    Absent,
    /// It is there, and the first connection is being made.
    Dialed,
    /// It was connected, or could not be.
    Met,
}

/// What a request may ask for beyond its tensors.
#[derive(Clone, Debug, Default)]
pub struct RequestOptions {
    /// What the server matches the workers' batches by.
    pub tag: Tag,
    /// Recorded on the stream that computes the pushed tensors; they are read once it is done.
    /// `None` when they are already there.
    pub ready: Option<Arc<Event>>,
}

impl WorkerMachine {
    pub(crate) fn new(hello: Hello, limits: WorkerLimits, clock: Clock) -> Self {
        Self {
            servers: Vec::new(),
            plans: PlanTable::new(limits.requests_max),
            requests: RequestTable::new(limits.requests_max),
            dialer: Dialer::new(hello),
            limits,
            now_ns: clock.now_ns(),
            clock,
            inbox: VecDeque::new(),
            dirty: false,
            finished: 0,
            stager: Stager::default(),
            visibility: Visibility::default(),
            landing: Vec::new(),
            writes: Vec::new(),
            message: MessageBuf::default(),
        }
    }

    /// How many servers this worker talks to.
    pub(crate) fn servers(&self) -> usize {
        self.servers.len()
    }

    /// Says which servers there are, in order of their places. Those that are never dialed, because
    /// they are lost, are not waited for.
    pub(crate) fn expect_servers(&mut self, members: impl Iterator<Item = Member>) {
        for member in members {
            let mut server = Server::new(member, self.servers.len());
            server.link.down(ABSENT);
            server.stage = Stage::Absent;
            self.servers.push(server);
        }
    }

    /// Connects, or connects again, to the server in place `index` of the worker's rail.
    pub(crate) fn set_server(
        &mut self,
        fabrics: &mut Fabrics,
        index: usize,
        address: ServerAddress,
    ) {
        while self.servers.len() <= index {
            let place = self.servers.len();
            self.servers.push(Server::new(address.member, place));
        }
        if let Some(server) = self.servers.get(index)
            && server.link.is_up()
        {
            self.lose(fabrics, index, "it came back under a new generation");
        }
        if let Some(server) = self.servers.get_mut(index)
            && server.stage == Stage::Absent
        {
            server.stage = Stage::Dialed;
        }
        self.dialer.dial(fabrics, index, address);
        self.after_dialing(fabrics);
    }

    /// Whether every server is connected; the first that failed for good is an error.
    pub(crate) fn is_connected(&self) -> Result<bool, Error> {
        let mut met = self.servers.iter().filter(|s| s.stage == Stage::Met);
        if let Some(error) = met.find_map(|server| server.link.lost()) {
            return Err(error);
        }
        Ok(self.servers.iter().all(|s| s.stage != Stage::Dialed))
    }

    /// The servers that are not connected.
    pub(crate) fn not_connected(&self) -> Arc<str> {
        let missing = self.servers.iter().filter(|s| s.stage == Stage::Dialed);
        list(missing.map(|server| server.link.member))
    }

    /// Takes a request. It is launched at once where it can be, the rest by
    /// [`progress`](Self::progress).
    pub(crate) fn submit(
        &mut self,
        fabrics: &mut Fabrics,
        push: &[Keyed<'_>],
        pull: &[Keyed<'_>],
        options: &RequestOptions,
    ) -> Result<RequestId, Error> {
        self.now_ns = self.clock.now_ns();
        let servers = self.servers.len();
        plan::check(push, pull, servers)?;
        if let Some(error) = self.servers.iter().find_map(|server| server.link.lost()) {
            return Err(error);
        }
        let plan = match self.plans.find(push, pull)? {
            Found::Known(plan) => plan,
            Found::New { plan, evicted } => {
                self.forget(plan, evicted);
                plan
            }
        };
        let (id, request) = self.requests.take(servers)?;
        request.plan = plan;
        request.tag = options.tag;
        request.ready.clone_from(&options.ready);
        request
            .push
            .extend(push.iter().map(|keyed| keyed.tensor.clone()));
        for at in &mut request.at {
            at.trace.request_start_ns = self.now_ns;
        }
        if let Some(plan) = self.plans.plan_mut(plan) {
            plan.in_flight += 1;
        }
        for index in 0..servers {
            if let Some(server) = self.servers.get_mut(index) {
                server.pending.push_back(id);
            }
            self.flush(fabrics, index);
        }
        Ok(id)
    }

    /// Polls the fabrics once and does what has become possible. Returns true if anything
    /// happened.
    pub(crate) fn progress(&mut self, fabrics: &mut Fabrics) -> bool {
        self.now_ns = self.clock.now_ns();
        let now_ns = self.now_ns;
        let events = fabrics.poll(now_ns, &mut Sink { machine: self });
        if events > 0 || self.dirty {
            self.dirty = false;
            self.after_poll(fabrics);
        }
        if !self.landing.is_empty() {
            self.land();
        }
        events > 0
    }

    /// What is due by the clock: heartbeats, and the death of silent servers. Every few
    /// milliseconds is enough.
    pub(crate) fn tick(&mut self, fabrics: &mut Fabrics) {
        self.now_ns = self.clock.now_ns();
        for index in 0..self.servers.len() {
            let Some(server) = self.servers.get_mut(index) else {
                continue;
            };
            let dead = server.link.keep_alive(
                fabrics,
                &mut self.message,
                self.limits.heartbeat_ns,
                self.limits.peer_dead_ns,
                self.now_ns,
            );
            if let Some(reason) = dead {
                self.lose(fabrics, index, &reason);
            }
        }
        // A request may wait for an event, which nobody announces.
        self.dirty = true;
    }

    /// Whether some request waits for something that no message announces: room in a fabric, or
    /// an event of the backend.
    pub(crate) fn has_pending(&self) -> bool {
        self.dirty || !self.landing.is_empty()
    }

    /// The outcome of a request, once it has one.
    pub(crate) fn outcome(&self, id: RequestId) -> Option<Result<(), Error>> {
        let Some(request) = self.requests.find(id) else {
            return Some(Err(Error::invalid("wait", "the request was given up")));
        };
        // A failed request ends for its caller at once, while live servers may still answer.
        match &request.failed {
            Some(error) => Some(Err(error.clone())),
            None => (request.remaining == 0).then_some(Ok(())),
        }
    }

    /// The servers that a request still waits for.
    pub(crate) fn missing(&self, id: RequestId) -> Arc<str> {
        let Some(request) = self.requests.find(id) else {
            return "nothing".into();
        };
        let waiting = request.at.iter().zip(&self.servers);
        list(waiting.filter_map(|(at, server)| {
            let what = match at.state {
                State::Pending | State::Sending => "not yet launched",
                State::Launched => "no answer yet",
                State::Landing => "its answer is being copied",
                State::Done => return None,
            };
            Some(format!("{} ({what})", server.link.member))
        }))
    }

    /// Asks to be woken when the request ends.
    pub(crate) fn wake_at_end(&mut self, id: RequestId, waker: &Waker) {
        if let Some(request) = self.requests.find_mut(id) {
            match &mut request.waker {
                Some(old) => old.clone_from(waker),
                none => *none = Some(waker.clone()),
            }
        }
    }

    /// The times of a request at one server.
    pub(crate) fn trace(&self, id: RequestId, server: usize) -> Option<Trace> {
        Some(self.requests.find(id)?.at.get(server)?.trace)
    }

    /// The rows that one server wrote into its pull tensors.
    pub(crate) fn pulled_rows(&self, id: RequestId, server: usize) -> Option<&[u32]> {
        Some(&self.requests.find(id)?.at.get(server)?.rows)
    }

    /// The handle was dropped: the entry is free once the servers are done with it.
    pub(crate) fn detach(&mut self, id: RequestId) {
        if let Some(request) = self.requests.find_mut(id) {
            request.detached = true;
            request.waker = None;
        }
        self.free_if_over(id);
    }

    /// Wakes everybody who awaits a request: the engine was closed.
    pub(crate) fn wake_all(&mut self) {
        for (_, request) in self.requests.live() {
            if let Some(waker) = request.waker.take() {
                waker.wake();
            }
        }
    }

    /// How many requests ended since this was last asked.
    pub(crate) fn take_finished(&mut self) -> u32 {
        std::mem::take(&mut self.finished)
    }

    /// Leaves: tells every server.
    pub(crate) fn goodbye(&mut self, fabrics: &mut Fabrics) {
        for server in &mut self.servers {
            server.link.say(Setup::Goodbye);
            if server
                .link
                .flush(fabrics, &mut self.message, self.now_ns)
                .is_err()
            {
                tracing::debug!(server = %server.link.member, "left without a goodbye");
            }
        }
    }

    fn forget(&mut self, plan: u32, evicted: bool) {
        for server in &mut self.servers {
            server.reset_plan(plan);
            if evicted && server.link.is_up() {
                server.link.say(Setup::Forget { plan });
            }
        }
    }

    fn free_if_over(&mut self, id: RequestId) {
        if let Some(plan) = self.requests.free_if_over(id)
            && let Some(plan) = self.plans.plan_mut(plan)
        {
            plan.in_flight = plan.in_flight.saturating_sub(1);
        }
    }

    fn after_poll(&mut self, fabrics: &mut Fabrics) {
        while let Some((index, setup)) = self.inbox.pop_front() {
            if let Err(reason) = self.set_up(fabrics, index, setup) {
                self.lose(fabrics, index, &reason);
            }
        }
        for (index, reason) in self.dialer.take_broken() {
            self.lose(fabrics, index, &reason);
        }
        self.after_dialing(fabrics);
        for index in 0..self.servers.len() {
            let Some(server) = self.servers.get_mut(index) else {
                continue;
            };
            if server.link.has_queued()
                && let Err(reason) = server.link.flush(fabrics, &mut self.message, self.now_ns)
            {
                self.lose(fabrics, index, &reason);
            }
            self.flush(fabrics, index);
        }
    }

    fn after_dialing(&mut self, fabrics: &mut Fabrics) {
        for (index, member, reason) in self.dialer.settle(fabrics) {
            if let Some(server) = self.servers.get_mut(index) {
                server.link.member = member;
                server.link.down(reason);
                server.stage = Stage::Met;
            }
        }
    }

    fn lose(&mut self, fabrics: &mut Fabrics, index: usize, reason: &str) {
        let Some(server) = self.servers.get_mut(index) else {
            return;
        };
        if let Some(peer) = server.link.peer() {
            fabrics.close(peer);
        }
        let error = server.link.down(reason);
        tracing::warn!(server = %server.link.member, reason, "a server is lost");
        server.clear();
        self.fail_all_at(index, &error);
    }
}

impl Server {
    fn new(member: Member, place: usize) -> Self {
        Self {
            link: Link::new(member),
            place,
            stage: Stage::Dialed,
            slots: Slots::default(),
            plans: Vec::new(),
            pending: VecDeque::new(),
        }
    }
}

/// Notes what a poll reports.
struct Sink<'a> {
    machine: &'a mut WorkerMachine,
}

impl LinkSink for Sink<'_> {
    fn connected(&mut self, peer: PeerRef, hello: &[u8]) {
        let machine = &mut *self.machine;
        if let Some((index, member)) = machine.dialer.connected(peer, hello)
            && let Some(server) = machine.servers.get_mut(index)
        {
            server.clear();
            server.link.up(member, peer, machine.now_ns);
            server.stage = Stage::Met;
        }
    }

    fn accepted(&mut self, peer: PeerRef, _hello: &[u8]) -> Option<usize> {
        // Nobody has business to connect to a worker.
        self.machine.dialer.refuse(peer);
        None
    }

    fn message(&mut self, link: usize, message: &[u8]) {
        if let Err(reason) = self.machine.on_message(link, message) {
            self.machine.dialer.broken(link, reason);
        }
    }

    fn sent(&mut self, _link: usize, _token: u64) {
        // The answer says more: it cannot come before the pushes were sent.
    }

    fn closed(&mut self, peer: PeerRef, link: Option<usize>, reason: FabricError) {
        let machine = &mut *self.machine;
        let reason = end_of(&reason);
        if machine.dialer.failed(peer, &reason) {
            return;
        }
        let server = link.and_then(|index| Some((index, machine.servers.get(index)?)));
        if let Some((index, server)) = server
            && server.link.peer() == Some(peer)
        {
            machine.dialer.broken(index, &reason);
        }
    }
}

/// Why a server that never was there takes no requests.
const ABSENT: &str = "it has not come back yet";
