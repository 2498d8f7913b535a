//! Memory for network adapters (`stepmesh.rdma.v1`): exported as dma-bufs, made visible after an
//! adapter wrote to it, and announced when it ends. Registering it with an adapter is not done here.
#![expect(
    unsafe_code,
    reason = "calls the extension, takes its descriptors, and is called by it"
)]

use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use stepmesh_abi::extension::{
    SM_DMABUF_DEFAULT, SM_DMABUF_PCIE, SM_EXTENSION_RDMA_V1, SM_RDMA_FLUSH_ALL_DEVICES,
    SM_RDMA_FLUSH_OWNER,
};
use stepmesh_abi::{SmBackend, SmError, SmRdmaCaps, SmRdmaV1};

use crate::instance::Instance;
use crate::{Backend, Buffer, Device, Error, MemoryKind, cleanup};

/// What a device offers to network adapters. Any thread may use it.
#[derive(Debug, Clone)]
pub struct Rdma {
    device: Device,
    functions: Functions,
}

/// Which way an adapter is to reach a dma-buf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DmabufMapping {
    /// As the driver likes.
    Default,
    /// Through the device's PCIe window, also where the driver would take another way. Importers
    /// must be told (`mlx5dv_reg_dmabuf_mr` with its data-direct flag).
    Pcie,
}

/// For whom writes of an adapter become visible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FlushScope {
    /// The device whose memory it is.
    Owner,
    /// Every device.
    AllDevices,
}

/// What [`Rdma::capabilities`] tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RdmaCapabilities(SmRdmaCaps);

/// A dma-buf of device memory. It keeps the memory alive; dropping it closes the descriptor through
/// the plugin that made it, so that is done after the last registration made from it.
#[derive(Debug)]
pub struct Dmabuf {
    device: Device,
    functions: Functions,
    /// `-1` once closed.
    fd: i32,
    offset: u64,
    len_bytes: u64,
}

/// Told the [`Buffer::alloc_id`] of memory that ends; see [`Backend::watch_memory`].
pub type MemoryWatcher = dyn Fn(u64) + Send + Sync;

/// The functions of the extension, all of them present.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Functions {
    export: unsafe extern "C" fn(
        *mut SmBackend,
        u32,
        u64,
        u64,
        u32,
        *mut i32,
        *mut u64,
        *mut u64,
        *mut SmError,
    ) -> i32,
    close: unsafe extern "C" fn(*mut SmBackend, i32, *mut SmError) -> i32,
    caps: unsafe extern "C" fn(*mut SmBackend, u32, *mut SmRdmaCaps, *mut SmError) -> i32,
    flush: unsafe extern "C" fn(*mut SmBackend, u32, u32, *mut SmError) -> i32,
    set_sync_memops: unsafe extern "C" fn(*mut SmBackend, u64, *mut SmError) -> i32,
    set_invalidate_callback: unsafe extern "C" fn(
        *mut SmBackend,
        Option<unsafe extern "C" fn(*mut c_void, u64)>,
        *mut c_void,
        *mut SmError,
    ) -> i32,
}

impl Functions {
    /// `None` if one is missing: then the extension is as good as absent.
    pub(crate) fn of(table: &SmRdmaV1) -> Option<Self> {
        Some(Self {
            export: table.dmabuf_export?,
            close: table.dmabuf_close?,
            caps: table.rdma_caps?,
            flush: table.flush_rdma_writes?,
            set_sync_memops: table.set_sync_memops?,
            set_invalidate_callback: table.set_invalidate_callback?,
        })
    }
}

impl Rdma {
    /// `None` when the backend has no `stepmesh.rdma.v1`.
    pub(crate) fn of(device: &Device) -> Option<Self> {
        let functions = device.backend().instance().rdma_functions()?;
        let device = device.clone();
        Some(Self { device, functions })
    }

    /// What the device offers.
    ///
    /// # Errors
    /// `Backend`.
    pub fn capabilities(&self) -> Result<RdmaCapabilities, Error> {
        let (instance, dev) = self.parts();
        let mut caps = SmRdmaCaps::new();
        instance.call("rdma_caps", Some(dev), |s, e| {
            // SAFETY: the out pointer is a live local whose size its header tells.
            unsafe { (self.functions.caps)(s, dev, &raw mut caps, e) }
        })?;
        Ok(RdmaCapabilities(caps))
    }

    /// Exports a range of a buffer of this device as a dma-buf.
    ///
    /// # Errors
    /// `OutOfRange`, `ForeignHandle`; `Backend` with the device's reason when it cannot or will not
    /// (`UNIMPLEMENTED`, `UNAVAILABLE`); `BadAnswer` when what it gave does not cover the range.
    pub fn export(
        &self,
        buffer: &Buffer,
        offset: u64,
        len_bytes: u64,
        mapping: DmabufMapping,
    ) -> Result<Dmabuf, Error> {
        let operation = "dmabuf_export";
        let backend = self.device.backend();
        backend.check_same(buffer.device().backend(), operation)?;
        let at = buffer.range(operation, offset, len_bytes)?;
        let (instance, dev) = self.parts();
        let (mut fd, mut start, mut len) = (-1, 0, 0);
        instance.call(operation, Some(dev), |s, e| {
            let (fd, start, len) = (&raw mut fd, &raw mut start, &raw mut len);
            // SAFETY: the out pointers are live locals.
            unsafe {
                (self.functions.export)(s, dev, at, len_bytes, mapping.raw(), fd, start, len, e)
            }
        })?;
        let bad = |fault: String| instance.bad_answer(operation, fault);
        // SAFETY: fcntl takes any number and says whether it is an open descriptor.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
        if flags < 0 {
            return Err(bad(format!("{fd} is not an open descriptor")));
        }
        // From here on dropping closes.
        let dmabuf = Dmabuf {
            device: self.device.clone(),
            functions: self.functions,
            fd,
            offset: start,
            len_bytes: len,
        };
        if flags & libc::FD_CLOEXEC == 0 {
            return Err(bad(
                "the descriptor would be inherited by child processes".into()
            ));
        }
        if len < len_bytes || start.checked_add(len).is_none() {
            return Err(bad(format!(
                "{len} bytes at {start} for {len_bytes} asked for"
            )));
        }
        Ok(dmabuf)
    }

    /// Makes what adapters wrote to the device's memory, and told the host of, visible to `scope`
    /// before it returns.
    ///
    /// # Errors
    /// `Backend`.
    pub fn flush_writes(&self, scope: FlushScope) -> Result<(), Error> {
        let (instance, dev) = self.parts();
        instance.call("flush_rdma_writes", Some(dev), |s, e| {
            // SAFETY: no pointer but the error's.
            unsafe { (self.functions.flush)(s, dev, scope.raw(), e) }
        })
    }

    /// From here on, synchronous copies and fills of the buffer are over when they return, for
    /// adapters too.
    ///
    /// # Errors
    /// `ForeignHandle`, `Backend`.
    pub fn set_sync_memops(&self, buffer: &Buffer) -> Result<(), Error> {
        let operation = "set_sync_memops";
        let backend = self.device.backend();
        backend.check_same(buffer.device().backend(), operation)?;
        let (instance, dev) = self.parts();
        instance.call(operation, Some(dev), |s, e| {
            // SAFETY: the address is that of a live allocation.
            unsafe { (self.functions.set_sync_memops)(s, buffer.device_ptr(), e) }
        })
    }

    fn parts(&self) -> (&Instance, u32) {
        (self.device.backend().instance(), self.device.ordinal())
    }
}

impl RdmaCapabilities {
    /// Whether dma-bufs with this mapping can be exported.
    #[must_use]
    pub fn has_mapping(&self, mapping: DmabufMapping) -> bool {
        has_bit(self.0.mappings, mapping.raw())
    }

    /// Whether memory of this kind can be exported.
    #[must_use]
    pub fn has_memory_kind(&self, kind: MemoryKind) -> bool {
        has_bit(self.0.memory_kinds, kind.raw())
    }

    /// Whether [`Rdma::flush_writes`] knows the scope.
    #[must_use]
    pub fn has_flush_scope(&self, scope: FlushScope) -> bool {
        has_bit(self.0.flush_scopes, scope.raw())
    }

    /// `SM_RDMA_ORDERING_*`.
    #[must_use]
    pub fn write_ordering(&self) -> u32 {
        self.0.write_ordering
    }

    /// Bytes to which exports are aligned; 0 if there are none.
    #[must_use]
    pub fn dmabuf_align_bytes(&self) -> u64 {
        self.0.dmabuf_granularity
    }
}

impl DmabufMapping {
    fn raw(self) -> u32 {
        match self {
            Self::Default => SM_DMABUF_DEFAULT,
            Self::Pcie => SM_DMABUF_PCIE,
        }
    }
}

impl FlushScope {
    fn raw(self) -> u32 {
        match self {
            Self::Owner => SM_RDMA_FLUSH_OWNER,
            Self::AllDevices => SM_RDMA_FLUSH_ALL_DEVICES,
        }
    }
}

impl Dmabuf {
    /// Where in the dma-buf the exported range starts, in bytes.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes from there that may be used; at least those that were asked for.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Closes it and says whether that worked; dropping only logs.
    ///
    /// # Errors
    /// `Backend`.
    pub fn release(mut self) -> Result<(), Error> {
        self.close()
    }

    fn close(&mut self) -> Result<(), Error> {
        let fd = std::mem::replace(&mut self.fd, -1);
        if fd < 0 {
            return Ok(());
        }
        let (instance, dev) = (self.device.backend().instance(), self.device.ordinal());
        instance.call("dmabuf_close", Some(dev), |s, e| {
            // SAFETY: the descriptor came from the plugin, and `replace` made sure that it goes back
            // once.
            unsafe { (self.functions.close)(s, fd, e) }
        })
    }
}

impl AsFd for Dmabuf {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor was open when it was given (`Rdma::export`), and is closed only by
        // the end of `self`.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }
}

impl Drop for Dmabuf {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            cleanup::failed("dmabuf_close", &error);
        }
    }
}

impl Backend {
    /// Has `watcher` called with the `alloc_id` of each allocation that ends, before its address may
    /// be given to anything else, so that a cache of registrations is told in time. It is held
    /// weakly: dropping the caller's `Arc` ends the watch.
    ///
    /// It may be called from any thread and from several at once, within calls that free memory; it
    /// must not call into the backend. Its panics are caught and logged.
    ///
    /// # Errors
    /// `Unsupported` when the backend has no `stepmesh.rdma.v1`; `Backend`.
    pub fn watch_memory(&self, watcher: &Arc<MemoryWatcher>) -> Result<(), Error> {
        let instance = self.instance();
        let Some(functions) = instance.rdma_functions() else {
            return Err(Error::Unsupported {
                operation: SM_EXTENSION_RDMA_V1,
                backend: instance.name(),
                device: None,
                message: "the plugin has no such extension".into(),
            });
        };
        let watchers = instance.watchers();
        watchers.add(Arc::downgrade(watcher));
        let ctx = std::ptr::from_ref(watchers).cast_mut().cast();
        // Telling the plugin again what it knows is harmless, and simpler than remembering.
        instance.call("set_invalidate_callback", None, |s, e| {
            // SAFETY: `memory_ended` takes the context given with it, which lives in a box of the
            // instance: until after `close`.
            unsafe { (functions.set_invalidate_callback)(s, Some(memory_ended), ctx, e) }
        })
    }
}

/// Those who want to know of the end of an instance's memory.
#[derive(Default)]
pub(crate) struct Watchers(Mutex<Vec<Weak<MemoryWatcher>>>);

impl Watchers {
    fn add(&self, watcher: Weak<MemoryWatcher>) {
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        list.retain(|watcher| watcher.strong_count() > 0);
        list.push(watcher);
    }

    fn tell(&self, alloc_id: u64) {
        // Called without the lock: a watcher may drop what ends another watch.
        let list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let living: Vec<_> = list.iter().filter_map(Weak::upgrade).collect();
        drop(list);
        for watcher in living {
            watcher(alloc_id);
        }
    }
}

impl std::fmt::Debug for Watchers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watchers")
    }
}

unsafe extern "C" fn memory_ended(ctx: *mut c_void, alloc_id: u64) {
    // SAFETY: the plugin passes the context that it was given, which is alive (`watch_memory`).
    let watchers = unsafe { &*ctx.cast_const().cast::<Watchers>() };
    // No panic may cross into the plugin.
    if panic::catch_unwind(AssertUnwindSafe(|| watchers.tell(alloc_id))).is_err() {
        tracing::error!(alloc_id, "a memory watcher panicked");
    }
}

fn has_bit(bits: u32, number: u32) -> bool {
    1u32.checked_shl(number).is_some_and(|bit| bits & bit != 0)
}

#[cfg(test)]
mod tests;
