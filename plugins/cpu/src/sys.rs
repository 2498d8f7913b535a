//! System calls that only this backend makes: nodes, locks, files in a directory. Mappings and copies
//! are the kit's.
#![expect(unsafe_code, reason = "tells the kernel about memory")]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use stepmesh_plugin::software::{Mapping, retry_interrupted};

/// Prefers memory of a NUMA node for pages that are not there yet. Best effort.
pub(crate) fn prefer_node(mapping: &Mapping, node: u32) -> io::Result<()> {
    let mut mask = [0_u64; NODE_MASK_WORDS];
    let word = usize::try_from(node / u64::BITS).map_err(|_| Errno::INVAL)?;
    *mask.get_mut(word).ok_or(Errno::INVAL)? = 1 << (node % u64::BITS);
    // The kernel wants one more than the number of bits.
    let bits = NODE_MASK_WORDS * 64 + 1;
    // SAFETY: the range is this mapping, and the mask a local with that many bits.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            mapping.addr(),
            mapping.len_bytes(),
            libc::MPOL_PREFERRED,
            mask.as_ptr(),
            bits,
            0_usize,
        )
    };
    if answer == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Locks a range of mapped memory.
pub(crate) fn lock_range(addr: usize, len_bytes: usize) -> io::Result<()> {
    let at = std::ptr::with_exposed_provenance_mut(addr);
    // SAFETY: locking changes no content; a range that is not mapped is an error of the kernel's.
    unsafe { rustix::mm::mlock(at, len_bytes) }?;
    Ok(())
}

/// Undoes [`lock_range`]. Best effort.
pub(crate) fn unlock_range(addr: usize, len_bytes: usize) {
    let at = std::ptr::with_exposed_provenance_mut(addr);
    // SAFETY: unlocking changes no content; a range that is not mapped is an error of the kernel's.
    let _ = unsafe { rustix::mm::munlock(at, len_bytes) };
}

/// A file without a name in a directory, of a size.
pub(crate) fn directory_file(dir: &Path, len_bytes: u64) -> io::Result<OwnedFd> {
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
pub(crate) fn allocate_pages(file: impl AsFd, len_bytes: u64) -> io::Result<()> {
    let flags = FallocateFlags::empty();
    retry_interrupted(|| Ok(rustix::fs::fallocate(file.as_fd(), flags, 0, len_bytes)?))
}

/// Tells apart files that have a name for a moment.
static FILE_SERIAL: AtomicU64 = AtomicU64::new(0);
/// Words of a node mask: 1024 nodes, the most that Linux is built for.
const NODE_MASK_WORDS: usize = 16;
