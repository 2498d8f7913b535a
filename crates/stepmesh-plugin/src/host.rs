//! The host's functions as a plugin sees them: log, configuration, clock, asynchronous errors. A
//! function that an older host lacks does nothing.
#![expect(unsafe_code, reason = "calls the host's C functions")]

use std::ffi::c_char;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use stepmesh_abi::error::{SM_OK, SM_OUT_OF_RANGE};
use stepmesh_abi::host::{SM_LOG_DEBUG, SM_LOG_ERROR, SM_LOG_INFO, SM_LOG_TRACE, SM_LOG_WARN};
use stepmesh_abi::{SM_ABI_MAJOR, SmHdr, SmHostApi};

use crate::boundary::{error_struct, read_sized};
use crate::{Error, Result};

/// A handle on the host. Cheap to clone, usable from any thread.
#[derive(Clone, Debug)]
pub struct Host {
    api: Arc<SmHostApi>,
}

/// Level of a log message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Work was lost.
    Error,
    /// Degraded, going on.
    Warn,
    /// A change an operator wants to see.
    Info,
    /// Decisions.
    Debug,
    /// Each operation.
    Trace,
}

impl LogLevel {
    fn raw(self) -> u32 {
        match self {
            Self::Error => SM_LOG_ERROR,
            Self::Warn => SM_LOG_WARN,
            Self::Info => SM_LOG_INFO,
            Self::Debug => SM_LOG_DEBUG,
            Self::Trace => SM_LOG_TRACE,
        }
    }
}

impl Host {
    /// A host that offers nothing, for a backend used without one (tests, tools).
    #[must_use]
    pub fn absent() -> Self {
        Self {
            api: Arc::new(SmHostApi::new()),
        }
    }

    /// Takes over as much of the host's table as both sides know.
    ///
    /// # Safety
    /// - `api` is null or points to a table of at least `hdr.struct_size` bytes whose functions and
    ///   `ctx` stay usable from any thread until the process ends.
    pub(crate) unsafe fn from_raw(api: *const SmHostApi) -> Result<Self> {
        if api.is_null() {
            return Err(Error::invalid_argument("the host's table is null"));
        }
        // SAFETY: not null, and every table has at least a header, as this function's contract says.
        let hdr = unsafe { api.cast::<SmHdr>().read() };
        if hdr.abi_major != SM_ABI_MAJOR {
            return Err(Error::failed_precondition(format!(
                "the host speaks ABI {}.{}, this plugin {SM_ABI_MAJOR}.x; build the plugin for it",
                hdr.abi_major, hdr.abi_minor
            )));
        }
        let mut own = SmHostApi::new();
        // SAFETY: the table has `struct_size` bytes by contract, and all-zero bytes are a valid
        // `SmHostApi` (null pointers and absent functions), so any prefix of whole words is too.
        unsafe { read_sized(api, &mut own)? };
        own.hdr = hdr;
        Ok(Self { api: Arc::new(own) })
    }

    /// Version of the host's ABI: major and minor.
    #[must_use]
    pub fn abi_version(&self) -> (u16, u16) {
        (self.api.hdr.abi_major, self.api.hdr.abi_minor)
    }

    /// Whether a message would be kept; ask before formatting an expensive one.
    #[must_use]
    pub fn log_enabled(&self, level: LogLevel, target: &str) -> bool {
        let Some(log_enabled) = self.api.log_enabled else {
            return false;
        };
        let (ptr, len) = text(target);
        // SAFETY: the function and `ctx` are the host's, usable from any thread; the text outlives
        // the call.
        unsafe { log_enabled(self.api.ctx, level.raw(), ptr, len) != 0 }
    }

    /// Gives a message to the host's log.
    #[track_caller]
    pub fn log(&self, level: LogLevel, target: &str, message: fmt::Arguments<'_>) {
        let Some(log) = self.api.log else { return };
        if !self.log_enabled(level, target) {
            return;
        }
        let location = std::panic::Location::caller();
        let message = message.to_string();
        let (target_ptr, target_len) = text(target);
        let (file_ptr, file_len) = text(location.file());
        let (message_ptr, message_len) = text(&message);
        // SAFETY: the function and `ctx` are the host's, usable from any thread; the texts outlive
        // the call, and the host copies them.
        unsafe {
            log(
                self.api.ctx,
                level.raw(),
                target_ptr,
                target_len,
                file_ptr,
                file_len,
                location.line(),
                message_ptr,
                message_len,
            );
        }
    }

    /// The value of a configuration key; `None` if it has none or it is not UTF-8.
    #[must_use]
    pub fn config(&self, key: &str) -> Option<String> {
        let get_config = self.api.get_config?;
        let mut buffer = vec![0_u8; CONFIG_LEN_FIRST];
        // Twice at most: once to learn the length, once with room for it.
        for _ in 0..2 {
            let (key_ptr, key_len) = text(key);
            let cap = u32::try_from(buffer.len()).ok()?;
            let mut len = 0_u32;
            let out = buffer.as_mut_ptr().cast::<c_char>();
            // SAFETY: the function and `ctx` are the host's; the key outlives the call, `out` has
            // `cap` bytes and `len` is a local.
            let code =
                unsafe { get_config(self.api.ctx, key_ptr, key_len, out, cap, &raw mut len) };
            let len = usize::try_from(len).ok()?;
            match code {
                SM_OK => {
                    buffer.truncate(len);
                    return String::from_utf8(buffer).ok();
                }
                SM_OUT_OF_RANGE if len <= CONFIG_LEN_MAX => buffer.resize(len, 0),
                _ => return None,
            }
        }
        None
    }

    /// The framework's current stream of a device, if a framework said.
    #[must_use]
    pub fn current_stream(&self, dlpack_type: i32, device: u32) -> Option<u64> {
        let current_stream = self.api.current_stream?;
        let mut stream = 0;
        // SAFETY: the function and `ctx` are the host's; `stream` is a local.
        let code = unsafe { current_stream(self.api.ctx, dlpack_type, device, &raw mut stream) };
        (code == SM_OK).then_some(stream)
    }

    /// Reports a failure that no call is there to return.
    pub fn report_async_error(&self, device: u32, error: &Error) {
        let Some(report) = self.api.report_async_error else {
            return;
        };
        let error = error_struct(error);
        // SAFETY: the function and `ctx` are the host's; the error outlives the call and is copied.
        unsafe { report(self.api.ctx, device, &raw const error) }
    }

    /// Whether the process is ending, so that late destructors leave the driver alone.
    #[must_use]
    pub fn is_process_exiting(&self) -> bool {
        let Some(process_exiting) = self.api.process_exiting else {
            return false;
        };
        // SAFETY: the function and `ctx` are the host's.
        unsafe { process_exiting(self.api.ctx) != 0 }
    }

    /// Nanoseconds of the host's monotonic clock, or of this plugin's own if the host has none.
    #[must_use]
    pub fn monotonic_ns(&self) -> u64 {
        if let Some(monotonic_ns) = self.api.monotonic_ns {
            // SAFETY: the function and `ctx` are the host's.
            return unsafe { monotonic_ns(self.api.ctx) };
        }
        let start = OWN_CLOCK.get_or_init(Instant::now);
        u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

fn text(text: &str) -> (*const c_char, u32) {
    let len = text.floor_char_boundary(TEXT_LEN_MAX);
    (text.as_ptr().cast(), u32::try_from(len).unwrap_or(0))
}

/// Start of the clock used when the host has none.
static OWN_CLOCK: OnceLock<Instant> = OnceLock::new();
/// First buffer for a configuration value: most are a word or a path.
const CONFIG_LEN_FIRST: usize = 256;
/// Longest configuration value that is believed: a path list, not a file.
const CONFIG_LEN_MAX: usize = 1 << 16;
/// Longest text given to the host at once, so that a length always fits.
const TEXT_LEN_MAX: usize = 1 << 16;
