//! What a framework beside the mesh (PyTorch) says about itself: the stream that it works on.
#![expect(unsafe_code, reason = "a setter whose caller vouches for streams")]

use std::sync::OnceLock;

use crate::Error;

/// Names whom the host asks for a device's current stream: by the type (`DLDeviceType`) and index of
/// the device, in DLPack's terms. It answers the stream in the terms of the vendor's library, or
/// `None` when the framework does not use that device. Set once in a process; any thread may ask.
///
/// # Safety
/// - What it answers is a stream of that device, which lives as long as the process uses it.
///
/// # Errors
/// `InvalidArgument` when one was set before: two frameworks would disagree.
pub unsafe fn set_current_stream_source(
    source: fn(dlpack_type: i32, device_id: u32) -> Option<u64>,
) -> Result<(), Error> {
    SOURCE.set(source).map_err(|_| Error::InvalidArgument {
        operation: "set_current_stream_source",
        fault: "a source was set before".into(),
    })
}

pub(crate) fn current_stream(dlpack_type: i32, device_id: u32) -> Option<u64> {
    SOURCE.get()?(dlpack_type, device_id)
}

static SOURCE: OnceLock<fn(i32, u32) -> Option<u64>> = OnceLock::new();

#[cfg(test)]
mod tests;
