//! Device memory of values, and the pool that keeps what values gave back. Who uses it when is in
//! `lane`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stepmesh_core::compute::Argument;
use stepmesh_core::{AllocOptions, Buffer, Device};

use crate::Error;

/// Memory of one value: some bytes of a buffer. Dropping it gives it back to its pool, if it has one.
#[derive(Debug)]
pub(crate) struct Memory {
    buffer: Arc<Buffer>,
    offset: u64,
    /// Where it goes when it is dropped; `None` for memory of somebody else's.
    pool: Option<Arc<Pool>>,
    /// The last launch that used it.
    last_use: AtomicU64,
    /// Somebody else holds the buffer too: it is not used for another value.
    is_shared: AtomicBool,
}

/// Buffers that values gave back.
///
/// All work of a device goes through one stream. A buffer that a launch still uses may therefore
/// serve a later launch at once; only the host must not touch it before that launch is over.
#[derive(Debug)]
pub(crate) struct Pool {
    device: Device,
    len_bytes_max: u64,
    state: Mutex<PoolState>,
    reused: AtomicU64,
    allocated: AtomicU64,
}

#[derive(Debug, Default)]
struct PoolState {
    /// By length, each with the last launch that used it.
    free: BTreeMap<u64, Vec<(Arc<Buffer>, u64)>>,
    len_bytes: u64,
}

impl Memory {
    /// Memory of somebody else's.
    pub(crate) fn foreign(buffer: Arc<Buffer>, offset: u64) -> Self {
        Self {
            buffer,
            offset,
            pool: None,
            last_use: AtomicU64::new(0),
            is_shared: AtomicBool::new(true),
        }
    }

    pub(crate) fn argument(&self) -> Argument<'_> {
        Argument {
            buffer: &self.buffer,
            offset: self.offset,
        }
    }

    pub(crate) fn buffer(&self) -> &Arc<Buffer> {
        &self.buffer
    }

    /// The buffer for somebody who keeps it.
    pub(crate) fn share(&self) -> (Arc<Buffer>, u64) {
        self.is_shared.store(true, Ordering::Release);
        (Arc::clone(&self.buffer), self.offset)
    }

    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Whether nobody else holds the memory.
    pub(crate) fn is_own(&self) -> bool {
        self.pool.is_some() && !self.is_shared.load(Ordering::Acquire)
    }

    pub(crate) fn used_by(&self, launch: u64) {
        self.last_use.fetch_max(launch, Ordering::Relaxed);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if !self.is_own() {
            return;
        }
        if let Some(pool) = self.pool.take() {
            let last_use = self.last_use.load(Ordering::Relaxed);
            pool.give_back(Arc::clone(&self.buffer), last_use);
        }
    }
}

impl Pool {
    pub(crate) fn new(device: Device, len_bytes_max: u64) -> Self {
        Self {
            device,
            len_bytes_max,
            state: Mutex::default(),
            reused: AtomicU64::new(0),
            allocated: AtomicU64::new(0),
        }
    }

    /// Memory for a result of a launch.
    pub(crate) fn take(self: &Arc<Self>, len_bytes: usize) -> Result<Memory, Error> {
        self.take_used_until(len_bytes, u64::MAX)
    }

    /// Memory that no launch after `settled` uses, for the host to write to.
    pub(crate) fn take_idle(
        self: &Arc<Self>,
        len_bytes: usize,
        settled: u64,
    ) -> Result<Memory, Error> {
        self.take_used_until(len_bytes, settled)
    }

    fn take_used_until(self: &Arc<Self>, len_bytes: usize, settled: u64) -> Result<Memory, Error> {
        let len_bytes = size_class(len_bytes as u64);
        let (buffer, last_use) = match self.find(len_bytes, settled) {
            Some(found) => found,
            None => (Arc::new(self.alloc(len_bytes)?), 0),
        };
        Ok(Memory {
            buffer,
            offset: 0,
            pool: Some(Arc::clone(self)),
            last_use: AtomicU64::new(last_use),
            is_shared: AtomicBool::new(false),
        })
    }

    fn find(&self, len_bytes: u64, settled: u64) -> Option<(Arc<Buffer>, u64)> {
        let mut state = self.lock();
        let list = state.free.get_mut(&len_bytes)?;
        // The last one in is the one that caches still know.
        let at = list
            .iter()
            .rposition(|(_, last_use)| *last_use <= settled)?;
        let found = list.swap_remove(at);
        state.len_bytes -= len_bytes;
        self.reused.fetch_add(1, Ordering::Relaxed);
        Some(found)
    }

    /// New memory; if there is none, after what is kept was given back.
    fn alloc(&self, len_bytes: u64) -> Result<Buffer, Error> {
        let alloc = || self.device.alloc_with(len_bytes, AllocOptions::default());
        self.allocated.fetch_add(1, Ordering::Relaxed);
        match alloc() {
            Err(stepmesh_core::Error::OutOfMemory { .. }) => {
                self.clear();
                alloc()
            }
            other => other,
        }
        .map_err(Error::backend("allocating device memory"))
    }

    fn give_back(&self, buffer: Arc<Buffer>, last_use: u64) {
        let len_bytes = buffer.len_bytes();
        let mut state = self.lock();
        if state.len_bytes.saturating_add(len_bytes) > self.len_bytes_max {
            // Dropped outside of the lock: that calls the backend.
            drop(state);
            drop(buffer);
            return;
        }
        state.len_bytes += len_bytes;
        let list = state.free.entry(len_bytes).or_default();
        list.push((buffer, last_use));
    }

    pub(crate) fn clear(&self) {
        let gone = std::mem::take(&mut *self.lock());
        drop(gone);
    }

    pub(crate) fn len_bytes(&self) -> u64 {
        self.lock().len_bytes
    }

    /// Allocations that were served from the pool, and those by the backend.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (read(&self.reused), read(&self.allocated))
    }

    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lengths are rounded up by at most an eighth, so that values of nearly one length share buffers.
fn size_class(len_bytes: u64) -> u64 {
    if len_bytes <= CLASS_MIN {
        return CLASS_MIN;
    }
    let step = (len_bytes.next_power_of_two() / 16).max(CLASS_MIN);
    len_bytes.div_ceil(step).saturating_mul(step)
}

/// What allocators round up to anyway.
const CLASS_MIN: u64 = 256;

#[cfg(test)]
mod tests {
    use super::size_class;

    #[test]
    fn classes_waste_an_eighth_at_most() {
        for len in [0, 1, 255, 256, 257, 4096, 4097, 1_000_000, (1 << 30) + 1] {
            let class = size_class(len);
            assert!(
                class >= len.max(1) && class.is_multiple_of(256),
                "{len} {class}"
            );
            assert!(
                class <= 256 || class - len <= (class / 8).max(256),
                "{len} {class}"
            );
        }
    }
}
