//! Captures of streams, and the graphs that they end as.
#![forbid(unsafe_code)]

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use crate::{Answer, Status, Work};

/// A capture that goes on or ended.
#[derive(Debug)]
pub struct Capture {
    pub(crate) id: u64,
    /// Handle of the stream where it began.
    pub(crate) origin: u64,
    pub(crate) device: u32,
    mode: u32,
    thread: ThreadId,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    work: Vec<Work>,
    is_invalid: bool,
}

/// A captured graph.
#[derive(Clone, Debug)]
pub struct Graph {
    /// In the order of submission.
    pub work: Arc<[Work]>,
}

/// Whether a stream is captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureState {
    /// No.
    None,
    /// Yes, under this number.
    Active(u64),
    /// It was, until an error.
    Invalidated,
}

impl Capture {
    pub(crate) fn new(origin: u64, device: u32, mode: u32) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            origin,
            device,
            mode,
            thread: std::thread::current().id(),
            state: Mutex::default(),
        }
    }

    pub(crate) fn add(&self, work: Work) -> Answer<()> {
        let mut state = self.lock();
        if state.is_invalid {
            return Err(Status::CAPTURE_INVALIDATED);
        }
        state.work.push(work);
        Ok(())
    }

    pub(crate) fn invalidate(&self) {
        self.lock().is_invalid = true;
    }

    pub(crate) fn state(&self) -> CaptureState {
        if self.lock().is_invalid {
            CaptureState::Invalidated
        } else {
            CaptureState::Active(self.id)
        }
    }

    pub(crate) fn end(&self) -> Answer<Graph> {
        let mut state = self.lock();
        if state.is_invalid {
            return Err(Status::CAPTURE_INVALIDATED);
        }
        Ok(Graph {
            work: std::mem::take(&mut state.work).into(),
        })
    }

    /// Whether it forbids this thread a call that could disturb it.
    pub(crate) fn forbids(&self) -> bool {
        let is_own = self.thread == std::thread::current().id();
        match CALLS.try_with(Cell::get).unwrap_or(GLOBAL) {
            GLOBAL => self.mode == GLOBAL || (is_own && self.mode != RELAXED),
            THREAD_LOCAL => is_own && self.mode != RELAXED,
            _ => false,
        }
    }

    /// Sets what this thread thinks of other captures, and gives what was set.
    ///
    /// # Errors
    /// `INVALID_VALUE` for a mode that does not exist.
    pub fn exchange_mode(mode: u32) -> Answer<u32> {
        if mode > RELAXED {
            return Err(Status::INVALID_VALUE);
        }
        let previous = CALLS.try_with(|calls| calls.replace(mode));
        previous.map_err(|_| Status::DEINITIALIZED)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

thread_local! {
    /// How calls of this thread are judged.
    static CALLS: Cell<u32> = const { Cell::new(GLOBAL) };
}

/// Mode: no thread may disturb the capture.
const GLOBAL: u32 = 0;
/// Mode: the thread that captures may not.
const THREAD_LOCAL: u32 = 1;
/// Mode: all may.
pub(crate) const RELAXED: u32 = 2;
