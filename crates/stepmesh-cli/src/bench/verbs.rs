//! `stepmesh rdma bench`: round trips of this library over a real adapter, between two processes of
//! this host, and what they cost in posts and allocations. What perftest says of the same adapter is
//! put beside it by who runs both, in one boot of one machine.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use stepmesh::DType;
use stepmesh_core::config::{Config, MeshConfig, PollMode, TransportKind};
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

/// What one end found over the measured rounds.
#[derive(Debug, Serialize, Deserialize)]
struct Found {
    /// The median round trip; 0 at the end that answers.
    rtt_ns: f64,
    chains: u64,
    posts: u64,
    credits: u64,
    /// On the thread that asks or answers.
    allocations: u64,
    /// On all, with those that heartbeats make: by time, not by request.
    allocations_everywhere: u64,
}

/// Measures all sizes. The names are those of the numbers, in a flat map.
pub(crate) fn measure(mut config: Config) -> Result<BTreeMap<String, f64>> {
    config.mesh = MeshConfig::default();
    let setup = Setup {
        config,
        deadline: Instant::now() + LONGEST,
        stretch: 1,
    };
    let mut numbers = BTreeMap::new();
    for (name, job) in JOBS {
        let (caller, echo) = pair(&setup, job).with_context(|| format!("measuring {name}"))?;
        let mut put =
            |what: &str, value: f64| numbers.insert(format!("verbs.{what}_{name}"), value);
        put("rtt_us", caller.rtt_ns / 1e3);
        // There and back.
        let bytes = f64::from(u32::try_from(job.len_bytes * 2)?);
        put("mb_per_s", bytes / caller.rtt_ns * 1e3);
        let rounds = f64::from(job.rounds);
        for (end, found) in [("caller", &caller), ("echo", &echo)] {
            let mut put = |what: &str, count: u64| -> Result<()> {
                let each = f64::from(u32::try_from(count)?) / rounds;
                numbers.insert(format!("verbs.{what}_per_request_{end}_{name}"), each);
                Ok(())
            };
            put("posts", found.posts - found.credits)?;
            put("chains", found.chains)?;
            put("credits", found.credits)?;
            put("alloc", found.allocations)?;
            put("alloc_all_threads", found.allocations_everywhere)?;
        }
    }
    Ok(numbers)
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
    // Adaptive: two processes that only spin would keep the driver of an adapter in software from
    // its work.
    let config = mesh::config(config, shape, TransportKind::Rdma, PollMode::Adaptive);
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
    // Heartbeats are chains as well; at long round trips they show.
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
        credits: after.credits - before.credits,
        allocations: count.here(),
        allocations_everywhere: count.everywhere(),
    })
}

/// The sizes of the comparison: a small batch, 64 rows of 7168 bf16, and 1024 of them. As many rounds
/// as an adapter in software does in some seconds.
const JOBS: [(&str, Job); 3] = [
    (
        "8k",
        Job {
            len_bytes: 8 << 10,
            rounds: 2000,
        },
    ),
    (
        "896k",
        Job {
            len_bytes: 64 * 7168 * 2,
            rounds: 150,
        },
    ),
    (
        "14m",
        Job {
            len_bytes: 1024 * 7168 * 2,
            rounds: 20,
        },
    ),
];

/// Rounds before those that count: slots are made, plans prepared, tables grown.
const WARM_UP: u32 = 8;

/// Everything is over by then.
const LONGEST: Duration = Duration::from_secs(300);
