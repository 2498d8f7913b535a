//! What the driver knows of an address.
#![expect(unsafe_code, reason = "calls the driver")]

use std::ffi::{c_int, c_uint, c_void};

use cudarc::driver::sys::{CUmemorytype, CUpointer_attribute};
use stepmesh_driver::{Answer, Kind, PointerFacts};
use stepmesh_plugin::abi::memory::{SM_MEMORY_DEVICE, SM_MEMORY_HOST_PINNED, SM_MEMORY_MANAGED};

use crate::driver::{Cuda, to_u64};
use crate::functions::Functions;

/// `cuPointerGetAttributes`: kind, device, range and number of the allocation at an address.
pub(crate) fn facts(functions: &Functions, ptr: u64) -> Answer<Option<PointerFacts>> {
    let (mut kind, mut ordinal): (c_uint, c_int) = (0, -1);
    let (mut base, mut len, mut id, mut is_managed) = (0_u64, 0_usize, 0_u64, 0_u32);
    let mut attributes = [
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE as c_int,
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL as c_int,
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR as c_int,
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE as c_int,
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID as c_int,
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED as c_int,
    ];
    let mut data: [*mut c_void; 6] = [
        (&raw mut kind).cast(),
        (&raw mut ordinal).cast(),
        (&raw mut base).cast(),
        (&raw mut len).cast(),
        (&raw mut id).cast(),
        (&raw mut is_managed).cast(),
    ];
    // SAFETY: six attributes, and for each a local of the type that the documentation says.
    let asked = unsafe {
        functions.cuPointerGetAttributes(6, attributes.as_mut_ptr(), data.as_mut_ptr(), ptr)
    };
    match asked {
        Err(failure) if failure.kind::<Cuda>() == Kind::Invalid => return Ok(None),
        answer => answer?,
    }
    let kind = match kind {
        _ if is_managed != 0 => SM_MEMORY_MANAGED,
        kind if kind == CUmemorytype::CU_MEMORYTYPE_HOST as u32 => SM_MEMORY_HOST_PINNED,
        kind if kind == CUmemorytype::CU_MEMORYTYPE_DEVICE as u32 => SM_MEMORY_DEVICE,
        _ => return Ok(None),
    };
    Ok(Some(PointerFacts {
        kind,
        device: u32::try_from(ordinal).ok(),
        base,
        len_bytes: to_u64(len),
        id,
    }))
}
