//! System calls and raw memory: mappings, files in memory, copies. Which memory belongs to whom lives
//! in the buffer module.
#![expect(unsafe_code, reason = "maps and copies memory")]

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// A mapping of this process, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    addr: usize,
    len_bytes: usize,
}

impl Mapping {
    /// Maps a range of a file for reading and writing, shared, at an aligned address.
    pub(crate) fn shared(
        file: impl AsFd,
        offset: u64,
        len_bytes: usize,
        align_bytes: usize,
    ) -> Result<Self, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        if align_bytes <= page_len() {
            let flags = MapFlags::SHARED;
            // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
            let addr = unsafe {
                rustix::mm::mmap(null_mut(), len_bytes, protection, flags, file, offset)
            }?;
            return Ok(Self {
                addr: addr.expose_provenance(),
                len_bytes,
            });
        }
        // Addresses are reserved generously, the file is put at the aligned one among them, and
        // what is left over on both sides is given back.
        let reserved_len = len_bytes.checked_add(align_bytes).ok_or(Errno::NOMEM)?;
        let mut reserved = Self::reserved(reserved_len)?;
        let addr = reserved.addr.next_multiple_of(align_bytes);
        let at = std::ptr::with_exposed_provenance_mut(addr);
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: the fixed range lies within the reservation above, to which nothing else points:
        // `addr` is less than `align_bytes` beyond its start.
        unsafe { rustix::mm::mmap(at, len_bytes, protection, flags, file, offset) }?;
        let before = addr - reserved.addr;
        drop(reserved.split_front(before));
        let mapped = reserved.split_front(len_bytes);
        Ok(mapped)
    }

    fn reserved(len_bytes: usize) -> Result<Self, Errno> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
        let addr = unsafe {
            rustix::mm::mmap_anonymous(null_mut(), len_bytes, ProtFlags::empty(), flags)
        }?;
        Ok(Self {
            addr: addr.expose_provenance(),
            len_bytes,
        })
    }

    /// Splits off the first bytes, a multiple of the page, as a mapping of their own.
    fn split_front(&mut self, len_bytes: usize) -> Self {
        let front = Self {
            addr: self.addr,
            len_bytes,
        };
        self.addr += len_bytes;
        self.len_bytes -= len_bytes;
        front
    }

    /// First address.
    pub(crate) fn addr(&self) -> usize {
        self.addr
    }

    /// Prefers memory of a NUMA node for pages that are not there yet. Best effort.
    pub(crate) fn prefer_node(&self, node: u32) -> Result<(), Errno> {
        let mut mask = [0_u64; NODE_MASK_WORDS];
        let word = usize::try_from(node / u64::BITS).map_err(|_| Errno::INVAL)?;
        *mask.get_mut(word).ok_or(Errno::INVAL)? = 1 << (node % u64::BITS);
        // The kernel wants one more than the number of bits.
        let bits = NODE_MASK_WORDS * 64 + 1;
        // SAFETY: the range is this mapping, and the mask a local with that many bits.
        let answer = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.addr,
                self.len_bytes,
                libc::MPOL_PREFERRED,
                mask.as_ptr(),
                bits,
                0_usize,
            )
        };
        if answer == 0 {
            Ok(())
        } else {
            Err(last_errno())
        }
    }

    /// Makes the pages present in this process. Best effort: older kernels cannot.
    pub(crate) fn populate(&self) -> Result<(), Errno> {
        let at = std::ptr::with_exposed_provenance_mut(self.addr);
        // SAFETY: the range is this mapping; the advice changes no content.
        unsafe { rustix::mm::madvise(at, self.len_bytes, Advice::LinuxPopulateWrite) }
    }

    /// Locks the pages in memory.
    pub(crate) fn lock(&self) -> Result<(), Errno> {
        lock_range(self.addr, self.len_bytes)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.len_bytes == 0 {
            return;
        }
        let at = std::ptr::with_exposed_provenance_mut(self.addr);
        // SAFETY: the range is this mapping, made here and owned alone; that no one uses the memory
        // any more is what the caller of `free` vouched for.
        let _ = unsafe { rustix::mm::munmap(at, self.len_bytes) };
    }
}

/// Locks a range of mapped memory.
pub(crate) fn lock_range(addr: usize, len_bytes: usize) -> Result<(), Errno> {
    let at = std::ptr::with_exposed_provenance_mut(addr);
    // SAFETY: locking changes no content; a range that is not mapped is an error of the kernel's.
    unsafe { rustix::mm::mlock(at, len_bytes) }
}

/// Undoes [`lock_range`]. Best effort.
pub(crate) fn unlock_range(addr: usize, len_bytes: usize) {
    let at = std::ptr::with_exposed_provenance_mut(addr);
    // SAFETY: unlocking changes no content; a range that is not mapped is an error of the kernel's.
    let _ = unsafe { rustix::mm::munlock(at, len_bytes) };
}

/// A file in memory of a size, without pages yet.
pub(crate) fn memory_file(len_bytes: u64) -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("stepmesh-cpu", flags)?;
    rustix::fs::ftruncate(&file, len_bytes)?;
    Ok(file)
}

/// A file without a name in a directory, of a size.
pub(crate) fn directory_file(dir: &Path, len_bytes: u64) -> Result<OwnedFd, Errno> {
    let mode = Mode::RUSR | Mode::WUSR;
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let file = match rustix::fs::open(dir, flags | OFlags::TMPFILE, mode) {
        // File systems without nameless files: a name for a moment.
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => {
            let serial = FILE_SERIAL.fetch_add(1, Ordering::Relaxed);
            let path = dir.join(format!(".stepmesh-cpu-{}-{serial}", std::process::id()));
            let file = rustix::fs::open(&path, flags | OFlags::CREATE | OFlags::EXCL, mode)?;
            rustix::fs::unlink(&path)?;
            file
        }
        other => other?,
    };
    rustix::fs::ftruncate(&file, len_bytes)?;
    Ok(file)
}

/// Gives a file all its pages now.
pub(crate) fn allocate_pages(file: impl AsFd, len_bytes: u64) -> Result<(), Errno> {
    retry(|| rustix::fs::fallocate(file.as_fd(), FallocateFlags::empty(), 0, len_bytes))
}

/// Fixes the size of a file in memory, so that a peer cannot shrink it under a mapping.
pub(crate) fn seal_size(file: impl AsFd) -> Result<(), Errno> {
    rustix::fs::fcntl_add_seals(file, SealFlags::SHRINK | SealFlags::GROW)
}

/// Size of a regular file.
pub(crate) fn file_len(file: impl AsFd) -> Result<u64, Errno> {
    let stat = rustix::fs::fstat(file)?;
    if rustix::fs::FileType::from_raw_mode(stat.st_mode) != rustix::fs::FileType::RegularFile {
        return Err(Errno::INVAL);
    }
    u64::try_from(stat.st_size).map_err(|_| Errno::INVAL)
}

/// Bytes of a page.
pub(crate) fn page_len() -> usize {
    rustix::param::page_size()
}

/// Copies; ranges that overlap are copied as if through a third place.
///
/// # Safety
/// - `src` is valid for reading and `dst` for writing `len_bytes` bytes, and no one else writes
///   either meanwhile.
pub(crate) unsafe fn copy(dst: u64, src: u64, len_bytes: u64) {
    let (dst, src, len_bytes) = (to_addr(dst), to_addr(src), to_addr(len_bytes));
    let from = std::ptr::with_exposed_provenance::<u8>(src);
    let to = std::ptr::with_exposed_provenance_mut::<u8>(dst);
    // SAFETY: this function's contract; bytes need no alignment.
    unsafe { to.copy_from(from, len_bytes) };
}

/// Fills with the low `width_bytes` bytes of `value`.
///
/// # Safety
/// - `dst` is valid for writing `len_bytes` bytes, which no one else uses meanwhile.
/// - `dst` and `len_bytes` are multiples of `width_bytes`, which is 1, 2 or 4.
pub(crate) unsafe fn fill(dst: u64, value: u32, width_bytes: u32, len_bytes: u64) {
    if len_bytes == 0 {
        return;
    }
    let [b0, b1, ..] = value.to_le_bytes();
    let (dst, len_bytes) = (to_addr(dst), to_addr(len_bytes));
    match width_bytes {
        1 => {
            let to = std::ptr::with_exposed_provenance_mut::<u8>(dst);
            // SAFETY: this function's contract.
            unsafe { to.write_bytes(b0, len_bytes) };
        }
        2 => {
            let to = std::ptr::with_exposed_provenance_mut::<u16>(dst);
            // SAFETY: this function's contract: aligned, whole, and ours alone meanwhile.
            let slice = unsafe { std::slice::from_raw_parts_mut(to, len_bytes / 2) };
            slice.fill(u16::from_le_bytes([b0, b1]));
        }
        _ => {
            let to = std::ptr::with_exposed_provenance_mut::<u32>(dst);
            // SAFETY: as above.
            let slice = unsafe { std::slice::from_raw_parts_mut(to, len_bytes / 4) };
            slice.fill(value);
        }
    }
}

/// An address or length of the ABI on this machine; both have 64 bits on every supported one.
pub(crate) fn to_addr(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// Counts a `usize` as the ABI does.
pub(crate) fn to_u64(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    for _ in 0..RETRIES_MAX {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
    call()
}

fn last_errno() -> Errno {
    let error = std::io::Error::last_os_error();
    Errno::from_io_error(&error).unwrap_or(Errno::INVAL)
}

/// Tells apart files that have a name for a moment.
static FILE_SERIAL: AtomicU64 = AtomicU64::new(0);
/// Words of a node mask: 1024 nodes, the most that Linux is built for.
const NODE_MASK_WORDS: usize = 16;
/// Interrupted calls are made again this often: a signal a millisecond would not exhaust it.
const RETRIES_MAX: u32 = 1000;
