//! The host's table as the checks hand it to a plugin: everything that the plugin does with it is
//! remembered, and a check can make a callback do something.
#![expect(unsafe_code, reason = "C functions that the plugin calls")]

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_char, c_void};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use stepmesh_abi::error::{SM_INVALID_ARGUMENT, SM_NOT_FOUND, SM_OK, SM_OUT_OF_RANGE};
use stepmesh_abi::{SmError, SmHdr, SmHostApi};

use super::guard::Guarded;

/// One message of the plugin's.
#[derive(Clone, Debug)]
pub(crate) struct Logged {
    pub(crate) level: u32,
    pub(crate) message: String,
}

/// What a callback of a check does; it gets the name of the function that the plugin called.
type Hook = Arc<dyn Fn(&'static str) + Send + Sync>;

/// The functions are in their order in the table; `ctx` is a mark that they check.
const API: SmHostApi = SmHostApi {
    hdr: SmHdr {
        struct_size: 0,
        abi_major: 0,
        abi_minor: 0,
    },
    ctx: std::ptr::null_mut(),
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
};

/// A host table of the given shape, alive as long as the process.
///
/// `len_bytes` is what it says it has; bytes beyond the table that this crate knows are garbage.
/// The byte after it is on a page without access.
pub(crate) fn table(len_bytes: usize, minor: u16) -> io::Result<*const SmHostApi> {
    let mut api = API;
    let struct_size = u32::try_from(len_bytes).map_err(io::Error::other)?;
    api.hdr = SmHdr {
        struct_size,
        abi_minor: minor,
        ..SmHdr::of::<SmHostApi>()
    };
    api.ctx = std::ptr::without_provenance_mut(CTX);
    let mut bytes = vec![GARBAGE; len_bytes];
    let known = len_bytes.min(size_of::<SmHostApi>());
    // SAFETY: both have at least `known` bytes, and one is a local; the table has no padding.
    unsafe {
        bytes
            .as_mut_ptr()
            .copy_from_nonoverlapping((&raw const api).cast::<u8>(), known);
    };
    let guarded = Guarded::holding(&bytes)?;
    Ok(guarded.as_ptr().cast::<SmHostApi>().cast_const())
}

/// Levels above this are not kept; 0 keeps none.
pub(crate) fn set_log_level(level: u32) {
    LOG_LEVEL.store(level, Ordering::SeqCst);
}

/// What the plugin logged so far.
pub(crate) fn logged() -> Vec<Logged> {
    lock(&LOGGED).clone()
}

/// Messages that the plugin gave although the host had said that it would not keep them.
pub(crate) fn unwanted_logs() -> u64 {
    UNWANTED.load(Ordering::SeqCst)
}

/// How often each function was called.
pub(crate) fn calls() -> BTreeMap<&'static str, u64> {
    lock(&CALLS).clone()
}

/// Failures that the plugin reported outside of calls.
pub(crate) fn async_failures() -> Vec<String> {
    lock(&ASYNC_FAILURES).clone()
}

/// Makes every function of the host call this first, unless the calling thread is in it already.
pub(crate) fn set_hook(hook: Option<Hook>) {
    *lock(&HOOK) = hook;
}

/// Gives a key of the configuration a value.
pub(crate) fn set_config(key: &str, value: &str) {
    lock(&CONFIG).insert(key.into(), value.into());
}

/// Whether the plugin asked for a key.
pub(crate) fn was_asked(key: &str) -> bool {
    lock(&ASKED).contains(key)
}

/// What `process_exiting` answers.
pub(crate) fn set_exiting(is_exiting: bool) {
    EXITING.store(is_exiting, Ordering::SeqCst);
}

/// What a plugin did that no plugin may: a foreign `ctx`, a null text, a text that is not UTF-8.
pub(crate) fn misuse() -> Vec<String> {
    lock(&MISUSE).clone()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change is one push or assignment, so the value is whole after a panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What every function does first.
fn called(name: &'static str, ctx: *mut c_void) {
    if ctx.addr() != CTX {
        lock(&MISUSE).push(format!(
            "{name} was called with another ctx than the table's"
        ));
    }
    *lock(&CALLS).entry(name).or_default() += 1;
    let hook = lock(&HOOK).clone();
    let Some(hook) = hook else { return };
    // The hook calls slots, which may call the host again.
    let is_nested = IN_HOOK.try_with(|inside| inside.replace(true));
    if is_nested == Ok(false) {
        hook(name);
        let _ = IN_HOOK.try_with(|inside| inside.set(false));
    }
}

/// # Safety
/// - `ptr` is null or valid for `len` bytes.
unsafe fn text(what: &str, ptr: *const c_char, len: u32) -> String {
    if len == 0 {
        return String::new();
    }
    if ptr.is_null() {
        lock(&MISUSE).push(format!("{what} is null, but has {len} bytes"));
        return String::new();
    }
    let len = usize::try_from(len).map_or(TEXT_LEN_MAX, |len| len.min(TEXT_LEN_MAX));
    // SAFETY: not null, and valid for at least as many bytes by this function's contract.
    let bytes = unsafe { std::slice::from_raw_parts(ptr.cast::<u8>(), len) };
    if std::str::from_utf8(bytes).is_err() && len < TEXT_LEN_MAX {
        lock(&MISUSE).push(format!("{what} is not UTF-8"));
    }
    String::from_utf8_lossy(bytes).into_owned()
}

unsafe extern "C" fn log_enabled(
    ctx: *mut c_void,
    level: u32,
    target: *const c_char,
    target_len: u32,
) -> i32 {
    called("log_enabled", ctx);
    // SAFETY: by the ABI the text has its length.
    unsafe { text("the target of log_enabled", target, target_len) };
    i32::from(level <= LOG_LEVEL.load(Ordering::SeqCst))
}

unsafe extern "C" fn log(
    ctx: *mut c_void,
    level: u32,
    target: *const c_char,
    target_len: u32,
    file: *const c_char,
    file_len: u32,
    _line: u32,
    msg: *const c_char,
    msg_len: u32,
) {
    called("log", ctx);
    // SAFETY: by the ABI the text has its length.
    unsafe { text("the target of log", target, target_len) };
    // SAFETY: as above.
    unsafe { text("the file of log", file, file_len) };
    // SAFETY: as above.
    let message = unsafe { text("the message of log", msg, msg_len) };
    if level > LOG_LEVEL.load(Ordering::SeqCst) {
        UNWANTED.fetch_add(1, Ordering::SeqCst);
    }
    lock(&LOGGED).push(Logged { level, message });
}

unsafe extern "C" fn get_config(
    ctx: *mut c_void,
    key: *const c_char,
    key_len: u32,
    buf: *mut c_char,
    cap: u32,
    len: *mut u32,
) -> i32 {
    called("get_config", ctx);
    // SAFETY: by the ABI the key has its length.
    let key = unsafe { text("the key of get_config", key, key_len) };
    if len.is_null() || (buf.is_null() && cap > 0) {
        lock(&MISUSE).push(format!("get_config of `{key}` with a null pointer"));
        return SM_INVALID_ARGUMENT;
    }
    lock(&ASKED).insert(key.clone());
    let Some(value) = lock(&CONFIG).get(&key).cloned() else {
        return SM_NOT_FOUND;
    };
    let value_len = u32::try_from(value.len()).unwrap_or(u32::MAX);
    // SAFETY: not null (checked above), and the caller's to be written by the ABI.
    unsafe { len.write(value_len) };
    if value_len > cap {
        return SM_OUT_OF_RANGE;
    }
    // SAFETY: `buf` has `cap` writable bytes by the ABI, at least as many as the value.
    unsafe {
        buf.cast::<u8>()
            .copy_from_nonoverlapping(value.as_ptr(), value.len())
    };
    SM_OK
}

unsafe extern "C" fn current_stream(ctx: *mut c_void, _: i32, _: u32, _: *mut u64) -> i32 {
    called("current_stream", ctx);
    SM_NOT_FOUND
}

unsafe extern "C" fn report_async_error(ctx: *mut c_void, dev: u32, err: *const SmError) {
    called("report_async_error", ctx);
    if err.is_null() {
        lock(&MISUSE).push("report_async_error without an error".into());
        return;
    }
    // SAFETY: not null; by the ABI it starts with its size.
    let size = unsafe { err.cast::<u32>().read_unaligned() };
    if usize::try_from(size).unwrap_or(0) < size_of::<SmError>() {
        lock(&MISUSE).push(format!("report_async_error with an error of {size} bytes"));
        return;
    }
    // SAFETY: not null, and as large as this crate's struct by its own word.
    let error = unsafe { err.read_unaligned() };
    lock(&ASYNC_FAILURES).push(format!("device {dev}: {error:?}"));
}

unsafe extern "C" fn trace_begin(ctx: *mut c_void, name: *const c_char, name_len: u32) -> u64 {
    called("trace_begin", ctx);
    // SAFETY: by the ABI the text has its length.
    unsafe { text("the name of trace_begin", name, name_len) };
    SPANS.fetch_add(1, Ordering::SeqCst)
}

unsafe extern "C" fn trace_end(ctx: *mut c_void, _: u64) {
    called("trace_end", ctx);
}

unsafe extern "C" fn process_exiting(ctx: *mut c_void) -> i32 {
    called("process_exiting", ctx);
    i32::from(EXITING.load(Ordering::SeqCst))
}

/// This host has no memory to give: a plugin must do without.
unsafe extern "C" fn alloc(ctx: *mut c_void, _: u64, _: u64) -> *mut c_void {
    called("alloc", ctx);
    std::ptr::null_mut()
}

unsafe extern "C" fn free(ctx: *mut c_void, ptr: *mut c_void, _: u64, _: u64) {
    called("free", ctx);
    if !ptr.is_null() {
        lock(&MISUSE).push("free of memory that the host never gave".into());
    }
}

unsafe extern "C" fn monotonic_ns(ctx: *mut c_void) -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    called("monotonic_ns", ctx);
    u64::try_from(START.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

thread_local! {
    static IN_HOOK: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

static LOGGED: Mutex<Vec<Logged>> = Mutex::new(Vec::new());
static CALLS: Mutex<BTreeMap<&'static str, u64>> = Mutex::new(BTreeMap::new());
static ASYNC_FAILURES: Mutex<Vec<String>> = Mutex::new(Vec::new());
static MISUSE: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// Keys that have a value.
static CONFIG: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());
static ASKED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
static HOOK: Mutex<Option<Hook>> = Mutex::new(None);
static LOG_LEVEL: AtomicU32 = AtomicU32::new(stepmesh_abi::host::SM_LOG_TRACE);
static UNWANTED: AtomicU64 = AtomicU64::new(0);
static SPANS: AtomicU64 = AtomicU64::new(1);
static EXITING: AtomicBool = AtomicBool::new(false);

/// What `ctx` is: no address, so that a plugin that follows it dies.
const CTX: usize = 0x51;
/// What lies beyond the part of the table that both sides know.
const GARBAGE: u8 = 0xa5;
/// Longest text that is looked at.
const TEXT_LEN_MAX: usize = 1 << 16;
