//! Benchmarks of two processes on two cores: a worker that calls, a server that echoes, and what
//! they do beside or instead of a duel.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use stepmesh::DType;
use stepmesh_core::config::{Config, PollMode};

use crate::bench::afd;
use crate::bench::duel::{self, Bare, Baton, Turn};
use crate::bench::floor::page::Page;
use crate::bench::floor::tcp::{TcpCaller, TcpEcho};
use crate::bench::floor::{End, SharedMemory};
use crate::bench::mesh::{self, Caller, Echo, FabricKind, Shape};
use crate::bench::peer::{Part, Peer, Setup, cpus, tell};

/// What two processes do together.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct PairJob {
    pub(crate) fabric: FabricKind,
    pub(crate) len_bytes: u64,
    pub(crate) what: What,
}

/// What is found out about round trips.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum What {
    /// How long they take, beside the floor.
    Duel { budget_ms: u64 },
    /// How often they allocate: in so many.
    Allocations { rounds: u64 },
    /// How long those of attention and experts take, and where it goes.
    Afd { budget_ms: u64 },
}

/// Which of the two a process is.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum PairEnd {
    Caller(PairJob),
    Echo(PairJob),
}

/// Starts the processes of a mesh of two, and returns what the caller found.
pub(crate) fn run<T: DeserializeOwned>(setup: &Setup, job: PairJob) -> Result<T> {
    let deadline = setup.deadline;
    let [of_caller, of_echo] = cpus()?;
    let page = Page::create(usize::try_from(job.len_bytes.max(1))?)?;
    let mut shape = Shape {
        workers: 1,
        servers: 1,
        port: 0,
    };
    let mut scheduler = Peer::start("scheduler", setup, &[], Part::Scheduler(shape))?;
    shape.port = scheduler.answer(deadline)?;
    let part = |end| Part::Pair {
        page: page.path(),
        shape,
        end,
    };
    let echo = Peer::start("echo", setup, &[of_echo], part(PairEnd::Echo(job)))?;
    let mut caller = Peer::start("caller", setup, &[of_caller], part(PairEnd::Caller(job)))?;
    let found = caller.answer(deadline);
    let found = found.map_err(|error| echo.explain(error))?;
    for peer in [caller, echo, scheduler] {
        peer.finish(deadline)?;
    }
    Ok(found)
}

/// Does one end's share of a job.
pub(crate) fn perform(config: &Config, page: &Path, shape: Shape, end: &PairEnd) -> Result<()> {
    let page = Page::open(page)?;
    match end {
        PairEnd::Caller(job) => call(config, &page, shape, *job),
        PairEnd::Echo(job) => echo(config, &page, shape, *job),
    }
}

fn call(config: &Config, page: &Page, shape: Shape, job: PairJob) -> Result<()> {
    let config = mesh::config(config, shape, job.fabric.transport(), PollMode::Busy);
    let mut baton = Baton::new(page);
    if let What::Afd { budget_ms } = job.what {
        let mut ours = Caller::<2, 1>::join(&config, afd::TENSORS, afd::MICRO_BATCHES)?;
        baton.lead(Turn::Ours(afd::MICRO_BATCHES));
        ours.verify()?;
        let outcome = afd::measure(&mut baton, &mut ours, Duration::from_millis(budget_ms))?;
        baton.lead(Turn::End);
        return tell(&outcome);
    }
    let mut ours = Caller::<1, 1>::join(&config, [(DType::U8, &[job.len_bytes])], 1)?;
    baton.lead(Turn::Connect);
    let port = baton.answer()?;
    let payload = vec![1; usize::try_from(job.len_bytes)?];
    match job.fabric {
        FabricKind::Shm => {
            let floor = SharedMemory::new(page, End::Caller, payload.len());
            floor.fill(&payload);
            find_out(&mut baton, &mut ours, floor, job.what)
        }
        FabricKind::Tcp => {
            let floor = TcpCaller::connect(u16::try_from(port)?, &payload)?;
            find_out(&mut baton, &mut ours, floor, job.what)
        }
    }
}

fn find_out(
    baton: &mut Baton<'_>,
    ours: &mut Caller<1, 1>,
    mut floor: impl Bare,
    what: What,
) -> Result<()> {
    baton.lead(Turn::Ours(1));
    ours.verify()?;
    baton.lead(Turn::Floor(1));
    floor.round()?;
    ensure!(
        floor.is_echoed(),
        "the floor does not bring back what it sent"
    );
    match what {
        What::Duel { budget_ms } => {
            let budget = Duration::from_millis(budget_ms);
            tell(&duel::measure(baton, ours, &mut floor, budget)?)?;
        }
        What::Allocations { rounds } => {
            tell(&duel::count_allocations(baton, ours, rounds)?)?;
        }
        What::Afd { .. } => {}
    }
    baton.lead(Turn::End);
    Ok(())
}

fn echo(config: &Config, page: &Page, shape: Shape, job: PairJob) -> Result<()> {
    let config = mesh::config(config, shape, job.fabric.transport(), PollMode::Busy);
    let len_bytes = usize::try_from(job.len_bytes)?;
    let mut ours = Echo::join(&config)?;
    let mut baton = Baton::new(page);
    if matches!(job.what, What::Afd { .. }) {
        let mut floor = SharedMemory::new(page, End::Echo, 0);
        return duel::echo(&mut baton, &mut ours, &mut floor);
    }
    ensure!(
        baton.follow()? == Turn::Connect,
        "the caller does not connect first"
    );
    match job.fabric {
        FabricKind::Shm => {
            baton.tell(0);
            let mut floor = SharedMemory::new(page, End::Echo, len_bytes);
            duel::echo(&mut baton, &mut ours, &mut floor)
        }
        FabricKind::Tcp => {
            let mut floor = TcpEcho::accept(len_bytes, |port| baton.tell(port.into()))?;
            duel::echo(&mut baton, &mut ours, &mut floor)
        }
    }
}
