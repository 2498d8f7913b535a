//! What a device tells about itself before it is entered.
#![expect(unsafe_code, reason = "calls HIP")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;

use hip_sys::hiprt::{hipDeviceAttribute_t, hipUUID};
use stepmesh_driver::{Answer, Facts, Failure};
use stepmesh_plugin::abi::device::SM_RDMA_ORDERING_NONE;

use crate::driver::Rocm;
use crate::handles::{ordinal, to_u64};

pub(crate) fn facts(driver: &Rocm, device: u32) -> Answer<Facts> {
    use hipDeviceAttribute_t as Attribute;
    let functions = driver.functions();
    // An attribute that an old runtime does not know is one that the device has not.
    let number = |what| driver.attribute(device, what).unwrap_or(0);
    let has = |what| number(what) != 0;
    let arch = arch(driver, device).unwrap_or_default();
    Ok(Facts {
        name: name(driver, device)?,
        pci_bdf: pci_bdf(driver, device).unwrap_or_default(),
        uuid: uuid(driver, device).unwrap_or_default(),
        cc_major: number(Attribute::hipDeviceAttributeComputeCapabilityMajor),
        cc_minor: number(Attribute::hipDeviceAttributeComputeCapabilityMinor),
        total_bytes: total_bytes(driver, device)?,
        alloc_align_bytes: ALLOC_ALIGN,
        is_integrated: has(Attribute::hipDeviceAttributeIntegrated),
        // HIP does not tell, and has no flush.
        rdma_write_ordering: SM_RDMA_ORDERING_NONE,
        flush_options: 0,
        has_managed: has(Attribute::hipDeviceAttributeManagedMemory),
        has_pools: has(Attribute::hipDeviceAttributeMemoryPoolsSupported)
            && functions.has("hipMallocAsync"),
        has_stream_writes: has(Attribute::hipDeviceAttributeCanUseStreamWaitValue)
            && functions.has("hipStreamWriteValue64"),
        has_dmabuf: driver.hsa().has_dmabuf(),
        has_dmabuf_pcie: driver.hsa().has_pcie_mapping(),
        has_peermem: PEERMEM_FILES.iter().any(|file| Path::new(file).exists()),
        has_sync_memops: false,
        has_ipc: functions.has("hipIpcGetMemHandle"),
        // The kernels are compiled for the architecture, and wait by the device's clock.
        has_graphs: functions.has("hipStreamGetCaptureInfo")
            && driver.loaded_compiler().is_ok()
            && !arch.is_empty()
            && has(Attribute::hipDeviceAttributeWallClockRate),
        arch,
    })
}

/// The architecture with its features, such as `gfx90a:sramecc+:xnack-`. Only the struct of properties
/// has it, whose layout differs between versions, so it is found by what it looks like.
pub(crate) fn arch(driver: &Rocm, device: u32) -> Answer<String> {
    let mut properties = Properties([0; PROPERTIES_LEN]);
    let place: *mut c_void = (&raw mut properties).cast();
    let functions = driver.functions();
    // SAFETY: a local with more room than the struct of any version has.
    let newer = unsafe { functions.hipGetDevicePropertiesR0600(place, ordinal(device)) };
    if let Err(Failure::Missing { .. }) = newer {
        // SAFETY: as above.
        unsafe { functions.hipGetDeviceProperties(place, ordinal(device))? };
    } else {
        newer?;
    }
    Ok(arch_in(&properties.0).unwrap_or_default())
}

fn arch_in(bytes: &[u8]) -> Option<String> {
    let mut windows = bytes.windows(4);
    // After the end of what comes before it, so that it is no part of a name.
    let at = windows.position(|window| window == b"\0gfx")? + 1;
    let text = CStr::from_bytes_until_nul(bytes.get(at..)?).ok()?;
    Some(text.to_str().ok()?.to_owned())
}

fn name(driver: &Rocm, device: u32) -> Answer<String> {
    let mut name = [0; TEXT_LEN];
    let (place, len) = (name.as_mut_ptr(), text_len());
    // SAFETY: the array has as many bytes as is said.
    unsafe {
        driver
            .functions()
            .hipDeviceGetName(place, len, ordinal(device))?;
    };
    Ok(text(&name))
}

/// Lower case, as the kernel has it.
fn pci_bdf(driver: &Rocm, device: u32) -> Answer<String> {
    let mut bus_id = [0; TEXT_LEN];
    let (place, len) = (bus_id.as_mut_ptr(), text_len());
    // SAFETY: the array has as many bytes as is said.
    unsafe {
        driver
            .functions()
            .hipDeviceGetPCIBusId(place, len, ordinal(device))?;
    };
    Ok(text(&bus_id).to_ascii_lowercase())
}

fn uuid(driver: &Rocm, device: u32) -> Answer<[u8; 16]> {
    let mut uuid = hipUUID { bytes: [0; 16] };
    // SAFETY: `uuid` is a local.
    unsafe {
        driver
            .functions()
            .hipDeviceGetUuid(&raw mut uuid, ordinal(device))?;
    };
    Ok(uuid.bytes.map(|byte| byte.to_ne_bytes()[0]))
}

fn total_bytes(driver: &Rocm, device: u32) -> Answer<u64> {
    let mut bytes = 0;
    // SAFETY: `bytes` is a local.
    unsafe {
        driver
            .functions()
            .hipDeviceTotalMem(&raw mut bytes, ordinal(device))?;
    };
    Ok(to_u64(bytes))
}

/// A version as people write it: 60200000 is 6.2.
pub(crate) fn version_text(version: i32) -> String {
    format!(
        "{}.{}",
        version / 10_000_000,
        version % 10_000_000 / 100_000
    )
}

fn text(field: &[c_char]) -> String {
    let bytes: Vec<u8> = field.iter().map(|byte| byte.to_ne_bytes()[0]).collect();
    let text = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
    text.to_string_lossy().into_owned()
}

fn text_len() -> c_int {
    c_int::try_from(TEXT_LEN).unwrap_or(0)
}

/// Room for a struct of properties, aligned as it is.
#[repr(C, align(16))]
struct Properties([u8; PROPERTIES_LEN]);

/// HIP 6.0, where numbers of memory types and of a flag changed.
pub(crate) const VERSION_6: i32 = 60_000_000;
/// Five times the largest that there is, that of version 6 with 1472 bytes.
const PROPERTIES_LEN: usize = 8192;
/// Room for a device's name or address: the ABI's field has 64 bytes, HIP's no more than 256.
const TEXT_LEN: usize = 256;
/// `hipMalloc` aligns for every type; real ones align to pages.
const ALLOC_ALIGN: u64 = 256;
/// What the kernel shows where network adapters can register device addresses as they are.
const PEERMEM_FILES: [&str; 2] = [
    "/sys/kernel/mm/memory_peers/amdkfd/version",
    "/sys/memory_peers/amdkfd/version",
];

#[cfg(test)]
mod tests {
    //! What is found in structs of properties of any layout.

    use super::{arch_in, version_text};

    #[test]
    fn the_architecture_is_found_wherever_it_is() {
        for at in [256, 400, 1160] {
            let mut properties = [0_u8; 1472];
            properties[..19].copy_from_slice(b"AMD Radeon gfx card");
            properties[at..at + 22].copy_from_slice(b"gfx90a:sramecc+:xnack-");
            assert_eq!(
                arch_in(&properties).as_deref(),
                Some("gfx90a:sramecc+:xnack-"),
                "at {at}"
            );
        }
    }

    #[test]
    fn no_architecture_is_found_where_there_is_none() {
        assert_eq!(arch_in(&[0; 64]), None);
        assert_eq!(arch_in(b"\0gfx90a without an end"), None);
    }

    #[test]
    fn versions_are_written_as_people_do() {
        assert_eq!(version_text(50_221_153), "5.2");
        assert_eq!(version_text(60_200_000), "6.2");
    }
}
