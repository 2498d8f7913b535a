//! A stream: work in order on a thread of its own, which starts with the first of it. Which streams
//! there are lives in the streams module.
#![expect(unsafe_code, reason = "touches the memory that submitters vouched for")]

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use stepmesh_plugin::abi::Code;
use stepmesh_plugin::abi::error::SM_ERROR_RETRYABLE;
use stepmesh_plugin::{CopyRequest, Error, EventState, FillRequest, HostFunc, Result, WaitMode};

use crate::buffer::Memory;
use crate::event::{Event, Mark, PendingMark};
use crate::queue::{Queue, Refusal, deadline};
use crate::sys;

/// A stream.
#[derive(Debug)]
pub(crate) struct StreamState {
    device: u32,
    queue: Arc<Queue<Work>>,
    // The worker keeps the memory mapped while it runs, also past the instance; a stream that a
    // thread still holds does not.
    memory: Weak<Memory>,
}

/// One piece of work.
#[derive(Debug)]
enum Work {
    Copy(CopyRequest),
    Fill(FillRequest),
    Mark(PendingMark),
    Wait(Arc<Mark>),
    Call(HostFunc),
}

impl StreamState {
    pub(crate) fn new(device: u32, memory: &Arc<Memory>) -> Self {
        let memory = Arc::downgrade(memory);
        Self {
            device,
            queue: Arc::new(Queue::new(QUEUE_LEN_MAX)),
            memory,
        }
    }

    pub(crate) fn device(&self) -> u32 {
        self.device
    }

    /// # Safety
    /// - Both ranges are valid until the stream did the copy, and no one else writes them.
    pub(crate) unsafe fn copy(&self, request: CopyRequest) -> Result<()> {
        if request.len_bytes == 0 {
            return Ok(());
        }
        self.submit(Work::Copy(request))
    }

    /// # Safety
    /// - The range is valid until the stream filled it, and no one else uses it.
    pub(crate) unsafe fn fill(&self, request: FillRequest) -> Result<()> {
        if request.len_bytes == 0 {
            return Ok(());
        }
        self.submit(Work::Fill(request))
    }

    pub(crate) fn record(&self, event: &Event) -> Result<()> {
        // Work submitted by others between the look and the record is not ordered with it anyway.
        if self.queue.is_idle() {
            event.record_done();
            return Ok(());
        }
        self.submit(Work::Mark(event.record()))
    }

    pub(crate) fn wait_event(&self, event: &Event) -> Result<()> {
        event
            .pending()
            .map_or(Ok(()), |mark| self.submit(Work::Wait(mark)))
    }

    pub(crate) fn call(&self, func: HostFunc) -> Result<()> {
        self.submit(Work::Call(func))
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_idle()
    }

    pub(crate) fn synchronize(&self, timeout: Duration) -> Result<()> {
        if self.queue.wait_for_submitted(timeout) {
            return Ok(());
        }
        Err(Error::deadline_exceeded(format!(
            "the stream's work on device {} was not done within {} us",
            self.device,
            timeout.as_micros()
        )))
    }

    /// Takes no more work; what is there is still done.
    pub(crate) fn close(&self) {
        self.queue.close();
    }

    /// Whether the stream is closed and its thread gone.
    pub(crate) fn is_ended(&self) -> bool {
        self.queue.is_ended()
    }

    /// Waits for the end of a closed stream; what is left at `until` is dropped. False if its
    /// thread hangs in a piece of work all the same.
    pub(crate) fn end(&self, until: Instant) -> bool {
        if self.queue.wait_for_worker_end(until) {
            return true;
        }
        self.queue.abandon();
        self.queue.wait_for_worker_end(deadline(ABANDON_WAIT_MAX))
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
        let queue = Arc::clone(&self.queue);
        let memory = self.memory.upgrade();
        let thread = std::thread::Builder::new().name(format!("sm-cpu-{}", self.device));
        let started = thread.spawn(move || {
            serve(&queue);
            drop(memory);
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

impl Drop for StreamState {
    fn drop(&mut self) {
        self.queue.close();
    }
}

fn serve(queue: &Queue<Work>) {
    while let Some(work) = queue.pop() {
        match work {
            Work::Copy(request) => {
                // SAFETY: the submitter vouched for both ranges until this work is done.
                unsafe { sys::copy(request.dst, request.src, request.len_bytes) };
            }
            Work::Fill(request) => {
                let (width, len) = (request.width_bytes, request.len_bytes);
                // SAFETY: the submitter vouched for the range until this work is done; the kit
                // checked width, size and alignment.
                unsafe { sys::fill(request.dst, request.value, width, len) };
            }
            Work::Mark(mark) => mark.reach(),
            Work::Wait(mark) => wait_for_mark(queue, &mark),
            Work::Call(func) => func.run(),
        }
        queue.complete();
    }
}

/// A mark that never comes must not keep the thread from ending, so the wait looks up now and then.
fn wait_for_mark(queue: &Queue<Work>, mark: &Mark) {
    while mark.wait(deadline(LOOK_UP_EVERY), WaitMode::Block) == EventState::Pending {
        if queue.is_abandoned() {
            return;
        }
    }
}

/// Work waiting in one stream at most: thousands of copies ahead is a runaway caller.
const QUEUE_LEN_MAX: usize = 4096;
/// How long a full stream holds its submitter before it is an error.
const SUBMIT_WAIT_MAX: Duration = Duration::from_secs(5);
/// How long an abandoned stream may take to end: one large copy.
const ABANDON_WAIT_MAX: Duration = Duration::from_secs(1);
/// How often a thread that waits for another stream looks whether it should end.
const LOOK_UP_EVERY: Duration = Duration::from_millis(50);
