//! The library as the benchmark uses it: a worker that calls and a server that echoes.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use stepmesh::{DType, Handle, Keyed, Server, Tensor, Trace, Worker};
use stepmesh_core::config::{Config, MeshConfig, PollMode, TransportKind};
use stepmesh_core::{Backend, Device};

use crate::bench::duel::Side;

/// Which fabric is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FabricKind {
    Shm,
    Tcp,
}

/// A mesh of one scheduler, some workers and some servers on this host.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Shape {
    pub(crate) workers: u32,
    pub(crate) servers: u32,
    /// Where the scheduler listens; 0 for the scheduler itself.
    pub(crate) port: u16,
}

/// A worker with some micro-batches that it calls with in turn, one at a time. Each has `PUSH`
/// tensors to push and one for each of `SERVERS` servers to pull.
#[derive(Debug)]
pub(crate) struct Caller<const PUSH: usize, const SERVERS: usize> {
    worker: Worker,
    batches: Vec<MicroBatch<PUSH, SERVERS>>,
    next: usize,
}

#[derive(Debug)]
struct MicroBatch<const PUSH: usize, const SERVERS: usize> {
    push: [Tensor; PUSH],
    pull: [Tensor; SERVERS],
    /// The key of the first pushed tensor.
    key: u64,
}

/// A server that answers each push with its first tensor.
#[derive(Debug)]
pub(crate) struct Echo {
    server: Server,
}

/// The user's configuration in all that does not say who is where.
pub(crate) fn config(config: &Config, shape: Shape, kind: TransportKind, poll: PollMode) -> Config {
    let mut config = config.clone();
    // The floors move host memory, so ours must as well, whatever accelerators there are.
    config.backend = "cpu".into();
    config.transport.kind = kind;
    config.transport.poll = poll;
    config.mesh = MeshConfig {
        workers: shape.workers,
        servers: shape.servers,
        scheduler_host: Ipv4Addr::LOCALHOST.to_string(),
        scheduler_port: shape.port,
        ..MeshConfig::default()
    };
    config
}

/// The device whose memory is pushed.
pub(crate) fn device(config: &Config) -> Result<Device> {
    Ok(Backend::open(config)?.device(0)?)
}

impl FabricKind {
    pub(crate) fn transport(self) -> TransportKind {
        match self {
            Self::Shm => TransportKind::Shm,
            Self::Tcp => TransportKind::Tcp,
        }
    }
}

impl<const PUSH: usize, const SERVERS: usize> Caller<PUSH, SERVERS> {
    /// Joins the mesh. Pushes tensors like `push`; what it pulls is like the first of them.
    pub(crate) fn join(
        config: &Config,
        push: [(DType, &[u64]); PUSH],
        batches: u64,
    ) -> Result<Self> {
        let device = device(config)?;
        let worker = Worker::start(config)?;
        ensure!(worker.servers() == SERVERS, "joined another mesh");
        let batches = (0..batches).map(|index| MicroBatch::new(&device, push, index));
        Ok(Self {
            batches: batches.collect::<Result<_>>()?,
            worker,
            next: 0,
        })
    }

    /// Pushes known bytes once in each micro-batch, and fails unless they come back.
    pub(crate) fn verify(&mut self) -> Result<()> {
        for _ in 0..self.batches.len() {
            let index = self.next;
            let sent = self.batches[index].fill()?;
            self.round()?;
            self.batches[index].check(&sent)?;
        }
        Ok(())
    }

    /// A round trip with its whole duration and where it went at the first server.
    pub(crate) fn traced_round(&mut self) -> Result<(u64, Trace)> {
        let started = Instant::now();
        let handle = self.call()?;
        self.worker.wait(&handle)?;
        let elapsed_ns = u64::try_from(started.elapsed().as_nanos())?;
        Ok((elapsed_ns, handle.trace(0)))
    }

    fn call(&mut self) -> Result<Handle> {
        let batch = &self.batches[self.next];
        self.next = (self.next + 1) % self.batches.len();
        let (push, pull) = (batch.keyed_push(), batch.keyed_pull());
        Ok(self.worker.push_pull(&push, &pull)?)
    }
}

impl<const PUSH: usize, const SERVERS: usize> Side for Caller<PUSH, SERVERS> {
    fn round(&mut self) -> Result<()> {
        let handle = self.call()?;
        Ok(self.worker.wait(&handle)?)
    }
}

impl Echo {
    /// Joins the mesh.
    pub(crate) fn join(config: &Config) -> Result<Self> {
        let server = Server::start(config, &device(config)?)?;
        Ok(Self { server })
    }
}

impl Side for Echo {
    fn round(&mut self) -> Result<()> {
        for mut batch in self.server.get_batch(LONGEST_WAIT)? {
            let answer = batch.tensors().first().context("nothing was pushed")?;
            let answer = answer.clone();
            batch.respond(&[answer])?;
        }
        Ok(())
    }
}

impl<const PUSH: usize, const SERVERS: usize> MicroBatch<PUSH, SERVERS> {
    fn new(device: &Device, push: [(DType, &[u64]); PUSH], index: u64) -> Result<Self> {
        let (dtype, dims) = *push.first().context("nothing to push")?;
        let tensor = |(dtype, dims)| Tensor::empty(device, dtype, dims);
        let push: Vec<Tensor> = push.into_iter().map(tensor).collect::<Result<_, _>>()?;
        let pull: Vec<Tensor> = (0..SERVERS)
            .map(|_| tensor((dtype, dims)))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            push: push.try_into().ok().context("as many as were asked for")?,
            pull: pull.try_into().ok().context("as many as were asked for")?,
            key: index << MICRO_BATCH_SHIFT,
        })
    }

    fn keyed_push(&self) -> [Keyed<'_>; PUSH] {
        std::array::from_fn(|at| Keyed::new(self.key + at as u64, &self.push[at]))
    }

    fn keyed_pull(&self) -> [Keyed<'_>; SERVERS] {
        std::array::from_fn(|at| Keyed::new(self.key + PULL_KEYS + at as u64, &self.pull[at]))
    }

    fn fill(&self) -> Result<Vec<u8>> {
        let Some(push) = self.push.first() else {
            return Ok(Vec::new());
        };
        let len_bytes = usize::try_from(push.len_bytes())?;
        // No period that a copy of the wrong place would share.
        let sent: Vec<u8> = (0..SAMPLE_PERIOD).cycle().take(len_bytes).collect();
        push.buffer().write_bytes(push.offset_bytes(), &sent)?;
        for pull in &self.pull {
            let nothing = vec![0; len_bytes];
            pull.buffer().write_bytes(pull.offset_bytes(), &nothing)?;
        }
        Ok(sent)
    }

    fn check(&self, sent: &[u8]) -> Result<()> {
        for pull in &self.pull {
            let mut received = vec![0; sent.len()];
            pull.buffer()
                .read_bytes(pull.offset_bytes(), &mut received)?;
            ensure!(received == sent, "the echo is not what was pushed");
        }
        Ok(())
    }
}

/// The original's layout of keys: micro-batches, then what is pulled, in bits of their own.
const MICRO_BATCH_SHIFT: u32 = 8;
const PULL_KEYS: u64 = 1 << 24;

/// Bytes count up to this prime.
const SAMPLE_PERIOD: u8 = 251;

/// Longer than any pause between the turns of a duel.
const LONGEST_WAIT: Duration = Duration::from_secs(20);
