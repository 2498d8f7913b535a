//! The table of `stepmesh.rdma.v1` as functions with checked arguments, and the function that is told
//! of memory that ends.
#![expect(unsafe_code, reason = "calls through the table of an extension")]

use std::collections::HashMap;
use std::ffi::c_void;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use stepmesh_abi::extension::SM_EXTENSION_RDMA_V1;
use stepmesh_abi::{SmHdr, SmRdmaCaps, SmRdmaV1};

use super::error_arg::{ErrorArg, ErrorMode};
use super::extensions::{call, copy_table};
use super::failure::Failure;
use super::memory::Range;
use super::progress;
use super::session::Session;
use super::system::owned_fd;

/// `stepmesh.rdma.v1` of an instance.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rdma<'a> {
    session: &'a Session,
    table: SmRdmaV1,
}

/// What an export gave. The descriptor must go back by [`Rdma::close`].
#[derive(Debug)]
pub(crate) struct Dmabuf {
    /// `None`: what it gave is no open descriptor.
    pub(crate) fd: Option<OwnedFd>,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// The `alloc_id`s that a plugin told of, and how often each.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ended(Arc<Mutex<HashMap<u64, usize>>>);

impl Ended {
    pub(crate) fn count(&self, alloc_id: u64) -> usize {
        let ended = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ended.get(&alloc_id).copied().unwrap_or(0)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

impl<'a> Rdma<'a> {
    /// The extension, or why there is none.
    pub(crate) fn of(session: &'a Session) -> Result<Self, Failure> {
        let missing = SmRdmaV1 {
            hdr: SmHdr::of::<SmRdmaV1>(),
            dmabuf_export: None,
            dmabuf_close: None,
            rdma_caps: None,
            flush_rdma_writes: None,
            set_sync_memops: None,
            set_invalidate_callback: None,
        };
        let table = copy_table(session, SM_EXTENSION_RDMA_V1, missing)?;
        Ok(Self { session, table })
    }

    pub(crate) fn export(&self, dev: u32, range: Range, mapping: u32) -> Result<Dmabuf, Failure> {
        let (mut fd, mut offset, mut len) = (-1, 0, 0);
        call!(self.dmabuf_export(
            dev,
            range.addr,
            range.len_bytes,
            mapping,
            &raw mut fd,
            &raw mut offset,
            &raw mut len,
        ))?;
        let fd = owned_fd(fd);
        Ok(Dmabuf { fd, offset, len })
    }

    /// Gives a descriptor back, which this function's caller owned.
    pub(crate) fn close(&self, fd: OwnedFd) -> Result<(), Failure> {
        let raw = fd.as_raw_fd();
        let closed = call!(self.dmabuf_close(raw));
        if closed.is_ok() {
            // The plugin closed it, or has not and leaks it, which R3 finds out.
            std::mem::forget(fd);
        }
        closed
    }

    /// Gives back what is no descriptor.
    pub(crate) fn close_nothing(&self) -> Result<(), Failure> {
        call!(self.dmabuf_close(-1))
    }

    pub(crate) fn caps(&self, dev: u32) -> Result<SmRdmaCaps, Failure> {
        let mut caps = SmRdmaCaps::new();
        call!(self.rdma_caps(dev, &raw mut caps))?;
        Ok(caps)
    }

    pub(crate) fn flush(&self, dev: u32, scope: u32) -> Result<(), Failure> {
        call!(self.flush_rdma_writes(dev, scope))
    }

    pub(crate) fn set_sync_memops(&self, ptr: u64) -> Result<(), Failure> {
        call!(self.set_sync_memops(ptr))
    }

    /// Has the plugin tell of memory that ends, from here on.
    pub(crate) fn watch(&self) -> Result<Ended, Failure> {
        let ended = Ended::default();
        // Leaked, so that it stays valid however late the plugin calls.
        let ctx = Arc::into_raw(Arc::clone(&ended.0))
            .cast_mut()
            .cast::<c_void>();
        call!(self.set_invalidate_callback(Some(note_end), ctx))?;
        Ok(ended)
    }

    pub(crate) fn unwatch(&self) -> Result<(), Failure> {
        call!(self.set_invalidate_callback(None, std::ptr::null_mut()))
    }
}

unsafe extern "C" fn note_end(ctx: *mut c_void, alloc_id: u64) {
    // SAFETY: `watch` passed a leaked reference, so it is valid as long as the process.
    let ended = unsafe { &*ctx.cast::<Mutex<HashMap<u64, usize>>>() };
    let mut ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
    *ended.entry(alloc_id).or_default() += 1;
}
