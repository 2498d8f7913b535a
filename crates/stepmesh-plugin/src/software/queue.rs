//! A bounded queue of work for one thread, with counts by which others wait for it, and the failure
//! of what was done. What the work is lives in the stream module.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use stepmesh_abi::Code;

use crate::Error;

/// A queue between many submitters and one worker.
#[derive(Debug)]
pub(super) struct Queue<T> {
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
    // The first one that no one was told of yet.
    failure: Option<Error>,
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
pub(super) enum Refusal {
    /// There was no room within the bound.
    Full,
    /// The queue is closed.
    Closed,
}

impl<T> Queue<T> {
    pub(super) fn new(len_max: usize) -> Self {
        Self {
            state: Mutex::new(State {
                items: VecDeque::new(),
                submitted: 0,
                completed: 0,
                phase: Phase::Open,
                has_worker: false,
                failure: None,
            }),
            work: Condvar::new(),
            progress: Condvar::new(),
            len_max,
        }
    }

    /// Adds work, waiting for room for a while. Refused work is dropped.
    pub(super) fn push(&self, item: T, wait: Duration) -> Result<(), Refusal> {
        let until = deadline(wait);
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

    /// Takes the next work, waiting for it, and the failure of earlier work; `None` when there will
    /// be no more.
    pub(super) fn pop(&self) -> Option<(T, Option<Error>)> {
        let mut state = self.lock();
        loop {
            if let Some(item) = state.items.pop_front() {
                return Some((item, state.failure.clone()));
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

    /// Counts the work last taken as done, and keeps its failure if it is the first.
    pub(super) fn complete(&self, outcome: crate::Result<()>) {
        let mut state = self.lock();
        state.completed += 1;
        if let Err(error) = outcome {
            state.failure.get_or_insert(error);
        }
        drop(state);
        self.progress.notify_all();
    }

    /// The failure of work, once: afterwards the queue has none.
    pub(super) fn take_failure(&self) -> Option<Error> {
        self.lock().failure.take()
    }

    /// Whether all work submitted so far is done.
    pub(super) fn is_idle(&self) -> bool {
        let state = self.lock();
        state.completed == state.submitted
    }

    /// Whether all work submitted so far is done and no failure is left to be told.
    pub(super) fn is_settled(&self) -> bool {
        let state = self.lock();
        state.completed == state.submitted && state.failure.is_none()
    }

    /// Waits until all work submitted before the call is done; false if time ran out.
    pub(super) fn wait_for_submitted(&self, wait: Duration) -> bool {
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
    pub(super) fn close(&self) {
        let mut state = self.lock();
        if state.phase == Phase::Open {
            state.phase = Phase::Closed;
        }
        drop(state);
        self.work.notify_all();
        self.progress.notify_all();
    }

    /// Takes no more work and drops what is there, which is a failure.
    pub(super) fn abandon(&self) {
        let mut state = self.lock();
        state.phase = Phase::Abandoned;
        if state.completed != state.submitted {
            state.failure.get_or_insert_with(abandoned);
        }
        let items = std::mem::take(&mut state.items);
        state.completed += u64::try_from(items.len()).unwrap_or(0);
        drop(state);
        self.work.notify_all();
        self.progress.notify_all();
        // Dropping work can run functions of the host's, so no lock is held.
        drop(items);
    }

    pub(super) fn is_abandoned(&self) -> bool {
        self.lock().phase == Phase::Abandoned
    }

    /// Waits until the queue is abandoned; false if time ran out.
    pub(super) fn wait_for_abandon(&self, until: Instant) -> bool {
        let mut state = self.lock();
        while state.phase != Phase::Abandoned {
            let Some(left) = time_left(until) else {
                return false;
            };
            state = wait_timeout(&self.progress, state, left);
        }
        true
    }

    /// Notes that a worker serves this queue. False if one does, or if the queue is closed.
    pub(super) fn claim_worker(&self) -> bool {
        let mut state = self.lock();
        let claimed = !state.has_worker && state.phase == Phase::Open;
        state.has_worker |= claimed;
        claimed
    }

    /// Notes that the worker ended, or was not started after all.
    pub(super) fn release_worker(&self) {
        self.lock().has_worker = false;
        self.progress.notify_all();
    }

    /// Whether the queue takes no more work and no worker serves it.
    pub(super) fn is_ended(&self) -> bool {
        let state = self.lock();
        state.phase != Phase::Open && !state.has_worker
    }

    /// Waits until no worker serves this queue; false if time ran out.
    pub(super) fn wait_for_worker_end(&self, until: Instant) -> bool {
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

/// What became of work that was dropped.
pub(super) fn abandoned() -> Error {
    Error::new(
        Code::Cancelled,
        "the stream was ended before its work was done",
    )
}

/// A point in time; one too far away to count is as good as a year.
pub(super) fn deadline(wait: Duration) -> Instant {
    Instant::now() + wait.min(WAIT_MAX)
}

/// What is left until a point in time, `None` if nothing.
pub(super) fn time_left(until: Instant) -> Option<Duration> {
    until
        .checked_duration_since(Instant::now())
        .filter(|left| !left.is_zero())
}

/// Waits on a condition for a time at most.
pub(super) fn wait_timeout<'a, T>(
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
