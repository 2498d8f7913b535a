//! The program's allocator: the system's, which counts while a benchmark asks it to.
#![expect(unsafe_code, reason = "an allocator is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Counts the allocations of all threads while it lives.
#[derive(Debug)]
pub(crate) struct Count {
    before: u64,
}

impl Count {
    /// Counts from here on.
    pub(crate) fn start() -> Self {
        COUNTS.fetch_add(1, Ordering::Relaxed);
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        Self { before }
    }

    /// How many there were so far.
    pub(crate) fn so_far(&self) -> u64 {
        ALLOCATIONS.load(Ordering::Relaxed) - self.before
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        COUNTS.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Counting;

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is the same.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is the same.
        unsafe { System.realloc(ptr, layout, new_size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is the same.
        unsafe { System.dealloc(ptr, layout) }
    }
}

fn count() {
    if COUNTS.load(Ordering::Relaxed) > 0 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How many [`Count`]s there are.
static COUNTS: AtomicU32 = AtomicU32::new(0);

/// Allocations while there was a [`Count`].
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

#[cfg(test)]
mod tests {
    use super::Count;

    #[test]
    fn each_allocation_is_counted() {
        let count = Count::start();
        for len in 1..=10 {
            std::hint::black_box(vec![1_u8; len]);
        }
        // Other tests may allocate meanwhile.
        assert!(count.so_far() >= 10);
    }
}
