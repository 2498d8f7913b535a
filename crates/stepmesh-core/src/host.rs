//! What the host offers to a plugin: `SmHostApi` and the state behind it.
//!
//! One table and one context for each loaded plugin, leaked, because a plugin may call them until
//! the process ends. Nothing here calls into a plugin.
#![expect(
    unsafe_code,
    reason = "functions that C calls, with pointers that C made"
)]

use std::alloc::Layout;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError, RwLock};
use std::time::Instant;

use stepmesh_abi::error::{SM_INVALID_ARGUMENT, SM_NOT_FOUND, SM_OK, SM_OUT_OF_RANGE};
use stepmesh_abi::host::{SM_LOG_DEBUG, SM_LOG_ERROR, SM_LOG_INFO, SM_LOG_TRACE, SM_LOG_WARN};
use stepmesh_abi::{SmError, SmHostApi};
use tracing::Level;

use crate::config::{Config, KEYS};
use crate::framework;
use crate::status::Failure;

/// What is behind the `ctx` of one plugin's host table.
#[derive(Debug)]
pub(crate) struct HostContext {
    /// File name or backend name, for the log.
    plugin: String,
    /// First unread asynchronous failure of each device, and how many came.
    async_failures: Mutex<BTreeMap<u32, (Failure, u64)>>,
}

impl HostContext {
    /// A table for a plugin. It lives as long as the process.
    pub(crate) fn leak(plugin: String) -> (&'static Self, &'static SmHostApi) {
        watch_exit();
        let context: &'static Self = Box::leak(Box::new(Self {
            plugin,
            async_failures: Mutex::default(),
        }));
        let table = SmHostApi {
            ctx: std::ptr::from_ref(context).cast_mut().cast(),
            log_enabled: Some(log_enabled),
            log: Some(log),
            get_config: Some(get_config),
            current_stream: Some(current_stream),
            report_async_error: Some(report_async_error),
            trace_begin: Some(trace_begin),
            trace_end: Some(trace_end),
            process_exiting: Some(process_exiting),
            alloc: Some(alloc),
            free: Some(free),
            monotonic_ns: Some(monotonic_ns),
            ..SmHostApi::new()
        };
        (context, Box::leak(Box::new(table)))
    }

    /// The first asynchronous failure of a device since the last call, and how many there were.
    pub(crate) fn take_async_failure(&self, device: u32) -> Option<(Failure, u64)> {
        self.failures().remove(&device)
    }

    fn failures(&self) -> std::sync::MutexGuard<'_, BTreeMap<u32, (Failure, u64)>> {
        self.async_failures
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes the values of a configuration visible to plugins. While `work` runs, this thread's calls see
/// this configuration, so that backends opened at once by several threads do not mix theirs up;
/// otherwise the last one of the process counts.
pub(crate) fn with_config<T>(config: &Config, work: impl FnOnce() -> T) -> T {
    let values = Arc::new(values(config));
    *CONFIG.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&values));
    let _restore = Restore(OWN_CONFIG.replace(Some(values)));
    work()
}

/// A value as text; that of the configuration with which this thread opens a backend, else that of
/// the last one.
pub(crate) fn setting(key: &str) -> Option<String> {
    // A thread that is ending opens nothing.
    let own = OWN_CONFIG.try_with(|own| own.borrow().clone());
    let values = own.ok().flatten().or_else(|| {
        let last = CONFIG.read().unwrap_or_else(PoisonError::into_inner);
        last.clone()
    });
    values?.get(key).cloned()
}

/// Puts the thread's configuration back, also after a panic.
struct Restore(Option<Arc<Values>>);

impl Drop for Restore {
    fn drop(&mut self) {
        let before = self.0.take();
        // A thread that is ending has none to put back.
        let _ = OWN_CONFIG.try_with(|own| own.replace(before));
    }
}

/// What plugins may know: every key that is no secret, and the options, `sim.devices`.
fn values(config: &Config) -> Values {
    let table = toml::Table::try_from(config).unwrap_or_default();
    let lookup = |name: &str| match name.split_once('.') {
        Some((section, field)) => table.get(section)?.get(field).cloned(),
        None => table.get(name).cloned(),
    };
    let options = config.options.iter().flat_map(|(backend, options)| {
        let named =
            move |(option, text): (&String, &String)| (format!("{backend}.{option}"), text.clone());
        options.iter().map(named)
    });
    let public = KEYS.iter().filter(|key| !key.is_secret());
    let keys = public.filter_map(|key| {
        let text = match lookup(key.name)? {
            toml::Value::String(text) => text,
            other => other.to_string(),
        };
        Some((key.name.to_owned(), text))
    });
    // A backend called like a section gets nothing in the section's name: keys win.
    options.chain(keys).collect()
}

/// Notes when the process begins to end, so that late destructors of plugins can skip work.
fn watch_exit() {
    extern "C" fn on_exit() {
        EXITING.store(true, Ordering::Release);
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: `on_exit` only stores an atomic, and stays mapped: this is the host itself.
        let status = unsafe { libc::atexit(on_exit) };
        if status != 0 {
            tracing::debug!("atexit has no room; plugins will not be told of the exit");
        }
    });
}

/// Text that a plugin handed over. Longer texts are cut, bad UTF-8 is replaced.
///
/// # Safety
/// - `ptr` is null or valid for reading `len` bytes.
unsafe fn text(ptr: *const c_char, len: u32) -> String {
    if ptr.is_null() {
        return String::new();
    }
    let len = usize::try_from(len).map_or(TEXT_LEN_MAX, |len| len.min(TEXT_LEN_MAX));
    // SAFETY: not null (checked above), and the caller guarantees at least as many bytes.
    let bytes = unsafe { std::slice::from_raw_parts(ptr.cast::<u8>(), len) };
    String::from_utf8_lossy(bytes).into_owned()
}

fn level(raw: u32) -> Option<Level> {
    Some(match raw {
        SM_LOG_ERROR => Level::ERROR,
        SM_LOG_WARN => Level::WARN,
        SM_LOG_INFO => Level::INFO,
        SM_LOG_DEBUG => Level::DEBUG,
        SM_LOG_TRACE => Level::TRACE,
        _ => return None,
    })
}

/// The context of a call, or `None` for a null pointer.
///
/// # Safety
/// - `ctx` is null or that of a table of [`HostContext::leak`].
unsafe fn context(ctx: *mut c_void) -> Option<&'static HostContext> {
    // SAFETY: `leak` made it from a leaked box that nobody writes through.
    unsafe { ctx.cast::<HostContext>().as_ref() }
}

unsafe extern "C" fn log_enabled(_: *mut c_void, raw_level: u32, _: *const c_char, _: u32) -> i32 {
    // `tracing` filters by static targets, so all plugins share one.
    let is_enabled = match level(raw_level) {
        Some(Level::ERROR) => tracing::enabled!(target: "stepmesh_plugin", Level::ERROR),
        Some(Level::WARN) => tracing::enabled!(target: "stepmesh_plugin", Level::WARN),
        Some(Level::INFO) => tracing::enabled!(target: "stepmesh_plugin", Level::INFO),
        Some(Level::DEBUG) => tracing::enabled!(target: "stepmesh_plugin", Level::DEBUG),
        Some(_) => tracing::enabled!(target: "stepmesh_plugin", Level::TRACE),
        None => false,
    };
    i32::from(is_enabled)
}

unsafe extern "C" fn log(
    ctx: *mut c_void,
    raw_level: u32,
    target: *const c_char,
    target_len: u32,
    file: *const c_char,
    file_len: u32,
    line: u32,
    msg: *const c_char,
    msg_len: u32,
) {
    let Some(level) = level(raw_level) else {
        return;
    };
    // SAFETY: the plugin passes the `ctx` of its table.
    let Some(context) = (unsafe { context(ctx) }) else {
        return;
    };
    let plugin = context.plugin.as_str();
    // SAFETY: by the ABI each text has its length.
    let module = unsafe { text(target, target_len) };
    // SAFETY: as above.
    let file = unsafe { text(file, file_len) };
    // SAFETY: as above.
    let message = unsafe { text(msg, msg_len) };
    macro_rules! emit {
        ($level:expr) => {
            tracing::event!(
                target: "stepmesh_plugin", $level, plugin, module, file, line, "{message}"
            )
        };
    }
    match level {
        Level::ERROR => emit!(Level::ERROR),
        Level::WARN => emit!(Level::WARN),
        Level::INFO => emit!(Level::INFO),
        Level::DEBUG => emit!(Level::DEBUG),
        _ => emit!(Level::TRACE),
    }
}

unsafe extern "C" fn get_config(
    _: *mut c_void,
    key: *const c_char,
    key_len: u32,
    buf: *mut c_char,
    cap: u32,
    len: *mut u32,
) -> i32 {
    if len.is_null() || (buf.is_null() && cap > 0) {
        return SM_INVALID_ARGUMENT;
    }
    // SAFETY: by the ABI the key has its length.
    let key = unsafe { text(key, key_len) };
    let Some(value) = setting(&key) else {
        return SM_NOT_FOUND;
    };
    let Ok(value_len) = u32::try_from(value.len()) else {
        return SM_OUT_OF_RANGE;
    };
    // SAFETY: not null (checked above); the ABI says that it is the caller's to be written.
    unsafe { len.write(value_len) };
    if value_len > cap {
        return SM_OUT_OF_RANGE;
    }
    // SAFETY: `buf` has `cap` writable bytes by the ABI, at least `value.len()` as checked above,
    // and cannot overlap a string of the host's.
    unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), buf.cast::<u8>(), value.len()) };
    SM_OK
}

unsafe extern "C" fn current_stream(
    _: *mut c_void,
    dlpack_type: i32,
    dev: u32,
    stream: *mut u64,
) -> i32 {
    if stream.is_null() {
        return SM_INVALID_ARGUMENT;
    }
    let Some(current) = framework::current_stream(dlpack_type, dev) else {
        return SM_NOT_FOUND;
    };
    // SAFETY: not null (checked above); the ABI says that it is the caller's to be written.
    unsafe { stream.write(current) };
    SM_OK
}

unsafe extern "C" fn report_async_error(ctx: *mut c_void, device: u32, err: *const SmError) {
    // SAFETY: the plugin passes the `ctx` of its table.
    let Some(context) = (unsafe { context(ctx) }) else {
        return;
    };
    // SAFETY: by the ABI it is null or an error struct that says its size.
    let failure = unsafe { Failure::from_foreign(err) };
    tracing::error!(
        plugin = context.plugin,
        device,
        code = %failure.code,
        native_code = failure.native_code,
        "asynchronous failure: {}",
        failure.message
    );
    let mut failures = context.failures();
    if let Some((_, count)) = failures.get_mut(&device) {
        *count += 1;
    } else if failures.len() < ASYNC_FAILURE_DEVICES_MAX {
        failures.insert(device, (failure, 1));
    }
}

unsafe extern "C" fn trace_begin(ctx: *mut c_void, name: *const c_char, name_len: u32) -> u64 {
    if !tracing::enabled!(target: "stepmesh_plugin", Level::TRACE) {
        return 0;
    }
    // SAFETY: the plugin passes the `ctx` of its table.
    let Some(context) = (unsafe { context(ctx) }) else {
        return 0;
    };
    // SAFETY: by the ABI the text has its length.
    let name = unsafe { text(name, name_len) };
    let span = SPAN_NEXT.fetch_add(1, Ordering::Relaxed);
    let plugin = context.plugin.as_str();
    tracing::trace!(target: "stepmesh_plugin", plugin, span, name, "begin");
    span
}

unsafe extern "C" fn trace_end(_: *mut c_void, span: u64) {
    if span != 0 {
        tracing::trace!(target: "stepmesh_plugin", span, "end");
    }
}

unsafe extern "C" fn process_exiting(_: *mut c_void) -> i32 {
    i32::from(EXITING.load(Ordering::Acquire))
}

unsafe extern "C" fn alloc(_: *mut c_void, size: u64, align: u64) -> *mut c_void {
    let Some(layout) = layout(size, align) else {
        return std::ptr::null_mut();
    };
    // SAFETY: `layout` gives no layout of size 0.
    unsafe { std::alloc::alloc(layout) }.cast()
}

unsafe extern "C" fn free(_: *mut c_void, ptr: *mut c_void, size: u64, align: u64) {
    let Some(layout) = layout(size, align).filter(|_| !ptr.is_null()) else {
        return;
    };
    // SAFETY: by the ABI `ptr` came from `alloc` with this size and alignment, and is not used
    // again.
    unsafe { std::alloc::dealloc(ptr.cast(), layout) };
}

fn layout(size: u64, align: u64) -> Option<Layout> {
    let (size, align) = (usize::try_from(size).ok()?, usize::try_from(align).ok()?);
    Layout::from_size_align(size, align)
        .ok()
        .filter(|_| size > 0)
}

unsafe extern "C" fn monotonic_ns(_: *mut c_void) -> u64 {
    static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    u64::try_from(START.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Values of the configuration by key.
type Values = BTreeMap<String, String>;

thread_local! {
    /// The configuration of what this thread opens now.
    static OWN_CONFIG: RefCell<Option<Arc<Values>>> = const { RefCell::new(None) };
}

/// The last configuration of the process.
static CONFIG: RwLock<Option<Arc<Values>>> = RwLock::new(None);
/// The process is ending.
static EXITING: AtomicBool = AtomicBool::new(false);
/// 0 means that tracing is off.
static SPAN_NEXT: AtomicU64 = AtomicU64::new(1);

/// Longest text taken from a plugin, in bytes: a few screens.
const TEXT_LEN_MAX: usize = 16 << 10;
/// A plugin that reports failures of more devices than exist may not fill the memory.
const ASYNC_FAILURE_DEVICES_MAX: usize = 1024;

#[cfg(test)]
mod tests;
