//! The server's side of the protocol: slots, arriving requests, batches and answers.

mod answer;
mod arrive;
mod batch;
mod gather;
mod plan;
mod slot;

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use stepmesh_core::Device;
use stepmesh_transport::error::Error as FabricError;
use stepmesh_transport::fabric::Write;

use crate::clock::Clock;
use crate::error::{Error, list};
use crate::protocol::fabrics::{Fabrics, LinkSink, PeerRef};
use crate::protocol::hello::Hello;
use crate::protocol::link::{Link, end_of};
use crate::protocol::staging::Stager;
use crate::protocol::visible::Visibility;
use crate::protocol::wire::{MessageBuf, Setup};
use crate::role::{LEFT, Member, Role};
use crate::tensor::Tensor;

pub(crate) use answer::AnswerId;
use batch::BatchPool;
pub use batch::PullInfo;
pub(crate) use batch::{BatchList, BatchRecord};
use plan::Plan;
use slot::{NoSlot, Place, SlotTable};

/// The server's half of the data plane.
#[derive(Debug)]
pub(crate) struct ServerMachine {
    workers: Vec<Worker>,
    slots: SlotTable,
    pool: BatchPool,
    hello: Hello,
    /// Ranks of one rail are this far apart; see [`ServerMachine::place_of`].
    group_size: u32,
    limits: ServerLimits,
    clock: Clock,
    /// The time at the start of the call under way.
    now_ns: u64,
    /// What a poll noted to be done after it.
    todo: VecDeque<Todo>,
    /// Plans that wait for a slot in which a batch of an earlier connection still lies.
    deferred: Vec<Todo>,
    /// Answers wait for room.
    dirty: bool,
    /// Something that an application waits for happened since the engine last asked.
    news: bool,
    lives: u64,
    stager: Stager,
    visibility: Visibility,
    /// Batches whose last bytes are being copied into their slots.
    arriving: VecDeque<Box<BatchRecord>>,
    writes: Vec<Write>,
    message: MessageBuf,
}

/// The bounds of a server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerLimits {
    /// Most batches of one worker that wait to be taken.
    pub(crate) batches_max: usize,
    /// Most plans of one worker.
    pub(crate) plans_max: usize,
    pub(crate) slots_max: usize,
    pub(crate) slot_len_bytes_max: u64,
    /// A worker silent for longer is lost.
    pub(crate) peer_dead_ns: u64,
    /// How often to say that one is alive.
    pub(crate) heartbeat_ns: u64,
    /// Whether to take times.
    pub(crate) trace: bool,
}

/// A worker, with what the server knows about it.
#[derive(Debug)]
struct Worker {
    link: Link,
    /// Which connection of all: answers to an earlier one are refused.
    life: u64,
    plans: FxHashMap<u32, Plan>,
    ready: VecDeque<Box<BatchRecord>>,
    /// Answers that wait for room in the fabric, oldest first.
    unsent: VecDeque<Box<BatchRecord>>,
    /// Answers that the fabric still reads from, oldest first.
    in_flight: VecDeque<Box<BatchRecord>>,
    answers_made: u64,
    answers_sent: u64,
}

/// What happens after a poll, when the fabric may be called again.
#[derive(Debug)]
enum Todo {
    Close(PeerRef),
    SetUp {
        worker: usize,
        life: u64,
        setup: Setup,
    },
    Lose {
        worker: usize,
        life: u64,
        reason: String,
    },
}

impl ServerMachine {
    pub(crate) fn new(
        hello: Hello,
        device: Device,
        workers: usize,
        group_size: u32,
        limits: ServerLimits,
        clock: Clock,
    ) -> Self {
        let instance = hello.member.rank % group_size.max(1);
        let member = |place: usize| Member {
            role: Role::Worker,
            rank: u32::try_from(place).unwrap_or(u32::MAX) * group_size + instance,
            generation: 0,
        };
        Self {
            workers: (0..workers)
                .map(|place| Worker::new(member(place)))
                .collect(),
            slots: SlotTable::new(device, limits.slots_max, limits.slot_len_bytes_max),
            pool: BatchPool::default(),
            hello,
            group_size: group_size.max(1),
            limits,
            now_ns: clock.now_ns(),
            clock,
            todo: VecDeque::new(),
            deferred: Vec::new(),
            dirty: false,
            news: false,
            lives: 0,
            stager: Stager::default(),
            visibility: Visibility::default(),
            arriving: VecDeque::new(),
            writes: Vec::new(),
            message: MessageBuf::default(),
        }
    }

    /// How many workers this server serves.
    pub(crate) fn workers(&self) -> usize {
        self.workers.len()
    }

    /// How many of them are connected.
    pub(crate) fn workers_connected(&self) -> usize {
        let connected = self.workers.iter().filter(|worker| worker.link.is_up());
        connected.count()
    }

    /// Sets parts of a tensor aside for workers and keys.
    pub(crate) fn register_recv_buffer(
        &mut self,
        tensor: &Tensor,
        slices: &[(u32, u64)],
    ) -> Result<(), Error> {
        let mut places = Vec::with_capacity(slices.len());
        for (worker, key) in slices {
            if *worker as usize >= self.workers.len() {
                return Err(Error::invalid(
                    "register_recv_buffer",
                    format!(
                        "there is no worker {worker}; there are {}",
                        self.workers.len()
                    ),
                ));
            }
            places.push(Place {
                worker: *worker,
                key: *key,
            });
        }
        self.slots.register(tensor, &places)
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
        if !self.arriving.is_empty() {
            self.land();
        }
        events > 0
    }

    /// What is due by the clock: heartbeats, and the death of silent workers.
    pub(crate) fn tick(&mut self, fabrics: &mut Fabrics) {
        self.now_ns = self.clock.now_ns();
        for index in 0..self.workers.len() {
            let Some(worker) = self.workers.get_mut(index) else {
                continue;
            };
            let dead = worker.link.keep_alive(
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
        self.dirty = true;
    }

    /// Whether there were workers and each of them has left on purpose. Those that died may come
    /// back.
    pub(crate) fn everybody_left(&self) -> bool {
        !self.workers.is_empty() && self.workers.iter().all(|worker| worker.link.has_left())
    }

    /// Whether answers wait for room.
    pub(crate) fn has_pending(&self) -> bool {
        self.dirty || !self.arriving.is_empty()
    }

    /// Whether something that an application waits for happened since this was last asked.
    pub(crate) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.news)
    }

    /// Says which workers there are; the others are not waited for.
    pub(crate) fn expect_workers(&mut self, there: impl Iterator<Item = Member>) {
        let there: Vec<u32> = there.map(|member| member.rank).collect();
        for worker in &mut self.workers {
            if !there.contains(&worker.link.member.rank) {
                worker.link.down(ABSENT);
            }
        }
    }

    /// A member is lost: if it is a worker that never connected, nobody waits for it any more.
    pub(crate) fn is_lost(&mut self, member: Member, reason: &str) {
        let of = |worker: &&mut Worker| {
            let link = &worker.link;
            (link.member.role, link.member.rank) == (member.role, member.rank) && !link.is_up()
        };
        if let Some(worker) = self.workers.iter_mut().find(of) {
            worker.link.down(reason);
        }
    }

    /// Which workers are waited for: those that are neither connected nor lost.
    pub(crate) fn not_connected(&self) -> Option<Arc<str>> {
        let open = |worker: &&Worker| !worker.link.is_up() && worker.link.lost().is_none();
        let mut missing = self.workers.iter().filter(open).peekable();
        missing.peek()?;
        Some(list(missing.map(|worker| worker.link.member)))
    }

    /// Leaves: tells every worker.
    pub(crate) fn goodbye(&mut self, fabrics: &mut Fabrics) {
        for worker in &mut self.workers {
            worker.link.say(Setup::Goodbye);
            if worker
                .link
                .flush(fabrics, &mut self.message, self.now_ns)
                .is_err()
            {
                tracing::debug!(worker = %worker.link.member, "left without a goodbye");
            }
        }
    }

    fn after_poll(&mut self, fabrics: &mut Fabrics) {
        self.todo.extend(self.deferred.drain(..));
        while let Some(todo) = self.todo.pop_front() {
            match todo {
                Todo::Close(peer) => fabrics.close(peer),
                Todo::SetUp {
                    worker,
                    life,
                    setup,
                } if self.life(worker) == life => {
                    if let Err(reason) = self.set_up(fabrics, worker, setup) {
                        self.lose_unless_left(fabrics, worker, &reason);
                    }
                }
                Todo::Lose {
                    worker,
                    life,
                    reason,
                } if self.life(worker) == life => self.lose_unless_left(fabrics, worker, &reason),
                // The worker connected again in the meantime.
                Todo::SetUp { .. } | Todo::Lose { .. } => {}
            }
        }
        for index in 0..self.workers.len() {
            self.flush(fabrics, index);
        }
    }

    fn life(&self, worker: usize) -> u64 {
        self.workers.get(worker).map_or(0, |worker| worker.life)
    }

    /// A peer connected. Returns its link if it belongs here.
    fn admit(&mut self, peer: PeerRef, hello: &[u8]) -> Result<usize, String> {
        let hello = Hello::check(hello, self.hello.mesh, &self.hello.token)
            .map_err(|error| error.to_string())?;
        let index = self.place_of(hello.member)?;
        if let Some(old) = self.forget(index, "it connected again") {
            self.todo.push_back(Todo::Close(old));
        }
        self.lives += 1;
        if let Some(worker) = self.workers.get_mut(index) {
            worker.life = self.lives;
            worker.link.up(hello.member, peer, self.now_ns);
            self.news = true;
        }
        Ok(index)
    }

    /// The place of a worker's group, if it belongs to this server's rail and is not a late
    /// message of an earlier life.
    fn place_of(&self, member: Member) -> Result<usize, String> {
        let instance = self.hello.member.rank % self.group_size;
        if member.role != Role::Worker || member.rank % self.group_size != instance {
            return Err(format!(
                "{member} has no business with {}",
                self.hello.member
            ));
        }
        let index = (member.rank / self.group_size) as usize;
        let Some(worker) = self.workers.get(index) else {
            return Err(format!(
                "{member} is not among {} workers",
                self.workers.len()
            ));
        };
        let known = worker.link.member.generation;
        if known > member.generation {
            return Err(format!(
                "{member} is gone; generation {known} took its place"
            ));
        }
        Ok(index)
    }

    fn set_up(&mut self, fabrics: &mut Fabrics, index: usize, setup: Setup) -> Result<(), String> {
        match setup {
            Setup::Define(define) => {
                let plan = define.plan;
                let reply = match self.define(fabrics, index, &define)? {
                    Ok(slots) => Setup::Granted { plan, slots },
                    Err(NoSlot::Refused(reason)) => Setup::Refused { plan, reason },
                    Err(NoSlot::Later) => {
                        self.deferred.push(Todo::SetUp {
                            worker: index,
                            life: self.life(index),
                            setup: Setup::Define(define),
                        });
                        return Ok(());
                    }
                };
                if let Some(worker) = self.workers.get_mut(index) {
                    worker.link.say(reply);
                }
                Ok(())
            }
            Setup::Forget { plan } => {
                if let Some(worker) = self.workers.get_mut(index) {
                    worker.plans.remove(&plan);
                }
                Ok(())
            }
            Setup::Goodbye => Err(LEFT.into()),
            Setup::Granted { .. } | Setup::Refused { .. } => {
                Err("it sent a message that only servers send".into())
            }
        }
    }

    /// Loses a worker; if its goodbye is among what came in, it left.
    fn lose_unless_left(&mut self, fabrics: &mut Fabrics, index: usize, reason: &str) {
        let its_life = self.life(index);
        let has_left = self.todo.iter().any(|todo| {
            matches!(todo, Todo::SetUp { worker, life, setup: Setup::Goodbye }
                if (*worker, *life) == (index, its_life))
        });
        self.lose(fabrics, index, if has_left { LEFT } else { reason });
    }

    /// Loses a worker that cannot be talked to, once what it said before that has been read.
    fn lose_later(&mut self, index: usize, reason: String) {
        self.todo.push_back(Todo::Lose {
            worker: index,
            life: self.life(index),
            reason,
        });
        self.dirty = true;
    }

    fn lose(&mut self, fabrics: &mut Fabrics, index: usize, reason: &str) {
        if let Some(peer) = self.forget(index, reason) {
            fabrics.close(peer);
        }
    }

    /// Drops everything that a worker's connection held. Returns the peer to close, if it was
    /// connected.
    fn forget(&mut self, index: usize, reason: &str) -> Option<PeerRef> {
        let worker = self.workers.get_mut(index)?;
        let peer = worker.link.peer()?;
        worker.link.down(reason);
        if reason == LEFT {
            tracing::info!(worker = %worker.link.member, "a worker left");
        } else {
            tracing::warn!(worker = %worker.link.member, reason, "a worker is lost");
        }
        worker.plans.clear();
        // Batches that the application holds keep their slots until it lets go of them.
        let unanswered: Vec<_> = worker
            .ready
            .drain(..)
            .chain(worker.unsent.drain(..))
            .collect();
        let answered: Vec<_> = worker.in_flight.drain(..).collect();
        for record in unanswered {
            self.recycle(record);
        }
        for record in answered {
            self.give_back(record);
        }
        self.slots
            .forget_replaced(u32::try_from(index).unwrap_or(u32::MAX));
        self.news = true;
        Some(peer)
    }
}

impl Worker {
    fn new(member: Member) -> Self {
        Self {
            link: Link::new(member),
            life: 0,
            plans: FxHashMap::default(),
            ready: VecDeque::new(),
            unsent: VecDeque::new(),
            in_flight: VecDeque::new(),
            answers_made: 0,
            answers_sent: 0,
        }
    }
}

/// Notes what a poll reports.
struct Sink<'a> {
    machine: &'a mut ServerMachine,
}

impl LinkSink for Sink<'_> {
    fn connected(&mut self, _peer: PeerRef, _hello: &[u8]) {
        // A server connects to nobody.
    }

    fn accepted(&mut self, peer: PeerRef, hello: &[u8]) -> Option<usize> {
        match self.machine.admit(peer, hello) {
            Ok(index) => Some(index),
            Err(reason) => {
                tracing::warn!(reason, "a connection was turned away");
                self.machine.todo.push_back(Todo::Close(peer));
                None
            }
        }
    }

    fn message(&mut self, link: usize, message: &[u8]) {
        if let Err(reason) = self.machine.on_message(link, message) {
            let life = self.machine.life(link);
            self.machine.todo.push_back(Todo::Lose {
                worker: link,
                life,
                reason,
            });
        }
    }

    fn sent(&mut self, link: usize, token: u64) {
        self.machine.answer_sent(link, token);
    }

    fn closed(&mut self, peer: PeerRef, link: Option<usize>, reason: FabricError) {
        let worker = link.and_then(|index| Some((index, self.machine.workers.get(index)?)));
        if let Some((index, worker)) = worker
            && worker.link.peer() == Some(peer)
        {
            let life = worker.life;
            self.machine.todo.push_back(Todo::Lose {
                worker: index,
                life,
                reason: end_of(&reason),
            });
        }
    }
}

/// Why a worker that never was there has no connection.
const ABSENT: &str = "it has not come back yet";
