//! Memory that ends where it says it ends: the next byte is on a page that nobody may touch.
#![expect(unsafe_code, reason = "maps pages and hands out structs in them")]

use std::io;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
use rustix::param::page_size;

/// Bytes in front of a page without access. Never unmapped: a plugin may keep the address.
#[derive(Debug)]
pub(crate) struct Guarded {
    start: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: the memory is a leaked mapping that belongs to no thread.
unsafe impl Send for Guarded {}

impl Guarded {
    /// Zeroed memory of `len_bytes` bytes, one page at most, which a page without access follows.
    pub(crate) fn new(len_bytes: usize) -> io::Result<Self> {
        let page = page_size();
        if len_bytes > page {
            return Err(io::Error::other("longer than a page"));
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let null = std::ptr::null_mut();
        // SAFETY: a new private mapping at an address of the kernel's choice.
        let base =
            unsafe { rustix::mm::mmap_anonymous(null, 2 * page, protection, MapFlags::PRIVATE) }?;
        // SAFETY: the mapping has two pages.
        let guard = unsafe { base.add(page) };
        // SAFETY: the second page of the mapping made above, to which nothing points yet.
        unsafe { rustix::mm::mprotect(guard, page, MprotectFlags::empty()) }?;
        // SAFETY: at most a page before the guard, so within the first page.
        let start = unsafe { guard.cast::<u8>().sub(len_bytes) };
        let start = NonNull::new(start).ok_or_else(|| io::Error::other("mapped at 0"))?;
        Ok(Self { start, len_bytes })
    }

    /// Memory that holds these bytes.
    pub(crate) fn holding(bytes: &[u8]) -> io::Result<Self> {
        let guarded = Self::new(bytes.len())?;
        // SAFETY: a new mapping of at least as many writable bytes, apart from `bytes`.
        unsafe {
            guarded
                .start
                .as_ptr()
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        };
        Ok(guarded)
    }

    /// The first byte; valid for reads and writes of the length it was made with.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// A copy of what is there.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        // SAFETY: mapped, initialised (zeroed by the kernel), never unmapped; no slot is running on
        // it while the single thread that owns this value reads.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len_bytes) }.to_vec()
    }
}
