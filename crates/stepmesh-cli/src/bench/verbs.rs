//! `stepmesh rdma bench`: round trips of this library over a real adapter, between two processes of
//! this host, and what they cost in posts and allocations. What perftest says of the same adapter is
//! put beside it by who runs both, in one boot of one machine.

mod hit;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use stepmesh::DType;
use stepmesh_core::config::{Config, MeshConfig, TransportKind};
use stepmesh_rdma::Counters;

use crate::bench::allocations::Count;
use crate::bench::duel::Side;
use crate::bench::mesh::{self, Caller, Echo, Shape};
use crate::bench::peer::{Part, Peer, Setup, tell};
use crate::bench::statistics::block_median;

/// One end of a measurement, in a process of its own.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct VerbsEnd {
    is_caller: bool,
    job: Job,
}

/// Round trips of one size.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Job {
    len_bytes: u64,
    rounds: u32,
}

impl Job {
    const fn new(len_bytes: u64, rounds: u32) -> Self {
        Self { len_bytes, rounds }
    }
}

/// What one end found over the measured rounds.
#[derive(Debug, Serialize, Deserialize)]
struct Found {
    /// The median round trip; 0 at the end that answers.
    rtt_ns: f64,
    chains: u64,
    posts: u64,
    signalled: u64,
    credits: u64,
    /// On the thread that asks or answers.
    allocations: u64,
    /// On all, with those that heartbeats make: by time, not by request.
    allocations_everywhere: u64,
}

/// What can be measured by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Subject {
    /// Round trips of 8 KiB each way
    #[value(name = "8k")]
    Small,
    /// Round trips of [64, 7168] bf16 each way
    #[value(name = "896k")]
    Medium,
    /// Round trips of [1024, 7168] bf16 each way
    #[value(name = "14m")]
    Large,
    /// The look-up of a registration
    Hit,
}

/// Measures these subjects, or all. The names are those of the numbers, in a flat map.
pub(crate) fn measure(mut config: Config, only: &[Subject]) -> Result<BTreeMap<String, f64>> {
    config.mesh = MeshConfig::default();
    // Heartbeats are chains too. They come by time and not by request, so none comes meanwhile.
    config.timeouts.heartbeat_ms = HEARTBEAT_MS;
    config.timeouts.peer_dead_ms = 4 * HEARTBEAT_MS;
    let setup = Setup {
        config,
        deadline: Instant::now() + LONGEST,
        stretch: 1,
    };
    let is_wanted = |subject| only.is_empty() || only.contains(&subject);
    let mut numbers = BTreeMap::new();
    for (name, subject, job) in JOBS {
        if is_wanted(subject) {
            let ends = pair(&setup, job).with_context(|| format!("measuring {name}"))?;
            describe(name, job, ends, &mut numbers)?;
        }
    }
    if is_wanted(Subject::Hit) {
        numbers.insert("verbs.mr_hit_ns".to_owned(), hit::measure()?);
    }
    Ok(numbers)
}

fn describe(
    name: &str,
    job: Job,
    (caller, echo): (Found, Found),
    numbers: &mut BTreeMap<String, f64>,
) -> Result<()> {
    let mut put = |what: &str, value: f64| numbers.insert(format!("verbs.{what}_{name}"), value);
    put("rtt_us", caller.rtt_ns / 1e3);
    // There and back.
    let bytes = f64::from(u32::try_from(job.len_bytes * 2)?);
    put("mb_per_s", bytes / caller.rtt_ns * 1e3);
    let rounds = f64::from(job.rounds);
    for (end, found) in [("caller", &caller), ("echo", &echo)] {
        for (what, count) in [
            ("posts", found.posts - found.credits),
            ("signalled", found.signalled - found.credits),
            ("chains", found.chains),
            ("credits", found.credits),
            ("alloc", found.allocations),
            ("alloc_all_threads", found.allocations_everywhere),
        ] {
            let each = f64::from(u32::try_from(count)?) / rounds;
            numbers.insert(format!("verbs.{what}_per_request_{end}_{name}"), each);
        }
    }
    Ok(())
}

fn pair(setup: &Setup, job: Job) -> Result<(Found, Found)> {
    let deadline = setup.deadline;
    let mut shape = Shape {
        workers: 1,
        servers: 1,
        port: 0,
    };
    let mut scheduler = Peer::start("scheduler", setup, &[], Part::Scheduler(shape))?;
    shape.port = scheduler.answer(deadline)?;
    let start = |name, is_caller| {
        let end = VerbsEnd { is_caller, job };
        // Not pinned: the driver of an adapter in software needs the cores as well.
        Peer::start(name, setup, &[], Part::Verbs { shape, end })
    };
    let mut echo = start("echo", false)?;
    let mut caller = start("caller", true)?;
    let found = caller.answer(deadline);
    let found = found.map_err(|error| echo.explain(error))?;
    let answered = echo.answer(deadline)?;
    for peer in [caller, echo, scheduler] {
        peer.finish(deadline)?;
    }
    Ok((found, answered))
}

/// Does one end's share.
pub(crate) fn perform(config: &Config, shape: Shape, end: VerbsEnd) -> Result<()> {
    let config = mesh::config(config, shape, TransportKind::Rdma, config.transport.poll);
    let VerbsEnd { is_caller, job } = end;
    if is_caller {
        let mut caller = Caller::<1, 1>::join(&config, [(DType::U8, &[job.len_bytes])], 1)?;
        caller.verify()?;
        return tell(&rounds(&mut caller, job)?);
    }
    let mut echo = Echo::join(&config)?;
    // What the caller sends to verify.
    echo.round()?;
    let found = rounds(&mut echo, job)?;
    tell(&found)?;
    // The answer of the last round must not be lost with this process: it ends after the caller.
    let outlived = echo.round();
    ensure!(outlived.is_err(), "the caller sends more than it said");
    Ok(())
}

/// The same rounds at both ends, so that both count the same.
fn rounds(side: &mut impl Side, job: Job) -> Result<Found> {
    for _ in 0..WARM_UP {
        side.round()?;
    }
    let mut durations = Vec::with_capacity(job.rounds as usize);
    let (before, count) = (Counters::now(), Count::start());
    for _ in 0..job.rounds {
        let start = Instant::now();
        side.round()?;
        durations.push(u64::try_from(start.elapsed().as_nanos())?);
    }
    let after = Counters::now();
    Ok(Found {
        rtt_ns: block_median(&mut durations),
        chains: after.chains - before.chains,
        posts: after.posts - before.posts,
        signalled: after.signalled - before.signalled,
        credits: after.credits - before.credits,
        allocations: count.here(),
        allocations_everywhere: count.everywhere(),
    })
}

/// The sizes of the comparison: a small batch, 64 rows of 7168 bf16, and 1024 of them. As many rounds
/// as an adapter in software does in some seconds.
const JOBS: [(&str, Subject, Job); 3] = [
    ("8k", Subject::Small, Job::new(8 << 10, 1000)),
    ("896k", Subject::Medium, Job::new(64 * 7168 * 2, 60)),
    ("14m", Subject::Large, Job::new(1024 * 7168 * 2, 8)),
];

/// Rounds before those that count: slots are made, plans prepared, tables grown.
const WARM_UP: u32 = 8;

/// Longer than everything takes.
const HEARTBEAT_MS: u64 = 400_000;

/// Everything is over by then.
const LONGEST: Duration = Duration::from_secs(300);
