//! An open backend and its slots as methods: status to `Result`, out parameters checked, still with
//! raw handles. The safe types of this crate are built on it.
#![expect(unsafe_code, reason = "calls into the plugin")]

use std::collections::HashMap;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::{Arc, LazyLock, PoisonError, RwLock, Weak};
use std::time::Duration;

use stepmesh_abi::error::{SM_DEADLINE_EXCEEDED, SM_ERROR_FIXED_LEN, SM_NOT_FOUND, SM_OK};
use stepmesh_abi::extension::{
    SM_EXTENSION_COMPUTE_V1, SM_EXTENSION_GRAPH_V1, SM_EXTENSION_IPC_V1, SM_EXTENSION_MEMEVENT_V1,
    SM_EXTENSION_RDMA_V1, SM_IPC_FD,
};
use stepmesh_abi::{
    SmBackend, SmComputeV1, SmDeviceInfo, SmError, SmEvent, SmGraphV1, SmHdr, SmIpcHandle, SmIpcV1,
    SmMemEventV1, SmOpenArgs, SmPtrAttr, SmRdmaV1,
};

use crate::config::TransportConfig;
use crate::device::DeviceInfo;
use crate::event::WaitMode;
use crate::loader::Plugin;
use crate::status::Failure;
use crate::table::Table;
use crate::{Error, Reason, cleanup, compute, flags, host, mem_event, rdma};

/// An open backend. Closed when the last handle to it goes.
#[derive(Debug)]
pub(crate) struct Instance {
    plugin: &'static Plugin,
    handle: *mut SmBackend,
    devices: Vec<DeviceInfo>,
    ipc: Option<SmIpcV1>,
    mem_event: Option<mem_event::Functions>,
    rdma: Option<rdma::Functions>,
    flags: Option<flags::Functions>,
    compute: Option<compute::Functions>,
    /// Boxed: the plugin holds its address.
    watchers: Box<rdma::Watchers>,
    /// What `transport.mem_sync` said when it was opened.
    is_mem_synced: bool,
}

// SAFETY: the slots that take the handle are of class A or H (stepmesh_abi::SmBackendApi): any
// thread may call them. Those of class I are called before the handle is shared and when the last
// owner is gone; the wrappers of H slots (Event, Stream) serialise them for each handle.
unsafe impl Send for Instance {}
// SAFETY: as for `Send`.
unsafe impl Sync for Instance {}

/// An event of a plugin. Alive until `event_destroy`; its owner calls that once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RawEvent(*mut SmEvent);

// SAFETY: an event is an opaque handle; which thread calls with it is ruled by the slots' classes.
unsafe impl Send for RawEvent {}
// SAFETY: as for `Send`.
unsafe impl Sync for RawEvent {}

/// What a copy needs besides its stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Copy {
    pub(crate) dst: u64,
    pub(crate) src: u64,
    pub(crate) len_bytes: u64,
    /// `SM_COPY_*`.
    pub(crate) direction: u32,
    pub(crate) dst_device: u32,
    pub(crate) src_device: u32,
}

impl Instance {
    /// Opens a plugin and asks for its devices.
    pub(crate) fn open(plugin: &'static Plugin) -> Result<Arc<Self>, Reason> {
        let mut handle = ptr::null_mut();
        let args = SmOpenArgs::new();
        let mut error = SmError::new();
        // SAFETY: the host table is the one given to `query`; the other pointers are live locals.
        let status = unsafe {
            (plugin.table.open)(
                plugin.host_api,
                &raw const args,
                &raw mut handle,
                &raw mut error,
            )
        };
        if status != SM_OK {
            return Err(Reason::Open {
                message: Failure::new(status, &error).message,
            });
        }
        if handle.is_null() {
            return Err(Reason::Open {
                message: "it answered ok without an instance".into(),
            });
        }
        // From here on dropping closes.
        let mut instance = Self {
            plugin,
            handle,
            devices: Vec::new(),
            ipc: None,
            mem_event: None,
            rdma: None,
            flags: None,
            compute: None,
            watchers: Box::default(),
            is_mem_synced: host::setting("transport.mem_sync").map_or_else(
                || TransportConfig::default().mem_sync,
                |text| text == "true",
            ),
        };
        let failed = |error: Error| Reason::Open {
            message: error.to_string(),
        };
        instance.devices = instance.read_devices().map_err(failed)?;
        instance.ipc = instance
            .read_extension(SM_EXTENSION_IPC_V1)
            .map_err(failed)?;
        instance.mem_event = instance
            .read_extension(SM_EXTENSION_MEMEVENT_V1)
            .map_err(failed)?
            .and_then(|table| mem_event::Functions::of(&table));
        instance.rdma = instance
            .read_extension(SM_EXTENSION_RDMA_V1)
            .map_err(failed)?
            .and_then(|table| rdma::Functions::of(&table));
        instance.flags = instance
            .read_extension(SM_EXTENSION_GRAPH_V1)
            .map_err(failed)?
            .and_then(|table| flags::Functions::of(&table));
        instance.compute = instance
            .read_extension(SM_EXTENSION_COMPUTE_V1)
            .map_err(failed)?
            .and_then(|table| compute::Functions::of(&table));
        let instance = Arc::new(instance);
        let mut open = OPEN.write().unwrap_or_else(PoisonError::into_inner);
        open.insert(handle.addr(), Arc::downgrade(&instance));
        Ok(instance)
    }

    /// The open instance with this handle, for thunks, which get nothing else.
    pub(crate) fn of_handle(handle: *mut SmBackend) -> Option<Arc<Self>> {
        OPEN.read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&handle.addr())?
            .upgrade()
    }

    pub(crate) fn plugin(&self) -> &'static Plugin {
        self.plugin
    }

    pub(crate) fn table(&self) -> &'static Table {
        &self.plugin.table
    }

    pub(crate) fn name(&self) -> &'static str {
        &self.plugin.name
    }

    pub(crate) fn handle(&self) -> *mut SmBackend {
        self.handle
    }

    pub(crate) fn devices(&self) -> &[DeviceInfo] {
        &self.devices
    }

    pub(crate) fn device_count(&self) -> u32 {
        u32::try_from(self.devices.len()).unwrap_or(u32::MAX)
    }

    pub(crate) fn mem_info(&self, dev: u32) -> Result<(u64, u64), Error> {
        let (mut free, mut total) = (0, 0);
        self.call("mem_info", Some(dev), |s, e| {
            // SAFETY: out pointers are live locals.
            unsafe { (self.table().mem_info)(s, dev, &raw mut free, &raw mut total, e) }
        })?;
        if free > total {
            let fault = format!("{free} bytes free of {total}");
            return Err(self.bad_answer("mem_info", fault));
        }
        Ok((free, total))
    }

    pub(crate) fn capabilities(&self, dev: u32) -> Result<u64, Error> {
        let mut bits = 0;
        self.call("capabilities", Some(dev), |s, e| {
            // SAFETY: the out pointer is a live local.
            unsafe { (self.table().capabilities)(s, dev, &raw mut bits, e) }
        })?;
        Ok(bits)
    }

    pub(crate) fn set_current_device(&self, dev: u32) -> Result<(), Error> {
        self.call("set_current_device", Some(dev), |s, e| {
            // SAFETY: no pointer but the two of every call.
            unsafe { (self.table().set_current_device)(s, dev, e) }
        })
    }

    /// `None` when the calling thread has no current device.
    pub(crate) fn current_device(&self) -> Result<Option<u32>, Error> {
        let mut dev = -1;
        self.call("get_current_device", None, |s, e| {
            // SAFETY: the out pointer is a live local.
            unsafe { (self.table().get_current_device)(s, &raw mut dev, e) }
        })?;
        match u32::try_from(dev) {
            Ok(dev) if dev < self.device_count() => Ok(Some(dev)),
            Err(_) if dev == -1 => Ok(None),
            _ => Err(self.bad_answer("get_current_device", format!("device {dev}"))),
        }
    }

    pub(crate) fn device_sync(&self, dev: u32) -> Result<(), Error> {
        self.call("device_sync", Some(dev), |s, e| {
            // SAFETY: no pointer but the two of every call.
            unsafe { (self.table().device_sync)(s, dev, e) }
        })
    }

    /// Memory of at least one byte is never at address 0, aligned as asked, and does not wrap.
    pub(crate) fn alloc(
        &self,
        dev: u32,
        len_bytes: u64,
        align_bytes: u64,
        kind: u32,
        flags: u32,
    ) -> Result<u64, Error> {
        let mut at = 0;
        self.call("alloc", Some(dev), |s, e| {
            // SAFETY: the out pointer is a live local.
            unsafe {
                (self.table().alloc)(s, dev, len_bytes, align_bytes, kind, flags, &raw mut at, e)
            }
        })?;
        let is_aligned = align_bytes == 0 || at.is_multiple_of(align_bytes);
        if (at == 0) != (len_bytes == 0) || !is_aligned || at.checked_add(len_bytes).is_none() {
            let fault = format!("{len_bytes} bytes aligned to {align_bytes} at {at:#x}");
            return Err(self.bad_answer("alloc", fault));
        }
        Ok(at)
    }

    /// # Safety
    /// - `at` came from `alloc`, was not given back, and nothing uses the memory any more.
    pub(crate) unsafe fn free(&self, dev: u32, at: u64) -> Result<(), Error> {
        self.call("free", Some(dev), |s, e| {
            // SAFETY: this function's contract.
            unsafe { (self.table().free)(s, dev, at, e) }
        })
    }

    pub(crate) fn pointer_attributes(&self, at: u64) -> Result<SmPtrAttr, Error> {
        let mut out = SmPtrAttr::new();
        self.call("pointer_attributes", None, |s, e| {
            // SAFETY: the out pointer is a live local whose size its header tells.
            unsafe { (self.table().pointer_attributes)(s, at, &raw mut out, e) }
        })?;
        if out.base.checked_add(out.size).is_none() {
            let fault = format!("{} bytes at {:#x}", out.size, out.base);
            return Err(self.bad_answer("pointer_attributes", fault));
        }
        Ok(out)
    }

    pub(crate) fn stream_create(&self, dev: u32, priority: i32, flags: u32) -> Result<u64, Error> {
        let mut stream = 0;
        self.call("stream_create", Some(dev), |s, e| {
            // SAFETY: the out pointer is a live local.
            unsafe { (self.table().stream_create)(s, dev, priority, flags, &raw mut stream, e) }
        })?;
        // The small numbers and the largest name streams that are never created.
        if stream <= stepmesh_abi::stream::SM_STREAM_PER_THREAD || stream == u64::MAX {
            return Err(self.bad_answer("stream_create", format!("stream {stream:#x}")));
        }
        Ok(stream)
    }

    pub(crate) fn stream_destroy(&self, dev: u32, stream: u64) -> Result<(), Error> {
        self.call("stream_destroy", Some(dev), |s, e| {
            // SAFETY: no pointer but the two of every call; the stream's owner calls this once.
            unsafe { (self.table().stream_destroy)(s, dev, stream, e) }
        })
    }

    pub(crate) fn stream_sync(
        &self,
        dev: u32,
        stream: u64,
        timeout: Duration,
    ) -> Result<(), Error> {
        self.wait("stream_sync", Some(dev), timeout, |s, timeout_ns, e| {
            // SAFETY: no pointer but the two of every call.
            unsafe { (self.table().stream_sync)(s, dev, stream, timeout_ns, e) }
        })
    }

    pub(crate) fn stream_query(&self, dev: u32, stream: u64) -> Result<bool, Error> {
        let mut done = 0;
        self.call("stream_query", Some(dev), |s, e| {
            // SAFETY: the out pointer is a live local.
            unsafe { (self.table().stream_query)(s, dev, stream, &raw mut done, e) }
        })?;
        Ok(done != 0)
    }

    pub(crate) fn stream_wait_event(
        &self,
        dev: u32,
        stream: u64,
        event: RawEvent,
    ) -> Result<(), Error> {
        self.call("stream_wait_event", Some(dev), |s, e| {
            // SAFETY: the event is alive (see `RawEvent`).
            unsafe { (self.table().stream_wait_event)(s, dev, stream, event.0, e) }
        })
    }

    /// # Safety
    /// - Both ranges of `copy` are memory of their devices or of the host, do not overlap, and stay
    ///   valid until the stream has done the copy.
    pub(crate) unsafe fn memcpy_async(
        &self,
        copy: Copy,
        dev: u32,
        stream: u64,
    ) -> Result<(), Error> {
        let Copy {
            dst,
            src,
            len_bytes,
            direction,
            dst_device,
            src_device,
        } = copy;
        let slot = self.table().memcpy_async;
        self.call("memcpy_async", Some(dev), |s, e| {
            // SAFETY: the caller guarantees the ranges.
            unsafe {
                slot(
                    s, dst, src, len_bytes, direction, dst_device, src_device, dev, stream, e,
                )
            }
        })
    }

    /// # Safety
    /// - Both ranges of `copy` are memory of their devices or of the host and do not overlap. After
    ///   `Error::Timeout` or an error of the code `DeadlineExceeded` they must stay valid for ever.
    pub(crate) unsafe fn memcpy_sync(&self, copy: Copy) -> Result<(), Error> {
        let Copy {
            dst,
            src,
            len_bytes,
            direction,
            dst_device,
            src_device,
        } = copy;
        let slot = self.table().memcpy_sync;
        self.call("memcpy_sync", Some(dst_device), |s, e| {
            // SAFETY: the caller guarantees the ranges.
            unsafe { slot(s, dst, src, len_bytes, direction, dst_device, src_device, e) }
        })
    }

    /// # Safety
    /// - `len_bytes` bytes at `dst` are memory of the device and stay valid until the stream has
    ///   filled them.
    pub(crate) unsafe fn memset_async(
        &self,
        dst: u64,
        value: u32,
        width_bytes: u32,
        len_bytes: u64,
        dev: u32,
        stream: u64,
    ) -> Result<(), Error> {
        let slot = self.table().memset_async;
        self.call("memset_async", Some(dev), |s, e| {
            // SAFETY: the caller guarantees the range.
            unsafe { slot(s, dst, value, width_bytes, len_bytes, dev, stream, e) }
        })
    }

    pub(crate) fn event_create(&self, dev: u32, flags: u32) -> Result<RawEvent, Error> {
        let mut event = ptr::null_mut();
        self.call("event_create", Some(dev), |s, e| {
            // SAFETY: the out pointer is a live local.
            unsafe { (self.table().event_create)(s, dev, flags, &raw mut event, e) }
        })?;
        if event.is_null() {
            return Err(self.bad_answer("event_create", "no event".into()));
        }
        Ok(RawEvent(event))
    }

    pub(crate) fn event_destroy(&self, event: RawEvent) -> Result<(), Error> {
        self.call("event_destroy", None, |s, e| {
            // SAFETY: the event is alive and its owner calls this once (see `RawEvent`).
            unsafe { (self.table().event_destroy)(s, event.0, e) }
        })
    }

    pub(crate) fn event_destroy_logged(&self, event: RawEvent) {
        if let Err(error) = self.event_destroy(event) {
            cleanup::failed("event_destroy", &error);
        }
    }

    pub(crate) fn event_record(&self, event: RawEvent, dev: u32, stream: u64) -> Result<(), Error> {
        self.call("event_record", Some(dev), |s, e| {
            // SAFETY: the event is alive (see `RawEvent`).
            unsafe { (self.table().event_record)(s, event.0, dev, stream, e) }
        })
    }

    /// `SM_EVENT_*` state.
    pub(crate) fn event_query(&self, event: RawEvent) -> Result<u32, Error> {
        let mut state = u32::MAX;
        self.call("event_query", None, |s, e| {
            // SAFETY: the event is alive (see `RawEvent`), the out pointer is a live local.
            unsafe { (self.table().event_query)(s, event.0, &raw mut state, e) }
        })?;
        Ok(state)
    }

    pub(crate) fn event_sync(
        &self,
        event: RawEvent,
        timeout: Duration,
        mode: WaitMode,
    ) -> Result<(), Error> {
        self.wait("event_sync", None, timeout, |s, timeout_ns, e| {
            // SAFETY: the event is alive (see `RawEvent`).
            unsafe { (self.table().event_sync)(s, event.0, timeout_ns, mode.raw(), e) }
        })
    }

    pub(crate) fn event_elapsed_ms(&self, start: RawEvent, end: RawEvent) -> Result<f64, Error> {
        let mut ms = f64::NAN;
        self.call("event_elapsed", None, |s, e| {
            // SAFETY: both events are alive (see `RawEvent`), the out pointer is a live local.
            unsafe { (self.table().event_elapsed)(s, start.0, end.0, &raw mut ms, e) }
        })?;
        if !ms.is_finite() {
            return Err(self.bad_answer("event_elapsed", format!("{ms} ms")));
        }
        Ok(ms)
    }

    /// # Safety
    /// - `func(arg)` may be called once, from any thread, at any later time.
    pub(crate) unsafe fn launch_host_func(
        &self,
        dev: u32,
        stream: u64,
        func: unsafe extern "C" fn(*mut c_void),
        arg: *mut c_void,
    ) -> Result<(), Error> {
        self.call("launch_host_func", Some(dev), |s, e| {
            // SAFETY: the caller guarantees the call.
            unsafe { (self.table().launch_host_func)(s, dev, stream, Some(func), arg, e) }
        })
    }

    /// `SM_HEALTH_*`; `Err` when the device says what is wrong with it.
    pub(crate) fn health(&self, dev: u32) -> Result<u32, Error> {
        let mut state = 0;
        self.call("health", Some(dev), |s, e| {
            // SAFETY: the out pointer is a live local.
            unsafe { (self.table().health)(s, dev, &raw mut state, e) }
        })?;
        Ok(state)
    }

    /// A handle of the memory for other processes. Its descriptor, if any, belongs to the caller.
    pub(crate) fn ipc_export(
        &self,
        dev: u32,
        at: u64,
        len_bytes: u64,
    ) -> Result<SmIpcHandle, Error> {
        let Some(export) = self.ipc.and_then(|ipc| ipc.export_memory) else {
            return Err(Error::Unsupported {
                operation: SM_EXTENSION_IPC_V1,
                backend: self.name(),
                device: Some(dev),
                message: "the plugin has no such extension".into(),
            });
        };
        let mut out = SmIpcHandle::new();
        self.call("export_memory", Some(dev), |s, e| {
            // SAFETY: the out pointer is a live local whose size its header tells.
            unsafe { export(s, dev, at, len_bytes, &raw mut out, e) }
        })?;
        let end = out.offset.checked_add(out.len);
        if out.kind == SM_IPC_FD && (out.fd < 0 || out.len < len_bytes || end.is_none()) {
            let fault = format!("fd {}, {} bytes at {}", out.fd, out.len, out.offset);
            return Err(self.bad_answer("export_memory", fault));
        }
        Ok(out)
    }

    pub(crate) fn bad_answer(&self, operation: &'static str, fault: String) -> Error {
        Error::BadAnswer {
            operation,
            backend: self.name(),
            fault,
        }
    }

    fn read_devices(&self) -> Result<Vec<DeviceInfo>, Error> {
        let mut count = 0;
        self.call("device_count", None, |s, e| {
            // SAFETY: the out pointer is a live local.
            unsafe { (self.table().device_count)(s, &raw mut count, e) }
        })?;
        if count > DEVICES_MAX {
            let fault = format!("{count} devices, at most {DEVICES_MAX} can be true");
            return Err(self.bad_answer("device_count", fault));
        }
        let read = |dev| {
            let mut info = SmDeviceInfo::new();
            self.call("device_info", Some(dev), |s, e| {
                // SAFETY: the out pointer is a live local whose size its header tells.
                unsafe { (self.table().device_info)(s, dev, &raw mut info, e) }
            })?;
            DeviceInfo::check(dev, &info).map_err(|fault| self.bad_answer("device_info", fault))
        };
        (0..count).map(read).collect()
    }

    /// The table of an extension, if the plugin has it.
    fn read_extension<T: Extension>(&self, id: &'static str) -> Result<Option<T>, Error> {
        let id_len = u32::try_from(id.len()).unwrap_or(0);
        let (mut table, mut version) = (ptr::null(), 0);
        let found = self.status("get_extension", None, |s, e| {
            // SAFETY: the name is static text of this length, the out pointers are live locals.
            unsafe {
                (self.table().get_extension)(
                    s,
                    id.as_ptr().cast(),
                    id_len,
                    1,
                    &raw mut table,
                    &raw mut version,
                    e,
                )
            }
        });
        match found {
            Ok(()) => {}
            Err((status, _)) if status == SM_NOT_FOUND => return Ok(None),
            Err((status, failure)) => {
                // Without the extension the backend still works; whoever needs it is told.
                tracing::warn!(backend = self.name(), status, "{id}: {}", failure.message);
                return Ok(None);
            }
        }
        let table = table.cast::<T>();
        let fault = |fault: &str| Err(self.bad_answer("get_extension", format!("{id}: {fault}")));
        if table.is_null() || !table.is_aligned() {
            return fault("the table is null or not aligned");
        }
        // SAFETY: not null and aligned; by the ABI every table starts with its header.
        let header = unsafe { table.cast::<SmHdr>().read() };
        if usize::try_from(header.struct_size).unwrap_or(0) < size_of::<T>() {
            return fault("the table is too short");
        }
        // SAFETY: as above, and its header says that it is at least this long; any bytes are a valid
        // table (see `Extension`).
        Ok(Some(unsafe { table.read() }))
    }

    /// Calls a slot with a bound.
    fn wait(
        &self,
        operation: &'static str,
        device: Option<u32>,
        timeout: Duration,
        slot: impl FnOnce(*mut SmBackend, u64, *mut SmError) -> i32,
    ) -> Result<(), Error> {
        let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        self.status(operation, device, |s, e| slot(s, timeout_ns, e))
            .map_err(|(status, failure)| {
                if status == SM_DEADLINE_EXCEEDED {
                    Error::Timeout {
                        operation,
                        backend: self.name(),
                        device,
                        timeout,
                    }
                } else {
                    Error::from_failure(operation, self.name(), device, failure)
                }
            })
    }

    /// The functions of mem-events, if the plugin has them.
    pub(crate) fn mem_event_functions(&self) -> Option<mem_event::Functions> {
        self.mem_event
    }

    /// The functions for network adapters, if the plugin has them.
    pub(crate) fn flag_functions(&self) -> Option<flags::Functions> {
        self.flags
    }

    pub(crate) fn rdma_functions(&self) -> Option<rdma::Functions> {
        self.rdma
    }

    /// The functions of computing, if the plugin has them.
    pub(crate) fn compute_functions(&self) -> Option<compute::Functions> {
        self.compute
    }

    /// Those who are told when memory ends.
    pub(crate) fn watchers(&self) -> &rdma::Watchers {
        &self.watchers
    }

    /// Whether events are to be waited for through memory where the backend can do that.
    pub(crate) fn is_mem_synced(&self) -> bool {
        self.is_mem_synced && self.mem_event.is_some()
    }

    /// Calls a slot.
    pub(crate) fn call(
        &self,
        operation: &'static str,
        device: Option<u32>,
        slot: impl FnOnce(*mut SmBackend, *mut SmError) -> i32,
    ) -> Result<(), Error> {
        self.status(operation, device, slot)
            .map_err(|(_, failure)| Error::from_failure(operation, self.name(), device, failure))
    }

    /// Calls a slot with an error struct of which only the numbers are prepared: clearing 232 bytes
    /// of message would cost more than most calls.
    #[inline]
    fn status(
        &self,
        operation: &'static str,
        device: Option<u32>,
        slot: impl FnOnce(*mut SmBackend, *mut SmError) -> i32,
    ) -> Result<(), (i32, Failure)> {
        let mut error = MaybeUninit::<SmError>::uninit();
        let at = error.as_mut_ptr();
        // SAFETY: the local is at least as long and as aligned as its own first fields.
        unsafe { at.cast::<ErrorHead>().write(ErrorHead::EMPTY) };
        let status = slot(self.handle, at);
        if status == SM_OK {
            return Ok(());
        }
        tracing::trace!(operation, device, status, "slot failed");
        // SAFETY: the local, whose numbers were written above.
        Err((status, unsafe { copy_failure(status, at) }))
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // Before `close`: afterwards the plugin may give the same handle out again.
        OPEN.write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&self.handle.addr());
        let table = self.table();
        // SAFETY: this is the last owner, so no other call is in flight (class I).
        let quiesced = self.call("quiesce", None, |s, e| unsafe { (table.quiesce)(s, e) });
        // SAFETY: as above; the handle is not used again.
        let closed = self.call("close", None, |s, e| unsafe { (table.close)(s, e) });
        for error in [quiesced.err(), closed.err()].into_iter().flatten() {
            cleanup::failed("close", &error);
        }
    }
}

/// The table of an extension.
///
/// # Safety
/// - It starts with an `SmHdr`, and any bytes are a valid value: numbers and optional functions.
unsafe trait Extension: std::marker::Copy {}

// SAFETY: a header and optional functions.
unsafe impl Extension for SmIpcV1 {}
// SAFETY: a header and optional functions.
unsafe impl Extension for SmMemEventV1 {}
// SAFETY: a header and optional functions.
unsafe impl Extension for SmRdmaV1 {}
// SAFETY: a header and optional functions.
unsafe impl Extension for SmGraphV1 {}
// SAFETY: a header and optional functions.
unsafe impl Extension for SmComputeV1 {}

/// The numbers at the start of an `SmError`.
#[repr(C)]
struct ErrorHead {
    struct_size: u32,
    code: i32,
    native_code: i64,
    flags: u32,
    msg_len: u32,
}

impl ErrorHead {
    const EMPTY: Self = Self {
        struct_size: ERROR_LEN,
        code: SM_OK,
        native_code: 0,
        flags: 0,
        msg_len: 0,
    };
}

/// Reads the error of a failed call, of which the message may be partly unwritten.
///
/// # Safety
/// - `at` is valid for reading an `SmError`, of which the numbers and `msg_len` bytes of the message
///   were written.
#[cold]
unsafe fn copy_failure(status: i32, at: *const SmError) -> Failure {
    let mut error = SmError::new();
    let to = ptr::from_mut(&mut error).cast::<u8>();
    // SAFETY: the numbers were written by this function's contract; both structs are live.
    unsafe { ptr::copy_nonoverlapping(at.cast::<u8>(), to, SM_ERROR_FIXED_LEN) };
    let len = SM_ERROR_FIXED_LEN + error.message_len();
    // SAFETY: `msg_len` bytes of the message were written by this function's contract, and
    // `message_len` is at most what the array holds.
    unsafe { ptr::copy_nonoverlapping(at.cast::<u8>(), to, len) };
    Failure::new(status, &error)
}

/// Open instances by the address of their handle.
static OPEN: LazyLock<RwLock<HashMap<usize, Weak<Instance>>>> = LazyLock::new(RwLock::default);

/// `struct_size` of an `SmError`.
#[expect(
    clippy::cast_possible_truncation,
    reason = "256 bytes, asserted in stepmesh-abi"
)]
const ERROR_LEN: u32 = size_of::<SmError>() as u32;
/// More devices than any host has; a larger number is garbage.
const DEVICES_MAX: u32 = 1024;

const _: () = assert!(size_of::<ErrorHead>() == SM_ERROR_FIXED_LEN);
