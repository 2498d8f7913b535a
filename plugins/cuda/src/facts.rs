//! What a device tells about itself before it is entered.
#![expect(unsafe_code, reason = "calls the driver")]

use std::ffi::{CStr, c_char, c_int};
use std::path::Path;

use cudarc::driver::sys::{
    CUGPUDirectRDMAWritesOrdering, CUdevice, CUdevice_attribute, CUflushGPUDirectRDMAWritesOptions,
    CUuuid,
};
use stepmesh_driver::{Answer, Facts};
use stepmesh_plugin::abi::device::{
    SM_FLUSH_HOST, SM_FLUSH_MEMOPS, SM_RDMA_ORDERING_ALL_DEVICES, SM_RDMA_ORDERING_NONE,
    SM_RDMA_ORDERING_OWNER,
};

use crate::driver::Cuda;

pub(crate) fn facts(driver: &Cuda, device: CUdevice) -> Answer<Facts> {
    use CUdevice_attribute as Attribute;
    let functions = driver.functions();
    let number = |what| attribute(driver, device, what);
    // An attribute that an old driver does not know is one that the device has not.
    let has = |what| number(what).is_ok_and(|value| value != 0);
    let cc_major = number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let cc_minor = number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    let is_integrated = has(Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED);
    let has_dmabuf = has(Attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED)
        && functions.has("cuMemGetHandleForAddressRange");
    let flushes = number(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS);
    let ordering = number(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING);
    Ok(Facts {
        name: name(driver, device)?,
        arch: format!("sm_{cc_major}{cc_minor}"),
        pci_bdf: pci_bdf(driver, device).unwrap_or_default(),
        uuid: uuid(driver, device).unwrap_or_default(),
        cc_major,
        cc_minor,
        total_bytes: total_bytes(driver, device)?,
        alloc_align_bytes: ALLOC_ALIGN,
        is_integrated,
        rdma_write_ordering: ordering.map_or(SM_RDMA_ORDERING_NONE, ordering_of),
        flush_options: if functions.has("cuFlushGPUDirectRDMAWrites") {
            flushes.map_or(0, flush_options_of)
        } else {
            0
        },
        has_managed: has(Attribute::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY),
        has_pools: has(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)
            && functions.has("cuMemAllocAsync"),
        has_stream_writes: has(Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V2)
            && functions.has("cuStreamWriteValue64_v2"),
        has_dmabuf,
        has_dmabuf_pcie: has_dmabuf && driver.version() >= VERSION_PCIE_MAPPING,
        has_peermem: PEERMEM_MODULES
            .iter()
            .any(|module| Path::new(module).exists()),
        has_sync_memops: has(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED),
        // The devices that share the host's memory are those of boards without it.
        has_ipc: !is_integrated && functions.has("cuIpcGetMemHandle"),
        // Sleeping in a kernel came with 7.0.
        has_graphs: cc_major >= 7 && functions.has("cuStreamGetCaptureInfo_v2"),
    })
}

fn attribute(driver: &Cuda, device: CUdevice, what: CUdevice_attribute) -> Answer<u32> {
    let mut value = 0;
    #[expect(clippy::cast_possible_wrap, reason = "below 200, all of them")]
    let what = what as u32 as c_int;
    // SAFETY: `value` is a local.
    unsafe {
        driver
            .functions()
            .cuDeviceGetAttribute(&raw mut value, what, device)?;
    };
    Ok(u32::try_from(value).unwrap_or(0))
}

fn name(driver: &Cuda, device: CUdevice) -> Answer<String> {
    let mut name = [0; TEXT_LEN];
    let len = text_len();
    // SAFETY: the array has as many bytes as is said.
    unsafe {
        driver
            .functions()
            .cuDeviceGetName(name.as_mut_ptr(), len, device)?;
    };
    Ok(text(&name))
}

/// Lower case, as the kernel has it.
fn pci_bdf(driver: &Cuda, device: CUdevice) -> Answer<String> {
    let mut bus_id = [0; TEXT_LEN];
    let len = text_len();
    // SAFETY: the array has as many bytes as is said.
    unsafe {
        driver
            .functions()
            .cuDeviceGetPCIBusId(bus_id.as_mut_ptr(), len, device)?;
    };
    Ok(text(&bus_id).to_ascii_lowercase())
}

/// The second version tells parts of a device apart (MIG).
fn uuid(driver: &Cuda, device: CUdevice) -> Answer<[u8; 16]> {
    let mut uuid = CUuuid { bytes: [0; 16] };
    let functions = driver.functions();
    if functions.has("cuDeviceGetUuid_v2") {
        // SAFETY: `uuid` is a local.
        unsafe { functions.cuDeviceGetUuid_v2(&raw mut uuid, device)? };
    } else {
        // SAFETY: `uuid` is a local.
        unsafe { functions.cuDeviceGetUuid(&raw mut uuid, device)? };
    }
    Ok(uuid.bytes.map(|byte| byte.to_ne_bytes()[0]))
}

fn total_bytes(driver: &Cuda, device: CUdevice) -> Answer<u64> {
    let mut bytes = 0;
    // SAFETY: `bytes` is a local.
    unsafe {
        driver
            .functions()
            .cuDeviceTotalMem_v2(&raw mut bytes, device)?;
    };
    Ok(u64::try_from(bytes).unwrap_or(u64::MAX))
}

fn ordering_of(value: u32) -> u32 {
    use CUGPUDirectRDMAWritesOrdering as Ordering;
    if value >= Ordering::CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES as u32 {
        SM_RDMA_ORDERING_ALL_DEVICES
    } else if value >= Ordering::CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER as u32 {
        SM_RDMA_ORDERING_OWNER
    } else {
        SM_RDMA_ORDERING_NONE
    }
}

fn flush_options_of(value: u32) -> u32 {
    use CUflushGPUDirectRDMAWritesOptions as Options;
    let bit = |option: Options, bit| {
        if value & option as u32 == 0 { 0 } else { bit }
    };
    bit(
        Options::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST,
        SM_FLUSH_HOST,
    ) | bit(
        Options::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_MEMOPS,
        SM_FLUSH_MEMOPS,
    )
}

/// A version as people write it: 12040 is 12.4.
pub(crate) fn version_text(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

fn text(field: &[c_char]) -> String {
    let bytes: Vec<u8> = field.iter().map(|byte| byte.to_ne_bytes()[0]).collect();
    let text = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
    text.to_string_lossy().into_owned()
}

fn text_len() -> c_int {
    c_int::try_from(TEXT_LEN).unwrap_or(0)
}

/// Room for a device's name or address: the ABI's field has 64 bytes, the driver's no more than 256.
const TEXT_LEN: usize = 256;
/// `cuMemAlloc` aligns for every type; 256 is what the programming guide promises.
const ALLOC_ALIGN: u64 = 256;
/// CUDA 12.8: the first whose dma-bufs can be asked to go through the PCIe window.
const VERSION_PCIE_MAPPING: i32 = 12_080;
/// The kernel modules by which network adapters register device addresses, NVIDIA's and the older one.
const PEERMEM_MODULES: [&str; 2] = ["/sys/module/nvidia_peermem", "/sys/module/nv_peer_mem"];
