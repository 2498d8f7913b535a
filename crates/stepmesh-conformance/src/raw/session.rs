//! An open instance: each slot as a function with checked arguments. A slot that the plugin lacks is
//! a failure that says so.
#![expect(unsafe_code, reason = "calls through the plugin's table")]

use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use stepmesh_abi::{SmBackend, SmBackendApi, SmDeviceInfo, SmError, SmEvent, SmHdr, SmPtrAttr};

use super::error_arg::{ErrorArg, ErrorMode};
use super::failure::Failure;
use super::memory::{Allocation, HostBuffer, Range};
use super::progress;

/// An open instance. Any thread may use it, as class A says.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) api: SmBackendApi,
    pub(crate) instance: *mut SmBackend,
    pub(crate) error_mode: AtomicU64,
    pub(crate) faults: Mutex<Vec<String>>,
}

// SAFETY: the instance may be used from any thread by the ABI (class A); the rest is atomics, a
// mutex and a table of functions.
unsafe impl Send for Session {}
// SAFETY: as for `Send`.
unsafe impl Sync for Session {}

/// A stream argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stream {
    pub(crate) dev: u32,
    pub(crate) raw: u64,
}

/// An event of the plugin's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event(*mut SmEvent);

// SAFETY: an event is a handle that any thread may pass (class A).
unsafe impl Send for Event {}
// SAFETY: as for `Send`.
unsafe impl Sync for Event {}

impl Event {
    pub(crate) const NULL: Self = Self(std::ptr::null_mut());

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }
}

/// A function that was given to a stream; it is never freed, so a second call is harmless.
#[derive(Clone, Debug)]
pub(crate) struct HostCall(Arc<HostCallState>);

struct HostCallState {
    count: AtomicU32,
    work: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl std::fmt::Debug for HostCallState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HostCallState")
    }
}

impl HostCall {
    /// How often it was called.
    pub(crate) fn count(&self) -> u32 {
        self.0.count.load(Ordering::SeqCst)
    }
}

/// Calls a slot of the table with the instance before and the error after these arguments.
macro_rules! call {
    ($self:ident.$slot:ident($($arg:expr),* $(,)?)) => {{
        let slot = $self.api.$slot.ok_or_else(|| Failure::absent(stringify!($slot)))?;
        let mut error = ErrorArg::new($self.error_mode());
        progress::enter(stringify!($slot));
        // SAFETY: the instance is open, out pointers are live locals of the caller or as large as
        // their header says, ranges are parts of live memory (`raw::memory`), and the error is
        // null or as large as it says.
        let status = unsafe { slot($self.instance, $($arg,)* error.as_ptr()) };
        progress::leave();
        $self.judge(stringify!($slot), status, &error)
    }};
}

impl Session {
    /// What is passed for `err` from here on.
    pub(crate) fn set_error_mode(&self, mode: ErrorMode) {
        let raw = match mode {
            ErrorMode::Whole => MODE_WHOLE,
            ErrorMode::Null => MODE_NULL,
            ErrorMode::Sized(size) => MODE_SIZED | u64::from(size),
        };
        self.error_mode.store(raw, Ordering::SeqCst);
    }

    /// What slots did wrong in telling success or failure, so far.
    pub(crate) fn faults(&self) -> Vec<String> {
        let faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        faults.clone()
    }

    /// The same instance behind another handle, for use after `close` or in a fork.
    pub(crate) fn alias(&self) -> Self {
        Self {
            api: self.api,
            instance: self.instance,
            error_mode: AtomicU64::new(0),
            faults: Mutex::default(),
        }
    }

    fn error_mode(&self) -> ErrorMode {
        match self.error_mode.load(Ordering::SeqCst) {
            MODE_WHOLE => ErrorMode::Whole,
            MODE_NULL => ErrorMode::Null,
            sized => ErrorMode::Sized(u32::try_from(sized & !MODE_SIZED).unwrap_or(0)),
        }
    }

    fn judge(&self, slot: &'static str, status: i32, error: &ErrorArg) -> Result<(), Failure> {
        let judged = error.judge(slot, status);
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        // A plugin that does one thing wrong does it a thousand times.
        if faults.len() < FAULTS_MAX {
            faults.extend(judged.faults);
        }
        judged.result
    }

    pub(crate) fn quiesce(&self) -> Result<(), Failure> {
        call!(self.quiesce())
    }

    /// Ends the instance; the handle must not be used afterwards.
    pub(crate) fn close(&self) -> Result<(), Failure> {
        call!(self.close())
    }

    pub(crate) fn device_count(&self) -> Result<u32, Failure> {
        let mut count = 0;
        call!(self.device_count(&raw mut count))?;
        Ok(count)
    }

    pub(crate) fn device_info(&self, dev: u32) -> Result<SmDeviceInfo, Failure> {
        let mut info = SmDeviceInfo::new();
        call!(self.device_info(dev, &raw mut info))?;
        Ok(info)
    }

    /// Asks with a struct of a smaller size than this crate's, which a page without access follows.
    pub(crate) fn device_info_sized(&self, dev: u32, len_bytes: u32) -> Result<Vec<u8>, Failure> {
        let hdr = SmHdr {
            struct_size: len_bytes,
            ..SmHdr::of::<SmDeviceInfo>()
        };
        let out = sized_struct(hdr, "device_info")?;
        call!(self.device_info(dev, out.as_ptr().cast()))?;
        Ok(out.bytes())
    }

    pub(crate) fn mem_info(&self, dev: u32) -> Result<(u64, u64), Failure> {
        let (mut free, mut total) = (0, 0);
        call!(self.mem_info(dev, &raw mut free, &raw mut total))?;
        Ok((free, total))
    }

    pub(crate) fn capabilities(&self, dev: u32) -> Result<u64, Failure> {
        let mut bits = 0;
        call!(self.capabilities(dev, &raw mut bits))?;
        Ok(bits)
    }

    pub(crate) fn set_current_device(&self, dev: u32) -> Result<(), Failure> {
        call!(self.set_current_device(dev))
    }

    pub(crate) fn current_device(&self) -> Result<i32, Failure> {
        let mut dev = i32::MIN;
        call!(self.get_current_device(&raw mut dev))?;
        Ok(dev)
    }

    pub(crate) fn device_sync(&self, dev: u32) -> Result<(), Failure> {
        call!(self.device_sync(dev))
    }

    pub(crate) fn alloc(&self, dev: u32, len_bytes: u64) -> Result<Allocation, Failure> {
        self.alloc_with(dev, len_bytes, 0, stepmesh_abi::memory::SM_MEMORY_DEVICE, 0)
    }

    pub(crate) fn alloc_with(
        &self,
        dev: u32,
        len_bytes: u64,
        align: u64,
        kind: u32,
        flags: u32,
    ) -> Result<Allocation, Failure> {
        let mut ptr = 0;
        call!(self.alloc(dev, len_bytes, align, kind, flags, &raw mut ptr))?;
        Ok(Allocation {
            dev,
            ptr,
            len_bytes,
        })
    }

    pub(crate) fn free(&self, dev: u32, ptr: u64) -> Result<(), Failure> {
        call!(self.free(dev, ptr))
    }

    pub(crate) fn alloc_async(
        &self,
        dev: u32,
        len: u64,
        on: Stream,
    ) -> Result<Allocation, Failure> {
        let mut ptr = 0;
        call!(self.alloc_async(dev, len, on.dev, on.raw, &raw mut ptr))?;
        Ok(Allocation {
            dev,
            ptr,
            len_bytes: len,
        })
    }

    pub(crate) fn free_async(&self, dev: u32, ptr: u64, on: Stream) -> Result<(), Failure> {
        call!(self.free_async(dev, ptr, on.dev, on.raw))
    }

    pub(crate) fn host_register(&self, buffer: &HostBuffer, flags: u32) -> Result<u64, Failure> {
        let mut dptr = 0;
        let (ptr, len) = (buffer.as_ptr().cast::<c_void>(), buffer.all().len_bytes);
        call!(self.host_register(ptr, len, flags, &raw mut dptr))?;
        Ok(dptr)
    }

    pub(crate) fn host_unregister(&self, buffer: &HostBuffer) -> Result<(), Failure> {
        call!(self.host_unregister(buffer.as_ptr().cast::<c_void>()))
    }

    pub(crate) fn pointer_attributes(&self, ptr: u64) -> Result<SmPtrAttr, Failure> {
        let mut facts = SmPtrAttr::new();
        call!(self.pointer_attributes(ptr, &raw mut facts))?;
        Ok(facts)
    }

    pub(crate) fn stream_create(&self, dev: u32) -> Result<Stream, Failure> {
        self.stream_create_with(dev, 0, 0)
    }

    pub(crate) fn stream_create_with(
        &self,
        dev: u32,
        priority: i32,
        flags: u32,
    ) -> Result<Stream, Failure> {
        let mut raw = 0;
        call!(self.stream_create(dev, priority, flags, &raw mut raw))?;
        Ok(Stream { dev, raw })
    }

    pub(crate) fn stream_destroy(&self, on: Stream) -> Result<(), Failure> {
        call!(self.stream_destroy(on.dev, on.raw))
    }

    pub(crate) fn stream_sync(&self, on: Stream, timeout_ns: u64) -> Result<(), Failure> {
        call!(self.stream_sync(on.dev, on.raw, timeout_ns))
    }

    pub(crate) fn stream_query(&self, on: Stream) -> Result<bool, Failure> {
        let mut done = 0;
        call!(self.stream_query(on.dev, on.raw, &raw mut done))?;
        Ok(done != 0)
    }

    pub(crate) fn stream_wait_event(&self, on: Stream, event: Event) -> Result<(), Failure> {
        call!(self.stream_wait_event(on.dev, on.raw, event.0))
    }

    /// Copies a whole range to another; the shorter one says how much.
    pub(crate) fn memcpy_async(
        &self,
        dst: Range,
        src: Range,
        dir: u32,
        on: Stream,
    ) -> Result<(), Failure> {
        let len = dst.len_bytes.min(src.len_bytes);
        let (to, from) = (dst.dev.unwrap_or(0), src.dev.unwrap_or(0));
        call!(self.memcpy_async(dst.addr, src.addr, len, dir, to, from, on.dev, on.raw))
    }

    pub(crate) fn memcpy_sync(&self, dst: Range, src: Range, dir: u32) -> Result<(), Failure> {
        let len = dst.len_bytes.min(src.len_bytes);
        let (to, from) = (dst.dev.unwrap_or(0), src.dev.unwrap_or(0));
        call!(self.memcpy_sync(dst.addr, src.addr, len, dir, to, from))
    }

    pub(crate) fn memset_async(
        &self,
        dst: Range,
        value: u32,
        width: u32,
        on: Stream,
    ) -> Result<(), Failure> {
        call!(self.memset_async(dst.addr, value, width, dst.len_bytes, on.dev, on.raw))
    }

    pub(crate) fn event_create(&self, dev: u32, flags: u32) -> Result<Event, Failure> {
        let mut event = std::ptr::null_mut();
        call!(self.event_create(dev, flags, &raw mut event))?;
        Ok(Event(event))
    }

    pub(crate) fn event_destroy(&self, event: Event) -> Result<(), Failure> {
        call!(self.event_destroy(event.0))
    }

    pub(crate) fn event_record(&self, event: Event, on: Stream) -> Result<(), Failure> {
        call!(self.event_record(event.0, on.dev, on.raw))
    }

    pub(crate) fn event_query(&self, event: Event) -> Result<u32, Failure> {
        let mut state = u32::MAX;
        call!(self.event_query(event.0, &raw mut state))?;
        Ok(state)
    }

    pub(crate) fn event_sync(
        &self,
        event: Event,
        timeout_ns: u64,
        wait: u32,
    ) -> Result<(), Failure> {
        call!(self.event_sync(event.0, timeout_ns, wait))
    }

    pub(crate) fn event_elapsed_ms(&self, start: Event, end: Event) -> Result<f64, Failure> {
        let mut ms = f64::NAN;
        call!(self.event_elapsed(start.0, end.0, &raw mut ms))?;
        Ok(ms)
    }

    /// Gives a function to a stream.
    pub(crate) fn launch(
        &self,
        on: Stream,
        work: impl FnOnce() + Send + 'static,
    ) -> Result<HostCall, Failure> {
        let state = Arc::new(HostCallState {
            count: AtomicU32::new(0),
            work: Mutex::new(Some(Box::new(work))),
        });
        // Leaked, so that the address stays valid however often the plugin calls.
        let arg = Arc::into_raw(Arc::clone(&state))
            .cast_mut()
            .cast::<c_void>();
        call!(self.launch_host_func(on.dev, on.raw, Some(run_host_call), arg))?;
        Ok(HostCall(state))
    }

    /// Gives no function to a stream, which is to be refused.
    pub(crate) fn launch_nothing(&self, on: Stream) -> Result<(), Failure> {
        call!(self.launch_host_func(on.dev, on.raw, None, std::ptr::null_mut()))
    }

    /// The calling thread's last error, and what the slot returned.
    pub(crate) fn last_error(&self) -> Result<(i32, SmError), Failure> {
        let slot = self
            .api
            .last_error
            .ok_or_else(|| Failure::absent("last_error"))?;
        let mut error = SmError::new();
        progress::enter("last_error");
        // SAFETY: the instance is open and the error a whole local.
        let status = unsafe { slot(self.instance, &raw mut error) };
        progress::leave();
        Ok((status, error))
    }

    pub(crate) fn health(&self, dev: u32) -> Result<u32, Failure> {
        let mut state = u32::MAX;
        call!(self.health(dev, &raw mut state))?;
        Ok(state)
    }

    /// The table of an extension, which starts with a header.
    pub(crate) fn extension(&self, id: &str, min_version: u32) -> Result<Extension, Failure> {
        let (mut table, mut version) = (std::ptr::null(), 0);
        let len = u32::try_from(id.len()).unwrap_or(u32::MAX);
        let ptr = id.as_ptr().cast::<c_char>();
        call!(self.get_extension(ptr, len, min_version, &raw mut table, &raw mut version))?;
        Ok(Extension { table })
    }
}

/// An extension that a plugin has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extension {
    pub(crate) table: *const c_void,
}

impl Extension {
    /// The header that its table starts with.
    pub(crate) fn header(&self) -> Option<SmHdr> {
        let table = self.table.cast::<SmHdr>();
        if table.is_null() || !table.is_aligned() {
            return None;
        }
        // SAFETY: not null and aligned; by the ABI the table starts with a header and is static.
        Some(unsafe { table.read() })
    }
}

/// A struct of the size that its header says, in front of a page without access.
fn sized_struct(hdr: SmHdr, slot: &'static str) -> Result<super::guard::Guarded, Failure> {
    let mut bytes = vec![0; super::memory::narrow(hdr.struct_size.into())];
    let words = [
        hdr.struct_size.to_ne_bytes(),
        (u32::from(hdr.abi_minor) << 16 | u32::from(hdr.abi_major)).to_ne_bytes(),
    ];
    for (to, from) in bytes.iter_mut().zip(words.as_flattened()) {
        *to = *from;
    }
    super::guard::Guarded::holding(&bytes).map_err(|_| Failure::absent(slot))
}

unsafe extern "C" fn run_host_call(arg: *mut c_void) {
    // SAFETY: `launch` passed a leaked reference, so it is valid as long as the process.
    let state = unsafe { &*arg.cast::<HostCallState>() };
    state.count.fetch_add(1, Ordering::SeqCst);
    let work = state
        .work
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    if let Some(work) = work {
        work();
    }
}

/// Error mode: a whole struct.
const MODE_WHOLE: u64 = 0;
/// Error mode: null.
const MODE_NULL: u64 = u64::MAX;
/// Error mode: a struct of the size in the low half.
const MODE_SIZED: u64 = 1 << 32;
/// Faults that are kept.
const FAULTS_MAX: usize = 64;
