//! The server: takes what the workers pushed, and answers into their tensors.

use std::sync::Arc;
use std::time::Duration;

use stepmesh_core::Device;
use stepmesh_core::config::Config;

use crate::control::member::News;
use crate::engine::{Ended, Engine, Machine, State};
use crate::error::Error;
use crate::protocol::fabrics::Fabrics;
use crate::protocol::server::{AnswerId, BatchList, BatchRecord, PullInfo, ServerMachine};
use crate::protocol::wire::Tag;
use crate::role::{Member, Roles};
use crate::start::{self, Mesh, NewsFor};
use crate::tensor::Tensor;
use crate::worker::Closer;

/// A server of the mesh.
///
/// All methods may be called from any thread. Dropping it leaves the mesh.
#[derive(Debug)]
pub struct Server {
    mesh: Mesh<ServerMachine>,
    request_timeout: Duration,
}

/// One worker's request: what it pushed, and where the answers go.
///
/// The tensors are views of the slots that the worker wrote into. They hold until the batch is
/// answered or dropped; the worker cannot push under the same keys before that. Dropping a batch
/// releases it without an answer, which the worker sees as [`Error::Released`] if it waits for
/// one.
#[derive(Debug)]
pub struct Batch {
    /// `None` once it was answered.
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    engine: Arc<Engine<ServerMachine>>,
    record: Box<BatchRecord>,
}

/// Batches with the same tag, one of each living worker, in rank order.
///
/// Iterating by value hands out each [`Batch`]; those that are left when it is dropped are
/// released without an answer.
#[derive(Debug)]
pub struct Batches {
    engine: Arc<Engine<ServerMachine>>,
    records: BatchList,
}

/// An answer on its way. Dropping it is fine: the answer is sent all the same, and its tensors
/// are kept alive until it was.
#[derive(Debug)]
pub struct Answer {
    engine: Arc<Engine<ServerMachine>>,
    id: AnswerId,
}

/// Which batches [`Server::get_batch_with`] waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gather {
    /// One of every living worker, all with the same tag.
    #[default]
    All,
    /// One of any worker, the oldest first.
    Any,
}

impl Server {
    /// Joins the mesh that `config` names. Memory for pushes without a registered receive buffer
    /// comes from `device`.
    ///
    /// Blocks until every member is there and every worker is connected, at most
    /// `timeouts.barrier_ms`.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] when the mesh does not form or has no place for this server.
    pub fn start(config: &Config, device: &Device) -> Result<Self, Error> {
        let mesh = start::server(config, device)?;
        Ok(Self {
            mesh,
            request_timeout: Duration::from_millis(config.timeouts.request_ms),
        })
    }

    /// Who this server is.
    pub fn member(&self) -> Member {
        self.mesh.member()
    }

    /// How many workers push to this server: one of each worker group.
    pub fn workers(&self) -> usize {
        self.mesh.engine().lock().machine.workers()
    }

    /// How many of them are connected now. Once it is 0, nobody is left to serve, unless one
    /// comes back.
    pub fn workers_connected(&self) -> usize {
        self.mesh.engine().lock().machine.workers_connected()
    }

    /// Sets memory aside for pushes: `tensor` is cut along its rows into equal parts, one for
    /// each `(worker, key)` of `slices`, so that several workers' pushes land side by side in one
    /// tensor. `worker` is a worker's group rank. Call it before the first push of the key.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the tensor cannot be cut so, a worker does not exist, or
    /// a place is taken already.
    pub fn register_recv_buffer(
        &self,
        tensor: &Tensor,
        slices: &[(u32, u64)],
    ) -> Result<(), Error> {
        self.mesh
            .engine()
            .lock()
            .machine
            .register_recv_buffer(tensor, slices)
    }

    /// Waits for one batch of every living worker, all with the same tag, in rank order.
    ///
    /// # Errors
    /// As [`get_batch_with`](Self::get_batch_with).
    pub fn get_batch(&self, timeout: Duration) -> Result<Batches, Error> {
        self.get_batch_with(Gather::All, timeout)
    }

    /// Waits for batches as `gather` says.
    ///
    /// # Errors
    /// [`Error::Timeout`] that names who has sent nothing, [`Error::WorkersLeft`] once every
    /// worker has said goodbye, [`Error::Closed`].
    pub fn get_batch_with(&self, gather: Gather, timeout: Duration) -> Result<Batches, Error> {
        let engine = self.mesh.engine();
        engine.check_open("get_batch")?;
        let taken = engine.wait(timeout, |state| {
            let taken = match gather {
                Gather::All => state.machine.take_matched(),
                Gather::Any => state.machine.take_any(),
            };
            let over = taken.is_none() && state.machine.everybody_left();
            if over { Some(None) } else { taken.map(Some) }
        });
        match taken {
            Ok(Some(records)) => Ok(Batches {
                engine: Arc::clone(engine),
                records,
            }),
            Ok(None) => Err(Error::WorkersLeft),
            Err(Ended::Closed) => Err(engine.closed("get_batch")),
            Err(Ended::TimedOut) => Err(Error::Timeout {
                operation: "get_batch",
                waited_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
                missing: engine.lock().machine.without_batch(),
            }),
        }
    }

    /// [`get_batch`](Self::get_batch) with the bound `timeouts.request_ms`.
    ///
    /// # Errors
    /// As [`get_batch`](Self::get_batch).
    pub fn next_batch(&self) -> Result<Batches, Error> {
        self.get_batch(self.request_timeout)
    }

    /// Waits until every member of `roles` has called it.
    ///
    /// # Errors
    /// [`Error::Timeout`] that names who is missing, [`Error::SchedulerLost`].
    pub fn barrier(&self, roles: Roles, timeout: Duration) -> Result<(), Error> {
        self.mesh.barrier(roles, timeout)
    }

    /// Ends every wait of this server, from any thread, and makes it leave when it is dropped.
    pub fn closer(&self) -> Closer {
        self.mesh.closer()
    }
}

impl Batch {
    /// The worker's group rank.
    pub fn worker(&self) -> u32 {
        self.record().map_or(0, BatchRecord::worker)
    }

    /// What the worker tagged the request with.
    pub fn tag(&self) -> Tag {
        self.record().map(BatchRecord::tag).unwrap_or_default()
    }

    /// The keys of the pushed tensors.
    pub fn keys(&self) -> &[u64] {
        self.record().map(BatchRecord::keys).unwrap_or_default()
    }

    /// The pushed tensors, in the order in which they were pushed.
    pub fn tensors(&self) -> &[Tensor] {
        self.record().map(BatchRecord::tensors).unwrap_or_default()
    }

    /// What the worker pulls into, in its order; empty for a mere push.
    pub fn pulls(&self) -> &[PullInfo] {
        self.record().map(BatchRecord::pulls).unwrap_or_default()
    }

    /// Writes `answers` into the worker's pull tensors and gives its slots back.
    ///
    /// There must be one for each pull, of its dtype and row shape, with at most as many rows. A
    /// mere push is answered with none. Until [`Answer::wait`] returns, the tensors must not be
    /// written to. After an error the batch can be answered again.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for tensors that do not fit or a batch that was answered,
    /// [`Error::PeerLost`] when the worker is gone.
    pub fn respond(&mut self, answers: &[Tensor]) -> Result<Answer, Error> {
        let Some(Open { engine, record }) = self.open.take() else {
            return Err(Error::invalid("respond", "the batch was answered already"));
        };
        let outcome = {
            let mut state = engine.lock();
            let State { machine, fabrics } = &mut *state;
            machine.respond(fabrics, record, answers)
        };
        match outcome {
            Ok(id) => Ok(Answer { engine, id }),
            Err((record, error)) => {
                self.open = Some(Open { engine, record });
                Err(error)
            }
        }
    }

    fn record(&self) -> Option<&BatchRecord> {
        self.open.as_ref().map(|open| &*open.record)
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        if let Some(Open { engine, record }) = self.open.take() {
            let mut state = engine.lock();
            let State { machine, fabrics } = &mut *state;
            machine.release(fabrics, record);
        }
    }
}

impl Batches {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether all were taken.
    pub fn is_empty(&self) -> bool {
        self.records.len() == 0
    }

    /// What they are tagged with.
    pub fn tag(&self) -> Tag {
        self.records
            .iter()
            .next()
            .map(BatchRecord::tag)
            .unwrap_or_default()
    }

    /// The pushed tensors of batch `index`, in the order in which they were pushed.
    pub fn tensors(&self, index: usize) -> &[Tensor] {
        self.records
            .iter()
            .nth(index)
            .map(BatchRecord::tensors)
            .unwrap_or_default()
    }

    /// The group rank of the worker of batch `index`.
    pub fn worker(&self, index: usize) -> Option<u32> {
        Some(self.records.iter().nth(index)?.worker())
    }

    /// Answers every batch from one tensor: the first takes as many of its rows as its first
    /// pushed tensor has, the second the next ones, and so on. A worker that was lost in the
    /// meantime is passed over: the others get their answers.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless the rows add up and each batch pulls one tensor that they
    /// fit into. The batches that were not answered yet stay.
    pub fn respond_vec(&mut self, rows: &Tensor) -> Result<(), Error> {
        let total: u64 = self.records.iter().map(pushed_rows).sum();
        if total != rows.shape().rows() {
            return Err(Error::invalid(
                "respond_vec",
                format!("{} rows to answer {total} pushed rows", rows.shape().rows()),
            ));
        }
        let mut start = 0;
        while let Some(count) = self.records.first().map(pushed_rows) {
            let answer = rows.rows(start, count)?;
            let Some(mut batch) = self.next() else { break };
            match batch.respond(&[answer]) {
                Ok(_) => {}
                Err(error @ Error::PeerLost { .. }) => tracing::warn!(%error, "not answered"),
                Err(error) => {
                    if let Some(open) = batch.open.take() {
                        self.records.push_front(open.record);
                    }
                    return Err(error);
                }
            }
            start += count;
        }
        Ok(())
    }
}

/// The rows of a batch's first pushed tensor.
fn pushed_rows(record: &BatchRecord) -> u64 {
    let first = record.tensors().first();
    first.map_or(0, |tensor| tensor.shape().rows())
}

impl Iterator for Batches {
    type Item = Batch;

    fn next(&mut self) -> Option<Batch> {
        let record = self.records.pop_front()?;
        Some(Batch {
            open: Some(Open {
                engine: Arc::clone(&self.engine),
                record,
            }),
        })
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        if self.records.len() == 0 {
            return;
        }
        let mut state = self.engine.lock();
        let State { machine, fabrics } = &mut *state;
        while let Some(record) = self.records.pop_front() {
            machine.release(fabrics, record);
        }
    }
}

impl Answer {
    /// Waits until the answer's tensors may be written to again.
    ///
    /// # Errors
    /// [`Error::PeerLost`] when the worker was lost before, [`Error::Timeout`],
    /// [`Error::Closed`].
    pub fn wait(&self, timeout: Duration) -> Result<(), Error> {
        let done = self
            .engine
            .wait(timeout, |state| match state.machine.is_answered(self.id) {
                Ok(false) => None,
                Ok(true) => Some(Ok(())),
                Err(error) => Some(Err(error)),
            });
        match done {
            Ok(outcome) => outcome,
            Err(Ended::Closed) => Err(self.engine.closed("answer")),
            Err(Ended::TimedOut) => Err(Error::Timeout {
                operation: "answer",
                waited_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
                missing: "room in the fabric".into(),
            }),
        }
    }
}

impl Machine for ServerMachine {
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
        Self::take_news(self)
    }

    fn goodbye(&mut self, fabrics: &mut Fabrics) {
        Self::goodbye(self, fabrics);
    }

    fn wake_all(&mut self) {}
}

impl NewsFor for ServerMachine {
    fn take(&mut self, _fabrics: &mut Fabrics, news: News, _routes: &start::Routes) {
        // A worker that comes back connects by itself, and one that is lost is noticed by its
        // connection, after what it sent before; unless it has none.
        if let News::Lost { member, reason } = news {
            self.is_lost(member, &reason);
        }
    }
}

#[cfg(test)]
mod tests {
    //! What needs a server that looks away for a while; the rest is in tests/it.

    use std::thread;
    use std::time::{Duration, Instant};

    use stepmesh_core::Backend;
    use stepmesh_core::config::{Config, TransportKind};

    use super::Server;
    use crate::engine::State;
    use crate::{Error, Keyed, Scheduler, Tensor, Worker};

    #[test]
    fn a_worker_whose_goodbye_comes_with_its_requests_and_its_end_has_left_and_is_not_lost() {
        for kind in [TransportKind::Shm, TransportKind::Tcp] {
            let mut config = Config {
                backend: "cpu".into(),
                ..Config::default()
            };
            config.transport.kind = kind;
            let device = Backend::open(&config).unwrap().device(0).unwrap();
            let mut scheduler = Scheduler::start(&config).unwrap();
            config.mesh.scheduler_port = scheduler.address().port();
            let scheduler = thread::spawn(move || scheduler.run());
            let worker_config = config.clone();
            let worker = thread::spawn(move || Worker::start(&worker_config));
            let server = Server::start(&config, &device).unwrap();
            let worker = worker.join().unwrap().unwrap();

            let push = Tensor::from_slice(&device, &[1], &[1.0_f32]).unwrap();
            let mut state = server.mesh.engine().lock();
            // Asks for slots, of which nobody hears.
            let pull = Tensor::from_slice(&device, &[1], &[0.0_f32]).unwrap();
            let (push, pull) = ([Keyed::new(1, &push)], [Keyed::new(2, &pull)]);
            let handle = worker.push_pull(&push, &pull).unwrap();
            let unanswered = handle.wait(Duration::from_millis(1)).unwrap_err();
            assert!(matches!(unanswered, Error::Timeout { .. }), "{unanswered}");
            drop(handle);
            drop(worker);
            // Before the scheduler's news can come in between.
            let State { machine, fabrics } = &mut *state;
            let deadline = Instant::now() + Duration::from_secs(10);
            while machine.workers_connected() > 0 {
                assert!(Instant::now() < deadline, "{kind:?}: still connected");
                machine.progress(fabrics);
            }
            assert!(machine.everybody_left(), "{kind:?}");
            drop(state);
            drop(server);
            scheduler.join().unwrap().unwrap();
        }
    }
}
