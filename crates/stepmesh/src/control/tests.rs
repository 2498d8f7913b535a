//! Tests of both sides of the control plane, over the simulated network and in virtual time.

use stepmesh_transport::fabric::{Address, Fabric};
use stepmesh_transport::sim::fabric::SimFabric;
use stepmesh_transport::sim::network::SimNetwork;
use stepmesh_transport::sim::options::SimOptions;

use super::member::{MemberMachine, MemberOptions, News};
use super::scheduler::{SchedulerMachine, SchedulerOptions};
use super::wire::{Formed, Join, Place};
use crate::error::Error;
use crate::protocol::hello::{Hello, digest};
use crate::role::{Member, Role, Roles};

/// A scheduler and members in one thread.
struct World {
    network: SimNetwork,
    scheduler: SchedulerMachine,
    fabric: SimFabric,
    members: Vec<Node>,
}

struct Node {
    machine: MemberMachine,
    fabric: SimFabric,
    formed: Option<Formed>,
    lost: Vec<(Member, String)>,
    joined: Vec<Member>,
    alive: bool,
}

impl World {
    fn new(workers: u32, servers: u32, group_size: u32) -> Self {
        let network = SimNetwork::new(1, SimOptions::default());
        let scheduler = SchedulerMachine::new(SchedulerOptions {
            workers,
            servers,
            group_size,
            mesh: 5,
            token: digest("secret"),
            join_timeout_ns: 10 * SECOND_NS,
            heartbeat_ns: SECOND_NS / 2,
            peer_dead_ns: 2 * SECOND_NS,
        });
        Self {
            fabric: network.fabric("scheduler"),
            network,
            scheduler,
            members: Vec::new(),
        }
    }

    fn join(&mut self, role: Role, rank: Option<u32>) -> usize {
        self.join_with(role, rank, "secret", self.fabric.address())
    }

    fn join_with(
        &mut self,
        role: Role,
        rank: Option<u32>,
        token: &str,
        scheduler: Address,
    ) -> usize {
        let index = self.members.len();
        let stranger = Member {
            role,
            rank: 0,
            generation: 0,
        };
        let now_ns = self.network.now_ns();
        let options = MemberOptions {
            scheduler,
            scheduler_name: "the scheduler".into(),
            hello: Hello::new(stranger, 0, digest(token)),
            join: Join {
                role,
                rank,
                place: Place {
                    host: format!("host{index}"),
                    process: 100 + u32::try_from(index).unwrap(),
                    addresses: Vec::new(),
                },
            },
            connect_deadline_ns: now_ns + 5 * SECOND_NS,
            heartbeat_ns: SECOND_NS / 2,
            peer_dead_ns: 2 * SECOND_NS,
        };
        self.members.push(Node {
            machine: MemberMachine::new(options, now_ns),
            fabric: self.network.fabric(&format!("member{index}")),
            formed: None,
            lost: Vec::new(),
            joined: Vec::new(),
            alive: true,
        });
        index
    }

    fn kill(&mut self, member: usize) {
        self.network.kill(&format!("member{member}"));
        self.members[member].alive = false;
    }

    fn round(&mut self) {
        let now_ns = self.network.now_ns();
        self.scheduler.progress(&mut self.fabric, now_ns);
        for node in self.members.iter_mut().filter(|node| node.alive) {
            node.machine.progress(&mut node.fabric, now_ns);
            while let Some(news) = node.machine.next_news() {
                match news {
                    News::Formed(formed) => node.formed = Some(formed),
                    News::Lost { member, reason } => node.lost.push((member, reason)),
                    News::Joined { entry } => node.joined.push(entry.member),
                }
            }
        }
        self.network.step(SECOND_NS / 100);
    }

    fn run_until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let deadline_ns = self.network.now_ns() + 60 * SECOND_NS;
        while !done(self) {
            assert!(
                self.network.now_ns() < deadline_ns,
                "not {what} after a virtual minute"
            );
            self.round();
        }
    }

    fn form(&mut self) {
        self.run_until("formed", |world| {
            world
                .members
                .iter()
                .filter(|node| node.alive)
                .all(|node| node.formed.is_some())
        });
    }

    fn rank(&self, member: usize) -> u32 {
        self.members[member].formed.as_ref().unwrap().you.rank
    }

    fn error(&mut self, member: usize) -> Error {
        self.run_until("lost", |world| {
            world.members[member].machine.lost().is_some()
        });
        self.members[member].machine.lost().unwrap()
    }
}

#[test]
fn ranks_are_unique_and_contiguous_and_wishes_are_kept() {
    let mut world = World::new(3, 1, 1);
    world.join(Role::Worker, None);
    world.join(Role::Worker, Some(0));
    world.join(Role::Worker, None);
    world.join(Role::Server, None);
    world.form();
    assert_eq!(world.rank(1), 0);
    let mut ranks = [world.rank(0), world.rank(1), world.rank(2)];
    ranks.sort_unstable();
    assert_eq!(ranks, [0, 1, 2]);
    let formed = world.members[0].formed.clone().unwrap();
    assert_eq!((formed.workers, formed.servers, formed.mesh), (3, 1, 5));
    assert_eq!(formed.entries.len(), 1);
}

#[test]
fn a_rank_taken_twice_is_refused_and_names_its_holder() {
    let mut world = World::new(2, 1, 1);
    world.join(Role::Worker, Some(1));
    world.run_until("here", |world| world.scheduler.census().workers == 1);
    let second = world.join(Role::Worker, Some(1));
    let error = world.error(second).to_string();
    assert!(
        error.contains("worker rank 1 is taken by process 100 on host0"),
        "{error}"
    );
    world.members[second].alive = false;
    // The others go on.
    world.join(Role::Worker, None);
    world.join(Role::Server, None);
    world.form();
    assert_eq!(world.rank(2), 0);
}

#[test]
fn a_rank_that_does_not_exist_and_one_member_too_many_are_refused() {
    let mut world = World::new(1, 1, 1);
    let high = world.join(Role::Worker, Some(1));
    let error = world.error(high).to_string();
    assert!(
        error.contains("worker rank 1 does not exist: this mesh has 1"),
        "{error}"
    );
    world.join(Role::Worker, None);
    world.run_until("here", |world| world.scheduler.census().workers == 1);
    let extra = world.join(Role::Worker, None);
    let error = world.error(extra).to_string();
    assert!(
        error.contains("all 1 workers of this mesh are here"),
        "{error}"
    );
}

#[test]
fn a_gap_ends_the_wait_of_everybody_and_is_named() {
    let mut world = World::new(2, 1, 1);
    let worker = world.join(Role::Worker, Some(0));
    let server = world.join(Role::Server, None);
    for member in [worker, server] {
        let error = world.error(member).to_string();
        assert!(error.contains("missing: worker 1"), "{error}");
    }
    assert!(world.scheduler.gave_up().is_some());
}

#[test]
fn rails_see_only_their_own_servers() {
    let mut world = World::new(4, 2, 2);
    for rank in 0..4 {
        world.join(Role::Worker, Some(rank));
    }
    for rank in 0..2 {
        world.join(Role::Server, Some(rank));
    }
    world.form();
    for worker in 0..4 {
        let formed = world.members[worker].formed.clone().unwrap();
        let servers: Vec<u32> = formed
            .entries
            .iter()
            .map(|entry| entry.member.rank)
            .collect();
        assert_eq!(servers, [formed.you.rank % 2]);
    }
}

#[test]
fn a_wrong_token_is_turned_away_with_the_reason() {
    let mut world = World::new(1, 1, 1);
    let address = world.fabric.address();
    let stranger = world.join_with(Role::Worker, None, "guess", address);
    let error = world.error(stranger).to_string();
    assert!(error.contains("mesh.token"), "{error}");
    assert_eq!(world.scheduler.census().workers, 0);
}

#[test]
fn a_barrier_waits_for_its_roles_and_only_for_them() {
    let mut world = World::new(2, 1, 1);
    for role in [Role::Worker, Role::Worker, Role::Server] {
        world.join(role, None);
    }
    world.form();
    let workers = Roles {
        servers: false,
        workers: true,
    };
    let first = world.members[0].machine.barrier(workers, 10_000).unwrap();
    for _ in 0..50 {
        world.round();
    }
    assert_eq!(world.members[0].machine.barrier_outcome(first), None);
    let second = world.members[1].machine.barrier(workers, 10_000).unwrap();
    for (member, number) in [(0, first), (1, second)] {
        let mut outcome = None;
        world.run_until("through", |world| {
            outcome = world.members[member].machine.barrier_outcome(number);
            outcome.is_some()
        });
        assert_eq!(outcome, Some(Ok(())));
    }
}

#[test]
fn a_late_member_fails_the_barrier_by_name_and_so_does_a_dead_one() {
    let mut world = World::new(2, 1, 1);
    for role in [Role::Worker, Role::Worker, Role::Server] {
        world.join(role, None);
    }
    world.form();
    let number = world.members[0].machine.barrier(Roles::ALL, 1_000).unwrap();
    let mut outcome = None;
    world.run_until("given up", |world| {
        outcome = world.members[0].machine.barrier_outcome(number);
        outcome.is_some()
    });
    let reason = outcome.unwrap().unwrap_err();
    let late = format!("worker {}", world.rank(1));
    assert!(
        reason.contains("1000 ms") && reason.contains(&late),
        "{reason}"
    );
    assert!(reason.contains("server 0"), "{reason}");
    let number = world.members[0]
        .machine
        .barrier(Roles::ALL, 50_000)
        .unwrap();
    world.kill(1);
    let start_ns = world.network.now_ns();
    let mut outcome = None;
    world.run_until("given up", |world| {
        outcome = world.members[0].machine.barrier_outcome(number);
        outcome.is_some()
    });
    let reason = outcome.unwrap().unwrap_err();
    assert!(
        reason.contains(&late) && reason.contains("is lost"),
        "{reason}"
    );
    assert!(world.network.now_ns() - start_ns < 3 * SECOND_NS);
}

#[test]
fn a_death_is_told_to_all_and_a_return_gets_a_new_generation() {
    let mut world = World::new(1, 1, 1);
    let worker = world.join(Role::Worker, None);
    let server = world.join(Role::Server, None);
    world.form();
    world.kill(server);
    world.run_until("told", |world| !world.members[worker].lost.is_empty());
    assert_eq!(world.members[worker].lost[0].0.to_string(), "server 0");
    let back = world.join(Role::Server, Some(0));
    world.run_until("back", |world| !world.members[worker].joined.is_empty());
    let member = world.members[worker].joined[0];
    assert_eq!((member.rank, member.generation), (0, 1));
    assert_eq!(world.members[back].formed.as_ref().unwrap().you, member);
}

#[test]
fn a_scheduler_that_starts_late_is_found_and_one_that_never_does_is_an_error() {
    let mut world = World::new(1, 1, 1);
    world.network.partition("scheduler", "member0");
    world.join(Role::Worker, None);
    for _ in 0..20 {
        world.round();
    }
    world.network.heal("scheduler", "member0");
    world.join(Role::Server, None);
    world.form();
    let mut world = World::new(1, 1, 1);
    world.network.partition("scheduler", "member0");
    let alone = world.join(Role::Worker, None);
    let error = world.error(alone).to_string();
    assert!(error.contains("no scheduler at the scheduler"), "{error}");
    assert!(world.network.now_ns() < 8 * SECOND_NS);
}

#[test]
fn members_hear_of_the_schedulers_end_and_of_its_silence() {
    let mut world = World::new(1, 1, 1);
    world.join(Role::Worker, None);
    world.join(Role::Server, None);
    world.form();
    world
        .scheduler
        .shut_down(&mut world.fabric, "it was told to end");
    let error = world.error(0).to_string();
    assert!(error.contains("it was told to end"), "{error}");
    let mut world = World::new(1, 1, 1);
    world.join(Role::Worker, None);
    world.join(Role::Server, None);
    world.form();
    world.network.partition("scheduler", "member0");
    let error = world.error(0);
    assert!(matches!(error, Error::SchedulerLost { .. }), "{error}");
    world.members[0].machine.barrier(Roles::ALL, 1).unwrap_err();
}

const SECOND_NS: u64 = 1_000_000_000;
