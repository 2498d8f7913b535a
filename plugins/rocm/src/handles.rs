//! Numbers of the ABI as HIP has them, and back.
#![forbid(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use hip_sys::hiprt::hipStream_t;
use stepmesh_driver::Answer;
use stepmesh_plugin::abi::stream::SM_STREAM_LEGACY;

/// The address that a call puts into a place.
pub(crate) fn made(make: impl FnOnce(*mut *mut c_void) -> Answer<()>) -> Answer<u64> {
    let mut ptr: *mut c_void = null_mut();
    make(&raw mut ptr)?;
    Ok(to_u64(ptr.expose_provenance()))
}

/// A stream of the ABI as HIP has it: the legacy default stream is the null stream in every version, and
/// the thread's has the ABI's number.
pub(crate) fn stream_of(stream: u64) -> hipStream_t {
    if stream == SM_STREAM_LEGACY {
        null_mut()
    } else {
        handle(stream)
    }
}

/// A handle or address of the ABI as the pointer that it is to HIP.
pub(crate) fn handle<T>(number: u64) -> *mut T {
    std::ptr::with_exposed_provenance_mut(to_usize(number))
}

pub(crate) fn ordinal(device: u32) -> c_int {
    // What does not fit is refused as no device.
    c_int::try_from(device).unwrap_or(-1)
}

pub(crate) fn to_u64(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

pub(crate) fn to_usize(number: u64) -> usize {
    // What does not fit is refused by HIP as out of memory or invalid.
    usize::try_from(number).unwrap_or(usize::MAX)
}
