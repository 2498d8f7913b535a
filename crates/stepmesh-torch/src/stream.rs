//! Torch's current stream as the answer to whoever asks the host for the current one.
#![expect(unsafe_code, reason = "vouches for torch's streams")]

use stepmesh_core::set_current_stream_source;

use crate::{Error, device, sys};

/// Has [`Device::current_stream`](stepmesh_core::Device::current_stream), and plugins that ask the
/// host, follow torch: they then get the stream that the asking thread of torch works on. Once in a
/// process.
///
/// # Errors
/// [`Error::Core`] when a framework was named before.
pub fn follow_torch_streams() -> Result<(), Error> {
    // SAFETY: libtorch owns its streams, and keeps them until the process ends.
    unsafe { set_current_stream_source(current_stream) }?;
    Ok(())
}

fn current_stream(dlpack_type: i32, device_id: u32) -> Option<u64> {
    // CPU work of torch is done when the call returns: there is no stream to name.
    if ![DLPACK_CUDA, DLPACK_ROCM].contains(&dlpack_type) {
        return None;
    }
    match sys::current_stream(device::CUDA, i32::try_from(device_id).ok()?) {
        // Torch's default stream is null: the legacy one, which the ABI writes as 1.
        Ok(0) => Some(STREAM_LEGACY),
        Ok(stream) => Some(stream),
        Err(_) => None,
    }
}

/// `kDLCUDA` of dlpack.h.
const DLPACK_CUDA: i32 = 2;
/// `kDLROCM` of dlpack.h.
const DLPACK_ROCM: i32 = 10;
/// The default stream in the words of the ABI.
const STREAM_LEGACY: u64 = stepmesh_core::abi::stream::SM_STREAM_LEGACY;
