//! A stream: work in order on a thread of its own, which starts with the first of it. Which streams
//! there are lives in the streams module.
#![expect(unsafe_code, reason = "hands on what submitters vouched for")]

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use stepmesh_abi::Code;
use stepmesh_abi::error::SM_ERROR_RETRYABLE;

use super::event::{Event, Mark, PendingMark};
use super::mem_event::{MemEvent, PendingSignal};
use super::queue::{Queue, Refusal, abandoned, deadline};
use crate::instance::panic_message;
use crate::{CopyRequest, Error, EventState, FillRequest, HostFunc, Result, WaitMode};

/// What a backend does in the threads of its streams.
///
/// A thread keeps the engine alive until it ends, also past the instance; what the engine owns is
/// there as long as there is work on it.
pub trait Engine: fmt::Debug + Send + Sync + 'static {
    /// What the threads are called, before the number of the device. The kernel shows 15 bytes.
    const THREAD_NAME: &'static str;

    /// Does a copy whose turn it is. The length is not 0.
    ///
    /// # Safety
    /// - What the caller of [`crate::Backend::memcpy_async`] promises, until this returns.
    ///
    /// # Errors
    /// If it failed; the stream is then failed too.
    unsafe fn copy(&self, worker: &Worker<'_>, request: &CopyRequest) -> Result<()>;

    /// Does a fill whose turn it is. The length is not 0.
    ///
    /// # Safety
    /// - What the caller of [`crate::Backend::memset_async`] promises, until this returns.
    ///
    /// # Errors
    /// If it failed; the stream is then failed too.
    unsafe fn fill(&self, worker: &Worker<'_>, request: &FillRequest) -> Result<()>;
}

/// The thread of a stream, as the work that it does sees it.
#[derive(Debug)]
pub struct Worker<'a> {
    device: u32,
    queue: &'a Queue<Work>,
}

/// A stream.
#[derive(Debug)]
pub struct OrderedStream<E> {
    device: u32,
    queue: Arc<Queue<Work>>,
    // The thread has a strong one while it runs; a stream that some thread still holds as its
    // default one must not keep the memory of a closed instance.
    engine: Weak<E>,
}

/// How a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// With all its work done.
    Done,
    /// With work dropped.
    Dropped,
    /// Its thread hangs in a piece of work.
    Hanging,
}

/// One piece of work.
#[derive(Debug)]
enum Work {
    Copy(CopyRequest),
    Fill(FillRequest),
    Mark(PendingMark),
    Signal(PendingSignal),
    Wait(Arc<Mark>),
    Call(HostFunc),
    Task(Task),
}

/// Work of the backend's own.
struct Task(Box<TaskFn>);

type TaskFn = dyn FnOnce(&Worker<'_>) -> Result<()> + Send;

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Task")
    }
}

impl Worker<'_> {
    /// Device of the stream.
    #[must_use]
    pub fn device(&self) -> u32 {
        self.device
    }

    /// Lets time pass. False, at once, when the stream's work is dropped: return then.
    #[must_use]
    pub fn pause(&self, time: Duration) -> bool {
        !self.queue.wait_for_abandon(deadline(time))
    }
}

impl<E: Engine> OrderedStream<E> {
    pub(super) fn new(device: u32, engine: &Arc<E>) -> Self {
        Self {
            device,
            queue: Arc::new(Queue::new(QUEUE_LEN_MAX)),
            engine: Arc::downgrade(engine),
        }
    }

    /// Device of the stream.
    #[must_use]
    pub fn device(&self) -> u32 {
        self.device
    }

    /// Submits a copy; none of 0 bytes.
    ///
    /// # Safety
    /// - What the caller of [`crate::Backend::memcpy_async`] promises, until the stream did it.
    ///
    /// # Errors
    /// If the queue is full or the stream was destroyed.
    pub unsafe fn copy(&self, request: CopyRequest) -> Result<()> {
        if request.len_bytes == 0 {
            return Ok(());
        }
        self.submit(Work::Copy(request))
    }

    /// Submits a fill; none of 0 bytes.
    ///
    /// # Safety
    /// - What the caller of [`crate::Backend::memset_async`] promises, until the stream did it.
    ///
    /// # Errors
    /// If the queue is full or the stream was destroyed.
    pub unsafe fn fill(&self, request: FillRequest) -> Result<()> {
        if request.len_bytes == 0 {
            return Ok(());
        }
        self.submit(Work::Fill(request))
    }

    /// Marks the present end of the work.
    ///
    /// # Errors
    /// If the queue is full or the stream was destroyed.
    pub fn record(&self, event: &Event) -> Result<()> {
        // Work submitted by others between the look and the record is not ordered with it anyway.
        if self.queue.is_settled() {
            event.record_done();
            return Ok(());
        }
        self.submit(Work::Mark(event.record()))
    }

    /// Has the event's word become `seq` at the present end of the work.
    ///
    /// # Errors
    /// If the queue is full or the stream was destroyed.
    pub fn signal(&self, event: &MemEvent, seq: u64) -> Result<()> {
        let signal = event.signal(seq);
        if self.queue.is_settled() {
            signal.reach(Ok(()));
            return Ok(());
        }
        self.submit(Work::Signal(signal))
    }

    /// Makes later work wait for the event's last record, and fail if that failed.
    ///
    /// # Errors
    /// If the queue is full or the stream was destroyed.
    pub fn wait_event(&self, event: &Event) -> Result<()> {
        event
            .awaited()
            .map_or(Ok(()), |mark| self.submit(Work::Wait(mark)))
    }

    /// Submits a function of the host's, which is run whatever becomes of the stream.
    ///
    /// # Errors
    /// If the queue is full or the stream was destroyed.
    pub fn call(&self, func: HostFunc) -> Result<()> {
        self.submit(Work::Call(func))
    }

    /// Submits work of the backend's own, which is left out behind work that failed, as a copy is,
    /// and whose failure is the stream's.
    ///
    /// # Errors
    /// If the queue is full or the stream was destroyed.
    pub fn run(&self, task: impl FnOnce(&Worker<'_>) -> Result<()> + Send + 'static) -> Result<()> {
        self.submit(Work::Task(Task(Box::new(task))))
    }

    /// Whether all work is done, well or not.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.queue.is_idle()
    }

    /// Waits for the work submitted so far.
    ///
    /// # Errors
    /// `SM_DEADLINE_EXCEEDED` when time ran out; the failure of work since the last call.
    pub fn synchronize(&self, timeout: Duration) -> Result<()> {
        if self.queue.wait_for_submitted(timeout) {
            return self.queue.take_failure().map_or(Ok(()), Err);
        }
        Err(Error::deadline_exceeded(format!(
            "the stream's work on device {} was not done within {} us",
            self.device,
            timeout.as_micros()
        )))
    }

    /// Takes no more work; what is there is still done.
    pub(super) fn close(&self) {
        self.queue.close();
    }

    /// Whether the stream is closed and its thread gone.
    pub(super) fn is_ended(&self) -> bool {
        self.queue.is_ended()
    }

    /// Waits for the end of a closed stream; what is left at `until` is dropped.
    pub(super) fn end(&self, until: Instant) -> End {
        if self.queue.wait_for_worker_end(until) {
            return End::Done;
        }
        self.queue.abandon();
        if self.queue.wait_for_worker_end(deadline(ABANDON_WAIT_MAX)) {
            End::Dropped
        } else {
            End::Hanging
        }
    }

    fn submit(&self, work: Work) -> Result<()> {
        self.start_worker()?;
        self.queue
            .push(work, SUBMIT_WAIT_MAX)
            .map_err(|refusal| match refusal {
                Refusal::Full => Error::new(
                    Code::ResourceExhausted,
                    format!(
                        "the stream has {QUEUE_LEN_MAX} pieces of work waiting; synchronize it"
                    ),
                )
                .with_flags(SM_ERROR_RETRYABLE),
                Refusal::Closed => Error::failed_precondition("the stream was destroyed"),
            })
    }

    fn start_worker(&self) -> Result<()> {
        if !self.queue.claim_worker() {
            return Ok(());
        }
        let Some(engine) = self.engine.upgrade() else {
            self.queue.release_worker();
            return Err(Error::failed_precondition("the instance was closed"));
        };
        let (device, queue) = (self.device, Arc::clone(&self.queue));
        let thread = std::thread::Builder::new().name(format!("{}-{device}", E::THREAD_NAME));
        let started = thread.spawn(move || {
            serve(&*engine, device, &queue);
            drop(engine);
            queue.release_worker();
        });
        // The thread is not joined but counted by the queue, which can be waited for with a bound.
        started.map(drop).map_err(|error| {
            self.queue.release_worker();
            Error::new(
                Code::ResourceExhausted,
                format!("cannot start a stream's thread: {error}"),
            )
        })
    }
}

impl<E> Drop for OrderedStream<E> {
    fn drop(&mut self) {
        self.queue.close();
    }
}

fn serve<E: Engine>(engine: &E, device: u32, queue: &Queue<Work>) {
    let worker = Worker { device, queue };
    while let Some((work, failure)) = queue.pop() {
        // A panic must not end the thread: those who wait for it would wait in vain.
        let done = catch_unwind(AssertUnwindSafe(|| work.run(engine, &worker, failure)));
        queue.complete(done.unwrap_or_else(|payload| {
            let error = Error::internal(format!("work panicked: {}", panic_message(&*payload)));
            // Its destructor is the backend's code and could panic again.
            std::mem::forget(payload);
            Err(error)
        }));
    }
}

impl Work {
    fn run(self, engine: &impl Engine, worker: &Worker<'_>, failure: Option<Error>) -> Result<()> {
        match (self, failure) {
            (Self::Mark(mark), failure) => mark.reach(failure.map_or(Ok(()), Err)),
            (Self::Signal(signal), failure) => signal.reach(failure.map_or(Ok(()), Err)),
            (Self::Call(func), _) => func.run(),
            // Behind failed work: it may use what that did not make.
            (Self::Copy(_) | Self::Fill(_) | Self::Wait(_) | Self::Task(_), Some(_)) => {}
            (Self::Task(task), None) => return task.0(worker),
            (Self::Copy(request), None) => {
                // SAFETY: the submitter vouched for it until this work is done.
                return unsafe { engine.copy(worker, &request) };
            }
            (Self::Fill(request), None) => {
                // SAFETY: the submitter vouched for it until this work is done.
                return unsafe { engine.fill(worker, &request) };
            }
            (Self::Wait(mark), None) => return wait_for_mark(worker.queue, &mark),
        }
        Ok(())
    }
}

/// A mark that never comes must not keep the thread from ending, so the wait looks up now and then.
fn wait_for_mark(queue: &Queue<Work>, mark: &Mark) -> Result<()> {
    while mark.wait(deadline(LOOK_UP_EVERY), WaitMode::Block) == EventState::Pending {
        if queue.is_abandoned() {
            return Err(abandoned());
        }
    }
    mark.outcome()
}

/// Work waiting in one stream at most: thousands of copies ahead is a runaway caller.
const QUEUE_LEN_MAX: usize = 4096;
/// How long a full stream holds its submitter before it is an error.
const SUBMIT_WAIT_MAX: Duration = Duration::from_secs(5);
/// How long an abandoned stream may take to end: one large copy.
const ABANDON_WAIT_MAX: Duration = Duration::from_secs(1);
/// How often a thread that waits for another stream looks whether it should end.
const LOOK_UP_EVERY: Duration = Duration::from_millis(50);
