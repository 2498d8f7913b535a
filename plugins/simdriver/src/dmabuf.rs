//! dma-bufs of memory files, by the kernel's udmabuf driver.
#![expect(unsafe_code, reason = "a system call that no library wraps")]

use std::ffi::c_void;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode};

use crate::{Answer, Status};

/// Whether the process may open the driver.
pub(crate) fn is_there() -> bool {
    open().is_ok()
}

/// A dma-buf of whole pages of a file.
pub(crate) fn export(file: &OwnedFd, offset: u64, size: u64) -> Answer<OwnedFd> {
    let driver = open()?;
    let create = Create(UdmabufCreate {
        memfd: file.as_raw_fd().cast_unsigned(),
        flags: UDMABUF_FLAGS_CLOEXEC,
        offset,
        size,
    });
    // SAFETY: the argument is the one of this driver's request, and the answer a descriptor.
    let made = unsafe { rustix::ioctl::ioctl(driver, create) };
    made.map_err(|_| Status::NOT_SUPPORTED)
}

fn open() -> Answer<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let opened = rustix::fs::open("/dev/udmabuf", flags, Mode::empty());
    opened.map_err(|_| Status::NOT_SUPPORTED)
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

/// `UDMABUF_FLAGS_CLOEXEC`.
const UDMABUF_FLAGS_CLOEXEC: u32 = 1;
