//! Words of pinned memory that streams write and the host polls. A word whose stream has not got there
//! when its event goes is kept apart until it has, for it will still be written.
#![expect(unsafe_code, reason = "makes references of pinned memory")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use stepmesh_plugin::Result;

use crate::Driver;
use crate::shared::{Shared, lock};

/// The words of an instance.
#[derive(Debug, Default)]
pub(crate) struct Words(Mutex<Pool>);

#[derive(Debug, Default)]
struct Pool {
    /// Pinned memory, and the device with which it was made.
    chunks: Vec<(u64, u32)>,
    free: Vec<u64>,
    retired: Vec<Retired>,
}

/// Words that streams may still use, until the first of them has a number.
#[derive(Debug)]
struct Retired {
    words: Vec<u64>,
    due: u64,
}

impl Words {
    /// A word that is 0, on a cache line of its own.
    pub(crate) fn take<D: Driver>(&self, shared: &Shared<D>, device: u32) -> Result<u64> {
        if let Some(word) = self.take_free() {
            return Ok(word);
        }
        // No lock is held while the driver works; what two threads make is all used.
        let what = || format!("allocate words for mem-events of device {device}");
        let chunk = shared.on_relaxed(device, what, |driver| driver.alloc_pinned(CHUNK_LEN))?;
        let mut pool = lock(&self.0);
        pool.chunks.push((chunk, device));
        let words = (0..CHUNK_LEN).step_by(WORD_STRIDE).map(|at| chunk + at);
        pool.free.extend(words.skip(1));
        // SAFETY: the chunk was made above, and no one else has its first word.
        unsafe { word(chunk) }.store(0, Ordering::Relaxed);
        Ok(chunk)
    }

    fn take_free(&self) -> Option<u64> {
        let mut pool = lock(&self.0);
        let Pool { free, retired, .. } = &mut *pool;
        retired.retain(|Retired { words, due }| {
            // SAFETY: chunks live as long as the pool.
            let is_done = |at: &u64| unsafe { word(*at) }.load(Ordering::Acquire) >= *due;
            let is_done = words.first().is_none_or(is_done);
            if is_done {
                free.extend(words);
            }
            !is_done
        });
        let at = free.pop()?;
        // SAFETY: as above; no stream writes to a free word.
        unsafe { word(at) }.store(0, Ordering::Relaxed);
        Some(at)
    }

    /// Gives words back, all of which are in use until the first has a number.
    pub(crate) fn give(&self, words: Vec<u64>, due: u64) {
        lock(&self.0).retired.push(Retired { words, due });
    }

    /// Ends the pool and gives what is to be freed. No stream may write to a word any more.
    pub(crate) fn drain(&self) -> Vec<(u64, u32)> {
        std::mem::take(&mut *lock(&self.0)).chunks
    }
}

/// The word at an address.
///
/// # Safety
/// - The address is that of a word of a live pool, for as long as the answer is used.
pub(crate) unsafe fn word<'a>(at: u64) -> &'a AtomicU64 {
    let at = usize::try_from(at).unwrap_or(0);
    let at = std::ptr::with_exposed_provenance_mut::<u64>(at);
    // SAFETY: this function's contract: pinned memory, aligned to cache lines, never moved, and used
    // atomically by all of this process.
    unsafe { AtomicU64::from_ptr(at) }
}

/// Bytes of pinned memory that are taken at once: 64 words.
const CHUNK_LEN: u64 = 4096;
/// Bytes from one word to the next: a cache line, so that who spins on one is not disturbed.
const WORD_STRIDE: usize = 64;
