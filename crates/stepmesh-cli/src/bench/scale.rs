//! What a message costs in CPU time when many workers push to many servers, beside one of each.
//! All are processes on the same two cores, and wait as they do by default.

use std::io::{self, BufRead};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::time::ClockId;
use serde::{Deserialize, Serialize};
use stepmesh::DType;
use stepmesh_core::config::{Config, PollMode, TransportKind};

use crate::bench::duel::Side;
use crate::bench::mesh::{self, Caller, Echo, Shape};
use crate::bench::peer::{Part, Peer, Setup, cpus, tell};
use crate::bench::statistics::{median, ratio_of_pairs, to_f64};

/// What was found.
#[derive(Debug)]
pub(crate) struct ScaleOutcome {
    /// CPU time of all processes for each message of one worker and one server, in nanoseconds.
    pub(crate) one_ns: f64,
    /// The same of many.
    pub(crate) many_ns: f64,
    /// The median of the ratios of neighbouring blocks.
    pub(crate) ratio: f64,
}

/// Which end a process is.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum CrowdEnd {
    Worker,
    Server,
}

/// Measures both meshes in turns for about `budget`.
pub(crate) fn measure(setup: &Setup, budget: Duration) -> Result<ScaleOutcome> {
    let deadline = setup.deadline;
    let mut one = Crowd::start(setup, 1)?;
    let mut many = Crowd::start(setup, MANY)?;
    let one_rounds = one.fitting_rounds(deadline)?;
    let many_rounds = many.fitting_rounds(deadline)?;
    let (mut of_one, mut of_many) = (Vec::new(), Vec::new());
    let end = Instant::now() + budget;
    while Instant::now() < end || of_one.is_empty() {
        of_one.push(one.cpu_ns_per_message(one_rounds, deadline)?);
        of_many.push(many.cpu_ns_per_message(many_rounds, deadline)?);
    }
    one.finish(deadline)?;
    many.finish(deadline)?;
    let pairs: Vec<(f64, f64)> = of_many
        .iter()
        .copied()
        .zip(of_one.iter().copied())
        .collect();
    Ok(ScaleOutcome {
        one_ns: median(&of_one).unwrap_or_default(),
        many_ns: median(&of_many).unwrap_or_default(),
        ratio: ratio_of_pairs(&pairs).context("the messages cost no CPU time")?,
    })
}

/// Does one process's share: as many rounds as each line of the input says, and then the CPU time
/// that they took as a line of the output.
pub(crate) fn perform(config: &Config, shape: Shape, end: CrowdEnd) -> Result<()> {
    let config = mesh::config(config, shape, TransportKind::Auto, PollMode::Adaptive);
    match (end, shape.servers) {
        (CrowdEnd::Server, _) => follow(&mut Echo::join(&config)?),
        (CrowdEnd::Worker, 1) => follow(&mut Caller::<1, 1>::join(&config, [TENSOR], 1)?),
        (CrowdEnd::Worker, _) => {
            follow(&mut Caller::<1, MANY_SERVERS>::join(&config, [TENSOR], 1)?)
        }
    }
}

fn follow(side: &mut impl Side) -> Result<()> {
    tell(&0_u64)?;
    for line in io::stdin().lock().lines() {
        let rounds: u64 = line?.trim().parse().context("a number of rounds")?;
        let before_ns = cpu_ns();
        (0..rounds).try_for_each(|_| side.round())?;
        tell(&(cpu_ns() - before_ns))?;
    }
    Ok(())
}

/// The processes of one mesh.
struct Crowd {
    scheduler: Peer,
    members: Vec<Peer>,
    messages_per_round: u32,
}

impl Crowd {
    /// Starts as many workers as servers.
    fn start(setup: &Setup, pairs: u32) -> Result<Self> {
        let mut shape = Shape {
            workers: pairs,
            servers: pairs,
            port: 0,
        };
        let mut scheduler = Peer::start("scheduler", setup, &[], Part::Scheduler(shape))?;
        shape.port = scheduler.answer(setup.deadline)?;
        let mut members = Vec::new();
        let cpus = cpus()?;
        let ends = [("worker", CrowdEnd::Worker), ("server", CrowdEnd::Server)];
        for _ in 0..pairs {
            for ((name, end), cpu) in ends.into_iter().zip(cpus) {
                // A pair has a core for each: on one, either would spin while the other waits.
                let cpus = if pairs == 1 { &[cpu][..] } else { &cpus };
                members.push(Peer::start(name, setup, cpus, Part::Crowd { shape, end })?);
            }
        }
        for member in &mut members {
            member.answer::<u64>(setup.deadline)?;
        }
        Ok(Self {
            scheduler,
            members,
            messages_per_round: pairs * pairs,
        })
    }

    /// CPU time that all members spend on so many rounds.
    fn cpu_ns(&mut self, rounds: u64, deadline: Instant) -> Result<u64> {
        for member in &mut self.members {
            member.say(&rounds)?;
        }
        let answers = self.members.iter_mut();
        answers.map(|member| member.answer::<u64>(deadline)).sum()
    }

    fn cpu_ns_per_message(&mut self, rounds: u64, deadline: Instant) -> Result<f64> {
        let messages = to_f64(rounds) * f64::from(self.messages_per_round);
        Ok(to_f64(self.cpu_ns(rounds, deadline)?) / messages)
    }

    /// How many rounds take about [`BLOCK`].
    fn fitting_rounds(&mut self, deadline: Instant) -> Result<u64> {
        let mut rounds = 8;
        loop {
            let started = Instant::now();
            self.cpu_ns(rounds, deadline)?;
            if started.elapsed() >= BLOCK / 2 {
                return Ok(rounds);
            }
            rounds *= 2;
        }
    }

    fn finish(self, deadline: Instant) -> Result<()> {
        self.members
            .into_iter()
            .try_for_each(|member| member.finish(deadline))?;
        self.scheduler.finish(deadline)
    }
}

/// CPU time of this process so far, of all its threads, in user and in system mode.
fn cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(ClockId::ProcessCPUTime);
    let [seconds, nanos] = [time.tv_sec, time.tv_nsec].map(|part| u64::try_from(part).unwrap_or(0));
    seconds * 1_000_000_000 + nanos
}

/// One token's hidden state, the least that anybody sends.
const TENSOR: (DType, &[u64]) = (DType::BF16, &[1, 7168]);

const MANY: u32 = 8;
const MANY_SERVERS: usize = 8;

/// Long beside waking up all processes.
const BLOCK: Duration = Duration::from_millis(250);
