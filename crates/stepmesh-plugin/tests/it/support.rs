//! A host for the tests: a table with a log and configuration, and an opened instance.

use std::ffi::{c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::Mutex;

use stepmesh_plugin::abi::error::{SM_NOT_FOUND, SM_OK};
use stepmesh_plugin::abi::{SmBackend, SmBackendApi, SmError, SmHostApi, SmOpenArgs};

use crate::fake;

/// What the host saw; every test has its own, leaked as a real host's table is.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) async_errors: Mutex<Vec<String>>,
    pub(crate) open_mode: &'static str,
}

pub(crate) fn host(open_mode: &'static str) -> (&'static SmHostApi, &'static Seen) {
    let seen: &'static Seen = Box::leak(Box::new(Seen {
        open_mode,
        ..Seen::default()
    }));
    let api = SmHostApi {
        ctx: std::ptr::from_ref(seen).cast_mut().cast(),
        get_config: Some(get_config),
        report_async_error: Some(report_async_error),
        ..SmHostApi::new()
    };
    (Box::leak(Box::new(api)), seen)
}

pub(crate) fn api(host: &'static SmHostApi) -> &'static SmBackendApi {
    let mut err = SmError::new();
    // SAFETY: the table is static and the error a local.
    let api = unsafe { fake::query(host, &raw mut err) };
    // SAFETY: the answer is null or a static table.
    unsafe { api.as_ref() }.expect("a whole host is served")
}

/// An instance, closed at the end unless the test did so.
pub(crate) struct Opened {
    pub(crate) api: &'static SmBackendApi,
    pub(crate) s: *mut SmBackend,
}

pub(crate) fn open() -> Opened {
    let (host, _) = host("");
    let api = api(host);
    let (code, s, err) = try_open(api, host);
    assert_eq!(code, SM_OK, "{err:?}");
    Opened { api, s }
}

pub(crate) fn try_open(
    api: &SmBackendApi,
    host: *const SmHostApi,
) -> (i32, *mut SmBackend, SmError) {
    let mut err = SmError::new();
    let mut s = null_mut();
    let args = SmOpenArgs::new();
    // SAFETY: table, arguments, out pointer and error are valid for the call.
    let code =
        unsafe { (api.open.expect(REQUIRED))(host, &raw const args, &raw mut s, &raw mut err) };
    (code, s, err)
}

impl Opened {
    pub(crate) fn device_sync(&self, device: u32) -> (i32, SmError) {
        let mut err = SmError::new();
        // SAFETY: an open instance and a local error.
        let code = unsafe { (self.api.device_sync.expect(REQUIRED))(self.s, device, &raw mut err) };
        (code, err)
    }

    pub(crate) fn alloc(&self, size: u64, err: *mut SmError) -> i32 {
        let mut ptr = 0;
        // SAFETY: an open instance, a local out pointer, and an error that the test vouches for.
        unsafe { (self.api.alloc.expect(REQUIRED))(self.s, 0, size, 0, 1, 0, &raw mut ptr, err) }
    }

    pub(crate) fn close(mut self) -> (i32, SmError) {
        let mut err = SmError::new();
        let s = std::mem::replace(&mut self.s, null_mut());
        // SAFETY: an open instance that nothing uses any more.
        let code = unsafe { (self.api.close.expect(REQUIRED))(s, &raw mut err) };
        (code, err)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if !self.s.is_null() {
            // SAFETY: an open instance that nothing uses any more.
            let code = unsafe { (self.api.close.expect(REQUIRED))(self.s, null_mut()) };
            assert_eq!(code, SM_OK);
        }
    }
}

pub(crate) fn message(err: &SmError) -> String {
    let bytes = err.message_bytes();
    String::from_utf8(bytes[..err.message_len()].to_vec()).expect("messages are utf-8")
}

unsafe extern "C" fn get_config(
    ctx: *mut c_void,
    key: *const c_char,
    key_len: u32,
    buf: *mut c_char,
    cap: u32,
    len: *mut u32,
) -> i32 {
    // SAFETY: the context is the leaked `Seen`.
    let seen = unsafe { &*ctx.cast::<Seen>() };
    // SAFETY: the kit passes a key of that length.
    let key = unsafe { std::slice::from_raw_parts(key.cast::<u8>(), key_len as usize) };
    let value = seen.open_mode.as_bytes();
    if key != b"fake.open" || value.is_empty() || value.len() > cap as usize {
        return SM_NOT_FOUND;
    }
    // SAFETY: the buffer has `cap` bytes, at least as many as the value.
    unsafe {
        buf.cast::<u8>()
            .copy_from_nonoverlapping(value.as_ptr(), value.len())
    };
    // SAFETY: the kit passes a place for the length.
    unsafe { len.write(u32::try_from(value.len()).unwrap_or(0)) };
    SM_OK
}

unsafe extern "C" fn report_async_error(ctx: *mut c_void, dev: u32, err: *const SmError) {
    assert_ne!(err, null());
    // SAFETY: the context is the leaked `Seen`.
    let seen = unsafe { &*ctx.cast::<Seen>() };
    // SAFETY: the kit passes an error that outlives the call.
    let err = unsafe { &*err };
    seen.async_errors
        .lock()
        .expect("no test panics while it holds this")
        .push(format!("{dev}: {}", message(err)));
}

const REQUIRED: &str = "the slot is required";
