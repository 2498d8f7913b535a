//! Memory that two processes share: words to signal with, areas to copy between. The only thing
//! here that the rest of the benchmark cannot do safely.
#![expect(
    unsafe_code,
    reason = "maps memory that another process writes, and copies within it"
)]

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;

use anyhow::{Context, Result, ensure};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// A mapping of a file in memory: [`WORDS`] words, each on cache lines of its own, then [`AREAS`]
/// areas of equal length.
///
/// Another process may write to it at any time. So its bytes are never referred to, only copied,
/// and the words, which both sides use as atomics alone, say when an area is the other's.
#[derive(Debug)]
pub(crate) struct Page {
    file: File,
    base: NonNull<u8>,
    area_len_bytes: usize,
}

// SAFETY: the mapping lives until `drop`, and `&Page` gives access to atomics and to copies between
// raw pointers only.
unsafe impl Send for Page {}

impl Page {
    /// A new mapping with areas of at least `len_bytes`.
    pub(crate) fn create(len_bytes: usize) -> Result<Self> {
        let area_len_bytes = len_bytes.next_multiple_of(PAGE_LEN_BYTES);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("stepmesh-bench", flags)
            .context("cannot make a file in memory")?;
        let len_bytes = total_len_bytes(area_len_bytes);
        rustix::fs::ftruncate(&fd, u64::try_from(len_bytes)?)
            .context("cannot size a file in memory")?;
        // Nobody can shrink it under a mapping, which would be a SIGBUS.
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK)
            .context("cannot seal a file in memory")?;
        Self::map(File::from(fd), area_len_bytes)
    }

    /// The mapping that another process made and told the [`path`](Self::path) of.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .with_context(|| format!("cannot open the shared memory {}", path.display()))?;
        let len_bytes = usize::try_from(file.metadata()?.len())?;
        let area_len_bytes = len_bytes.saturating_sub(HEAD_LEN_BYTES) / AREAS;
        ensure!(
            len_bytes == total_len_bytes(area_len_bytes) && area_len_bytes > 0,
            "{} has {len_bytes} bytes, which is no shared memory of the benchmark",
            path.display()
        );
        let seals = rustix::fs::fcntl_get_seals(&file).context("cannot read its seals")?;
        ensure!(
            seals.contains(SealFlags::SHRINK),
            "{} may shrink under its mapping",
            path.display()
        );
        Self::map(file, area_len_bytes)
    }

    /// Where another process can [`open`](Self::open) it while this one keeps it.
    pub(crate) fn path(&self) -> PathBuf {
        let fd = self.file.as_raw_fd();
        format!("/proc/{}/fd/{fd}", std::process::id()).into()
    }

    /// One of the words.
    pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < WORDS, "word {index} of {WORDS}");
        // SAFETY: inside of the head, checked above.
        let word = unsafe { self.base.add(index * WORD_STRIDE_BYTES) };
        // SAFETY: aligned by the stride, zeroed by the kernel, mapped as long as `self`, and used
        // as an atomic by everyone.
        unsafe { word.cast::<AtomicU64>().as_ref() }
    }

    /// Copies the first `len_bytes` of area `from` to area `to`.
    #[inline]
    pub(crate) fn copy(&self, from: usize, to: usize, len_bytes: usize) {
        assert!(from != to && len_bytes <= self.area_len_bytes);
        let (from, to) = (self.area(from), self.area(to));
        // SAFETY: two areas, distinct and long enough by the check above, `area` checks the rest.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to.as_ptr(), len_bytes) };
    }

    /// Fills the first bytes of an area with `bytes`.
    pub(crate) fn write(&self, area: usize, bytes: &[u8]) {
        assert!(bytes.len() <= self.area_len_bytes);
        let to = self.area(area);
        // SAFETY: the area is long enough by the check above, and no reference to it exists.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
    }

    /// The first `len_bytes` of an area.
    pub(crate) fn read(&self, area: usize, len_bytes: usize) -> Vec<u8> {
        let mut bytes = vec![0; len_bytes.min(self.area_len_bytes)];
        // SAFETY: as long as the vector, which is not longer than the area.
        unsafe {
            ptr::copy_nonoverlapping(self.area(area).as_ptr(), bytes.as_mut_ptr(), bytes.len())
        };
        bytes
    }

    fn map(file: File, area_len_bytes: usize) -> Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // Page faults belong to nobody's round trip.
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        let len_bytes = total_len_bytes(area_len_bytes);
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base =
            unsafe { rustix::mm::mmap(ptr::null_mut(), len_bytes, protection, flags, &file, 0) };
        let base = base.context("cannot map the shared memory")?;
        let base = NonNull::new(base.cast()).context("the kernel mapped nothing")?;
        Ok(Self {
            file,
            base,
            area_len_bytes,
        })
    }

    fn area(&self, index: usize) -> NonNull<u8> {
        assert!(index < AREAS, "area {index} of {AREAS}");
        // SAFETY: inside of the mapping, which ends after the last area.
        unsafe { self.base.add(HEAD_LEN_BYTES + index * self.area_len_bytes) }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let len_bytes = total_len_bytes(self.area_len_bytes);
        // SAFETY: mapped by `map` with this length, and nothing that borrows from `self` is left.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), len_bytes) };
        debug_assert!(unmapped.is_ok(), "the mapping is ours");
    }
}

fn total_len_bytes(area_len_bytes: usize) -> usize {
    HEAD_LEN_BYTES + AREAS * area_len_bytes
}

/// How many words there are.
pub(crate) const WORDS: usize = 8;

/// How many areas there are: the source, what arrived there, what came back.
pub(crate) const AREAS: usize = 3;

/// Far enough apart that no prefetcher takes one word's line with another's.
const WORD_STRIDE_BYTES: usize = 512;

/// Areas start on pages, as the backend's memory does.
const PAGE_LEN_BYTES: usize = 4096;

/// Room for the words.
const HEAD_LEN_BYTES: usize = WORDS * WORD_STRIDE_BYTES;

const _: () = assert!(HEAD_LEN_BYTES.is_multiple_of(PAGE_LEN_BYTES));

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::Page;

    #[test]
    fn what_one_mapping_writes_the_other_reads() {
        let first = Page::create(5000).unwrap();
        let second = Page::open(&first.path()).unwrap();
        first.write(0, b"bytes");
        first.word(7).store(3, Ordering::Release);
        assert_eq!(second.word(7).load(Ordering::Acquire), 3);
        second.copy(0, 2, 5);
        assert_eq!(first.read(2, 5), b"bytes");
        assert_eq!(first.read(1, 5), [0; 5]);
    }

    #[test]
    fn a_file_that_is_no_shared_memory_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = Page::open(file.path()).unwrap_err().to_string();
        assert!(error.contains("no shared memory"), "{error}");
    }
}
