//! The table of functions that the host offers to a plugin. Plugins import no symbol of the host:
//! this is the whole of what they may call.
#![expect(unsafe_code, reason = "the table is shared between threads")]

use core::ffi::{c_char, c_void};
use core::mem::{offset_of, size_of};

use crate::error::SmError;
use crate::header::SmHdr;

/// What a plugin may call. The host keeps the table and everything behind `ctx` alive until the
/// process ends, and each function may be called from any thread at any time after `query`.
///
/// A plugin copies the smaller of `hdr.struct_size` and its own `sizeof` into a zeroed table of its
/// own, and treats a null function as one that does nothing.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SmHostApi {
    /// Size and version of the host's table.
    pub hdr: SmHdr,
    /// First argument of every function.
    pub ctx: *mut c_void,
    /// 1 if a message of this level (`SM_LOG_*`) and target would be kept. Ask before formatting.
    pub log_enabled: Option<
        unsafe extern "C" fn(
            ctx: *mut c_void,
            level: u32,
            target: *const c_char,
            target_len: u32,
        ) -> i32,
    >,
    /// Takes one log message; every text is UTF-8 with its length and is copied.
    pub log: Option<
        unsafe extern "C" fn(
            ctx: *mut c_void,
            level: u32,
            target: *const c_char,
            target_len: u32,
            file: *const c_char,
            file_len: u32,
            line: u32,
            msg: *const c_char,
            msg_len: u32,
        ),
    >,
    /// Copies the value of a configuration key to `buf` and its length to `len`. `SM_NOT_FOUND` if
    /// the key has no value; `SM_OUT_OF_RANGE` with `len` set if it is longer than `cap`. Plugins
    /// read no environment variable of their own.
    pub get_config: Option<
        unsafe extern "C" fn(
            ctx: *mut c_void,
            key: *const c_char,
            key_len: u32,
            buf: *mut c_char,
            cap: u32,
            len: *mut u32,
        ) -> i32,
    >,
    /// The framework's current stream of a device (`SM_DLPACK_*`, index). `SM_NOT_FOUND` if no
    /// framework said.
    pub current_stream: Option<
        unsafe extern "C" fn(ctx: *mut c_void, dlpack_type: i32, dev: u32, stream: *mut u64) -> i32,
    >,
    /// Reports a failure that no call is there to return. The error is copied.
    pub report_async_error:
        Option<unsafe extern "C" fn(ctx: *mut c_void, dev: u32, err: *const SmError)>,
    /// Starts a span of the host's trace; the answer goes to `trace_end`. 0 when tracing is off.
    pub trace_begin:
        Option<unsafe extern "C" fn(ctx: *mut c_void, name: *const c_char, name_len: u32) -> u64>,
    /// Ends a span.
    pub trace_end: Option<unsafe extern "C" fn(ctx: *mut c_void, span: u64)>,
    /// 1 once the process is ending: late destructors skip what would touch the driver.
    pub process_exiting: Option<unsafe extern "C" fn(ctx: *mut c_void) -> i32>,
    /// Memory of the host's allocator for a plugin's bookkeeping; null when there is none.
    pub alloc: Option<unsafe extern "C" fn(ctx: *mut c_void, size: u64, align: u64) -> *mut c_void>,
    /// Gives memory of `alloc` back, with the size and alignment it was asked with.
    pub free:
        Option<unsafe extern "C" fn(ctx: *mut c_void, ptr: *mut c_void, size: u64, align: u64)>,
    /// Nanoseconds of the host's monotonic clock.
    pub monotonic_ns: Option<unsafe extern "C" fn(ctx: *mut c_void) -> u64>,
}

// SAFETY: the table is immutable, and its contract (see the type) lets every thread call every
// function with `ctx`.
unsafe impl Send for SmHostApi {}
// SAFETY: as for `Send`.
unsafe impl Sync for SmHostApi {}

impl SmHostApi {
    /// A table in which every function is missing, with the size and version set.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            hdr: SmHdr::of::<Self>(),
            ctx: core::ptr::null_mut(),
            log_enabled: None,
            log: None,
            get_config: None,
            current_stream: None,
            report_async_error: None,
            trace_begin: None,
            trace_end: None,
            process_exiting: None,
            alloc: None,
            free: None,
            monotonic_ns: None,
        }
    }
}

impl Default for SmHostApi {
    fn default() -> Self {
        Self::new()
    }
}

/// Log level: work was lost.
pub const SM_LOG_ERROR: u32 = 1;
/// Log level: degraded, going on.
pub const SM_LOG_WARN: u32 = 2;
/// Log level: a change an operator wants to see.
pub const SM_LOG_INFO: u32 = 3;
/// Log level: decisions.
pub const SM_LOG_DEBUG: u32 = 4;
/// Log level: each operation.
pub const SM_LOG_TRACE: u32 = 5;

/// Bytes of the host table in version 1.0; a host table is never smaller.
pub const SM_HOST_API_LEN_V1_0: usize = 104;

const _: () = assert!(size_of::<SmHostApi>() >= SM_HOST_API_LEN_V1_0);
const _: () = assert!(offset_of!(SmHostApi, monotonic_ns) + 8 == SM_HOST_API_LEN_V1_0);
