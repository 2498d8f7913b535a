//! System calls and raw memory: mappings, files in memory, copies. Which memory belongs to whom is the
//! backend's.
#![expect(unsafe_code, reason = "maps and copies memory")]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::null_mut;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// A mapping of this process, unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    addr: usize,
    len_bytes: usize,
}

impl Mapping {
    /// Maps a range of a file for reading and writing, shared, at an aligned address. Offset and
    /// length are multiples of the page, the alignment is a power of two.
    ///
    /// # Errors
    /// The kernel's.
    pub fn shared(
        file: impl AsFd,
        offset: u64,
        len_bytes: usize,
        align_bytes: usize,
    ) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        Ok(Self::map(file, offset, len_bytes, align_bytes, protection)?)
    }

    /// Maps a range of a file so that whoever touches it dies: an address that only stands for
    /// memory. Otherwise as [`Mapping::shared`].
    ///
    /// # Errors
    /// The kernel's.
    pub fn untouchable(
        file: impl AsFd,
        offset: u64,
        len_bytes: usize,
        align_bytes: usize,
    ) -> io::Result<Self> {
        let protection = ProtFlags::empty();
        Ok(Self::map(file, offset, len_bytes, align_bytes, protection)?)
    }

    fn map(
        file: impl AsFd,
        offset: u64,
        len_bytes: usize,
        align_bytes: usize,
        protection: ProtFlags,
    ) -> Result<Self, Errno> {
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
    #[must_use]
    pub fn addr(&self) -> usize {
        self.addr
    }

    /// Bytes.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Makes the pages present in this process. Best effort: older kernels cannot.
    ///
    /// # Errors
    /// The kernel's.
    pub fn populate(&self) -> io::Result<()> {
        let at = std::ptr::with_exposed_provenance_mut(self.addr);
        // SAFETY: the range is this mapping; the advice changes no content.
        unsafe { rustix::mm::madvise(at, self.len_bytes, Advice::LinuxPopulateWrite) }?;
        Ok(())
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

/// A file in memory of a size, without pages yet. The name is what `/proc` shows.
///
/// # Errors
/// The kernel's.
pub fn memory_file(name: &str, len_bytes: u64) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create(name, flags)?;
    rustix::fs::ftruncate(&file, len_bytes)?;
    Ok(file)
}

/// Fixes the size of a file in memory, so that a peer cannot shrink it under a mapping.
///
/// # Errors
/// The kernel's.
pub fn seal_size(file: impl AsFd) -> io::Result<()> {
    rustix::fs::fcntl_add_seals(file, SealFlags::SHRINK | SealFlags::GROW)?;
    Ok(())
}

/// Size of a regular file.
///
/// # Errors
/// The kernel's; `EINVAL` for what is no regular file.
pub fn file_len(file: impl AsFd) -> io::Result<u64> {
    let stat = rustix::fs::fstat(file)?;
    if rustix::fs::FileType::from_raw_mode(stat.st_mode) != rustix::fs::FileType::RegularFile {
        return Err(Errno::INVAL.into());
    }
    u64::try_from(stat.st_size).map_err(|_| Errno::INVAL.into())
}

/// Bytes of a page.
#[must_use]
pub fn page_len() -> usize {
    rustix::param::page_size()
}

/// Copies; ranges that overlap are copied as if through a third place.
///
/// # Safety
/// - `src` is valid for reading and `dst` for writing `len_bytes` bytes, and no one else writes
///   either meanwhile.
pub unsafe fn copy(dst: u64, src: u64, len_bytes: u64) {
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
pub unsafe fn fill(dst: u64, value: u32, width_bytes: u32, len_bytes: u64) {
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
#[must_use]
pub fn to_addr(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// Counts a `usize` as the ABI does.
#[must_use]
pub fn to_u64(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// Makes a system call again that a signal interrupted.
///
/// # Errors
/// The call's.
pub fn retry_interrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 0..RETRIES_MAX {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
    call()
}

/// Interrupted calls are made again this often: a signal a millisecond would not exhaust it.
const RETRIES_MAX: u32 = 1000;
