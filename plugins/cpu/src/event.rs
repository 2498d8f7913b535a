//! Events: a mark in a stream's work that others wait for. When the mark is reached is told by the
//! stream module.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use stepmesh_plugin::abi::Code;
use stepmesh_plugin::{Error, EventOptions, EventState, Result, WaitMode};

use crate::queue::{deadline, time_left, wait_timeout};

/// An event of this backend.
#[derive(Debug)]
pub struct Event {
    options: EventOptions,
    last: Mutex<Last>,
}

/// The last record.
#[derive(Debug)]
enum Last {
    Never,
    /// Recorded on a stream that had nothing to do.
    Done(Instant),
    On(Arc<Mark>),
}

/// A place in a stream's work.
#[derive(Debug)]
pub(crate) struct Mark {
    state: AtomicU8,
    finished: Mutex<Option<Instant>>,
    change: Condvar,
}

/// A mark in a queue. Dropped without being reached, it fails, so that no one waits in vain.
#[derive(Debug)]
pub(crate) struct PendingMark(Arc<Mark>);

impl Event {
    pub(crate) fn new(options: EventOptions) -> Self {
        Self {
            options,
            last: Mutex::new(Last::Never),
        }
    }

    /// Records on a stream that has nothing to do: done at once.
    pub(crate) fn record_done(&self) {
        *self.lock() = Last::Done(Instant::now());
    }

    /// Records at a place that a stream will reach. Those who wait for an earlier one keep it.
    pub(crate) fn record(&self) -> PendingMark {
        let mut last = self.lock();
        // A mark that no one else holds is used again, so that recording in a loop allocates once.
        if let Last::On(mark) = &mut *last
            && let Some(unshared) = Arc::get_mut(mark)
        {
            unshared.reset();
            return PendingMark(Arc::clone(mark));
        }
        let mark = Arc::new(Mark {
            state: AtomicU8::new(PENDING),
            finished: Mutex::new(None),
            change: Condvar::new(),
        });
        *last = Last::On(Arc::clone(&mark));
        PendingMark(mark)
    }

    /// The mark to wait for, `None` if there is nothing to wait for.
    pub(crate) fn pending(&self) -> Option<Arc<Mark>> {
        match &*self.lock() {
            Last::On(mark) if mark.state() == EventState::Pending => Some(Arc::clone(mark)),
            _ => None,
        }
    }

    pub(crate) fn query(&self) -> EventState {
        match &*self.lock() {
            Last::Never | Last::Done(_) => EventState::Done,
            Last::On(mark) => mark.state(),
        }
    }

    pub(crate) fn synchronize(&self, timeout: Duration, mode: WaitMode) -> Result<()> {
        let mark = match &*self.lock() {
            Last::Never | Last::Done(_) => return Ok(()),
            Last::On(mark) => Arc::clone(mark),
        };
        match mark.wait(deadline(timeout), mode) {
            EventState::Done => Ok(()),
            EventState::Pending => Err(Error::deadline_exceeded(format!(
                "the event was not reached within {} us",
                timeout.as_micros()
            ))),
            EventState::Error => Err(Error::new(
                Code::Cancelled,
                "the event's stream was ended before it got there",
            )),
        }
    }

    /// Milliseconds from this event to a later one; negative if it is earlier.
    pub(crate) fn elapsed_ms(&self, later: &Self) -> Result<f64> {
        let (start, end) = (self.finished("start")?, later.finished("end")?);
        let forward = end.saturating_duration_since(start).as_secs_f64();
        let backward = start.saturating_duration_since(end).as_secs_f64();
        Ok((forward - backward) * 1e3)
    }

    fn finished(&self, which: &str) -> Result<Instant> {
        if !self.options.timing {
            return Err(Error::failed_precondition(format!(
                "the {which} event does not measure time; make it with SM_EVENT_TIMING"
            )));
        }
        let at = match &*self.lock() {
            Last::Never => None,
            Last::Done(at) => Some(*at),
            Last::On(mark) => *mark.lock(),
        };
        at.ok_or_else(|| {
            Error::failed_precondition(format!("the {which} event was not reached yet"))
        })
    }

    fn lock(&self) -> MutexGuard<'_, Last> {
        // Each change is one assignment, so the value is whole after a panic.
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Mark {
    pub(crate) fn state(&self) -> EventState {
        match self.state.load(Ordering::Acquire) {
            PENDING => EventState::Pending,
            DONE => EventState::Done,
            _ => EventState::Error,
        }
    }

    /// Waits until the mark is reached or time ran out, and says which.
    pub(crate) fn wait(&self, until: Instant, mode: WaitMode) -> EventState {
        match mode {
            WaitMode::Spin => self.poll(until, || {
                for _ in 0..SPINS_PER_CLOCK {
                    std::hint::spin_loop();
                }
            }),
            WaitMode::Yield => self.poll(until, std::thread::yield_now),
            WaitMode::Block => {
                let mut finished = self.lock();
                while self.state() == EventState::Pending {
                    let Some(left) = time_left(until) else { break };
                    finished = wait_timeout(&self.change, finished, left);
                }
                self.state()
            }
        }
    }

    fn poll(&self, until: Instant, pause: impl Fn()) -> EventState {
        loop {
            let state = self.state();
            if state != EventState::Pending || time_left(until).is_none() {
                return state;
            }
            pause();
        }
    }

    fn finish(&self, state: u8) {
        let mut finished = self.lock();
        if self.state.load(Ordering::Acquire) == PENDING {
            *finished = Some(Instant::now());
            self.state.store(state, Ordering::Release);
            drop(finished);
            self.change.notify_all();
        }
    }

    fn reset(&mut self) {
        *self.state.get_mut() = PENDING;
        *self.lock() = None;
    }

    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        // Each change is one assignment, so the value is whole after a panic.
        self.finished.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingMark {
    /// The stream got there.
    pub(crate) fn reach(self) {
        self.0.finish(DONE);
    }
}

impl Drop for PendingMark {
    fn drop(&mut self) {
        // Without effect once it was reached.
        self.0.finish(ABANDONED);
    }
}

/// State: the stream is not there yet.
const PENDING: u8 = 0;
/// State: reached.
const DONE: u8 = 1;
/// State: the stream ended first.
const ABANDONED: u8 = 2;
/// Pauses between two looks at the clock while spinning: about a microsecond.
const SPINS_PER_CLOCK: u32 = 32;
