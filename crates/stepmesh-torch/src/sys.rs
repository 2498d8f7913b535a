//! The functions of cpp/tensor.cc, each as a `Result`. Exceptions were stopped there.
#![expect(unsafe_code, reason = "calls C++")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use tch::Tensor;
use torch_sys::C_tensor;

use crate::Error;
use crate::dlpack::RawManagedTensor;

/// What a dense tensor is.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Facts {
    pub(crate) storage_address: u64,
    pub(crate) storage_len_bytes: u64,
    pub(crate) offset_bytes: u64,
    /// `DLDataTypeCode`.
    pub(crate) dlpack_code: i32,
    pub(crate) dlpack_bits: i32,
    /// `c10::DeviceType`.
    pub(crate) device_type: i32,
    /// `-1` where there is only one.
    pub(crate) device_index: i32,
    pub(crate) is_contiguous: i32,
    pub(crate) rank: i32,
}

/// Whom a tensor over foreign memory lets go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner {
    pub(crate) context: *mut c_void,
    /// Called once, from any thread.
    pub(crate) drop: unsafe extern "C" fn(*mut c_void),
}

/// Memory that a tensor is to be made over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    pub(crate) address: u64,
    pub(crate) dims: &'a [i64],
    /// `c10::ScalarType`.
    pub(crate) scalar_type: i32,
    pub(crate) device_type: i32,
    pub(crate) device_index: i32,
}

/// The facts of a tensor and its dimensions.
pub(crate) fn facts(tensor: &Tensor) -> Result<(Facts, Vec<i64>), Error> {
    let mut facts = Facts::default();
    let mut dims = [0_i64; stepmesh::RANK_MAX];
    let rank_max = c_int::try_from(dims.len()).unwrap_or(0);
    call("reading the facts of a tensor", |message, cap| {
        let (facts, dims) = (&raw mut facts, dims.as_mut_ptr());
        // SAFETY: a live tensor, a live struct of the mirrored layout, `rank_max` dimensions.
        unsafe { stepmesh_torch_facts(tensor.as_ptr(), facts, dims, rank_max, message, cap) }
    })?;
    let rank = usize::try_from(facts.rank).unwrap_or(0).min(dims.len());
    Ok((facts, dims[..rank].to_vec()))
}

/// Where a tensor is, as torch writes it: `cpu`, `cuda:0`, `lazy:0`.
pub(crate) fn device_name(tensor: &Tensor) -> Result<String, Error> {
    let mut name = [0; DEVICE_NAME_LEN_BYTES];
    call("asking where a tensor is", |message, cap| {
        let (out, out_cap) = (name.as_mut_ptr(), name.len());
        // SAFETY: a live tensor, `out_cap` bytes of a live local.
        unsafe { stepmesh_torch_device_name(tensor.as_ptr(), out, out_cap, message, cap) }
    })?;
    // SAFETY: on success a text with its end.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) };
    Ok(name.to_string_lossy().into_owned())
}

/// A tensor over memory that `owner` keeps. The owner is let go once, also on failure.
///
/// # Safety
/// - The dimensions' bytes from the address on are memory of that device until the owner is let go.
/// - `owner.drop` may be called with its context once, from any thread.
pub(crate) unsafe fn tensor_over(place: Place<'_>, owner: Owner) -> Result<Tensor, Error> {
    let mut out: *mut C_tensor = ptr::null_mut();
    let address = ptr::with_exposed_provenance_mut(usize::try_from(place.address).unwrap_or(0));
    let rank = c_int::try_from(place.dims.len()).unwrap_or(0);
    call("making a tensor over memory of the mesh", |message, cap| {
        // SAFETY: the caller's promises; `dims` has `rank` numbers, the out pointer is a live local.
        unsafe {
            stepmesh_torch_from_memory(
                address,
                place.dims.as_ptr(),
                rank,
                place.scalar_type,
                place.device_type,
                place.device_index,
                owner.context,
                owner.drop,
                &raw mut out,
                message,
                cap,
            )
        }
    })?;
    // SAFETY: on success it is a new tensor, owned by nobody else.
    Ok(unsafe { Tensor::from_ptr(out) })
}

/// The tensor as DLPack; not null.
pub(crate) fn to_dlpack(tensor: &Tensor) -> Result<*mut RawManagedTensor, Error> {
    let mut out = ptr::null_mut();
    call("exporting a tensor as DLPack", |message, cap| {
        // SAFETY: a live tensor, a live out pointer.
        unsafe { stepmesh_torch_to_dlpack(tensor.as_ptr(), &raw mut out, message, cap) }
    })?;
    Ok(out)
}

/// A tensor over a DLPack tensor, which is taken only on success.
///
/// # Safety
/// - `managed` is a valid, owned DLPack tensor whose deleter may be called from any thread.
pub(crate) unsafe fn from_dlpack(managed: *mut RawManagedTensor) -> Result<Tensor, Error> {
    let mut out: *mut C_tensor = ptr::null_mut();
    call("importing a tensor from DLPack", |message, cap| {
        // SAFETY: the caller's promise; the out pointer is a live local.
        unsafe { stepmesh_torch_from_dlpack(managed, &raw mut out, message, cap) }
    })?;
    // SAFETY: on success it is a new tensor, owned by nobody else.
    Ok(unsafe { Tensor::from_ptr(out) })
}

/// The stream that this thread works on, in the terms of the vendor's library.
pub(crate) fn current_stream(device_type: i32, device_index: i32) -> Result<u64, Error> {
    let mut stream = 0;
    call("asking for the current stream", |message, cap| {
        let out = &raw mut stream;
        // SAFETY: the out pointer is a live local.
        unsafe { stepmesh_torch_current_stream(device_type, device_index, out, message, cap) }
    })?;
    Ok(stream)
}

#[cfg(feature = "lazy")]
pub(crate) use lazy::{
    lazy_counter, lazy_mark_step, lazy_metrics_report, lazy_register, lazy_reset_metrics,
    lazy_to_device, lazy_use_reference,
};

#[cfg(feature = "lazy")]
mod lazy {
    //! The functions of cpp/lazy.cc.

    use std::ffi::{CStr, CString, c_char, c_int};
    use std::ptr;

    use tch::Tensor;
    use torch_sys::C_tensor;

    use super::call;
    use crate::Error;
    use crate::lazy::Hooks;

    /// Registers the backend.
    pub(crate) fn lazy_register(hooks: &'static Hooks) -> Result<(), Error> {
        call("registering the lazy backend", |message, cap| {
            // SAFETY: the table is static, and laid out as cpp/lazy.h says.
            unsafe { stepmesh_lazy_register(hooks, message, cap) }
        })
    }

    pub(crate) fn lazy_use_reference(is_reference: bool) -> Result<(), Error> {
        let is_reference = c_int::from(is_reference);
        call("choosing a lazy backend", |message, cap| {
            // SAFETY: no pointer but the message's.
            unsafe { stepmesh_lazy_use_reference(is_reference, message, cap) }
        })
    }

    pub(crate) fn lazy_to_device(tensor: &Tensor, ordinal: u32) -> Result<Tensor, Error> {
        let mut out: *mut C_tensor = ptr::null_mut();
        call("moving a tensor to a lazy device", |message, cap| {
            let (tensor, ordinal) = (tensor.as_ptr(), i64::from(ordinal));
            // SAFETY: a live tensor, a live out pointer.
            unsafe { stepmesh_lazy_to_device(tensor, ordinal, &raw mut out, message, cap) }
        })?;
        // SAFETY: on success it is a new tensor, owned by nobody else.
        Ok(unsafe { Tensor::from_ptr(out) })
    }

    pub(crate) fn lazy_mark_step(ordinal: u32, waits: bool) -> Result<(), Error> {
        let (ordinal, waits) = (i64::from(ordinal), c_int::from(waits));
        call("ending a step of a lazy device", |message, cap| {
            // SAFETY: no pointer but the message's.
            unsafe { stepmesh_lazy_mark_step(ordinal, waits, message, cap) }
        })
    }

    pub(crate) fn lazy_counter(name: &str) -> Result<i64, Error> {
        let operation = "reading a counter of the lazy core";
        let name = CString::new(name).map_err(|error| Error::Torch {
            operation,
            message: error.to_string(),
        })?;
        let mut value = 0;
        call(operation, |message, cap| {
            // SAFETY: a text with its end, a live out pointer.
            unsafe { stepmesh_lazy_counter(name.as_ptr(), &raw mut value, message, cap) }
        })?;
        Ok(value)
    }

    pub(crate) fn lazy_reset_metrics() -> Result<(), Error> {
        call("resetting the lazy core's metrics", |message, cap| {
            // SAFETY: no pointer but the message's.
            unsafe { stepmesh_lazy_reset_metrics(message, cap) }
        })
    }

    pub(crate) fn lazy_metrics_report() -> Result<String, Error> {
        let mut text = ptr::null_mut();
        call("reading the lazy core's metrics", |message, cap| {
            // SAFETY: a live out pointer.
            unsafe { stepmesh_lazy_metrics(&raw mut text, message, cap) }
        })?;
        // SAFETY: on success a text with its end, which is ours until it is given back.
        let report = unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned();
        // SAFETY: given back once.
        unsafe { stepmesh_lazy_free_text(text) };
        Ok(report)
    }

    // SAFETY: as declared in cpp/lazy.cc.
    unsafe extern "C" {
        fn stepmesh_lazy_register(table: *const Hooks, message: *mut c_char, cap: usize) -> c_int;
        fn stepmesh_lazy_use_reference(
            is_reference: c_int,
            message: *mut c_char,
            cap: usize,
        ) -> c_int;
        fn stepmesh_lazy_to_device(
            tensor: *const C_tensor,
            ordinal: i64,
            out: *mut *mut C_tensor,
            message: *mut c_char,
            cap: usize,
        ) -> c_int;
        fn stepmesh_lazy_mark_step(
            ordinal: i64,
            wait: c_int,
            message: *mut c_char,
            cap: usize,
        ) -> c_int;
        fn stepmesh_lazy_counter(
            name: *const c_char,
            value: *mut i64,
            message: *mut c_char,
            cap: usize,
        ) -> c_int;
        fn stepmesh_lazy_reset_metrics(message: *mut c_char, cap: usize) -> c_int;
        fn stepmesh_lazy_metrics(text: *mut *mut c_char, message: *mut c_char, cap: usize)
        -> c_int;
        fn stepmesh_lazy_free_text(text: *mut c_char);
    }
}

/// Calls a function that says what went wrong in a buffer.
fn call(
    operation: &'static str,
    function: impl FnOnce(*mut c_char, usize) -> c_int,
) -> Result<(), Error> {
    let mut message = [0; MESSAGE_LEN_BYTES];
    if function(message.as_mut_ptr(), message.len()) == 0 {
        return Ok(());
    }
    // SAFETY: the function wrote a text with its end, or nothing into zeros.
    let text = unsafe { CStr::from_ptr(message.as_ptr()) };
    let message = text.to_string_lossy().trim().to_owned();
    Err(Error::Torch { operation, message })
}

// SAFETY: as declared in cpp/tensor.cc.
unsafe extern "C" {
    fn stepmesh_torch_facts(
        tensor: *const C_tensor,
        facts: *mut Facts,
        dims: *mut i64,
        rank_max: c_int,
        message: *mut c_char,
        cap: usize,
    ) -> c_int;
    fn stepmesh_torch_device_name(
        tensor: *const C_tensor,
        name: *mut c_char,
        name_cap: usize,
        message: *mut c_char,
        cap: usize,
    ) -> c_int;
    fn stepmesh_torch_from_memory(
        address: *mut c_void,
        dims: *const i64,
        rank: c_int,
        scalar_type: c_int,
        device_type: c_int,
        device_index: c_int,
        owner: *mut c_void,
        drop: unsafe extern "C" fn(*mut c_void),
        out: *mut *mut C_tensor,
        message: *mut c_char,
        cap: usize,
    ) -> c_int;
    fn stepmesh_torch_to_dlpack(
        tensor: *const C_tensor,
        out: *mut *mut RawManagedTensor,
        message: *mut c_char,
        cap: usize,
    ) -> c_int;
    fn stepmesh_torch_from_dlpack(
        managed: *mut RawManagedTensor,
        out: *mut *mut C_tensor,
        message: *mut c_char,
        cap: usize,
    ) -> c_int;
    fn stepmesh_torch_current_stream(
        device_type: c_int,
        device_index: c_int,
        stream: *mut u64,
        message: *mut c_char,
        cap: usize,
    ) -> c_int;
}

/// Longer than any message of libtorch without its backtrace that is worth reading.
const MESSAGE_LEN_BYTES: usize = 1024;

/// Longer than torch's name of any type of device, and its number.
const DEVICE_NAME_LEN_BYTES: usize = 64;
