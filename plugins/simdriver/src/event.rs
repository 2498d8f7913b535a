//! Events and the points in a stream that they mark.
#![forbid(unsafe_code)]

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::{Answer, Capture, Status};

/// An event.
#[derive(Debug)]
pub struct Event {
    pub(crate) device: u32,
    has_timing: bool,
    last: Mutex<Last>,
}

/// What was recorded last.
#[derive(Clone, Debug)]
pub(crate) enum Last {
    Nothing,
    Point(Arc<Point>),
    Captured(Arc<Capture>),
}

/// A point in a stream's work.
#[derive(Debug, Default)]
pub(crate) struct Point {
    reached: Mutex<Option<Instant>>,
    changed: Condvar,
}

impl Event {
    pub(crate) fn new(device: u32, has_timing: bool) -> Self {
        Self {
            device,
            has_timing,
            last: Mutex::new(Last::Nothing),
        }
    }

    pub(crate) fn set(&self, last: Last) {
        *self.lock() = last;
    }

    pub(crate) fn last(&self) -> Last {
        self.lock().clone()
    }

    /// Whether the last record was reached; never recorded is.
    pub(crate) fn query(&self) -> Answer<()> {
        match self.last() {
            Last::Nothing => Ok(()),
            Last::Point(point) if point.reached().is_some() => Ok(()),
            Last::Point(_) => Err(Status::NOT_READY),
            Last::Captured(_) => Err(Status::CAPTURED_EVENT),
        }
    }

    /// Milliseconds between two events.
    pub(crate) fn elapsed_ms(&self, end: &Self) -> Answer<f32> {
        if !self.has_timing || !end.has_timing {
            return Err(Status::INVALID_HANDLE);
        }
        let at = |event: &Self| match event.last() {
            Last::Nothing => Err(Status::INVALID_HANDLE),
            Last::Point(point) => point.reached().ok_or(Status::NOT_READY),
            Last::Captured(_) => Err(Status::CAPTURED_EVENT),
        };
        let (start, end) = (at(self)?, at(end)?);
        let between = end.saturating_duration_since(start);
        Ok(between.as_secs_f32() * 1000.0)
    }

    fn lock(&self) -> MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Point {
    pub(crate) fn reach(&self) {
        *self.lock() = Some(Instant::now());
        self.changed.notify_all();
    }

    pub(crate) fn reached(&self) -> Option<Instant> {
        *self.lock()
    }

    /// Waits a while and says whether it was reached.
    pub(crate) fn wait(&self, at_most: Duration) -> bool {
        let reached = self.lock();
        let waited = self
            .changed
            .wait_timeout_while(reached, at_most, |reached| reached.is_none());
        let (reached, _) = waited.unwrap_or_else(PoisonError::into_inner);
        reached.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.reached.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
