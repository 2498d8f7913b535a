//! A protection domain: what registers memory and owns queue pairs. The regions themselves are in
//! `memory_region`.
#![expect(unsafe_code, reason = "holds a protection domain of libibverbs")]

use std::any::Any;
use std::fmt;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_sys::{ibv_access_flags, ibv_pd};

use super::context::Context;
use super::ledger::Kind;
use super::memory_region::MemoryRegion;
use super::result::{self, DmabufRange, Failure};
use crate::{Access, VerbsError};

/// What may be used together: only regions and queue pairs of one domain.
pub struct ProtectionDomain {
    raw: NonNull<ibv_pd>,
    context: Arc<Context>,
}

/// A part of a dma-buf to register.
#[derive(Clone, Copy, Debug)]
pub struct DmabufSlice<'a> {
    /// The descriptor of the dma-buf. The driver takes a reference of its own.
    pub fd: BorrowedFd<'a>,
    /// Where in the dma-buf the range starts, in bytes.
    pub offset: u64,
    /// The length of the range, in bytes.
    pub len_bytes: u64,
    /// The address by which work requests and peers shall name its first byte. Its offset in a page
    /// must be that of `offset`.
    pub iova: u64,
    /// Whether the dma-buf is of the device's PCIe window, which the adapter must be told; see
    /// [`Context::has_direct_dmabuf`].
    pub is_direct: bool,
}

impl ProtectionDomain {
    /// Makes a domain.
    ///
    /// # Errors
    /// `ibv_alloc_pd` failed.
    pub fn new(context: &Arc<Context>) -> Result<Arc<Self>, VerbsError> {
        // SAFETY: the context is open.
        let raw = unsafe { result::alloc_pd(context.functions(), context.raw()) };
        let raw = raw.map_err(|failure| failure.on(context.device_name()))?;
        Kind::ProtectionDomain.made();
        let context = Arc::clone(context);
        Ok(Arc::new(Self { raw, context }))
    }

    /// The device.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Registers host memory, or device memory for which a driver answers (peer memory).
    ///
    /// # Safety
    /// - `address .. address + len_bytes` stays mapped as long as `keep_alive` lives, and that is as
    ///   long as any request that names it. With [`Access::remote_write`] or
    ///   [`Access::remote_read`] every peer's requests count.
    /// - With [`Access::remote_write`], any byte of it may change at any time, also through peers
    ///   that were only given the key once: no Rust reference to its bytes is held across such a
    ///   point, as for memory shared between processes.
    ///
    /// # Errors
    /// `ibv_reg_mr` failed; the error has the range and the remedy.
    pub unsafe fn register(
        self: &Arc<Self>,
        address: u64,
        len_bytes: u64,
        access: Access,
        keep_alive: Arc<dyn Any + Send + Sync>,
    ) -> Result<MemoryRegion, VerbsError> {
        let failed = |failure: Failure| failure.on(self.range(address, len_bytes));
        let len = usize::try_from(len_bytes).map_err(|_overflow| failed(TOO_LONG))?;
        let functions = self.context.functions();
        // SAFETY: the domain is alive; the range is the caller's promise.
        let raw = unsafe { result::reg_mr(functions, self.raw, address, len, flags(access)) };
        let raw = raw.map_err(failed)?;
        // SAFETY: a new region of this domain; what keeps the memory goes with it.
        Ok(unsafe { MemoryRegion::adopt(raw, self, address, len_bytes, keep_alive) })
    }

    /// Registers a part of a dma-buf: memory of a device, without a driver's help.
    ///
    /// # Safety
    /// As for [`register`](Self::register): the range of the dma-buf belongs to memory that stays
    /// allocated as long as `keep_alive` lives, and peers may change it.
    ///
    /// # Errors
    /// `ibv_reg_dmabuf_mr` or `mlx5dv_reg_dmabuf_mr` failed, or the library has none.
    pub unsafe fn register_dmabuf(
        self: &Arc<Self>,
        slice: DmabufSlice<'_>,
        access: Access,
        keep_alive: Arc<dyn Any + Send + Sync>,
    ) -> Result<MemoryRegion, VerbsError> {
        let DmabufSlice {
            fd,
            offset,
            len_bytes,
            iova,
            is_direct,
        } = slice;
        let failed = |failure: Failure| {
            failure.on(format!(
                "dma-buf offset {offset}, {}",
                self.range(iova, len_bytes)
            ))
        };
        let range = DmabufRange {
            fd: fd.as_raw_fd(),
            offset,
            len_bytes: usize::try_from(len_bytes).map_err(|_overflow| failed(TOO_LONG))?,
            iova,
            is_direct,
        };
        let functions = self.context.functions();
        // SAFETY: the domain is alive and the descriptor open; the range is the caller's promise.
        let raw = unsafe { result::reg_dmabuf_mr(functions, self.raw, range, flags(access)) };
        let raw = raw.map_err(failed)?;
        // SAFETY: a new region of this domain; what keeps the memory goes with it.
        Ok(unsafe { MemoryRegion::adopt(raw, self, iova, len_bytes, keep_alive) })
    }

    /// Alive while `self` is.
    pub(super) fn raw(&self) -> NonNull<ibv_pd> {
        self.raw
    }

    fn range(&self, address: u64, len_bytes: u64) -> String {
        let device = self.context.device_name();
        format!("{len_bytes} bytes at {address:#x} on {device}")
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: whatever was made of it holds an `Arc` of `self`, so nothing is left.
        match unsafe { result::dealloc_pd(self.context.functions(), self.raw) } {
            Ok(()) => Kind::ProtectionDomain.destroyed(),
            Err(failure) if self.context.took_it_down(failure) => {
                Kind::ProtectionDomain.destroyed();
            }
            Err(failure) => {
                let error = failure.on(self.context.device_name());
                tracing::warn!(%error, "a protection domain could not be freed");
            }
        }
    }
}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = self.context.device_name();
        f.debug_tuple("ProtectionDomain").field(&device).finish()
    }
}

// SAFETY: verbs are thread safe, and the fields never change.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as for `Send`.
unsafe impl Sync for ProtectionDomain {}

fn flags(access: Access) -> i32 {
    let mut flags = 0;
    if access.remote_write {
        // A device that may write for a peer must be allowed to write at all.
        flags |= ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
        flags |= ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
    }
    if access.remote_read {
        flags |= ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
    }
    if access.relaxed_ordering {
        flags |= ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0;
    }
    flags.cast_signed()
}

const TOO_LONG: Failure = Failure {
    verb: "ibv_reg_mr",
    errno: libc::EOVERFLOW,
};
