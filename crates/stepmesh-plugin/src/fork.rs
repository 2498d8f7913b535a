//! Tells a forked child from its parent without a system call: a page that the kernel wipes in the
//! child. What an instance does about it lives in the instance module.
#![expect(unsafe_code, reason = "maps the page")]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Remembers in which process it was made.
#[derive(Debug)]
pub(crate) struct ForkGuard {
    pid: u32,
    /// Null pointer-free: `None` where the kernel cannot wipe on fork.
    mark: Option<&'static AtomicU32>,
}

impl ForkGuard {
    pub(crate) fn new() -> Self {
        let pid = std::process::id();
        let mark = *MARK.get_or_init(map_mark);
        if let Some(mark) = mark {
            // In a child the page reads 0 until it opens an instance of its own.
            mark.store(pid, Ordering::Relaxed);
        }
        Self { pid, mark }
    }

    /// Whether this is a child of the process it was made in.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        match self.mark {
            Some(mark) => mark.load(Ordering::Relaxed) != self.pid,
            None => std::process::id() != self.pid,
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }
}

fn map_mark() -> Option<&'static AtomicU32> {
    let null = std::ptr::null_mut();
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new private mapping at an address of the kernel's choice touches no other memory.
    let page = unsafe { rustix::mm::mmap_anonymous(null, PAGE_LEN, protection, MapFlags::PRIVATE) };
    let page = page.ok()?;
    // SAFETY: the range is the mapping made above, still zero and not yet shared.
    let wiped = unsafe { rustix::mm::madvise(page, PAGE_LEN, Advice::LinuxWipeOnFork) };
    if wiped.is_err() {
        // SAFETY: the mapping made above, to which nothing points.
        let _ = unsafe { rustix::mm::munmap(page, PAGE_LEN) };
        return None;
    }
    // SAFETY: the page is aligned, zeroed, readable, writable, and never unmapped.
    Some(unsafe { AtomicU32::from_ptr(page.cast::<u32>()) })
}

/// One page for the process; never unmapped, as the plugin never is.
static MARK: OnceLock<Option<&'static AtomicU32>> = OnceLock::new();
/// A page on every supported machine holds at least this; the kernel rounds up.
const PAGE_LEN: usize = 4096;
