//! `stepmesh worker`: joins a mesh, pushes tensors to every server, checks what comes back, and
//! shows where the time went.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
use serde_json::json;
use stepmesh::{DType, Keyed, Tensor, Trace, Worker};
use stepmesh_core::Device;

use crate::args::Global;
use crate::exit::Exit;
use crate::job::{Job, Reference, Rows};
use crate::latency::Latencies;
use crate::member::{self, MemberOptions};
use crate::signals::Watch;
use crate::{config, report};

/// What `stepmesh worker` takes.
///
/// The table shows, in microseconds by server: `request`, in the caller's hands; `send`, until the
/// pushes are posted; `net`, on the wire both ways; `receive`, until the server takes the batch;
/// `process`, the server's computation; `respond`, until the answer is posted; `total`, from the
/// call to the last server's answer.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    member: MemberOptions,

    /// Pushes this worker's share of `ffn_in` of a safetensors file and compares the answers with
    /// `ffn_out`; without it, synthetic tensors that must come back as they went
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,

    /// How many times it pushes and pulls
    #[arg(long, value_name = "COUNT", default_value_t = 200)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    iterations: u64,

    /// Pushes all rows each time; else now more, now fewer
    #[arg(long)]
    all_rows: bool,

    /// The key of the pushed tensor; those that are pulled follow
    #[arg(long, default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(..KEY_MAX))]
    key: u64,

    /// Rows of the synthetic tensor
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 64,
        conflicts_with = "input"
    )]
    rows: u64,

    /// Elements in a row of the synthetic tensor
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 7168,
        conflicts_with = "input"
    )]
    dim: u64,

    /// Type of the synthetic elements
    #[arg(long, default_value = "bf16", conflicts_with = "input", value_parser = dtype)]
    dtype: DType,

    /// Prints JSON: who it was, the largest error, and the times by server
    #[arg(long)]
    json: bool,
}

/// Pushes, pulls, and judges.
pub(crate) fn run(global: &Global, options: &Options) -> Result<Exit> {
    let config = config::load(global, options.member.overrides())?;
    member::check_scheduler(&config)?;
    // A bad file is told before the others wait for us.
    let reference = options.input.as_deref().map(Reference::read).transpose()?;
    let device = options.member.open_device(&config)?;
    let watch = Watch::start()?;
    tracing::info!(scheduler = member::scheduler(&config), "joining");
    let worker = Worker::start(&config)?;
    watch.will_close(worker.closer());
    let mut task = Task::new(worker, reference.as_ref(), options, &device)?;
    match task.run(options) {
        Ok(()) => {
            task.show(options)?;
            task.judge()?;
        }
        Err(error) if watch.explains(&error) => {
            tracing::info!(done = task.done, asked = options.iterations, "ended early");
            task.show(options)?;
        }
        Err(error) => return Err(error),
    }
    Ok(watch.exit())
}

/// A worker at work.
struct Task {
    worker: Worker,
    job: Job,
    /// One for each server.
    pulled: Vec<Tensor>,
    /// What pull tensors hold before each request, so that an answer that did not come is seen.
    blank: Vec<u8>,
    latencies: Latencies,
    is_recorded: bool,
    done: u64,
    largest_error: f32,
}

impl Task {
    fn new(
        worker: Worker,
        reference: Option<&Reference>,
        options: &Options,
        device: &Device,
    ) -> Result<Self> {
        let (rank, workers) = (worker.member().rank, worker.workers());
        let job = match reference {
            Some(reference) => reference.share(rank as usize, workers as usize, device)?,
            None => Job::synthetic(options.rows, options.dim, options.dtype, rank, device)?,
        };
        let pushed = job.pushed();
        let pulled = (0..worker.servers())
            .map(|_| Tensor::empty(device, pushed.dtype(), pushed.shape().dims()))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            is_recorded: options.iterations == 1,
            pulled,
            blank: vec![0xFF; usize::try_from(pushed.len_bytes())?],
            latencies: Latencies::new(worker.servers()),
            done: 0,
            largest_error: 0.0,
            worker,
            job,
        })
    }

    fn run(&mut self, options: &Options) -> Result<()> {
        // Hidden where standard error is no terminal.
        let style = ProgressStyle::with_template("{bar:40} {pos}/{len}, {eta} left")?;
        let progress = ProgressBar::new(options.iterations)
            .with_style(style)
            .with_finish(ProgressFinish::AndClear);
        for iteration in 0..options.iterations {
            let rows = self.job.rows(if options.all_rows { 0 } else { iteration });
            self.push_pull(options.key, rows)
                .with_context(|| format!("iteration {iteration}"))?;
            if iteration == 0 {
                tracing::info!(servers = self.pulled.len(), "first round trip");
            }
            // The first one sets up what the others use.
            self.is_recorded = true;
            self.done += 1;
            progress.inc(1);
        }
        Ok(())
    }

    fn push_pull(&mut self, key: u64, rows: Rows) -> Result<()> {
        for tensor in &self.pulled {
            tensor
                .buffer()
                .write_bytes(tensor.offset_bytes(), &self.blank)?;
        }
        let part = self.job.pushed().rows(rows.start, rows.count)?;
        let push = [Keyed::new(key, &part)];
        let pull: Vec<_> = (key + 1..)
            .zip(&self.pulled)
            .map(|(key, tensor)| Keyed::new(key, tensor))
            .collect();
        let start = Instant::now();
        let handle = self.worker.push_pull(&push, &pull)?;
        self.worker.wait(&handle)?;
        let total = start.elapsed();
        if self.is_recorded {
            let traces: Vec<Trace> = (0..self.pulled.len()).map(|s| handle.trace(s)).collect();
            self.latencies.record(total, &traces, rows.count);
        }
        for (server, tensor) in self.pulled.iter().enumerate() {
            let count = handle.pulled_rows(server, 0);
            ensure!(
                count == Some(rows.count),
                "server {server} answered {count:?} rows to {}",
                rows.count
            );
            let answer = tensor.rows(0, rows.count)?;
            let error = self.job.check(rows, &answer);
            let error = error.with_context(|| format!("the answer of server {server}"))?;
            self.largest_error = self.largest_error.max(error);
        }
        Ok(())
    }

    fn show(&self, options: &Options) -> Result<()> {
        let member = self.worker.member();
        if options.json {
            return report::print_json(&json!({
                "role": member.role.to_string(),
                "rank": member.rank,
                "iterations": self.done,
                "largest_error": self.largest_error,
                "tolerance": TOLERANCE,
                "servers": self.latencies.as_json(),
            }));
        }
        report::print(format!(
            "{member}: {} round trips with {} (the first one sets up and is not in the table)",
            self.done,
            report::count(self.pulled.len(), "server"),
        ))?;
        report::print(self.latencies.table())?;
        if self.job.is_exact() {
            return report::print("every answer came back as it went");
        }
        report::print(format!(
            "largest absolute error {:.1e}, allowed {TOLERANCE:.0e}",
            self.largest_error
        ))
    }

    fn judge(&self) -> Result<()> {
        if self.largest_error >= TOLERANCE {
            bail!(
                "the largest absolute error is {:.3e}, it must be below {TOLERANCE:.0e}; do the \
                 servers use the same --input?",
                self.largest_error
            );
        }
        Ok(())
    }
}

fn dtype(text: &str) -> Result<DType, String> {
    DType::ALL
        .into_iter()
        .find(|dtype| dtype.to_string() == text)
        .ok_or_else(|| {
            let names: Vec<_> = DType::ALL.iter().map(ToString::to_string).collect();
            format!("no such type; take one of {}", names.join(", "))
        })
}

/// What f32 arithmetic in another order may differ by: the bound for the real layer.
const TOLERANCE: f32 = 1e-4;

/// Leaves room for the keys of the pulled tensors.
const KEY_MAX: u64 = 1 << 32;
