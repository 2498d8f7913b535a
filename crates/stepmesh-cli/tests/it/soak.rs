//! A mesh that is worn: tensors of every size, requests that are given up, peers that stall, die and come
//! back, one after another until the time is over. `cargo xtask vm test --soak-s 600` does it for longer.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use stepmesh::{DType, Error, Keyed, Tensor, Worker};
use stepmesh_core::config::{Config, TransportKind};
use stepmesh_core::{Backend, Device};

use crate::support::{DEADLINE, Mesh, Process, network};

#[test]
fn soak_over_shm() {
    soak("shm");
}

#[test]
fn soak_over_the_network() {
    soak(&network());
}

fn soak(transport: &str) {
    let end = Instant::now() + duration();
    {
        let mut world = World::new(transport);
        while Instant::now() < end {
            world.work(REQUESTS);
            world.disturb();
        }
        // What was done to it is over: now everything works.
        world.work(REQUESTS);
        world.end();
    }
    #[cfg(feature = "rdma")]
    stepmesh_rdma::verbs::Ledger::assert_empty();
}

/// Two servers, two workers that are processes, and one in this process, which looks at every byte.
struct World {
    mesh: Mesh,
    servers: [Process; 2],
    workers: [Process; 2],
    worker: Worker,
    device: Device,
    /// Tensors that are used again, one set for each of [`SIZES`].
    kept: Vec<Set>,
    random: Random,
    answered: u64,
    given_up: u64,
    disturbances: Vec<String>,
}

/// What is pushed, and what comes back from each server.
struct Set {
    push: Tensor,
    pulls: [Tensor; 2],
}

impl World {
    fn new(transport: &str) -> Self {
        let mesh = Mesh::new(3, 2, &settings(transport));
        let servers = [0, 1].map(|rank| server(&mesh, rank));
        let mut random = Random(SEED);
        let workers = [1, 2].map(|rank| worker(&mesh, rank, &mut random));
        let worker = Worker::start(&config(transport, &mesh)).unwrap();
        let backend = Config {
            backend: "cpu".into(),
            ..Config::default()
        };
        let device = Backend::open(&backend).unwrap().device(0).unwrap();
        Self {
            kept: SIZES.map(|len| Set::new(&device, len)).into(),
            mesh,
            servers,
            workers,
            worker,
            device,
            random,
            answered: 0,
            given_up: 0,
            disturbances: Vec::new(),
        }
    }

    /// Makes some requests; the last has an answer.
    fn work(&mut self, count: u32) {
        let since = Instant::now();
        let mut left = count;
        while left > 0 {
            assert!(since.elapsed() < DEADLINE, "stuck: {:?}", self.told());
            match self.request() {
                Ok(()) => left -= 1,
                // A server that was killed is lost for a while.
                Err(Error::PeerLost { .. }) => std::thread::yield_now(),
                Err(error) => panic!("{error}: {:?}", self.told()),
            }
        }
    }

    /// One request of any size. One in eight is given up, with its memory, while it is on its way.
    fn request(&mut self) -> Result<(), Error> {
        let size = self.random.below(SIZES.len());
        let is_given_up = self.random.below(8) == 0;
        let fresh =
            (is_given_up || self.random.below(4) == 0).then(|| Set::new(&self.device, SIZES[size]));
        let seed = self.random.next();
        let set = fresh.as_ref().unwrap_or(&self.kept[size]);
        let len = SIZES[size] - self.random.below(SIZES[size].min(3));
        let bytes = Random(seed | 1).bytes(len);
        let push = set.push.rows(0, len as u64)?;
        push.write(&bytes)?;
        let key = |part: u64| size as u64 * 8 + part;
        let push = [Keyed::new(key(0), &push)];
        let pulls = [
            Keyed::new(key(1), &set.pulls[0]),
            Keyed::new(key(2), &set.pulls[1]),
        ];
        let handle = self.worker.push_pull(&push, &pulls)?;
        if is_given_up {
            drop(handle);
            self.given_up += 1;
            return Ok(());
        }
        handle.wait(DEADLINE)?;
        for (server, pull) in set.pulls.iter().enumerate() {
            let found = pull.rows(0, len as u64)?.to_vec::<u8>()?;
            assert!(
                found == bytes,
                "{len} bytes of server {server}: {:?}",
                self.told()
            );
        }
        self.answered += 1;
        Ok(())
    }

    /// Something happens to one of the processes, and it is made whole again.
    fn disturb(&mut self) {
        let (what, index) = (self.random.below(4), self.random.below(2));
        let rank = index + 1;
        match what {
            0 => {
                self.note("kill", "server", index);
                self.servers[index].signal(Signal::KILL);
                self.servers[index].end();
                // Workers that are processes end with an error, as they say they do.
                for worker in &mut self.workers {
                    assert_eq!(worker.end().code, Some(3));
                }
                self.servers[index] = server(&self.mesh, index);
                self.servers[index].says("serves");
                self.workers = [1, 2].map(|rank| worker(&self.mesh, rank, &mut self.random));
            }
            1 => {
                self.note("kill", "worker", rank);
                self.workers[index].signal(Signal::KILL);
                self.workers[index].end();
                self.workers[index] = worker(&self.mesh, rank, &mut self.random);
            }
            2 => {
                self.note("end", "worker", rank);
                self.workers[index].signal(Signal::INT);
                self.workers[index].ends_with(130);
                self.workers[index] = worker(&self.mesh, rank, &mut self.random);
            }
            _ => {
                self.note("stall", "server", index);
                self.servers[index].signal(Signal::STOP);
                // Not long enough to be taken for dead; its queues fill meanwhile.
                std::thread::sleep(STALL);
                self.servers[index].signal(Signal::CONT);
            }
        }
        for worker in &mut self.workers {
            worker.says("first round trip");
        }
    }

    fn note(&mut self, what: &str, role: &str, rank: usize) {
        self.disturbances.push(format!("{what} {role} {rank}"));
    }

    fn told(&self) -> String {
        format!(
            "{} answered, {} given up, {:?}",
            self.answered, self.given_up, self.disturbances
        )
    }

    fn end(mut self) {
        #[expect(
            clippy::print_stdout,
            reason = "how much was done is not judged, but told"
        )]
        {
            println!("soak: {}", self.told());
        }
        for worker in &mut self.workers {
            worker.signal(Signal::INT);
            worker.ends_with(130);
        }
        drop(self.worker);
        for server in &mut self.servers {
            server.ends_with(0);
        }
        self.mesh.ends();
    }
}

impl Set {
    fn new(device: &Device, len: usize) -> Self {
        let tensor = || Tensor::empty(device, DType::U8, &[len as u64]).unwrap();
        Self {
            push: tensor(),
            pulls: [tensor(), tensor()],
        }
    }
}

fn server(mesh: &Mesh, rank: usize) -> Process {
    let rank = rank.to_string();
    let args = ["server", "--handler", "echo", "--batches-of", "any"];
    mesh.start_with(&[("mesh.rank", &rank)], &args)
}

/// A worker of another size in each of its lives.
fn worker(mesh: &Mesh, rank: usize, random: &mut Random) -> Process {
    let (rank, rows) = (rank.to_string(), (1 + random.below(300)).to_string());
    let dim = (1 + random.below(500)).to_string();
    let size = ["--rows", &rows, "--dim", &dim];
    let args = [&["worker", "--iterations", "1000000000"], &size[..]].concat();
    mesh.start_with(&[("mesh.rank", &rank)], &args)
}

fn settings(transport: &str) -> [(&str, &str); 3] {
    [
        ("transport.kind", transport),
        ("timeouts.peer_dead_ms", PEER_DEAD_MS),
        ("timeouts.peer_dead_local_ms", PEER_DEAD_MS),
    ]
}

fn config(transport: &str, mesh: &Mesh) -> Config {
    let mut config = Config::default();
    config.transport.kind = match transport {
        "shm" => TransportKind::Shm,
        "tcp" => TransportKind::Tcp,
        "rdma" => TransportKind::Rdma,
        other => panic!("{other} is no way that this test knows"),
    };
    config.timeouts.peer_dead_ms = PEER_DEAD_MS.parse().unwrap();
    config.timeouts.peer_dead_local_ms = PEER_DEAD_MS.parse().unwrap();
    config.mesh.workers = 3;
    config.mesh.servers = 2;
    config.mesh.rank = 0;
    config.mesh.scheduler_port = mesh.port().parse().unwrap();
    config
}

/// How long, from the environment that `cargo xtask vm test` makes.
fn duration() -> Duration {
    let asked = std::env::var("STEPMESH_TEST_SOAK_S").ok();
    asked.map_or(DURATION, |s| Duration::from_secs(s.parse().unwrap()))
}

/// Marsaglia's xorshift: the same for every run, so that a failure can be seen again.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() >> 33).unwrap() % end
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }
}

/// Bytes: one, around lines and packets and shares of queue pairs, and some that take a while.
const SIZES: [usize; 9] = [
    1, 64, 4095, 4097, 65_537, 262_145, 524_289, 1_048_579, 3_000_001,
];

/// Between two disturbances.
const REQUESTS: u32 = 12;

/// Some disturbances, where nobody asked for more.
const DURATION: Duration = Duration::from_secs(3);

/// Longer than a stall, and than a process that is starved may look dead to another.
const PEER_DEAD_MS: &str = "6000";

const STALL: Duration = Duration::from_millis(700);

const SEED: u64 = 0x5eed_0004;
