//! `stepmesh server`: joins a mesh, computes what the workers push, and answers.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use stepmesh::{Answer, Batch, Error, Gather, Server};

use crate::args::Global;
use crate::exit::Exit;
use crate::handler::{Handler, Kind};
use crate::member::{self, MemberOptions};
use crate::signals::Watch;
use crate::{config, report};

/// What `stepmesh server` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    member: MemberOptions,

    /// What is computed
    #[arg(long, value_name = "NAME")]
    handler: Kind,

    /// The weights for `ffn`: a safetensors file with f32 w1, b1, w2 and b2
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,

    /// Whether the batches of all workers are computed together, or each as it comes
    #[arg(long, value_enum, default_value_t = Batches::All)]
    batches_of: Batches,

    /// Ends after this many batches instead of when the workers have gone
    #[arg(long, value_name = "COUNT")]
    batches: Option<u64>,
}

/// Which batches are taken together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Batches {
    /// One of every living worker
    All,
    /// One of any worker
    Any,
}

/// Serves until the workers have gone.
pub(crate) fn run(global: &Global, options: &Options) -> Result<Exit> {
    let config = config::load(global, options.member.overrides())?;
    member::check_scheduler(&config)?;
    let device = options.member.open_device(&config)?;
    let handler = options.handler.create(options.input.as_ref(), &device)?;
    let watch = Watch::start()?;
    tracing::info!(scheduler = member::scheduler(&config), "joining");
    let server = Server::start(&config, &device)?;
    watch.will_close(server.closer());
    report::print(format!(
        "{} serves `{}` to {}",
        server.member(),
        options.handler.name(),
        report::count(server.workers(), "worker")
    ))?;
    let request = Duration::from_millis(config.timeouts.request_ms);
    let mut service = Service::new(server, handler, request);
    match service.serve(options) {
        Err(error) if !watch.explains(&error) => return Err(error),
        _ => {}
    }
    report::print(format!(
        "{} answered {} batches of {} rows in all, let go of {}",
        service.server.member(),
        service.answered,
        service.rows,
        service.dropped
    ))?;
    Ok(watch.exit())
}

/// A server at work.
struct Service {
    server: Server,
    handler: Box<dyn Handler>,
    /// The bound of sending one answer.
    request: Duration,
    /// Answers that may still be read from.
    unsent: Vec<Answer>,
    answered: u64,
    dropped: u64,
    rows: u64,
}

impl Service {
    fn new(server: Server, handler: Box<dyn Handler>, request: Duration) -> Self {
        Self {
            server,
            handler,
            request,
            unsent: Vec::new(),
            answered: 0,
            dropped: 0,
            rows: 0,
        }
    }

    /// Ends well when the workers have gone or enough was done.
    fn serve(&mut self, options: &Options) -> Result<()> {
        let gather = match options.batches_of {
            Batches::All => Gather::All,
            Batches::Any => Gather::Any,
        };
        let enough = options.batches.unwrap_or(u64::MAX);
        // One that takes the place of a lost one is there before its workers have noticed.
        let mut had_workers = false;
        while self.answered + self.dropped < enough {
            match self.server.get_batch_with(gather, LOOK_UP) {
                Ok(batches) => {
                    had_workers = true;
                    self.answer(batches.collect())?;
                }
                Err(Error::WorkersLeft) => break,
                Err(Error::Timeout { .. }) => {
                    let has_workers = self.server.workers_connected() > 0;
                    // Those that died may come back, but nobody waits for them here.
                    if had_workers && !has_workers {
                        break;
                    }
                    had_workers |= has_workers;
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.wait_until_sent()
    }

    fn answer(&mut self, mut batches: Vec<Batch>) -> Result<()> {
        self.wait_until_sent()?;
        tracing::trace!(batches = batches.len(), "computing");
        let answers = self.handler.answers(&batches)?;
        for (batch, answers) in batches.iter_mut().zip(answers) {
            let worker = batch.worker();
            let rows = batch.tensors().first().map_or(0, |x| x.shape().rows());
            let answers = match answers {
                Ok(answers) => answers,
                Err(unfit) => {
                    // Dropped at the end: its worker is told that it was released.
                    tracing::warn!(worker, %unfit, "batch not answered");
                    self.dropped += 1;
                    continue;
                }
            };
            match batch.respond(&answers) {
                Ok(answer) => {
                    self.unsent.push(answer);
                    self.answered += 1;
                    self.rows += rows;
                }
                Err(error @ (Error::PeerLost { .. } | Error::InvalidArgument { .. })) => {
                    tracing::warn!(worker, %error, "batch not answered");
                    self.dropped += 1;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// From here on the answers' memory is ours again.
    fn wait_until_sent(&mut self) -> Result<()> {
        for answer in self.unsent.drain(..) {
            match answer.wait(self.request) {
                Ok(()) => {}
                Err(error @ Error::PeerLost { .. }) => tracing::warn!(%error, "answer not sent"),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// How often a server without work looks whether the workers have gone.
const LOOK_UP: Duration = Duration::from_millis(50);
