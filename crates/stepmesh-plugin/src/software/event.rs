//! Events: a mark in a stream's work that others wait for. When the mark is reached is told by the
//! stream module.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::queue::{abandoned, deadline, time_left, wait_timeout};
use crate::{Error, EventOptions, EventState, Result, WaitMode};

/// An event.
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
pub(super) struct Mark {
    // What `finish` holds, for those who only look.
    state: AtomicU8,
    finish: Mutex<Option<Finish>>,
    change: Condvar,
}

/// When a mark was reached, and in what state the stream was.
#[derive(Debug)]
struct Finish {
    at: Instant,
    outcome: Result<()>,
}

/// A mark in a queue. Dropped without being reached, it fails, so that no one waits in vain.
#[derive(Debug)]
pub(super) struct PendingMark(Arc<Mark>);

impl Event {
    /// An event that was never recorded: done.
    #[must_use]
    pub fn new(options: EventOptions) -> Self {
        Self {
            options,
            last: Mutex::new(Last::Never),
        }
    }

    /// Records on a stream that has nothing to do: done at once.
    pub(super) fn record_done(&self) {
        *self.lock() = Last::Done(Instant::now());
    }

    /// Records at a place that a stream will reach. Those who wait for an earlier one keep it.
    pub(super) fn record(&self) -> PendingMark {
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
            finish: Mutex::new(None),
            change: Condvar::new(),
        });
        *last = Last::On(Arc::clone(&mark));
        PendingMark(mark)
    }

    /// The mark to wait for, `None` if it was reached and all was well.
    pub(super) fn awaited(&self) -> Option<Arc<Mark>> {
        match &*self.lock() {
            Last::On(mark) if mark.state() != EventState::Done => Some(Arc::clone(mark)),
            _ => None,
        }
    }

    /// State of the last record.
    pub fn query(&self) -> EventState {
        match &*self.lock() {
            Last::Never | Last::Done(_) => EventState::Done,
            Last::On(mark) => mark.state(),
        }
    }

    /// Waits for the last record.
    ///
    /// # Errors
    /// `SM_DEADLINE_EXCEEDED` when time ran out, after which the event is as usable as before; the
    /// failure of the work that was marked.
    pub fn synchronize(&self, timeout: Duration, mode: WaitMode) -> Result<()> {
        let mark = match &*self.lock() {
            Last::Never | Last::Done(_) => return Ok(()),
            Last::On(mark) => Arc::clone(mark),
        };
        match mark.wait(deadline(timeout), mode) {
            EventState::Pending => Err(Error::deadline_exceeded(format!(
                "the event was not reached within {} us",
                timeout.as_micros()
            ))),
            EventState::Done => Ok(()),
            EventState::Error => mark.outcome(),
        }
    }

    /// Milliseconds from this event to a later one; negative if it is earlier.
    ///
    /// # Errors
    /// `SM_FAILED_PRECONDITION` if one does not measure time or was not reached.
    pub fn elapsed_ms(&self, later: &Self) -> Result<f64> {
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
            Last::On(mark) => mark.lock().as_ref().map(|finish| finish.at),
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
    pub(super) fn state(&self) -> EventState {
        match self.state.load(Ordering::Acquire) {
            PENDING => EventState::Pending,
            DONE => EventState::Done,
            _ => EventState::Error,
        }
    }

    /// Waits until the mark is reached or time ran out, and says which.
    pub(super) fn wait(&self, until: Instant, mode: WaitMode) -> EventState {
        match mode {
            WaitMode::Spin => self.poll(until, || {
                for _ in 0..SPINS_PER_CLOCK {
                    std::hint::spin_loop();
                }
            }),
            WaitMode::Yield => self.poll(until, std::thread::yield_now),
            WaitMode::Block => {
                let mut finish = self.lock();
                while finish.is_none() {
                    let Some(left) = time_left(until) else { break };
                    finish = wait_timeout(&self.change, finish, left);
                }
                drop(finish);
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

    /// How the work that was marked ended; without effect on a mark that was not reached yet.
    pub(super) fn outcome(&self) -> Result<()> {
        let finish = self.lock();
        finish
            .as_ref()
            .map_or(Ok(()), |finish| finish.outcome.clone())
    }

    fn finish(&self, outcome: Result<()>) {
        let state = if outcome.is_ok() { DONE } else { FAILED };
        let mut finish = self.lock();
        if finish.is_none() {
            let at = Instant::now();
            *finish = Some(Finish { at, outcome });
            self.state.store(state, Ordering::Release);
            drop(finish);
            self.change.notify_all();
        }
    }

    fn reset(&mut self) {
        *self.state.get_mut() = PENDING;
        *self.lock() = None;
    }

    fn lock(&self) -> MutexGuard<'_, Option<Finish>> {
        // Each change is one assignment, so the value is whole after a panic.
        self.finish.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingMark {
    /// The stream got there, well or with a failure of earlier work.
    pub(super) fn reach(self, outcome: Result<()>) {
        self.0.finish(outcome);
    }
}

impl Drop for PendingMark {
    fn drop(&mut self) {
        if self.0.state() == EventState::Pending {
            self.0.finish(Err(abandoned()));
        }
    }
}

/// State: the stream is not there yet.
const PENDING: u8 = 0;
/// State: reached.
const DONE: u8 = 1;
/// State: the work failed, or the stream ended first.
const FAILED: u8 = 2;
/// Pauses between two looks at the clock while spinning: about a microsecond.
const SPINS_PER_CLOCK: u32 = 32;
