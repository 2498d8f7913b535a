//! Mem-events: a number in memory that streams raise and the host polls.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::queue::abandoned;
use crate::{Error, Result};

/// A mem-event.
#[derive(Debug)]
pub struct MemEvent {
    word: Arc<Word>,
}

/// What the host polls, on a cache line of its own: the thread of another stream must not disturb
/// those who spin on it.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Word {
    seq: AtomicU64,
    /// The last number that will never be reached, and why.
    failure: Mutex<Option<(u64, Error)>>,
}

/// A number in a queue. Dropped without being reached, it fails, so that no one waits in vain.
#[derive(Debug)]
pub(super) struct PendingSignal {
    /// `None` once it was reached or failed.
    word: Option<Arc<Word>>,
    seq: u64,
}

impl MemEvent {
    /// One whose word is 0.
    #[must_use]
    pub fn new() -> Self {
        Self {
            word: Arc::default(),
        }
    }

    /// The word, at one address for the life of the event.
    #[must_use]
    pub fn word(&self) -> &AtomicU64 {
        &self.word.seq
    }

    /// Whether the word has `seq`, the number last armed.
    ///
    /// # Errors
    /// Why it never will.
    pub fn query(&self, seq: u64) -> Result<bool> {
        if self.word.seq.load(Ordering::Acquire) >= seq {
            return Ok(true);
        }
        match &*self.word.lock() {
            Some((failed, error)) if *failed >= seq => Err(error.clone()),
            _ => Ok(false),
        }
    }

    pub(super) fn signal(&self, seq: u64) -> PendingSignal {
        PendingSignal {
            word: Some(Arc::clone(&self.word)),
            seq,
        }
    }
}

impl Default for MemEvent {
    fn default() -> Self {
        Self::new()
    }
}

impl Word {
    fn lock(&self) -> MutexGuard<'_, Option<(u64, Error)>> {
        // Each change is one assignment, so the value is whole after a panic.
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingSignal {
    /// The stream got there, with this outcome of the work before.
    pub(super) fn reach(mut self, outcome: Result<()>) {
        self.finish(outcome);
    }

    fn finish(&mut self, outcome: Result<()>) {
        let Some(word) = self.word.take() else { return };
        match outcome {
            // Never back, whatever order streams that are not ordered come in.
            Ok(()) => {
                word.seq.fetch_max(self.seq, Ordering::Release);
            }
            Err(error) => *word.lock() = Some((self.seq, error)),
        }
    }
}

impl Drop for PendingSignal {
    fn drop(&mut self) {
        // Without effect once it was reached.
        self.finish(Err(abandoned()));
    }
}
