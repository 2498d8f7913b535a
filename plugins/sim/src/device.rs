//! What a simulated device tells about itself, and its events.
#![forbid(unsafe_code)]

use stepmesh_plugin::abi::device::{
    SM_CAP_CONCURRENT_CONTEXTS, SM_CAP_FLUSH_RDMA, SM_CAP_FORK_SAFE_PROBE, SM_CAP_HOST_FUNC,
    SM_CAP_MAPPED_HOST, SM_CAP_MEMEVENT, SM_CAP_PEER_ACCESS, SM_CAP_PINNED_HOST,
    SM_CAP_SYNC_MEMOPS, SM_CAP_TIMING, SM_CAP_UVA, SM_FLUSH_HOST, SM_RDMA_ORDERING_ALL_DEVICES,
    SM_RDMA_ORDERING_NONE,
};
use stepmesh_plugin::abi::extension::{
    SM_DMABUF_DEFAULT, SM_RDMA_FLUSH_ALL_DEVICES, SM_RDMA_FLUSH_OWNER,
};
use stepmesh_plugin::abi::memory::{SM_MEMORY_DEVICE, SM_MEMORY_HOST_PINNED};
use stepmesh_plugin::abi::{SmDeviceInfo, SmRdmaCaps};
use stepmesh_plugin::software::{self, page_len, to_u64};
use stepmesh_plugin::text_field;

/// An event of this backend.
#[derive(Debug)]
pub struct Event {
    pub(crate) device: u32,
    pub(crate) event: software::Event,
}

/// A mem-event of this backend.
#[derive(Debug)]
pub struct MemEvent {
    pub(crate) device: u32,
    pub(crate) event: software::MemEvent,
}

/// Facts about a device.
pub(crate) fn info(
    device: u32,
    memory_len_bytes: u64,
    has_dmabufs: bool,
    is_unordered: bool,
) -> SmDeviceInfo {
    let ordinal = i32::try_from(device).unwrap_or(-1);
    let mut uuid = *b"stepmesh-sim\0\0\0\0";
    uuid[12..].copy_from_slice(&device.to_be_bytes());
    SmDeviceInfo {
        ordinal,
        physical_ordinal: ordinal,
        name: text_field("StepMesh simulated accelerator"),
        arch: text_field("sim"),
        // What torch calls devices of backends outside of its own source.
        torch_device_type: text_field("privateuseone"),
        uuid,
        torch_index: ordinal,
        dlpack_type: DLPACK_EXTENSION,
        dlpack_id: ordinal,
        total_mem: memory_len_bytes,
        page_granularity: to_u64(page_len()),
        dmabuf_granularity: dmabuf_granularity(has_dmabufs),
        rdma_write_ordering: write_ordering(is_unordered),
        flush_options: SM_FLUSH_HOST,
        ..SmDeviceInfo::new()
    }
}

/// What a device offers to network adapters.
pub(crate) fn rdma_caps(has_dmabufs: bool, is_unordered: bool) -> SmRdmaCaps {
    let if_there = |bits| if has_dmabufs { bits } else { 0 };
    SmRdmaCaps {
        mappings: if_there(1 << SM_DMABUF_DEFAULT),
        memory_kinds: if_there(1 << SM_MEMORY_DEVICE | 1 << SM_MEMORY_HOST_PINNED),
        flush_scopes: 1 << SM_RDMA_FLUSH_OWNER | 1 << SM_RDMA_FLUSH_ALL_DEVICES,
        write_ordering: write_ordering(is_unordered),
        dmabuf_granularity: dmabuf_granularity(has_dmabufs),
        ..SmRdmaCaps::new()
    }
}

/// Copies of the simulator are the processor's own, unless it plays another device.
fn write_ordering(is_unordered: bool) -> u32 {
    if is_unordered {
        SM_RDMA_ORDERING_NONE
    } else {
        SM_RDMA_ORDERING_ALL_DEVICES
    }
}

fn dmabuf_granularity(has_dmabufs: bool) -> u64 {
    if has_dmabufs { to_u64(page_len()) } else { 0 }
}

/// What every device of this backend can do, and dma-bufs where there is a driver for them. Sharing memory between processes is not among it,
/// although `stepmesh.ipc.v1` is there: it is for pinned memory only.
pub(crate) const CAPABILITIES: u64 = SM_CAP_PINNED_HOST
    | SM_CAP_MAPPED_HOST
    | SM_CAP_UVA
    | SM_CAP_PEER_ACCESS
    | SM_CAP_TIMING
    | SM_CAP_HOST_FUNC
    | SM_CAP_MEMEVENT
    | SM_CAP_SYNC_MEMOPS
    | SM_CAP_FLUSH_RDMA
    | SM_CAP_CONCURRENT_CONTEXTS
    | SM_CAP_FORK_SAFE_PROBE;

/// `kDLExtDev`: a device that DLPack has no number for.
const DLPACK_EXTENSION: i32 = 12;
