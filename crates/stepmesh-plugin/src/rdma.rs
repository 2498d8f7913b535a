//! `stepmesh.rdma.v1` for backends: the trait, the table made from it, and the function by which a
//! host learns that memory ends.
#![expect(unsafe_code, reason = "functions of the C table")]

use std::ffi::c_void;
use std::fmt;
use std::os::fd::{BorrowedFd, FromRawFd as _, IntoRawFd as _, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use stepmesh_abi::extension::{
    SM_DMABUF_DEFAULT, SM_DMABUF_PCIE, SM_RDMA_FLUSH_ALL_DEVICES, SM_RDMA_FLUSH_OWNER,
};
use stepmesh_abi::{SmBackend, SmError, SmHdr, SmRdmaCaps, SmRdmaV1};

use crate::boundary::{Struct, Value};
use crate::instance::{Instance, Phase, slot};
use crate::{Backend, Error, Extension, Result};

/// Memory that a network adapter reads and writes. Offer it with `Extension::rdma` in
/// [`Backend::extension`].
pub trait Rdma: Backend {
    /// Exports a range within one allocation as a dma-buf, by whole pages. The range is not empty.
    ///
    /// # Errors
    /// `SM_INVALID_ARGUMENT` if the range is not within one allocation; `SM_UNIMPLEMENTED` if the
    /// mapping or the memory is not supported; `SM_UNAVAILABLE` if the driver will not.
    fn dmabuf_export(
        &self,
        device: u32,
        ptr: u64,
        len_bytes: u64,
        mapping: DmabufMapping,
    ) -> Result<DmabufExport>;

    /// Closes a descriptor of [`Rdma::dmabuf_export`], for drivers that have a call for it.
    ///
    /// # Errors
    /// If the driver refuses.
    fn dmabuf_close(&self, fd: OwnedFd) -> Result<()> {
        drop(fd);
        Ok(())
    }

    /// What a device offers.
    ///
    /// # Errors
    /// If the device does not answer.
    fn rdma_caps(&self, device: u32) -> Result<SmRdmaCaps>;

    /// Makes what network adapters wrote visible before it returns.
    ///
    /// # Errors
    /// `SM_UNIMPLEMENTED` without `SM_CAP_FLUSH_RDMA`.
    fn flush_rdma_writes(&self, device: u32, scope: FlushScope) -> Result<()>;

    /// Makes synchronous copies and fills of an allocation synchronous for network adapters too.
    ///
    /// # Errors
    /// `SM_INVALID_ARGUMENT` if the address is in no allocation; `SM_UNIMPLEMENTED` without
    /// `SM_CAP_SYNC_MEMOPS`.
    fn set_sync_memops(&self, ptr: u64) -> Result<()>;

    /// Where the host's function is kept. The backend calls [`Invalidation::notify`] for each
    /// allocation, registration and import that ends, before its address can be used again.
    fn invalidation(&self) -> &Invalidation;
}

/// How a network adapter gets at exported memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DmabufMapping {
    /// What the driver takes by default.
    Default,
    /// Through the device's PCIe window.
    Pcie,
}

/// To whom flushed writes become visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FlushScope {
    /// To the device whose memory it is.
    Owner,
    /// To every device.
    AllDevices,
}

/// What [`Rdma::dmabuf_export`] gives.
#[derive(Debug)]
pub struct DmabufExport {
    /// The dma-buf, made with `O_CLOEXEC`; it becomes the caller's.
    pub fd: OwnedFd,
    /// Where the address is in the dma-buf, in bytes.
    pub offset_bytes: u64,
    /// Bytes that may be used from there; no fewer than were asked for.
    pub len_bytes: u64,
}

/// The host's function that is told of memory that ends; none at first. Any thread may use it.
#[derive(Debug, Default)]
pub struct Invalidation(Mutex<Option<Func>>);

#[derive(Clone, Copy)]
struct Func {
    func: unsafe extern "C" fn(ctx: *mut c_void, alloc_id: u64),
    ctx: *mut c_void,
}

// SAFETY: by the table's contract the function may be called from any thread with its context.
unsafe impl Send for Func {}

impl fmt::Debug for Func {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Func")
    }
}

impl Invalidation {
    /// Tells the host, if it wants to know, that the memory of this `alloc_id` ends. Call it with no
    /// lock held, after the address is unknown to the backend and before it can be given away again.
    pub fn notify(&self, alloc_id: u64) {
        let func = *self.lock();
        if let Some(Func { func, ctx }) = func {
            // SAFETY: the host passed both to `set_invalidate_callback`, by whose contract they are
            // valid until the instance is closed, for calls from any thread.
            unsafe { func(ctx, alloc_id) };
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Func>> {
        // Two words that are replaced as one.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Extension {
    /// The table of `stepmesh.rdma.v1`.
    #[must_use]
    pub fn rdma<B: Rdma>() -> Self {
        Self::new(const { &rdma_table::<B>() }, 1)
    }
}

const fn rdma_table<B: Rdma>() -> SmRdmaV1 {
    SmRdmaV1 {
        hdr: SmHdr::of::<SmRdmaV1>(),
        dmabuf_export: Some(dmabuf_export::<B>),
        dmabuf_close: Some(dmabuf_close::<B>),
        rdma_caps: Some(rdma_caps::<B>),
        flush_rdma_writes: Some(flush_rdma_writes::<B>),
        set_sync_memops: Some(set_sync_memops::<B>),
        set_invalidate_callback: Some(set_invalidate_callback::<B>),
    }
}

unsafe extern "C" fn dmabuf_export<B: Rdma>(
    s: *mut SmBackend,
    dev: u32,
    ptr: u64,
    size: u64,
    mapping: u32,
    fd: *mut i32,
    offset: *mut u64,
    len: *mut u64,
    err: *mut SmError,
) -> i32 {
    let out = (Value(fd), (Value(offset), Value(len)));
    let work = |i: &Instance<B>| {
        let dev = i.check_device(dev)?;
        let mapping = match mapping {
            SM_DMABUF_DEFAULT => DmabufMapping::Default,
            SM_DMABUF_PCIE => DmabufMapping::Pcie,
            other => {
                let message = format!("mapping {other} of a dma-buf is unknown");
                return Err(Error::invalid_argument(message));
            }
        };
        if size == 0 || ptr.checked_add(size).is_none() {
            return Err(Error::invalid_argument(format!(
                "cannot export {size} bytes at {ptr:#x}"
            )));
        }
        let export = i.backend.dmabuf_export(dev, ptr, size, mapping)?;
        if export.len_bytes < size {
            return Err(Error::internal(format!(
                "the dma-buf covers {} of {size} bytes at {ptr:#x}",
                export.len_bytes
            )));
        }
        // From here on the descriptor is the caller's to close.
        let fd = export.fd.into_raw_fd();
        Ok((fd, (export.offset_bytes, export.len_bytes)))
    };
    // SAFETY: the table's contract for the instance, the out pointers and `err`.
    unsafe { slot::<B, _>(s, err, "dmabuf_export", Phase::Open, out, work) }
}

unsafe extern "C" fn dmabuf_close<B: Rdma>(s: *mut SmBackend, fd: i32, err: *mut SmError) -> i32 {
    let work = |i: &Instance<B>| {
        let closed = || Error::invalid_argument(format!("the descriptor {fd} is not open"));
        if fd < 0 {
            return Err(closed());
        }
        // SAFETY: not -1, and used during this call only; one that is not open is the kernel's to
        // find out, in the next line.
        let open = unsafe { BorrowedFd::borrow_raw(fd) };
        rustix::io::fcntl_getfd(open).map_err(|_| closed())?;
        // SAFETY: the table's contract: a descriptor of `dmabuf_export`, given back once.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        i.backend.dmabuf_close(fd)
    };
    // SAFETY: the table's contract for the instance and `err`.
    unsafe { slot::<B, _>(s, err, "dmabuf_close", Phase::Ending, (), work) }
}

unsafe extern "C" fn rdma_caps<B: Rdma>(
    s: *mut SmBackend,
    dev: u32,
    out: *mut SmRdmaCaps,
    err: *mut SmError,
) -> i32 {
    let work = |i: &Instance<B>| i.backend.rdma_caps(i.check_device(dev)?);
    // SAFETY: the table's contract for the instance, the out struct and `err`.
    unsafe { slot::<B, _>(s, err, "rdma_caps", Phase::Open, Struct(out), work) }
}

unsafe extern "C" fn flush_rdma_writes<B: Rdma>(
    s: *mut SmBackend,
    dev: u32,
    scope: u32,
    err: *mut SmError,
) -> i32 {
    let work = |i: &Instance<B>| {
        let dev = i.check_device(dev)?;
        let scope = match scope {
            SM_RDMA_FLUSH_OWNER => FlushScope::Owner,
            SM_RDMA_FLUSH_ALL_DEVICES => FlushScope::AllDevices,
            other => {
                let message = format!("flush scope {other} is unknown");
                return Err(Error::invalid_argument(message));
            }
        };
        i.backend.flush_rdma_writes(dev, scope)
    };
    // SAFETY: the table's contract for the instance and `err`.
    unsafe { slot::<B, _>(s, err, "flush_rdma_writes", Phase::Open, (), work) }
}

unsafe extern "C" fn set_sync_memops<B: Rdma>(
    s: *mut SmBackend,
    ptr: u64,
    err: *mut SmError,
) -> i32 {
    let work = |i: &Instance<B>| i.backend.set_sync_memops(ptr);
    // SAFETY: the table's contract for the instance and `err`.
    unsafe { slot::<B, _>(s, err, "set_sync_memops", Phase::Open, (), work) }
}

unsafe extern "C" fn set_invalidate_callback<B: Rdma>(
    s: *mut SmBackend,
    func: Option<unsafe extern "C" fn(ctx: *mut c_void, alloc_id: u64)>,
    ctx: *mut c_void,
    err: *mut SmError,
) -> i32 {
    let work = |i: &Instance<B>| {
        *i.backend.invalidation().lock() = func.map(|func| Func { func, ctx });
        Ok(())
    };
    // SAFETY: the table's contract for the instance and `err`.
    unsafe { slot::<B, _>(s, err, "set_invalidate_callback", Phase::Open, (), work) }
}
