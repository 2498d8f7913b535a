//! The host's table as a plugin sees it, misuse included.
#![expect(unsafe_code, reason = "plays a plugin")]

use std::ffi::{c_char, c_void};
use std::ptr;

use stepmesh_abi::error::{
    SM_DATA_LOSS, SM_INVALID_ARGUMENT, SM_NOT_FOUND, SM_OK, SM_OUT_OF_RANGE,
};
use stepmesh_abi::host::SM_LOG_ERROR;
use stepmesh_abi::{Code, SmError, SmHostApi};

use super::{ASYNC_FAILURE_DEVICES_MAX, HostContext, with_config};
use crate::config::Config;

fn host() -> (&'static HostContext, &'static SmHostApi) {
    HostContext::leak("tests".into())
}

/// Status, length and the first bytes of a key.
fn config(key: &str, cap: u32) -> (i32, u32, [u8; 8]) {
    let (_, api) = host();
    let (mut buf, mut len) = ([0_u8; 8], 0);
    let key_len = u32::try_from(key.len()).unwrap();
    // SAFETY: the key has its length, the buffer at least `cap` bytes.
    let status = unsafe {
        api.get_config.unwrap()(
            api.ctx,
            key.as_ptr().cast(),
            key_len,
            buf.as_mut_ptr().cast(),
            cap,
            &raw mut len,
        )
    };
    (status, len, buf)
}

#[test]
fn values_are_copied_and_their_length_is_told_when_they_do_not_fit() {
    let mut with_options = Config::default();
    let of_sim = with_options.options.entry("sim".into()).or_default();
    of_sim.insert("devices".into(), "4".into());
    with_config(&with_options, || {
        assert_eq!(config("sim.devices", 8), (SM_OK, 1, *b"4\0\0\0\0\0\0\0"));
        // Another thread's open does not change what this one's plugin sees.
        std::thread::scope(|scope| {
            scope.spawn(|| with_config(&Config::default(), || {}));
        });
        assert_eq!(config("sim.devices", 8).0, SM_OK);
    });
    assert_eq!(config("sim.devices", 8).0, SM_NOT_FOUND);
    assert_eq!(config("transport.kind", 8), (SM_OK, 4, *b"auto\0\0\0\0"));
    assert_eq!(config("transport.kind", 4).0, SM_OK);
    assert_eq!(config("transport.kind", 3), (SM_OUT_OF_RANGE, 4, [0; 8]));
    assert_eq!(config("mesh.workers", 8), (SM_OK, 1, *b"1\0\0\0\0\0\0\0"));
    assert_eq!(config("mesh.token", 8), (SM_NOT_FOUND, 0, [0; 8]));
    assert_eq!(config("no.such", 8), (SM_NOT_FOUND, 0, [0; 8]));
    assert_eq!(config("", 8), (SM_NOT_FOUND, 0, [0; 8]));
}

#[test]
fn null_pointers_are_refused_where_they_mean_nothing() {
    let (_, api) = host();
    let (null, key) = (ptr::null_mut::<c_char>(), c"backend".as_ptr());
    // SAFETY: null for the length is what is tested.
    let status = unsafe { api.get_config.unwrap()(api.ctx, key, 7, null, 0, ptr::null_mut()) };
    assert_eq!(status, SM_INVALID_ARGUMENT);
    // SAFETY: a null context and null texts are what is tested.
    unsafe {
        api.log.unwrap()(ptr::null_mut(), SM_LOG_ERROR, null, 9, null, 9, 1, null, 9);
    }
    // SAFETY: null texts and an unknown level are what is tested.
    unsafe { api.log.unwrap()(api.ctx, 99, null, 9, null, 9, 1, null, 9) };
    // SAFETY: an unknown level is what is tested.
    assert_eq!(unsafe { api.log_enabled.unwrap()(api.ctx, 99, null, 0) }, 0);
}

#[test]
fn only_the_first_failure_of_a_device_is_kept_and_the_devices_are_limited() {
    let (context, api) = host();
    let report = api.report_async_error.unwrap();
    for message in ["first", "second"] {
        let error = SmError::with_message(SM_DATA_LOSS, message);
        // SAFETY: a live error struct of its size.
        unsafe { report(api.ctx, 3, &raw const error) };
    }
    let (failure, count) = context.take_async_failure(3).unwrap();
    assert_eq!((failure.message.as_str(), count), ("first", 2));
    for device in 0..5000 {
        // SAFETY: null is what is tested.
        unsafe { report(api.ctx, device, ptr::null()) };
    }
    let kept = (0..5000)
        .filter(|device| context.take_async_failure(*device).is_some())
        .count();
    assert_eq!(kept, ASYNC_FAILURE_DEVICES_MAX);
}

#[test]
fn an_error_struct_of_an_older_plugin_is_read_to_its_end_only() {
    let (context, api) = host();
    // Sixteen bytes: size, code and native code.
    let short: [u32; 4] = [16, SM_DATA_LOSS.cast_unsigned(), 5, 0];
    // SAFETY: the struct has the size that it says.
    unsafe { api.report_async_error.unwrap()(api.ctx, 0, short.as_ptr().cast()) };
    let (failure, _) = context.take_async_failure(0).unwrap();
    assert_eq!((failure.code, failure.native_code), (Code::DataLoss, 5));
    assert_eq!(failure.message, "the backend gave no reason");
}

#[test]
fn bookkeeping_memory_is_aligned_and_impossible_requests_give_null() {
    let (_, api) = host();
    let alloc = api.alloc.unwrap();
    for (size, align) in [(0, 8), (8, 3), (8, 0), (u64::MAX, 8), (8, u64::MAX)] {
        // SAFETY: impossible requests are what is tested.
        let at = unsafe { alloc(api.ctx, size, align) };
        assert!(at.is_null(), "{size} {align}");
    }
    // SAFETY: a proper request.
    let at: *mut c_void = unsafe { alloc(api.ctx, 100, 64) };
    assert!(!at.is_null() && at.addr().is_multiple_of(64));
    // SAFETY: given back as it was asked for.
    unsafe { api.free.unwrap()(api.ctx, at, 100, 64) };
    // SAFETY: null is fine.
    unsafe { api.free.unwrap()(api.ctx, ptr::null_mut(), 100, 64) };
}

#[test]
fn the_clock_does_not_go_back_and_the_process_is_not_exiting() {
    let (_, api) = host();
    let now = api.monotonic_ns.unwrap();
    // SAFETY: takes the context only.
    let first = unsafe { now(api.ctx) };
    // SAFETY: as above.
    let second = unsafe { now(api.ctx) };
    assert!(second >= first);
    // SAFETY: as above.
    assert_eq!(unsafe { api.process_exiting.unwrap()(api.ctx) }, 0);
}

#[test]
fn no_framework_means_no_current_stream_and_no_trace_means_no_span() {
    let (_, api) = host();
    let mut stream = 7;
    // SAFETY: the out pointer is a live local.
    let status = unsafe { api.current_stream.unwrap()(api.ctx, 2, 0, &raw mut stream) };
    assert_eq!((status, stream), (SM_NOT_FOUND, 7));
    // SAFETY: the name has its length.
    let span = unsafe { api.trace_begin.unwrap()(api.ctx, c"copy".as_ptr(), 4) };
    assert_eq!(span, 0);
    // SAFETY: ends what was begun.
    unsafe { api.trace_end.unwrap()(api.ctx, span) };
}
