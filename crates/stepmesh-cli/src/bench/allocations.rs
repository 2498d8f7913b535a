//! The program's allocator: the system's, which counts while a benchmark asks it to.
#![expect(unsafe_code, reason = "an allocator is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Counts allocations while it lives.
#[derive(Debug)]
pub(crate) struct Count {
    before_here: u64,
    before: u64,
}

impl Count {
    /// Counts from here on.
    pub(crate) fn start() -> Self {
        COUNTS.fetch_add(1, Ordering::Relaxed);
        Self {
            before_here: HERE.get(),
            before: EVERYWHERE.load(Ordering::Relaxed),
        }
    }

    /// How many there were so far on this thread, which has to be that of the start.
    pub(crate) fn here(&self) -> u64 {
        HERE.get() - self.before_here
    }

    /// How many there were so far on all threads.
    pub(crate) fn everywhere(&self) -> u64 {
        EVERYWHERE.load(Ordering::Relaxed) - self.before
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
        EVERYWHERE.fetch_add(1, Ordering::Relaxed);
        HERE.set(HERE.get() + 1);
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How many [`Count`]s there are.
static COUNTS: AtomicU32 = AtomicU32::new(0);

/// Allocations of all threads while there was a [`Count`].
static EVERYWHERE: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Those of this thread. Neither made nor dropped at run time, so an allocator may use it.
    static HERE: Cell<u64> = const { Cell::new(0) };
}

#[cfg(test)]
mod tests {
    use super::Count;

    #[test]
    fn each_allocation_is_counted() {
        let count = Count::start();
        for len in 1..=10 {
            std::hint::black_box(vec![1_u8; len]);
        }
        assert_eq!(count.here(), 10);
        assert!(count.everywhere() >= 10);
    }

    #[test]
    fn another_threads_allocations_are_not_those_of_this_one() {
        let count = Count::start();
        let before = count.here();
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                for len in 1..=10 {
                    std::hint::black_box(vec![1_u8; len]);
                }
            });
            // Starting a thread allocates here as well.
            let here = count.here();
            while !thread.is_finished() {
                std::thread::yield_now();
            }
            assert_eq!(count.here(), here);
        });
        assert!(count.everywhere() >= before + 10);
    }
}
