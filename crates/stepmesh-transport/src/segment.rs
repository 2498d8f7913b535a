//! Memory shared between processes: how it is made, checked and mapped. What is kept in it (rings,
//! doorbells, regions) is the business of others, who see only atomic words and checked ranges.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// One cache line of words that several processes read and write.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Line(pub(crate) [AtomicU64; LINE_WORDS]);

/// A shared mapping of a whole file, unmapped on drop.
///
/// Other processes may write to it at any time, so no reference to plain bytes of it ever exists:
/// there are words behind atomics, and raw addresses of checked ranges.
#[derive(Debug)]
pub(crate) struct Segment {
    base: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: a mapping belongs to the process and not to a thread; the accessors give out atomics and
// addresses only.
unsafe impl Send for Segment {}
// SAFETY: as above; there is no interior state besides the mapped words.
unsafe impl Sync for Segment {}

impl Segment {
    /// Maps all of `file` for reading and writing, with its pages present when `populate`.
    ///
    /// The caller has made sure, by seals or by trust, that the file cannot shrink.
    pub(crate) fn map(file: impl AsFd, populate: bool) -> io::Result<Self> {
        let size = rustix::fs::fstat(&file)?.st_size;
        let len_bytes = usize::try_from(size).map_err(|_| invalid("the size is negative"))?;
        if len_bytes == 0 || isize::try_from(len_bytes).is_err() {
            return Err(invalid("the size is zero or too large to map"));
        }
        let flags = if populate {
            MapFlags::SHARED | MapFlags::POPULATE
        } else {
            MapFlags::SHARED
        };
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses aliases nothing.
        let base =
            unsafe { rustix::mm::mmap(ptr::null_mut(), len_bytes, protection, flags, file, 0) }?;
        let base = NonNull::new(base.cast()).ok_or_else(|| invalid("mapped at zero"))?;
        Ok(Self { base, len_bytes })
    }

    /// The length in bytes.
    pub(crate) fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// The segment as cache lines; what does not fill a line at its end is left out.
    pub(crate) fn lines(&self) -> &[Line] {
        let lines = self.base.cast::<Line>();
        // SAFETY: the mapping is page aligned, `len_bytes` long and lives as long as `self`;
        // every bit pattern is a valid `Line`, and atomics may be shared with other processes.
        unsafe { slice::from_raw_parts(lines.as_ptr(), self.len_bytes / LINE_LEN_BYTES) }
    }

    /// The first 32 bits of a line, for the kernel's futex. Such a line is never used through
    /// [`lines`](Self::lines).
    pub(crate) fn word32(&self, line: usize) -> Option<&AtomicU32> {
        let word = NonNull::from(self.lines().get(line)?).cast::<AtomicU32>();
        // SAFETY: `word` points at the start of a line inside of the mapping, which is aligned for
        // it and lives as long as `self`; callers keep to one width of access for the line.
        Some(unsafe { word.as_ref() })
    }

    /// The address of `offset .. offset + len_bytes`, if that lies inside.
    pub(crate) fn range(&self, offset: u64, len_bytes: u64) -> Option<NonNull<u8>> {
        let end = offset.checked_add(len_bytes)?;
        if end > self.len_bytes as u64 {
            return None;
        }
        let offset = usize::try_from(offset).ok()?;
        // SAFETY: `offset` is at most `len_bytes`, so the result is inside of the mapping or just
        // behind it.
        Some(unsafe { self.base.add(offset) })
    }

    /// Makes the pages of a range present, so that the first write to it does not fault, and fails
    /// where a page cannot be had (a full file system), which would be a `SIGBUS` later.
    pub(crate) fn populate(&self, offset: u64, len_bytes: u64) -> io::Result<()> {
        let start = offset - offset % PAGE_LEN_BYTES;
        let range = self.range(start, len_bytes + (offset - start));
        let range = range.ok_or_else(|| invalid("outside of the mapping"))?;
        let len = usize::try_from(len_bytes + (offset - start)).map_err(io::Error::other)?;
        // SAFETY: the range lies inside of this mapping and starts on a page; populating changes
        // no byte of it.
        let done =
            unsafe { rustix::mm::madvise(range.as_ptr().cast(), len, Advice::LinuxPopulateWrite) };
        match done {
            // Kernels before 5.14 do not know this advice; the faults then come one by one.
            Err(rustix::io::Errno::INVAL) => Ok(()),
            other => Ok(other?),
        }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made in `map`, and every borrow of it has ended.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len_bytes) };
        debug_assert!(unmapped.is_ok(), "munmap of a whole mapping does not fail");
    }
}

/// Creates a file of `len_bytes` for sharing, all of it allocated: anonymous and sealed against any
/// change of size, or a nameless one in `dir`.
pub(crate) fn create(name: &str, dir: Option<&Path>, len_bytes: u64) -> io::Result<OwnedFd> {
    let Some(dir) = dir else {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create(name, flags)?;
        rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, len_bytes)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        return Ok(fd);
    };
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR)?);
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, len_bytes)?;
    Ok(file.into())
}

/// Whether a file is sealed so that it can never shrink under a mapping.
pub(crate) fn is_sealed(file: impl AsFd) -> bool {
    rustix::fs::fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK))
}

/// An error for what a peer offered and we refuse.
pub(crate) fn invalid(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

/// Cache lines of all processors that we know are this long or shorter (two such on some Arm).
pub(crate) const LINE_LEN_BYTES: usize = 64;

/// A line as 64-bit words.
pub(crate) const LINE_WORDS: usize = LINE_LEN_BYTES / 8;

/// The smallest page; larger pages are multiples of it.
pub(crate) const PAGE_LEN_BYTES: u64 = 4096;

#[cfg(test)]
mod tests;
