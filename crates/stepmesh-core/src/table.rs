//! The host's own copy of a plugin's table: every slot is a plain function, so that no call tests
//! for null or versions. Missing optional slots are filled with thunks, of which some emulate.
#![expect(
    unsafe_code,
    reason = "the ABI's functions and the thunks that stand in for them"
)]

use std::ffi::{c_char, c_void};
use std::time::Duration;

use stepmesh_abi::error::{
    SM_FAILED_PRECONDITION, SM_INVALID_ARGUMENT, SM_NOT_FOUND, SM_OK, SM_RESOURCE_EXHAUSTED,
    SM_UNIMPLEMENTED,
};
use stepmesh_abi::memory::{SM_COPY_D2H, SM_MEMORY_DEVICE};
use stepmesh_abi::{
    SmBackend, SmBackendApi, SmDeviceInfo, SmError, SmEvent, SmHostApi, SmOpenArgs, SmPtrAttr,
};

use crate::Error;
use crate::event::WaitMode;
use crate::instance::Instance;

/// Makes [`Table`] and its conversion from one list of slots. `required` slots must be there,
/// `optional` ones have the thunk named after `else`, `unimplemented` ones one that says so.
macro_rules! table {
    ($($kind:ident $slot:ident($($arg:ident: $type:ty),*) $(else $thunk:path)?;)*) => {
        /// A plugin's functions, all of them present.
        #[derive(Clone, Copy)]
        #[cfg_attr(
            not(test),
            expect(dead_code, reason = "the whole ABI is here; not every slot has a wrapper yet")
        )]
        pub(crate) struct Table {
            $(pub(crate) $slot: unsafe extern "C" fn($($type,)* *mut SmError) -> i32,)*
        }

        impl Table {
            /// Fills the gaps of a plugin's table.
            ///
            /// # Errors
            /// The name of a required slot that is missing.
            pub(crate) fn new(api: &SmBackendApi) -> Result<Self, &'static str> {
                Ok(Self {
                    $($slot: table!(@$kind api.$slot, $slot($($arg: $type),*) $(, $thunk)?),)*
                })
            }
        }
    };
    (@required $value:expr, $slot:ident($($arg:ident: $type:ty),*)) => {
        $value.ok_or(stringify!($slot))?
    };
    (@optional $value:expr, $slot:ident($($arg:ident: $type:ty),*), $thunk:path) => {
        $value.unwrap_or($thunk)
    };
    (@unimplemented $value:expr, $slot:ident($($arg:ident: $type:ty),*)) => {{
        unsafe extern "C" fn thunk($(_: $type,)* err: *mut SmError) -> i32 {
            // SAFETY: the error struct of the caller of the slot.
            unsafe { fail(err, SM_UNIMPLEMENTED, concat!("the plugin has no ", stringify!($slot))) }
        }
        $value.unwrap_or(thunk)
    }};
}

table! {
    required probe(n_devices: *mut u32, score: *mut u32);
    required open(host: *const SmHostApi, args: *const SmOpenArgs, out: *mut *mut SmBackend);
    optional quiesce(s: *mut SmBackend) else nothing_to_do;
    required close(s: *mut SmBackend);
    required device_count(s: *mut SmBackend, n: *mut u32);
    required device_info(s: *mut SmBackend, dev: u32, out: *mut SmDeviceInfo);
    unimplemented mem_info(s: *mut SmBackend, dev: u32, free: *mut u64, total: *mut u64);
    required capabilities(s: *mut SmBackend, dev: u32, bits: *mut u64);
    required set_current_device(s: *mut SmBackend, dev: u32);
    required get_current_device(s: *mut SmBackend, dev: *mut i32);
    required device_sync(s: *mut SmBackend, dev: u32);
    required alloc(
        s: *mut SmBackend, dev: u32, size: u64, align: u64, kind: u32, flags: u32, ptr: *mut u64
    );
    required free(s: *mut SmBackend, dev: u32, ptr: u64);
    optional alloc_async(
        s: *mut SmBackend, dev: u32, size: u64, stream_dev: u32, stream: u64, ptr: *mut u64
    ) else alloc_now;
    optional free_async(
        s: *mut SmBackend, dev: u32, ptr: u64, stream_dev: u32, stream: u64
    ) else free_when_done;
    unimplemented host_register(
        s: *mut SmBackend, ptr: *mut c_void, size: u64, flags: u32, dptr: *mut u64
    );
    unimplemented host_unregister(s: *mut SmBackend, ptr: *mut c_void);
    required pointer_attributes(s: *mut SmBackend, ptr: u64, out: *mut SmPtrAttr);
    required stream_create(
        s: *mut SmBackend, dev: u32, priority: i32, flags: u32, stream: *mut u64
    );
    required stream_destroy(s: *mut SmBackend, stream_dev: u32, stream: u64);
    required stream_sync(s: *mut SmBackend, stream_dev: u32, stream: u64, timeout_ns: u64);
    required stream_query(s: *mut SmBackend, stream_dev: u32, stream: u64, done: *mut u32);
    required stream_wait_event(
        s: *mut SmBackend, stream_dev: u32, stream: u64, event: *mut SmEvent
    );
    required memcpy_async(
        s: *mut SmBackend, dst: u64, src: u64, size: u64, dir: u32, dst_dev: u32, src_dev: u32,
        stream_dev: u32, stream: u64
    );
    optional memcpy_sync(
        s: *mut SmBackend, dst: u64, src: u64, size: u64, dir: u32, dst_dev: u32, src_dev: u32
    ) else copy_on_a_stream;
    unimplemented memset_async(
        s: *mut SmBackend, dst: u64, value: u32, width: u32, size: u64, stream_dev: u32, stream: u64
    );
    required event_create(s: *mut SmBackend, dev: u32, flags: u32, out: *mut *mut SmEvent);
    required event_destroy(s: *mut SmBackend, event: *mut SmEvent);
    required event_record(s: *mut SmBackend, event: *mut SmEvent, stream_dev: u32, stream: u64);
    required event_query(s: *mut SmBackend, event: *mut SmEvent, state: *mut u32);
    required event_sync(s: *mut SmBackend, event: *mut SmEvent, timeout_ns: u64, wait: u32);
    unimplemented event_elapsed(
        s: *mut SmBackend, start: *mut SmEvent, end: *mut SmEvent, ms: *mut f64
    );
    optional launch_host_func(
        s: *mut SmBackend, stream_dev: u32, stream: u64,
        func: Option<unsafe extern "C" fn(*mut c_void)>, arg: *mut c_void
    ) else call_from_a_thread;
    optional last_error(s: *mut SmBackend) else no_error;
    optional health(s: *mut SmBackend, dev: u32, state: *mut u32) else healthy;
    optional get_extension(
        s: *mut SmBackend, id: *const c_char, id_len: u32, min_version: u32,
        table: *mut *const c_void, version: *mut u32
    ) else no_extension;
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Table")
    }
}

/// Writes an error where the caller wants one and returns its code.
///
/// # Safety
/// - `err` is null or a live `SmError` of this host's size, as this host passes to every slot.
unsafe fn fail(err: *mut SmError, code: i32, message: &str) -> i32 {
    // SAFETY: this function's contract.
    if let Some(err) = unsafe { err.as_mut() } {
        *err = SmError::with_message(code, message);
    }
    code
}

unsafe extern "C" fn nothing_to_do(_: *mut SmBackend, _: *mut SmError) -> i32 {
    SM_OK
}

unsafe extern "C" fn no_error(_: *mut SmBackend, err: *mut SmError) -> i32 {
    // SAFETY: as in `fail`.
    if let Some(err) = unsafe { err.as_mut() } {
        *err = SmError::new();
    }
    SM_OK
}

unsafe extern "C" fn healthy(_: *mut SmBackend, _: u32, state: *mut u32, _: *mut SmError) -> i32 {
    // SAFETY: out pointers of this host are never null and are its own.
    unsafe { state.write(stepmesh_abi::device::SM_HEALTH_OK) };
    SM_OK
}

unsafe extern "C" fn no_extension(
    _: *mut SmBackend,
    _: *const c_char,
    _: u32,
    _: u32,
    _: *mut *const c_void,
    _: *mut u32,
    err: *mut SmError,
) -> i32 {
    // SAFETY: the error struct of the caller of the slot.
    unsafe { fail(err, SM_NOT_FOUND, "the plugin has no extensions") }
}

unsafe extern "C" fn alloc_now(
    s: *mut SmBackend,
    dev: u32,
    size: u64,
    _: u32,
    _: u64,
    ptr: *mut u64,
    err: *mut SmError,
) -> i32 {
    let Some(instance) = Instance::of_handle(s) else {
        // SAFETY: the error struct of the caller of the slot.
        return unsafe { gone(err) };
    };
    // SAFETY: the arguments are those this slot was called with, and `s` is open (looked up above).
    unsafe { (instance.table().alloc)(s, dev, size, 0, SM_MEMORY_DEVICE, 0, ptr, err) }
}

unsafe extern "C" fn free_when_done(
    s: *mut SmBackend,
    dev: u32,
    ptr: u64,
    stream_dev: u32,
    stream: u64,
    err: *mut SmError,
) -> i32 {
    let Some(instance) = Instance::of_handle(s) else {
        // SAFETY: the error struct of the caller of the slot.
        return unsafe { gone(err) };
    };
    let table = instance.table();
    // SAFETY: `s` is open (looked up above), the stream is the caller's.
    let status = unsafe { (table.stream_sync)(s, stream_dev, stream, EMULATION_NS_MAX, err) };
    if status != SM_OK {
        return status;
    }
    // SAFETY: as above; the stream is drained, so no work is in flight on the memory.
    unsafe { (table.free)(s, dev, ptr, err) }
}

unsafe extern "C" fn copy_on_a_stream(
    s: *mut SmBackend,
    dst: u64,
    src: u64,
    size: u64,
    dir: u32,
    dst_dev: u32,
    src_dev: u32,
    err: *mut SmError,
) -> i32 {
    let Some(instance) = Instance::of_handle(s) else {
        // SAFETY: the error struct of the caller of the slot.
        return unsafe { gone(err) };
    };
    let table = instance.table();
    let dev = if dir == SM_COPY_D2H { src_dev } else { dst_dev };
    let mut stream = 0;
    // SAFETY: `s` is open (looked up above), `stream` is a local.
    let status = unsafe { (table.stream_create)(s, dev, 0, 0, &raw mut stream, err) };
    if status != SM_OK {
        return status;
    }
    // SAFETY: the arguments are those this slot was called with, on the stream made above.
    let mut status =
        unsafe { (table.memcpy_async)(s, dst, src, size, dir, dst_dev, src_dev, dev, stream, err) };
    if status == SM_OK {
        // SAFETY: `s` is open and the stream was made above.
        status = unsafe { (table.stream_sync)(s, dev, stream, EMULATION_NS_MAX, err) };
    }
    // SAFETY: the stream was made above and is not used again; a failure to end it must not hide
    // the outcome of the copy, so it gets no error struct.
    let destroyed = unsafe { (table.stream_destroy)(s, dev, stream, std::ptr::null_mut()) };
    if destroyed != SM_OK {
        crate::cleanup::failed("stream_destroy", &format_args!("status {destroyed}"));
    }
    status
}

/// Stands in for `launch_host_func`: a thread that waits for an event and then calls.
unsafe extern "C" fn call_from_a_thread(
    s: *mut SmBackend,
    stream_dev: u32,
    stream: u64,
    func: Option<unsafe extern "C" fn(*mut c_void)>,
    arg: *mut c_void,
    err: *mut SmError,
) -> i32 {
    let Some(instance) = Instance::of_handle(s) else {
        // SAFETY: the error struct of the caller of the slot.
        return unsafe { gone(err) };
    };
    let Some(func) = func else {
        // SAFETY: the error struct of the caller of the slot.
        return unsafe { fail(err, SM_INVALID_ARGUMENT, "the function is null") };
    };
    let event = match instance.event_create(stream_dev, 0) {
        Ok(event) => event,
        Err(error) => {
            // SAFETY: the error struct of the caller of the slot.
            return unsafe { fail(err, SM_UNIMPLEMENTED, &error.to_string()) };
        }
    };
    if let Err(error) = instance.event_record(event, stream_dev, stream) {
        instance.event_destroy_logged(event);
        // SAFETY: the error struct of the caller of the slot.
        return unsafe { fail(err, SM_FAILED_PRECONDITION, &error.to_string()) };
    }
    let arg = arg.expose_provenance();
    let owner = instance.clone();
    let spawned = std::thread::Builder::new()
        .name("stepmesh-hostfn".into())
        .spawn(move || {
            // A failed stream still calls: the contract is "exactly once, also when work failed".
            let is_waiting = || {
                let waited = instance.event_sync(event, EMULATION_TIMEOUT, WaitMode::Block);
                matches!(waited, Err(Error::Timeout { .. }))
            };
            while is_waiting() {}
            // SAFETY: the caller of the slot promised that `func(arg)` may be called once from any
            // thread; this is the only call.
            unsafe { func(std::ptr::with_exposed_provenance_mut(arg)) };
            instance.event_destroy_logged(event);
        });
    match spawned {
        Ok(_) => SM_OK,
        Err(error) => {
            owner.event_destroy_logged(event);
            let message = format!("no thread to wait for the stream: {error}");
            // SAFETY: the error struct of the caller of the slot.
            unsafe { fail(err, SM_RESOURCE_EXHAUSTED, &message) }
        }
    }
}

/// # Safety
/// - As for [`fail`].
unsafe fn gone(err: *mut SmError) -> i32 {
    // SAFETY: this function's contract.
    unsafe { fail(err, SM_FAILED_PRECONDITION, "the backend is closed") }
}

/// Bound of the waits inside emulated slots: copies of the largest buffers over the slowest bus
/// take seconds.
pub(crate) const EMULATION_TIMEOUT: Duration = Duration::from_secs(60);
/// The same as the ABI counts.
const EMULATION_NS_MAX: u64 = 60_000_000_000;

#[cfg(test)]
mod tests;
