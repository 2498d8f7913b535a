//! Allocations that ended, on their way from the backends that say so to the fabrics that kept a
//! registration of them. Fabrics know an allocation by a number that is never given out again, so
//! being told late costs memory, never a mistake.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use stepmesh_core::{Backend, MemoryWatcher};

/// What ended and was not told yet.
#[derive(Default)]
pub(crate) struct Ended {
    queue: Arc<Queue>,
    /// By the name of the backend; held, because backends hold them weakly.
    watchers: Vec<(&'static str, Arc<MemoryWatcher>)>,
}

#[derive(Default)]
struct Queue {
    ids: Mutex<Vec<u64>>,
    /// Spares the lock while there are none.
    is_any: AtomicBool,
}

impl Ended {
    /// Has a backend say what ends, from its first buffer on. One that cannot say it only makes
    /// registrations stay longer.
    pub(crate) fn watch(&mut self, backend: &Backend) {
        let name = backend.name();
        if self.watchers.iter().any(|(known, _)| *known == name) {
            return;
        }
        let queue = Arc::clone(&self.queue);
        let watcher: Arc<MemoryWatcher> = Arc::new(move |allocation_id| queue.push(allocation_id));
        if let Err(error) = backend.watch_memory(&watcher) {
            tracing::debug!(%error, "the end of memory will not be told");
        }
        self.watchers.push((name, watcher));
    }

    /// What ended since the last time.
    #[inline]
    pub(crate) fn take(&self) -> Vec<u64> {
        if !self.queue.is_any.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        let mut ids = self
            .queue
            .ids
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *ids)
    }
}

impl Queue {
    fn push(&self, allocation_id: u64) {
        let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        // Nobody polls: what is dropped here stays registered until the cache is full.
        if ids.len() < QUEUE_LEN_MAX {
            ids.push(allocation_id);
        }
        self.is_any.store(true, Ordering::Release);
    }
}

impl fmt::Debug for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ended")
            .field("backends", &self.watchers.len())
            .finish_non_exhaustive()
    }
}

/// A mebibyte of numbers: more than end between two polls of a mesh that is alive.
const QUEUE_LEN_MAX: usize = 1 << 17;

#[cfg(test)]
mod tests {
    //! What is told once, and what is not.

    use super::{Ended, QUEUE_LEN_MAX};

    #[test]
    fn each_end_is_told_once() {
        let ended = Ended::default();
        assert_eq!(ended.take(), [0u64; 0]);
        ended.queue.push(3);
        ended.queue.push(5);
        assert_eq!(ended.take(), [3, 5]);
        assert_eq!(ended.take(), [0u64; 0]);
    }

    #[test]
    fn a_mesh_that_nobody_polls_does_not_fill_the_memory() {
        let ended = Ended::default();
        for id in 0..QUEUE_LEN_MAX as u64 + 10 {
            ended.queue.push(id);
        }
        assert_eq!(ended.take().len(), QUEUE_LEN_MAX);
    }
}
