//! Processes of a benchmark: this program once more, with a task instead of arguments. A task's
//! process says what it found as lines of JSON, each `{"Ok": what}` or `{"Err": why}`.

use std::env;
use std::io::{self, BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, anyhow, bail};
use rustix::process::Signal;
use rustix::thread::CpuSet;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepmesh::Scheduler;
use stepmesh_core::config::{Config, PollMode, TransportKind};

use crate::bench::mesh::{self, Shape};
use crate::bench::{lazy, loader, mem_event, pair, scale, vtable};

/// What all processes of a run have in common.
#[derive(Debug)]
pub(crate) struct Setup {
    /// The user's configuration, without a mesh.
    pub(crate) config: Config,
    /// When everything has to be over.
    pub(crate) deadline: Instant,
    /// How much longer than in a quick run everything is measured.
    pub(crate) stretch: u64,
}

/// What a process does.
#[derive(Debug, Serialize, Deserialize)]
struct Task {
    config: Config,
    /// The cores it stays on; none: any.
    cpus: Vec<usize>,
    part: Part,
}

/// The part that a process plays.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Part {
    /// The scheduler of a mesh; says its port.
    Scheduler(Shape),
    /// One of two processes on two cores that share memory.
    Pair {
        page: PathBuf,
        shape: Shape,
        end: pair::PairEnd,
    },
    /// A worker or a server among many.
    Crowd { shape: Shape, end: scale::CrowdEnd },
    /// Calls through a plugin's table.
    Vtable { budget_ms: u64 },
    /// Finds or opens plugins.
    Loader(loader::Step),
    /// Waits for what is due.
    MemEvent { budget_ms: u64 },
    /// One of two processes with an RDMA adapter.
    #[cfg(feature = "rdma")]
    Verbs {
        shape: Shape,
        end: super::verbs::VerbsEnd,
    },
    /// Traces, compiles and executes tensors.
    Lazy {
        subject: lazy::Subject,
        budget_ms: u64,
    },
}

/// A process that was started. Killed if it is dropped before it ended.
#[derive(Debug)]
pub(crate) struct Peer {
    name: &'static str,
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Peer {
    /// Starts a process that plays a part on these cores, or on any if none are given. `name` is
    /// for messages.
    pub(crate) fn start(
        name: &'static str,
        setup: &Setup,
        cpus: &[usize],
        part: Part,
    ) -> Result<Self> {
        let task = Task {
            config: setup.config.clone(),
            cpus: cpus.to_vec(),
            part,
        };
        let program = env::current_exe().context("cannot find this program's file")?;
        let mut child = Command::new(program)
            .args(["bench", "--task", &serde_json::to_string(&task)?])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start the {name}"))?;
        let input = child.stdin.take();
        let output = child.stdout.take().context("the output is not piped")?;
        let (sender, lines) = mpsc::channel();
        // Ends with the process, or when nobody listens any more.
        thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(io::Result::ok);
            lines
                .map_while(|line| sender.send(line).ok())
                .for_each(drop);
        });
        Ok(Self {
            name,
            child,
            input,
            lines,
        })
    }

    /// The next thing that the process says.
    pub(crate) fn answer<T: DeserializeOwned>(&mut self, deadline: Instant) -> Result<T> {
        let left = deadline.saturating_duration_since(Instant::now());
        let line = match self.lines.recv_timeout(left) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => bail!("the {} said nothing in time", self.name),
            Err(RecvTimeoutError::Disconnected) => {
                bail!("the {} ended early: {}", self.name, self.child.wait()?)
            }
        };
        let said: Result<T, String> = serde_json::from_str(&line)
            .with_context(|| format!("the {} said something else: {line}", self.name))?;
        said.map_err(|reason| anyhow!("the {} failed: {reason}", self.name))
    }

    /// Adds to another process's error why this one failed, if it did: the one may be due to the
    /// other.
    pub(crate) fn explain(&self, error: Error) -> Error {
        let lines = self.lines.try_iter();
        let mut failures = lines.filter_map(|line| serde_json::from_str(&line).ok());
        match failures.find_map(Result::<Value, String>::err) {
            Some(reason) => error.context(format!("the {} failed: {reason}", self.name)),
            None => error,
        }
    }

    /// Tells the process something.
    pub(crate) fn say(&mut self, what: &impl Serialize) -> Result<()> {
        let input = self.input.as_mut().context("its input was closed")?;
        writeln!(input, "{}", serde_json::to_string(what)?)
            .with_context(|| format!("the {} does not listen", self.name))
    }

    /// Waits until the process ended well.
    pub(crate) fn finish(mut self, deadline: Instant) -> Result<()> {
        self.input = None;
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if Instant::now() >= deadline {
                bail!("the {} does not end", self.name);
            }
            thread::sleep(EXIT_POLL);
        };
        if status.success() {
            return Ok(());
        }
        Err(self.explain(anyhow!("the {} ended: {status}", self.name)))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended by itself; either way nothing of it is left.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Does a task in this process, which was started for it.
pub(crate) fn perform(task: &str) -> Result<()> {
    let task: Task = serde_json::from_str(task).context("--task is for the program's own use")?;
    // Nothing of a benchmark outlives it, however it ends.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .context("cannot ask for the parent's death")?;
    if !task.cpus.is_empty() {
        pin(&task.cpus)?;
    }
    let config = &task.config;
    match task.part {
        Part::Scheduler(shape) => schedule(config, shape),
        Part::Pair { page, shape, end } => pair::perform(config, &page, shape, &end),
        Part::Crowd { shape, end } => scale::perform(config, shape, end),
        #[cfg(feature = "rdma")]
        Part::Verbs { shape, end } => super::verbs::perform(config, shape, end),
        Part::Vtable { budget_ms } => {
            tell(&vtable::measure(config, Duration::from_millis(budget_ms))?)
        }
        Part::Loader(step) => loader::perform(config, &step),
        Part::Lazy { subject, budget_ms } => tell(&lazy::measure(
            config,
            subject,
            Duration::from_millis(budget_ms),
        )?),
        Part::MemEvent { budget_ms } => tell(&mem_event::measure(
            config,
            Duration::from_millis(budget_ms),
        )?),
    }
}

/// Says something to the process that started this one.
pub(crate) fn tell(what: &impl Serialize) -> Result<()> {
    write(&Ok(what))
}

/// Says to the process that started this one why the task failed.
pub(crate) fn tell_failure(error: &Error) -> Result<()> {
    write(&Err::<(), _>(format!("{error:#}")))
}

fn write(what: &Result<impl Serialize, String>) -> Result<()> {
    let mut output = io::stdout().lock();
    writeln!(output, "{}", serde_json::to_string(what)?)?;
    Ok(output.flush()?)
}

/// The two cores that everything is measured on.
///
/// # Errors
/// When this process may not use as many.
pub(crate) fn cpus() -> Result<[usize; 2]> {
    let set = rustix::thread::sched_getaffinity(None).context("cannot ask for the cores")?;
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu));
    match (cpus.next(), cpus.next()) {
        (Some(first), Some(second)) => Ok([first, second]),
        _ => bail!("two cores are needed, and this process may use one"),
    }
}

fn pin(cpus: &[usize]) -> Result<()> {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    rustix::thread::sched_setaffinity(None, &set)
        .with_context(|| format!("cannot stay on the cores {cpus:?}"))
}

fn schedule(config: &Config, shape: Shape) -> Result<()> {
    let config = mesh::config(config, shape, TransportKind::Auto, PollMode::Event);
    let mut scheduler = Scheduler::start(&config)?;
    tell(&scheduler.address().port())?;
    Ok(scheduler.run()?)
}

/// How often the end of a process is looked for.
const EXIT_POLL: Duration = Duration::from_millis(2);
