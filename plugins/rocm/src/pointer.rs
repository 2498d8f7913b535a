//! What HIP knows of an address.
#![expect(unsafe_code, reason = "calls HIP")]

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;

use hip_sys::hiprt::hipPointer_attribute;
use stepmesh_driver::{Answer, Failure, Kind, PointerFacts};
use stepmesh_plugin::abi::memory::{SM_MEMORY_DEVICE, SM_MEMORY_HOST_PINNED, SM_MEMORY_MANAGED};

use crate::driver::Rocm;
use crate::facts::VERSION_6;
use crate::functions::Functions;
use crate::handles::{handle, to_u64};

/// `hipPointerAttribute_t`, the same in all versions but for what its first field means.
#[repr(C)]
struct Attributes {
    kind: c_uint,
    device: c_int,
    device_pointer: *mut c_void,
    host_pointer: *mut c_void,
    is_managed: c_int,
    flags: c_uint,
}

pub(crate) fn facts(functions: &Functions, version: i32, ptr: u64) -> Answer<Option<PointerFacts>> {
    let mut attributes = Attributes {
        kind: 0,
        device: -1,
        device_pointer: null_mut(),
        host_pointer: null_mut(),
        is_managed: 0,
        flags: 0,
    };
    let place = (&raw mut attributes).cast();
    // SAFETY: the struct is a local of the layout that HIP writes.
    let asked = unsafe { functions.hipPointerGetAttributes(place, handle::<c_void>(ptr)) };
    match asked {
        // Version 5 refuses what it does not know, later ones call it unregistered.
        Err(failure) if is_unknown(failure) => return Ok(None),
        answer => answer?,
    }
    let Some(kind) = kind(attributes.kind, attributes.is_managed != 0, version) else {
        return Ok(None);
    };
    let (base, len_bytes) = range(functions, ptr)?;
    Ok(Some(PointerFacts {
        kind,
        device: u32::try_from(attributes.device).ok(),
        base,
        len_bytes,
        id: number(functions, ptr).unwrap_or(0),
    }))
}

/// The first address and the length; where HIP does not say, the address alone.
fn range(functions: &Functions, ptr: u64) -> Answer<(u64, u64)> {
    let (mut base, mut len): (*mut c_void, usize) = (null_mut(), 0);
    // SAFETY: both are locals.
    let asked = unsafe {
        functions.hipMemGetAddressRange(&raw mut base, &raw mut len, handle::<c_void>(ptr))
    };
    match asked {
        Err(failure) if is_unknown(failure) => Ok((ptr, 0)),
        answer => answer.map(|()| (to_u64(base.expose_provenance()), to_u64(len))),
    }
}

fn number(functions: &Functions, ptr: u64) -> Answer<u64> {
    let mut id = 0_u64;
    let what = hipPointer_attribute::HIP_POINTER_ATTRIBUTE_BUFFER_ID as c_uint;
    let place = (&raw mut id).cast();
    // SAFETY: the attribute's value is a number of 8 bytes, a local.
    unsafe { functions.hipPointerGetAttribute(place, what, handle::<c_void>(ptr))? };
    Ok(id)
}

fn is_unknown(failure: Failure) -> bool {
    matches!(
        failure.kind::<Rocm>(),
        Kind::Invalid | Kind::NotSupported | Kind::Other
    )
}

/// `SM_MEMORY_*` of a `hipMemoryType`, whose numbers changed with version 6.
fn kind(kind: c_uint, is_managed: bool, version: i32) -> Option<u32> {
    if is_managed {
        return Some(SM_MEMORY_MANAGED);
    }
    match (version >= VERSION_6, kind) {
        (false, 0) | (true, 1) => Some(SM_MEMORY_HOST_PINNED),
        (false, 1) | (true, 2) => Some(SM_MEMORY_DEVICE),
        (false, 3 | 4) | (true, 3 | 11) => Some(SM_MEMORY_MANAGED),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    //! The numbers of each version.

    use super::{SM_MEMORY_DEVICE, SM_MEMORY_HOST_PINNED, SM_MEMORY_MANAGED, kind};

    #[test]
    fn the_same_number_is_another_kind_in_version_6() {
        let (five, six) = (50_700_000, 60_000_000);
        assert_eq!(kind(1, false, five), Some(SM_MEMORY_DEVICE));
        assert_eq!(kind(1, false, six), Some(SM_MEMORY_HOST_PINNED));
        assert_eq!(kind(0, false, five), Some(SM_MEMORY_HOST_PINNED));
        assert_eq!(kind(0, false, six), None);
        assert_eq!(kind(2, false, six), Some(SM_MEMORY_DEVICE));
        assert_eq!(kind(2, true, six), Some(SM_MEMORY_MANAGED));
    }
}
