//! Arguments that no method may ever see.

use std::ffi::c_void;
use std::ptr::null_mut;

use stepmesh_plugin::abi::error::{SM_INVALID_ARGUMENT, SM_OK};
use stepmesh_plugin::abi::stream::{SM_STREAM_CURRENT, SM_STREAM_LEGACY};
use stepmesh_plugin::abi::{SmDeviceInfo, SmError};

use crate::support::{message, open};

fn check(expected: &str, call: impl FnOnce(*mut SmError) -> i32) {
    let mut err = SmError::new();
    assert_eq!(call(&raw mut err), SM_INVALID_ARGUMENT, "{expected}");
    assert_eq!(err.code, SM_INVALID_ARGUMENT);
    assert!(
        message(&err).contains(expected),
        "{} lacks {expected}",
        message(&err)
    );
}

#[test]
#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "one contract for a table of calls"
)]
fn wrong_arguments_are_named() {
    let o = open();
    let (api, s) = (o.api, o.s);
    let mut out = 0;
    let ptr = &raw mut out;
    // SAFETY: in every call below: an open instance or null, and out pointers that are locals or
    // null.
    unsafe {
        check("the instance is null", |e| {
            (api.device_sync.unwrap())(null_mut(), 0, e)
        });
        check("device 2 does not exist", |e| {
            (api.device_sync.unwrap())(s, 2, e)
        });
        check("out pointer is null", |e| {
            (api.capabilities.unwrap())(s, 0, null_mut(), e)
        });
        check("out struct is null", |e| {
            (api.device_info.unwrap())(s, 0, null_mut(), e)
        });
        check("kind 9", |e| (api.alloc.unwrap())(s, 0, 8, 0, 9, 0, ptr, e));
        check("alignment 3", |e| {
            (api.alloc.unwrap())(s, 0, 8, 3, 1, 0, ptr, e)
        });
        check("flags 0x80", |e| {
            (api.alloc.unwrap())(s, 0, 8, 0, 1, 0x80, ptr, e)
        });
        check("0x10 is not the start", |e| {
            (api.free.unwrap())(s, 0, 0x10, e)
        });
        check("stream 0", |e| (api.stream_sync.unwrap())(s, 0, 0, 1, e));
        check("resolved by the host", |e| {
            (api.stream_sync.unwrap())(s, 0, SM_STREAM_CURRENT, 1, e)
        });
        check("device 7", |e| {
            (api.stream_sync.unwrap())(s, 7, SM_STREAM_LEGACY, 1, e)
        });
        check("direction 8", |e| {
            (api.memcpy_async.unwrap())(s, 1, 1, 1, 8, 0, 0, 0, 1, e)
        });
        check("null address", |e| {
            (api.memcpy_async.unwrap())(s, 0, 1, 1, 0, 0, 0, 0, 1, e)
        });
        check("event is null", |e| {
            (api.event_record.unwrap())(s, null_mut(), 0, 1, e)
        });
        check("wait mode", |e| {
            let mut event = null_mut();
            (api.event_create.unwrap())(s, 0, 0, &raw mut event, null_mut());
            let code = (api.event_sync.unwrap())(s, event, 0, 3, e);
            (api.event_destroy.unwrap())(s, event, null_mut());
            code
        });
        check("function is null", |e| {
            (api.launch_host_func.unwrap())(s, 0, 1, None, null_mut(), e)
        });
    }
}

#[test]
fn size_zero_is_address_zero_and_null_destroys_are_fine() {
    let o = open();
    let mut ptr = 7;
    // SAFETY: an open instance and a local out pointer.
    let code = unsafe { (o.api.alloc.unwrap())(o.s, 0, 0, 0, 1, 0, &raw mut ptr, null_mut()) };
    assert_eq!((code, ptr), (SM_OK, 0));
    // SAFETY: an open instance.
    let code = unsafe { (o.api.event_destroy.unwrap())(o.s, null_mut(), null_mut()) };
    assert_eq!(code, SM_OK);
}

#[test]
fn a_host_function_that_is_dropped_ran_once() {
    unsafe extern "C" fn count(arg: *mut c_void) {
        // SAFETY: the argument is the test's local, which outlives the call.
        unsafe { *arg.cast::<u32>() += 1 };
    }
    let o = open();
    let mut calls = 0_u32;
    let arg = (&raw mut calls).cast();
    let launch = o.api.launch_host_func.unwrap();
    // SAFETY: an open instance; the fake runs the function before it returns.
    let code = unsafe { launch(o.s, 0, SM_STREAM_LEGACY, Some(count), arg, null_mut()) };
    assert_eq!((code, calls), (SM_OK, 1));
}

#[test]
fn device_text_is_padded() {
    let o = open();
    let mut info = SmDeviceInfo::new();
    // SAFETY: an open instance and a local struct that says its size.
    let code = unsafe { (o.api.device_info.unwrap())(o.s, 1, &raw mut info, null_mut()) };
    assert_eq!(code, SM_OK);
    assert_eq!(info.name[6], 0);
    assert_eq!(info.total_mem, 4096);
}
