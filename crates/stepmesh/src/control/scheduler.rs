//! The scheduler's side of the control plane: who is here, who waits at which barrier, who is dead.

use std::collections::VecDeque;

use stepmesh_transport::error::Error as FabricError;
use stepmesh_transport::fabric::{Chain, EventSink, Fabric, PeerId, PostError};

use crate::control::wire::{
    Entry, Formed, FromScheduler, Join, Place, ToScheduler, decode, encode,
};
use crate::error::list;
use crate::protocol::hello::Hello;
use crate::role::{LEFT, Member, Role, Roles};

/// The state machine of the scheduler.
#[derive(Debug)]
pub(crate) struct SchedulerMachine {
    options: SchedulerOptions,
    /// Everybody who is connected and was not turned away.
    members: Vec<Joined>,
    /// Generations given out so far, by role and rank.
    generations: Vec<(Role, u32, u32)>,
    formed: bool,
    /// When the first member joined.
    first_join_ns: Option<u64>,
    barriers: Vec<Barrier>,
    /// Peers that were turned away, and when their connections are closed: they get a moment to
    /// read why.
    rejected: Vec<(PeerId, u64)>,
    /// Why the members that came were sent away.
    gave_up: Option<String>,
    events: VecDeque<Event>,
    now_ns: u64,
}

/// How the mesh is to be.
#[derive(Clone, Debug)]
pub(crate) struct SchedulerOptions {
    /// Instances, not groups.
    pub(crate) workers: u32,
    pub(crate) servers: u32,
    pub(crate) group_size: u32,
    pub(crate) mesh: u64,
    pub(crate) token: [u8; 32],
    /// How long members may stay away after the first has come.
    pub(crate) join_timeout_ns: u64,
    pub(crate) heartbeat_ns: u64,
    pub(crate) peer_dead_ns: u64,
}

/// What the scheduler stands at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Census {
    pub(crate) formed: bool,
    pub(crate) workers: u32,
    pub(crate) servers: u32,
}

#[derive(Debug)]
struct Joined {
    peer: PeerId,
    role: Role,
    /// The rank asked for, then the rank given.
    rank: Option<u32>,
    generation: u32,
    /// `None` between the connection and its first message.
    place: Option<Place>,
    last_heard_ns: u64,
    last_sent_ns: u64,
    unsent: VecDeque<Vec<u8>>,
}

#[derive(Debug)]
struct Barrier {
    roles: Roles,
    /// Who is here, with their own number of the barrier.
    arrived: Vec<(PeerId, u64)>,
    deadline_ns: u64,
    timeout_ms: u64,
}

#[derive(Debug)]
enum Event {
    Accepted { peer: PeerId, hello: Vec<u8> },
    Message { peer: PeerId, message: Vec<u8> },
    Closed { peer: PeerId, reason: String },
}

impl SchedulerMachine {
    pub(crate) fn new(options: SchedulerOptions) -> Self {
        Self {
            options,
            members: Vec::new(),
            generations: Vec::new(),
            formed: false,
            first_join_ns: None,
            barriers: Vec::new(),
            rejected: Vec::new(),
            gave_up: None,
            events: VecDeque::new(),
            now_ns: 0,
        }
    }

    /// Polls the fabric, does what is due, and returns how many events there were.
    pub(crate) fn progress(&mut self, fabric: &mut dyn Fabric, now_ns: u64) -> usize {
        self.now_ns = now_ns;
        let count = fabric.poll(now_ns, &mut Sink(&mut self.events));
        while let Some(event) = self.events.pop_front() {
            match event {
                Event::Accepted { peer, hello } => self.accepted(fabric, peer, &hello),
                Event::Message { peer, message } => self.message(fabric, peer, &message),
                Event::Closed { peer, reason } => self.lose(fabric, peer, &reason),
            }
        }
        self.tick(fabric);
        self.flush(fabric);
        count
    }

    /// Who is here.
    pub(crate) fn census(&self) -> Census {
        let count = |role| {
            let of_role = self
                .members
                .iter()
                .filter(|m| m.role == role && m.place.is_some());
            u32::try_from(of_role.count()).unwrap_or(u32::MAX)
        };
        Census {
            formed: self.formed,
            workers: count(Role::Worker),
            servers: count(Role::Server),
        }
    }

    /// Why the mesh will not form, if it will not.
    pub(crate) fn gave_up(&self) -> Option<&str> {
        self.gave_up.as_deref()
    }

    /// Tells everybody that the scheduler ends.
    pub(crate) fn shut_down(&mut self, fabric: &mut dyn Fabric, reason: &str) {
        self.broadcast(&FromScheduler::Shutdown {
            reason: reason.to_owned(),
        });
        self.flush(fabric);
    }

    fn accepted(&mut self, fabric: &mut dyn Fabric, peer: PeerId, hello: &[u8]) {
        // A member does not know the mesh's number before it has joined.
        let hello = match Hello::check(hello, 0, &self.options.token) {
            Ok(hello) => hello,
            Err(error) => {
                tracing::warn!(reason = %error, "a connection was turned away");
                self.reject(fabric, peer, &error.to_string());
                return;
            }
        };
        self.members.push(Joined {
            peer,
            role: hello.member.role,
            rank: None,
            generation: 0,
            place: None,
            last_heard_ns: self.now_ns,
            last_sent_ns: self.now_ns,
            unsent: VecDeque::new(),
        });
    }

    fn message(&mut self, fabric: &mut dyn Fabric, peer: PeerId, bytes: &[u8]) {
        let now_ns = self.now_ns;
        let Some(joined) = self.member_mut(peer) else {
            return;
        };
        joined.last_heard_ns = now_ns;
        let here = joined.place.is_some();
        match decode::<ToScheduler>(bytes) {
            Ok(ToScheduler::Join(join)) if !here => {
                if let Err(reason) = self.join(peer, join) {
                    self.members.retain(|member| member.peer != peer);
                    self.reject(fabric, peer, &reason);
                }
            }
            Ok(ToScheduler::Heartbeat) => {}
            Ok(ToScheduler::Barrier {
                number,
                roles,
                timeout_ms,
            }) if here => self.barrier(peer, number, roles, timeout_ms),
            Ok(ToScheduler::Leave) => {
                fabric.close(peer);
                self.lose(fabric, peer, LEFT);
            }
            Ok(_) => self.break_off(fabric, peer, "it sent a message out of turn"),
            Err(error) => self.break_off(fabric, peer, &error.to_string()),
        }
    }

    fn break_off(&mut self, fabric: &mut dyn Fabric, peer: PeerId, reason: &str) {
        fabric.close(peer);
        self.lose(fabric, peer, reason);
    }

    fn join(&mut self, peer: PeerId, join: Join) -> Result<(), String> {
        let Join { role, rank, place } = join;
        let count = self.count_of(role);
        if count == 0 {
            return Err(format!("this mesh has no {role}s"));
        }
        if let Some(rank) = rank {
            if rank >= count {
                return Err(format!(
                    "{role} rank {rank} does not exist: this mesh has {count} (ranks 0 to {})",
                    count - 1
                ));
            }
            if let Some(holder) = self.holder(role, rank) {
                return Err(format!("{role} rank {rank} is taken by {holder}"));
            }
        }
        let others = self
            .members
            .iter()
            .filter(|m| m.role == role && m.place.is_some());
        if others.count() >= count as usize {
            return Err(format!("all {count} {role}s of this mesh are here"));
        }
        self.first_join_ns.get_or_insert(self.now_ns);
        tracing::info!(%role, ?rank, host = place.host, process = place.process, "joined");
        if let Some(joined) = self.member_mut(peer) {
            joined.role = role;
            joined.rank = rank;
            joined.place = Some(place);
        }
        if self.formed {
            self.admit_late(peer);
        } else if self.everybody_is_here() {
            self.form();
        }
        Ok(())
    }

    fn everybody_is_here(&self) -> bool {
        let census = self.census();
        census.workers == self.options.workers && census.servers == self.options.servers
    }

    /// Gives ranks to those who asked for none, and tells everybody about everybody.
    fn form(&mut self) {
        for index in 0..self.members.len() {
            self.give_rank(index);
        }
        self.formed = true;
        tracing::info!(
            workers = self.options.workers,
            servers = self.options.servers,
            "the mesh is formed"
        );
        for index in 0..self.members.len() {
            self.tell_formed(index);
        }
    }

    /// A rank that was lost is taken again.
    fn admit_late(&mut self, peer: PeerId) {
        let Some(index) = self.members.iter().position(|member| member.peer == peer) else {
            return;
        };
        self.give_rank(index);
        self.tell_formed(index);
        let Some(entry) = self.members.get(index).and_then(Joined::entry) else {
            return;
        };
        tracing::info!(member = %entry.member, "a lost rank is taken again");
        for other in &mut self.members {
            if other.peer != peer && other.place.is_some() {
                other.say(&FromScheduler::Joined {
                    entry: entry.clone(),
                });
            }
        }
    }

    fn give_rank(&mut self, index: usize) {
        let Some((role, asked)) = self.members.get(index).map(|m| (m.role, m.rank)) else {
            return;
        };
        let rank = asked
            .or_else(|| (0..self.count_of(role)).find(|rank| self.holder(role, *rank).is_none()));
        let Some(rank) = rank else { return };
        let known = self
            .generations
            .iter_mut()
            .find(|(r, k, _)| (*r, *k) == (role, rank));
        let generation = match known {
            Some((_, _, generation)) => {
                *generation += 1;
                *generation
            }
            None => {
                self.generations.push((role, rank, 0));
                0
            }
        };
        if let Some(member) = self.members.get_mut(index) {
            member.rank = Some(rank);
            member.generation = generation;
        }
    }

    fn tell_formed(&mut self, index: usize) {
        let Some(you) = self.members.get(index).and_then(Joined::member) else {
            return;
        };
        let rail = |rank: u32| rank % self.options.group_size.max(1);
        // A worker connects to the servers of its rail, and these wait for the workers that are there.
        let entries = self
            .members
            .iter()
            .filter_map(Joined::entry)
            .filter(|entry| {
                entry.member.role != you.role && rail(entry.member.rank) == rail(you.rank)
            });
        let formed = FromScheduler::Formed(Formed {
            you,
            mesh: self.options.mesh,
            workers: self.options.workers,
            servers: self.options.servers,
            group_size: self.options.group_size,
            entries: entries.collect(),
        });
        if let Some(member) = self.members.get_mut(index) {
            member.say(&formed);
        }
    }

    fn barrier(&mut self, peer: PeerId, number: u64, roles: Roles, timeout_ms: u64) {
        let open = self.barriers.iter_mut().find(|barrier| {
            barrier.roles == roles && barrier.arrived.iter().all(|(other, _)| *other != peer)
        });
        match open {
            Some(barrier) => barrier.arrived.push((peer, number)),
            None => self.barriers.push(Barrier {
                roles,
                arrived: vec![(peer, number)],
                deadline_ns: self
                    .now_ns
                    .saturating_add(timeout_ms.saturating_mul(1_000_000)),
                timeout_ms,
            }),
        }
        self.settle_barriers();
    }

    fn settle_barriers(&mut self) {
        let barriers = std::mem::take(&mut self.barriers);
        for barrier in barriers {
            let missing = self.missing_at(&barrier);
            if missing.is_empty() {
                for (peer, number) in &barrier.arrived {
                    let done = FromScheduler::BarrierDone { number: *number };
                    if let Some(member) = self.member_mut(*peer) {
                        member.say(&done);
                    }
                }
            } else if self.now_ns >= barrier.deadline_ns {
                let reason = format!(
                    "not all arrived within {} ms; missing: {}",
                    barrier.timeout_ms,
                    list(missing)
                );
                self.fail_barrier(&barrier, &reason);
            } else {
                self.barriers.push(barrier);
            }
        }
    }

    /// Names who has not arrived: every rank of the barrier's roles, dead ones too.
    fn missing_at(&self, barrier: &Barrier) -> Vec<String> {
        let mut missing = Vec::new();
        for role in [Role::Server, Role::Worker] {
            for rank in (0..self.count_of(role)).filter(|_| barrier.roles.contains(role)) {
                let arrived = self.members.iter().any(|member| {
                    (member.role, member.rank) == (role, Some(rank))
                        && barrier.arrived.iter().any(|(peer, _)| *peer == member.peer)
                });
                if !arrived {
                    missing.push(format!("{role} {rank}"));
                }
            }
        }
        missing
    }

    fn fail_barrier(&mut self, barrier: &Barrier, reason: &str) {
        for (peer, number) in &barrier.arrived {
            let failed = FromScheduler::BarrierFailed {
                number: *number,
                reason: reason.to_owned(),
            };
            if let Some(member) = self.member_mut(*peer) {
                member.say(&failed);
            }
        }
    }

    fn lose(&mut self, fabric: &mut dyn Fabric, peer: PeerId, reason: &str) {
        let Some(index) = self.members.iter().position(|member| member.peer == peer) else {
            return;
        };
        let joined = self.members.swap_remove(index);
        if joined.place.is_none() {
            return;
        }
        let Some(member) = joined.member().filter(|_| self.formed) else {
            // The others go on waiting for somebody to take its place.
            tracing::warn!(role = %joined.role, reason, "left before the mesh was formed");
            return;
        };
        if reason == LEFT {
            tracing::info!(%member, "left");
        } else {
            tracing::warn!(%member, reason, "lost");
        }
        self.broadcast(&FromScheduler::Lost {
            member,
            reason: reason.to_owned(),
        });
        let reason = format!("{member} is lost: {reason}");
        let barriers = std::mem::take(&mut self.barriers);
        for barrier in barriers {
            if barrier.roles.contains(member.role) {
                self.fail_barrier(&barrier, &reason);
            } else {
                self.barriers.push(barrier);
            }
        }
        self.flush(fabric);
    }

    fn tick(&mut self, fabric: &mut dyn Fabric) {
        let now_ns = self.now_ns;
        let dead_ns = self.options.peer_dead_ns;
        let silent = |member: &&Joined| now_ns.saturating_sub(member.last_heard_ns) > dead_ns;
        let dead: Vec<PeerId> = self.members.iter().filter(silent).map(|m| m.peer).collect();
        for peer in dead {
            let reason = format!(
                "silent for {} ms (timeouts.peer_dead_ms)",
                dead_ns / 1_000_000
            );
            self.break_off(fabric, peer, &reason);
        }
        let heartbeat = encode(&FromScheduler::Heartbeat);
        for member in &mut self.members {
            let idle_ns = now_ns.saturating_sub(member.last_sent_ns);
            if idle_ns >= self.options.heartbeat_ns && member.unsent.is_empty() {
                member.unsent.push_back(heartbeat.clone());
            }
        }
        self.rejected.retain(|(peer, close_at_ns)| {
            if *close_at_ns <= now_ns {
                fabric.close(*peer);
            }
            *close_at_ns > now_ns
        });
        self.give_up_waiting(fabric);
        self.settle_barriers();
    }

    /// Members that came are not left waiting for ever for those who did not.
    fn give_up_waiting(&mut self, fabric: &mut dyn Fabric) {
        let Some(first_ns) = self.first_join_ns else {
            return;
        };
        if self.formed || self.now_ns.saturating_sub(first_ns) < self.options.join_timeout_ns {
            return;
        }
        let reason = format!(
            "the mesh did not form within {} ms (timeouts.barrier_ms); missing: {}",
            self.options.join_timeout_ns / 1_000_000,
            self.missing_members()
        );
        tracing::error!(reason, "giving up");
        for member in std::mem::take(&mut self.members) {
            self.reject(fabric, member.peer, &reason);
        }
        self.first_join_ns = None;
        self.gave_up = Some(reason);
    }

    fn missing_members(&self) -> std::sync::Arc<str> {
        let mut missing = Vec::new();
        for role in [Role::Server, Role::Worker] {
            let count = self.count_of(role);
            let here = |m: &&Joined| m.role == role && m.place.is_some();
            let anonymous = self
                .members
                .iter()
                .filter(here)
                .filter(|m| m.rank.is_none())
                .count();
            let free = (0..count).filter(|rank| self.holder(role, *rank).is_none());
            missing.extend(free.skip(anonymous).map(|rank| format!("{role} {rank}")));
        }
        list(missing)
    }

    /// Says why and closes the connection once it was said.
    fn reject(&mut self, fabric: &mut dyn Fabric, peer: PeerId, reason: &str) {
        let message = encode(&FromScheduler::Rejected {
            reason: reason.to_owned(),
        });
        tracing::warn!(reason, "rejected");
        let chain = Chain {
            writes: &[],
            message: &message,
            token: 0,
        };
        if let Err(error) = fabric.post(peer, &chain) {
            tracing::debug!(%error, "the rejection could not be delivered");
        }
        self.rejected.push((peer, self.now_ns + REJECTED_LINGER_NS));
        self.members.retain(|member| member.peer != peer);
    }

    fn broadcast(&mut self, message: &FromScheduler) {
        for member in self
            .members
            .iter_mut()
            .filter(|member| member.place.is_some())
        {
            member.say(message);
        }
    }

    fn flush(&mut self, fabric: &mut dyn Fabric) {
        let mut broken = Vec::new();
        for member in &mut self.members {
            while let Some(message) = member.unsent.front() {
                let chain = Chain {
                    writes: &[],
                    message,
                    token: 0,
                };
                match fabric.post(member.peer, &chain) {
                    Ok(_) => {
                        member.unsent.pop_front();
                        member.last_sent_ns = self.now_ns;
                    }
                    Err(PostError::Full) => break,
                    Err(PostError::Failed(error)) => {
                        broken.push((member.peer, error.to_string()));
                        break;
                    }
                }
            }
        }
        for (peer, reason) in broken {
            self.break_off(fabric, peer, &reason);
        }
    }

    fn count_of(&self, role: Role) -> u32 {
        match role {
            Role::Worker => self.options.workers,
            Role::Server => self.options.servers,
            Role::Scheduler => 0,
        }
    }

    fn holder(&self, role: Role, rank: u32) -> Option<String> {
        let holds = |member: &&Joined| (member.role, member.rank) == (role, Some(rank));
        let place = self.members.iter().find(holds)?.place.as_ref()?;
        Some(format!("process {} on {}", place.process, place.host))
    }

    fn member_mut(&mut self, peer: PeerId) -> Option<&mut Joined> {
        self.members.iter_mut().find(|member| member.peer == peer)
    }
}

impl Joined {
    fn member(&self) -> Option<Member> {
        Some(Member {
            role: self.role,
            rank: self.rank?,
            generation: self.generation,
        })
    }

    fn entry(&self) -> Option<Entry> {
        Some(Entry {
            member: self.member()?,
            place: self.place.clone()?,
        })
    }

    fn say(&mut self, message: &FromScheduler) {
        self.unsent.push_back(encode(message));
    }
}

/// Notes what a poll reports.
struct Sink<'a>(&'a mut VecDeque<Event>);

impl EventSink for Sink<'_> {
    fn connected(&mut self, _peer: PeerId, _hello: &[u8]) {
        // A scheduler connects to nobody.
    }

    fn accepted(&mut self, peer: PeerId, hello: &[u8]) {
        self.0.push_back(Event::Accepted {
            peer,
            hello: hello.to_vec(),
        });
    }

    fn message(&mut self, peer: PeerId, message: &[u8]) {
        self.0.push_back(Event::Message {
            peer,
            message: message.to_vec(),
        });
    }

    fn sent(&mut self, _peer: PeerId, _token: u64) {}

    fn closed(&mut self, peer: PeerId, reason: FabricError) {
        self.0.push_back(Event::Closed {
            peer,
            reason: reason.to_string(),
        });
    }
}

/// How long somebody who was turned away may take to read why: a second is ages for a connection
/// that is up, and bounds how long a stranger can hold it.
const REJECTED_LINGER_NS: u64 = 1_000_000_000;
