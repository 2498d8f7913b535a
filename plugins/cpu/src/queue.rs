//! A bounded queue of work for one thread, with counts by which others wait for it. What the work is
//! lives in the stream module.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A queue between many submitters and one worker.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    state: Mutex<State<T>>,
    work: Condvar,
    progress: Condvar,
    len_max: usize,
}

#[derive(Debug)]
struct State<T> {
    items: VecDeque<T>,
    submitted: u64,
    completed: u64,
    phase: Phase,
    has_worker: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Takes work.
    Open,
    /// Takes none; what is there is still done.
    Closed,
    /// What is there is dropped.
    Abandoned,
}

/// Why work was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// There was no room within the bound.
    Full,
    /// The queue is closed.
    Closed,
}

impl<T> Queue<T> {
    pub(crate) fn new(len_max: usize) -> Self {
        Self {
            state: Mutex::new(State {
                items: VecDeque::new(),
                submitted: 0,
                completed: 0,
                phase: Phase::Open,
                has_worker: false,
            }),
            work: Condvar::new(),
            progress: Condvar::new(),
            len_max,
        }
    }

    /// Adds work, waiting for room for a while. Refused work is dropped.
    pub(crate) fn push(&self, item: T, wait: Duration) -> Result<(), Refusal> {
        let until = Instant::now() + wait;
        let mut state = self.lock();
        while state.phase == Phase::Open && state.items.len() >= self.len_max {
            let Some(left) = time_left(until) else {
                return Err(Refusal::Full);
            };
            state = wait_timeout(&self.progress, state, left);
        }
        if state.phase != Phase::Open {
            return Err(Refusal::Closed);
        }
        state.items.push_back(item);
        state.submitted += 1;
        drop(state);
        self.work.notify_one();
        Ok(())
    }

    /// Takes the next work, waiting for it; `None` when there will be no more.
    pub(crate) fn pop(&self) -> Option<T> {
        let mut state = self.lock();
        loop {
            if let Some(item) = state.items.pop_front() {
                return Some(item);
            }
            if state.phase != Phase::Open {
                return None;
            }
            // Ended by `close`, which every owner of a queue calls.
            state = self
                .work
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Counts the work last taken as done.
    pub(crate) fn complete(&self) {
        self.lock().completed += 1;
        self.progress.notify_all();
    }

    /// Whether all work submitted so far is done.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.lock();
        state.completed == state.submitted
    }

    /// Waits until all work submitted before the call is done; false if time ran out.
    pub(crate) fn wait_for_submitted(&self, wait: Duration) -> bool {
        let mut state = self.lock();
        let mark = state.submitted;
        if state.completed >= mark {
            return true;
        }
        let until = deadline(wait);
        while state.completed < mark {
            let Some(left) = time_left(until) else {
                return false;
            };
            state = wait_timeout(&self.progress, state, left);
        }
        true
    }

    /// Takes no more work; the worker ends when it did what is there.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        if state.phase == Phase::Open {
            state.phase = Phase::Closed;
        }
        drop(state);
        self.work.notify_all();
        self.progress.notify_all();
    }

    /// Takes no more work and drops what is there.
    pub(crate) fn abandon(&self) {
        let mut state = self.lock();
        state.phase = Phase::Abandoned;
        let items = std::mem::take(&mut state.items);
        state.completed += u64::try_from(items.len()).unwrap_or(0);
        drop(state);
        self.work.notify_all();
        self.progress.notify_all();
        // Dropping work can run functions of the host's, so no lock is held.
        drop(items);
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.lock().phase == Phase::Abandoned
    }

    /// Notes that a worker serves this queue. False if one does, or if the queue is closed.
    pub(crate) fn claim_worker(&self) -> bool {
        let mut state = self.lock();
        let claimed = !state.has_worker && state.phase == Phase::Open;
        state.has_worker |= claimed;
        claimed
    }

    /// Notes that the worker ended, or was not started after all.
    pub(crate) fn release_worker(&self) {
        self.lock().has_worker = false;
        self.progress.notify_all();
    }

    /// Whether the queue takes no more work and no worker serves it.
    pub(crate) fn is_ended(&self) -> bool {
        let state = self.lock();
        state.phase != Phase::Open && !state.has_worker
    }

    /// Waits until no worker serves this queue; false if time ran out.
    pub(crate) fn wait_for_worker_end(&self, until: Instant) -> bool {
        let mut state = self.lock();
        while state.has_worker {
            let Some(left) = time_left(until) else {
                return false;
            };
            state = wait_timeout(&self.progress, state, left);
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // No code that can panic runs while the lock is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A point in time; one too far away to count is as good as a year.
pub(crate) fn deadline(wait: Duration) -> Instant {
    Instant::now() + wait.min(WAIT_MAX)
}

/// What is left until a point in time, `None` if nothing.
pub(crate) fn time_left(until: Instant) -> Option<Duration> {
    until
        .checked_duration_since(Instant::now())
        .filter(|left| !left.is_zero())
}

/// Waits on a condition for a time at most.
pub(crate) fn wait_timeout<'a, T>(
    condition: &Condvar,
    guard: MutexGuard<'a, T>,
    left: Duration,
) -> MutexGuard<'a, T> {
    condition
        .wait_timeout(guard, left)
        .unwrap_or_else(PoisonError::into_inner)
        .0
}

/// Longest wait: a year, so that adding it to a clock cannot overflow.
const WAIT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

#[cfg(test)]
mod tests;
