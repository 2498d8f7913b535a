//! The worker: pushes tensors to every server and pulls their answers.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use stepmesh_core::config::Config;

use crate::control::member::News;
use crate::engine::{Ended, Engine, Machine, State};
use crate::error::Error;
use crate::protocol::fabrics::Fabrics;
use crate::protocol::worker::{RequestId, WorkerMachine};
use crate::role::{Member, Role, Roles};
use crate::start::{self, Mesh, NewsFor};
use crate::trace::Trace;

pub use crate::protocol::worker::{Keyed, RequestOptions};

/// A worker of the mesh.
///
/// All methods may be called from any thread. Dropping it leaves the mesh; requests that are
/// still on their way then end with [`Error::Closed`].
#[derive(Debug)]
pub struct Worker {
    mesh: Mesh<WorkerMachine>,
    request_timeout: Duration,
}

/// A request that was handed to the worker.
///
/// It can be waited for with [`wait`](Self::wait), or awaited: it is a [`Future`] of the same
/// outcome. It keeps the tensors of the request alive. Dropping it does not cancel the request:
/// the servers still answer, into tensors that stay allocated until they have.
#[derive(Debug)]
pub struct Handle {
    engine: Arc<Engine<WorkerMachine>>,
    id: RequestId,
    /// Counted among the engine's futures since it was first polled.
    is_future: bool,
}

impl Worker {
    /// Joins the mesh that `config` names and connects to the servers.
    ///
    /// Blocks until every member is there, at most `timeouts.barrier_ms`.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] when the mesh does not form or has no place for this worker,
    /// [`Error::PeerLost`] when a server cannot be reached.
    pub fn start(config: &Config) -> Result<Self, Error> {
        let mesh = start::worker(config)?;
        Ok(Self {
            mesh,
            request_timeout: Duration::from_millis(config.timeouts.request_ms),
        })
    }

    /// Who this worker is.
    pub fn member(&self) -> Member {
        self.mesh.member()
    }

    /// How many workers the mesh was formed with, this one included: with its
    /// [`member`](Self::member)'s rank, which share of the work is its own.
    pub fn workers(&self) -> u32 {
        self.mesh.workers()
    }

    /// How many servers this worker pushes to: one for each server group.
    pub fn servers(&self) -> usize {
        self.mesh.engine().lock().machine.servers()
    }

    /// Pushes tensors to every server and pulls their answers into others.
    ///
    /// Each server gets every pushed tensor. Of `pull`, which must hold the same number of
    /// tensors for each server, server 0 fills the first part, server 1 the second, and so on.
    /// Returns at once; the outcome is the handle's. The same keys and pull tensors again and
    /// again are launched from a prepared plan and allocate nothing.
    ///
    /// Rows (the first dimension) may be fewer than before, or none. Until the request is done,
    /// pushed tensors must not be written to, and pulled ones not be read.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for tensors that make no sense together, such as pull tensors that
    /// share memory, [`Error::PeerLost`] when a server is gone, [`Error::Limit`] when too many
    /// requests are in flight.
    pub fn push_pull(&self, push: &[Keyed<'_>], pull: &[Keyed<'_>]) -> Result<Handle, Error> {
        self.push_pull_with(push, pull, &RequestOptions::default())
    }

    /// [`push_pull`](Self::push_pull) with a tag to match batches by, or an event to wait for.
    ///
    /// # Errors
    /// As [`push_pull`](Self::push_pull).
    pub fn push_pull_with(
        &self,
        push: &[Keyed<'_>],
        pull: &[Keyed<'_>],
        options: &RequestOptions,
    ) -> Result<Handle, Error> {
        let engine = self.mesh.engine();
        engine.check_open("push_pull")?;
        let mut state = engine.lock();
        let State { machine, fabrics } = &mut *state;
        let id = machine.submit(fabrics, push, pull, options)?;
        drop(state);
        Ok(Handle {
            engine: Arc::clone(engine),
            id,
            is_future: false,
        })
    }

    /// Pushes tensors to every server. The request is done once every server's application has
    /// answered or dropped the batch, so a push that was waited for was consumed.
    ///
    /// # Errors
    /// As [`push_pull`](Self::push_pull).
    pub fn push(&self, push: &[Keyed<'_>]) -> Result<Handle, Error> {
        self.push_pull(push, &[])
    }

    /// Pulls tensors from every server without pushing any.
    ///
    /// # Errors
    /// As [`push_pull`](Self::push_pull).
    pub fn pull(&self, pull: &[Keyed<'_>]) -> Result<Handle, Error> {
        self.push_pull(&[], pull)
    }

    /// Waits for a request for at most `timeouts.request_ms`; [`Handle::wait`] takes a bound.
    ///
    /// # Errors
    /// As [`Handle::wait`].
    pub fn wait(&self, handle: &Handle) -> Result<(), Error> {
        handle.wait(self.request_timeout)
    }

    /// Waits until every member of `roles` has called it.
    ///
    /// # Errors
    /// [`Error::Timeout`] that names who is missing, [`Error::SchedulerLost`].
    pub fn barrier(&self, roles: Roles, timeout: Duration) -> Result<(), Error> {
        self.mesh.barrier(roles, timeout)
    }

    /// Ends every wait of this worker, from any thread, and makes it leave when it is dropped.
    pub fn closer(&self) -> Closer {
        self.mesh.closer()
    }
}

impl Handle {
    /// Waits until the request is done, and drives it meanwhile.
    ///
    /// After a timeout the request goes on and can be waited for again.
    ///
    /// # Errors
    /// [`Error::Timeout`] that names the servers that did not answer, [`Error::PeerLost`] when
    /// one is gone, [`Error::Refused`] or [`Error::Released`] when one did not answer on
    /// purpose, [`Error::Closed`].
    pub fn wait(&self, timeout: Duration) -> Result<(), Error> {
        let outcome = self
            .engine
            .wait(timeout, |state| state.machine.outcome(self.id));
        match outcome {
            Ok(outcome) => self.unless_closed(outcome, "wait"),
            Err(Ended::Closed) => Err(self.engine.closed("wait")),
            Err(Ended::TimedOut) => Err(Error::Timeout {
                operation: "wait",
                waited_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
                missing: self.engine.lock().machine.missing(self.id),
            }),
        }
    }

    /// Whether the request is over, well or not. Polls once.
    pub fn is_done(&self) -> bool {
        let mut state = self.engine.lock();
        let State { machine, fabrics } = &mut *state;
        machine.progress(fabrics);
        machine.outcome(self.id).is_some()
    }

    /// The times of the request at one server; see [`Trace`]. Zero where it has not been yet.
    pub fn trace(&self, server: usize) -> Trace {
        self.engine
            .lock()
            .machine
            .trace(self.id, server)
            .unwrap_or_default()
    }

    /// How many rows server `server` wrote into its pull tensor `slot`; `None` before it
    /// answered.
    pub fn pulled_rows(&self, server: usize, slot: usize) -> Option<u64> {
        let state = self.engine.lock();
        let rows = state.machine.pulled_rows(self.id, server)?;
        rows.get(slot).copied().map(u64::from)
    }
}

impl Future for Handle {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = {
            let mut state = self.engine.lock();
            let State { machine, fabrics } = &mut *state;
            machine.progress(fabrics);
            let outcome = machine.outcome(self.id);
            if outcome.is_none() {
                machine.wake_at_end(self.id, context.waker());
            }
            outcome
        };
        if let Some(outcome) = outcome {
            self.stop_being_a_future();
            return Poll::Ready(self.unless_closed(outcome, "await"));
        }
        if let Err(error) = self.engine.check_open("await") {
            self.stop_being_a_future();
            return Poll::Ready(Err(error));
        }
        if !self.is_future {
            self.is_future = true;
            self.engine.add_future();
        }
        Poll::Pending
    }
}

impl Handle {
    /// Closing makes the peers leave, which is not what the caller should be told.
    fn unless_closed(
        &self,
        outcome: Result<(), Error>,
        operation: &'static str,
    ) -> Result<(), Error> {
        outcome.or_else(|error| self.engine.check_open(operation).and(Err(error)))
    }

    fn stop_being_a_future(&mut self) {
        if self.is_future {
            self.is_future = false;
            self.engine.remove_future();
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.stop_being_a_future();
        self.engine.lock().machine.detach(self.id);
    }
}

impl Machine for WorkerMachine {
    fn progress(&mut self, fabrics: &mut Fabrics) -> bool {
        Self::progress(self, fabrics)
    }

    fn tick(&mut self, fabrics: &mut Fabrics) {
        Self::tick(self, fabrics);
    }

    fn has_pending(&self) -> bool {
        Self::has_pending(self)
    }

    fn take_news(&mut self) -> bool {
        self.take_finished() > 0
    }

    fn goodbye(&mut self, fabrics: &mut Fabrics) {
        Self::goodbye(self, fabrics);
    }

    fn wake_all(&mut self) {
        Self::wake_all(self);
    }
}

impl NewsFor for WorkerMachine {
    fn take(&mut self, fabrics: &mut Fabrics, news: News, routes: &start::Routes) {
        match news {
            News::Joined { entry } if entry.member.role == Role::Server => {
                if let Some((index, address)) = routes.server(&entry) {
                    self.set_server(fabrics, index, address);
                }
            }
            // A server that is lost is noticed by its connection, after what it sent before.
            News::Lost { .. } | News::Joined { .. } | News::Formed(_) => {}
        }
    }
}

/// Closes a worker or a server from another thread, such as one that waits for signals.
#[derive(Clone, Debug)]
pub struct Closer(pub(crate) Arc<dyn Close>);

impl Closer {
    /// Makes every wait end with [`Error::Closed`], now and from here on. Returns at once.
    pub fn close(&self) {
        self.0.close();
    }
}

/// What a [`Closer`] closes.
pub(crate) trait Close: std::fmt::Debug + Send + Sync {
    fn close(&self);
}
