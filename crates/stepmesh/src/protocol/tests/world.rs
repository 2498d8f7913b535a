//! A mesh in one thread: machines, simulated fabrics and a clock that the test moves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use stepmesh_core::config::{Config, PluginsConfig};
use stepmesh_core::{Backend, Device, Registry};
use stepmesh_transport::fabric::{Address, Fabric};
use stepmesh_transport::sim::fabric::SimFabric;
use stepmesh_transport::sim::network::SimNetwork;
use stepmesh_transport::sim::options::SimOptions;

use crate::clock::Clock;
use crate::error::Error;
use crate::protocol::fabrics::Fabrics;
use crate::protocol::hello::{Hello, digest};
use crate::protocol::server::{BatchList, BatchRecord, ServerLimits, ServerMachine};
use crate::protocol::worker::{
    Keyed, RequestId, RequestOptions, ServerAddress, WorkerLimits, WorkerMachine,
};
use crate::role::{Member, Role};
use crate::tensor::Tensor;

pub(super) struct World {
    pub(super) network: SimNetwork,
    pub(super) device: Device,
    /// Where servers have their slots.
    slots: Device,
    wrap: Wrap,
    now_ns: Arc<AtomicU64>,
    pub(super) workers: Vec<Node<WorkerMachine>>,
    pub(super) servers: Vec<Node<ServerMachine>>,
    addresses: Vec<Address>,
    next_tick_ns: u64,
}

pub(super) struct Node<M> {
    pub(super) machine: M,
    pub(super) fabrics: Fabrics,
    pub(super) alive: bool,
}

/// Makes the fabric of a node from the simulated one.
pub(super) type Wrap = fn(SimFabric) -> Box<dyn Fabric>;

pub(super) const MESH: u64 = 77;

impl World {
    pub(super) fn new(seed: u64, options: SimOptions, workers: usize, servers: usize) -> Self {
        let network = SimNetwork::new(seed, options);
        let wrap = |fabric| -> Box<dyn Fabric> { Box::new(fabric) };
        Self::on(network, cpu_device(), wrap, (workers, servers))
    }

    /// A mesh of so many workers and servers.
    pub(super) fn on(
        network: SimNetwork,
        slots: Device,
        wrap: Wrap,
        (workers, servers): (usize, usize),
    ) -> Self {
        let mut world = Self {
            device: cpu_device(),
            slots,
            wrap,
            network,
            now_ns: Arc::new(AtomicU64::new(0)),
            workers: Vec::new(),
            servers: Vec::new(),
            addresses: Vec::new(),
            next_tick_ns: 0,
        };
        for rank in 0..servers {
            world.add_server(rank, workers);
        }
        for rank in 0..workers {
            let node = world.make_worker(rank, 0);
            world.workers.push(node);
            world.connect(rank);
        }
        world.run_until("connected", |world| {
            world
                .workers
                .iter()
                .all(|node| node.machine.is_connected().is_ok_and(|up| up))
                && world
                    .servers
                    .iter()
                    .all(|node| node.machine.not_connected().is_none())
        });
        world
    }

    fn clock(&self) -> Clock {
        Clock::simulated(Arc::clone(&self.now_ns))
    }

    fn add_server(&mut self, rank: usize, workers: usize) {
        let hello = Hello::new(member(Role::Server, rank, 0), MESH, digest("t"));
        let mut fabric = self.network.fabric(&format!("server{rank}"));
        fabric.set_hello(&hello.encode());
        self.addresses.push(fabric.address());
        let limits = ServerLimits {
            batches_max: 64,
            plans_max: 64,
            slots_max: 256,
            slot_len_bytes_max: 1 << 20,
            peer_dead_ns: PEER_DEAD_NS,
            heartbeat_ns: PEER_DEAD_NS / 4,
            trace: true,
        };
        let device = self.slots.clone();
        let machine = ServerMachine::new(hello, device, workers, 1, limits, self.clock());
        self.servers.push(Node {
            machine,
            fabrics: Fabrics::new(vec![(self.wrap)(fabric)]),
            alive: true,
        });
    }

    pub(super) fn make_worker(&self, rank: usize, generation: u32) -> Node<WorkerMachine> {
        let hello = Hello::new(member(Role::Worker, rank, generation), MESH, digest("t"));
        let fabric = self.network.fabric(&format!("worker{rank}"));
        let limits = WorkerLimits {
            requests_max: 64,
            peer_dead_ns: PEER_DEAD_NS,
            heartbeat_ns: PEER_DEAD_NS / 4,
            trace: true,
        };
        Node {
            machine: WorkerMachine::new(hello, limits, self.clock()),
            fabrics: Fabrics::new(vec![(self.wrap)(fabric)]),
            alive: true,
        }
    }

    pub(super) fn connect(&mut self, worker: usize) {
        let node = &mut self.workers[worker];
        for (rank, address) in self.addresses.iter().enumerate() {
            let address = ServerAddress {
                member: member(Role::Server, rank, 0),
                routes: vec![(0, address.clone())],
                timeout: Duration::from_secs(5),
            };
            node.machine.set_server(&mut node.fabrics, rank, address);
        }
    }

    /// Moves everything by one round and the clock to the next event.
    pub(super) fn round(&mut self) {
        let now_ns = self.network.now_ns();
        self.now_ns.store(now_ns, Ordering::Relaxed);
        let tick = now_ns >= self.next_tick_ns;
        if tick {
            self.next_tick_ns = now_ns + TICK_NS;
        }
        for node in self.workers.iter_mut().filter(|node| node.alive) {
            while node.machine.progress(&mut node.fabrics) {}
            if tick {
                node.machine.tick(&mut node.fabrics);
            }
        }
        for node in self.servers.iter_mut().filter(|node| node.alive) {
            while node.machine.progress(&mut node.fabrics) {}
            if tick {
                node.machine.tick(&mut node.fabrics);
            }
        }
        self.network.step(TICK_NS);
    }

    /// Runs until `done`, and fails the test when that takes unreasonably long in virtual time.
    pub(super) fn run_until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let deadline_ns = self.network.now_ns() + VIRTUAL_LIMIT_NS;
        while !done(self) {
            if self.network.now_ns() > deadline_ns {
                let trace = self.network.trace();
                let tail = &trace[trace.len().saturating_sub(40)..];
                panic!(
                    "not {what} after a virtual minute; last events:\n{}",
                    tail.join("\n")
                );
            }
            self.round();
        }
    }

    pub(super) fn run_for_ns(&mut self, duration_ns: u64) {
        let end_ns = self.network.now_ns() + duration_ns;
        while self.network.now_ns() < end_ns {
            self.round();
        }
    }

    pub(super) fn tensor(&self, values: &[f32]) -> Tensor {
        let rows = values.len() as u64;
        Tensor::from_slice(&self.device, &[rows, 1], values).unwrap()
    }

    pub(super) fn submit(
        &mut self,
        worker: usize,
        push: &[Keyed<'_>],
        pull: &[Keyed<'_>],
        options: &RequestOptions,
    ) -> Result<RequestId, Error> {
        let node = &mut self.workers[worker];
        node.machine.submit(&mut node.fabrics, push, pull, options)
    }

    pub(super) fn outcome(&self, worker: usize, id: RequestId) -> Option<Result<(), Error>> {
        self.workers[worker].machine.outcome(id)
    }

    pub(super) fn wait(&mut self, worker: usize, id: RequestId) -> Result<(), Error> {
        self.run_until("answered", |world| world.outcome(worker, id).is_some());
        self.outcome(worker, id).unwrap()
    }

    /// Answers every batch that is complete at `server` with `answer` of its first tensor.
    pub(super) fn serve(
        &mut self,
        server: usize,
        answer: impl Fn(&BatchRecord) -> Vec<Tensor>,
    ) -> usize {
        let mut count = 0;
        let node = &mut self.servers[server];
        while let Some(list) = node.machine.take_any() {
            for record in list {
                let answers = answer(&record);
                node.machine
                    .respond(&mut node.fabrics, record, &answers)
                    .map_err(|(_, error)| error)
                    .unwrap();
                count += 1;
            }
        }
        count
    }

    pub(super) fn take_matched(&mut self, server: usize) -> Option<BatchList> {
        self.servers[server].machine.take_matched()
    }
}

pub(super) fn member(role: Role, rank: usize, generation: u32) -> Member {
    Member {
        role,
        rank: u32::try_from(rank).unwrap(),
        generation,
    }
}

pub(super) fn cpu_device() -> Device {
    let plugins = PluginsConfig::default();
    let backend: Backend = Registry::discover(&plugins).select(Some("cpu")).unwrap();
    assert_eq!(Config::default().backend, "");
    backend.device(0).unwrap()
}

/// Echo: every pull gets the first pushed tensor.
pub(super) fn echo(record: &BatchRecord) -> Vec<Tensor> {
    record
        .pulls()
        .iter()
        .map(|_| record.tensors()[0].clone())
        .collect()
}

pub(super) const PEER_DEAD_NS: u64 = 2_000_000_000;
const TICK_NS: u64 = 5_000_000;
const VIRTUAL_LIMIT_NS: u64 = 60_000_000_000;
