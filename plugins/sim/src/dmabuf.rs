//! Real dma-bufs of memory files, through the kernel's udmabuf driver where this process may open it.
#![expect(unsafe_code, reason = "a system call that no library wraps")]

use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode};
use stepmesh_plugin::abi::Code;
use stepmesh_plugin::{DmabufExport, Error, Result};

/// The driver, or why there is none.
#[derive(Debug)]
pub(crate) struct Driver(std::result::Result<OwnedFd, Errno>);

impl Driver {
    pub(crate) fn open() -> Self {
        Self(rustix::fs::open(
            PATH,
            OFlags::RDWR | OFlags::CLOEXEC,
            Mode::empty(),
        ))
    }

    /// Whether dma-bufs can be exported.
    pub(crate) fn is_there(&self) -> bool {
        self.0.is_ok()
    }

    /// Exports `len_bytes` at `offset` of a memory file whose size is sealed and whole pages.
    pub(crate) fn export(
        &self,
        file: impl AsFd,
        offset: u64,
        len_bytes: u64,
        page_len: u64,
    ) -> Result<DmabufExport> {
        let driver = self.0.as_ref().map_err(|errno| {
            // A machine without the driver will not have it later; one that keeps it closed may open
            // it.
            let code = match *errno {
                Errno::NOENT | Errno::NODEV | Errno::NXIO => Code::Unimplemented,
                _ => Code::Unavailable,
            };
            let message = format!("no dma-buf can be exported: cannot open {PATH}: {errno}");
            Error::new(code, message).with_native_code(i64::from(errno.raw_os_error()))
        })?;
        let pages = whole_pages(offset, len_bytes, page_len).ok_or_else(|| {
            Error::invalid_argument(format!("cannot export {len_bytes} bytes at {offset}"))
        })?;
        let create = Create(UdmabufCreate {
            memfd: file.as_fd().as_raw_fd().cast_unsigned(),
            flags: UDMABUF_FLAGS_CLOEXEC,
            offset: pages.start,
            size: pages.len_bytes,
        });
        // SAFETY: the argument is the one of this driver's request, and the answer a descriptor.
        let fd = unsafe { rustix::ioctl::ioctl(driver, create) };
        let fd = fd.map_err(|errno| {
            let message = format!(
                "{PATH} makes no dma-buf of {} bytes: {errno}; its parameter size_limit_mb bounds \
                 the size",
                pages.len_bytes
            );
            Error::new(Code::Unavailable, message).with_native_code(i64::from(errno.raw_os_error()))
        })?;
        Ok(DmabufExport {
            fd,
            offset_bytes: pages.skip,
            len_bytes: pages.len_bytes - pages.skip,
        })
    }
}

/// The pages that hold a range, and where in them it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pages {
    start: u64,
    len_bytes: u64,
    skip: u64,
}

fn whole_pages(offset: u64, len_bytes: u64, page_len: u64) -> Option<Pages> {
    let skip = offset % page_len;
    let len_bytes = skip
        .checked_add(len_bytes)?
        .checked_next_multiple_of(page_len)?;
    let start = offset - skip;
    start.checked_add(len_bytes)?;
    Some(Pages {
        start,
        len_bytes,
        skip,
    })
}

/// `struct udmabuf_create` of `linux/udmabuf.h`.
#[repr(C)]
struct UdmabufCreate {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

/// `UDMABUF_CREATE`.
struct Create(UdmabufCreate);

// SAFETY: the request's number has the size of its argument, which the kernel only reads, and its
// answer is a new descriptor.
unsafe impl Ioctl for Create {
    type Output = OwnedFd;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        rustix::ioctl::opcode::write::<UdmabufCreate>(b'u', 0x42)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut self.0).cast()
    }

    unsafe fn output_from_ptr(
        answer: IoctlOutput,
        _argument: *mut c_void,
    ) -> rustix::io::Result<OwnedFd> {
        // SAFETY: the call succeeded, so its answer is a descriptor that is nobody's yet.
        Ok(unsafe { OwnedFd::from_raw_fd(answer) })
    }
}

/// The driver's device.
const PATH: &str = "/dev/udmabuf";
/// `UDMABUF_FLAGS_CLOEXEC`.
const UDMABUF_FLAGS_CLOEXEC: u32 = 1;

#[cfg(test)]
mod tests;
