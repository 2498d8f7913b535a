//! What a backend says about a device, and the capability bits. Calls on devices are slots of
//! [`crate::SmBackendApi`].

use core::ffi::c_char;
use core::mem::{offset_of, size_of};

use crate::header::SmHdr;

/// Facts about one device. Filled by the plugin up to the smaller of its own size and the caller's
/// `hdr.struct_size`; text fields are UTF-8, NUL-padded.
///
/// The plugin supplies facts; the host decides what follows from them (which NIC is near, which
/// torch device a tensor gets).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SmDeviceInfo {
    /// Size set by the caller.
    pub hdr: SmHdr,
    /// Index by which every slot names this device, 0 up to the count.
    pub ordinal: i32,
    /// Index before `*_VISIBLE_DEVICES` and the like; -1 if unknown.
    pub physical_ordinal: i32,
    /// Marketing name.
    pub name: [c_char; 64],
    /// Architecture as compilers name it (`sm_90`, `gfx942`, `x86_64`).
    pub arch: [c_char; 32],
    /// Type of the torch device (`cuda` for ROCm too).
    pub torch_device_type: [c_char; 16],
    /// PCI address in lower case, `0000:3b:00.0`; empty if the device is not on PCI.
    pub pci_bdf: [c_char; 16],
    /// Identity that survives reboots and ordinals; all zero if unknown.
    pub uuid: [u8; 16],
    /// NUMA node; -1 if unknown.
    pub numa_node: i32,
    /// Index of the torch device.
    pub torch_index: i32,
    /// `DLDeviceType` (`SM_DLPACK_*`).
    pub dlpack_type: i32,
    /// `device_id` of DLPack.
    pub dlpack_id: i32,
    /// PCI vendor, 0 if not on PCI.
    pub vendor_id: u32,
    /// PCI device, 0 if not on PCI.
    pub device_id: u32,
    /// Major compute capability, 0 if it has none.
    pub cc_major: u32,
    /// Minor compute capability.
    pub cc_minor: u32,
    /// Bytes of memory.
    pub total_mem: u64,
    /// Bytes of one allocation page: sizes and addresses of allocations are multiples of it.
    pub page_granularity: u64,
    /// Alignment in bytes of an exported dma-buf, 0 if none can be exported.
    pub dmabuf_granularity: u64,
    /// 1 if the device shares the host's memory.
    pub integrated: u32,
    /// `SM_RDMA_ORDERING_*`.
    pub rdma_write_ordering: u32,
    /// `SM_FLUSH_*` bits.
    pub flush_options: u32,
    /// Zero.
    pub pad0: u32,
}

impl SmDeviceInfo {
    /// An empty struct with the size set, ready to be passed to `device_info`.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            hdr: SmHdr::of::<Self>(),
            ordinal: 0,
            physical_ordinal: -1,
            name: [0; 64],
            arch: [0; 32],
            torch_device_type: [0; 16],
            pci_bdf: [0; 16],
            uuid: [0; 16],
            numa_node: -1,
            torch_index: 0,
            dlpack_type: 0,
            dlpack_id: 0,
            vendor_id: 0,
            device_id: 0,
            cc_major: 0,
            cc_minor: 0,
            total_mem: 0,
            page_granularity: 0,
            dmabuf_granularity: 0,
            integrated: 0,
            rdma_write_ordering: SM_RDMA_ORDERING_NONE,
            flush_options: 0,
            pad0: 0,
        }
    }
}

impl Default for SmDeviceInfo {
    fn default() -> Self {
        Self::new()
    }
}

/// Capability: `alloc` knows `SM_MEMORY_HOST_PINNED`.
pub const SM_CAP_PINNED_HOST: u64 = 1 << 0;
/// Capability: `alloc` knows `SM_MEMORY_MANAGED`.
pub const SM_CAP_MANAGED: u64 = 1 << 1;
/// Capability: pinned host memory has a device address.
pub const SM_CAP_MAPPED_HOST: u64 = 1 << 2;
/// Capability: host and device share one address space, so a pointer tells its device.
pub const SM_CAP_UVA: u64 = 1 << 3;
/// Capability: `alloc_async` and `free_async` are stream-ordered.
pub const SM_CAP_STREAM_ORDERED_ALLOC: u64 = 1 << 4;
/// Capability: devices of this backend reach each other's memory.
pub const SM_CAP_PEER_ACCESS: u64 = 1 << 5;
/// Capability: device memory can be exported as a dma-buf with the default mapping.
pub const SM_CAP_DMABUF_DEFAULT: u64 = 1 << 6;
/// Capability: device memory can be exported as a dma-buf with the PCIe mapping.
pub const SM_CAP_DMABUF_PCIE: u64 = 1 << 7;
/// Capability: a NIC registers device addresses as they are, because a peer-memory kernel module lets
/// it or because they are the host's own.
pub const SM_CAP_PEERMEM: u64 = 1 << 8;
/// Capability: `set_sync_memops` of `stepmesh.rdma.v1` works.
pub const SM_CAP_SYNC_MEMOPS: u64 = 1 << 9;
/// Capability: `flush_rdma_writes` of `stepmesh.rdma.v1` works.
pub const SM_CAP_FLUSH_RDMA: u64 = 1 << 10;
/// Capability: device memory can be exported through `stepmesh.ipc.v1`. The extension alone, without
/// this bit, may serve pinned memory only.
pub const SM_CAP_IPC: u64 = 1 << 11;
/// Capability: events measure time.
pub const SM_CAP_TIMING: u64 = 1 << 12;
/// Capability: `launch_host_func` runs in stream order.
pub const SM_CAP_HOST_FUNC: u64 = 1 << 13;
/// Capability: the slots used on the data path may be called while a stream is captured.
pub const SM_CAP_GRAPH_CAPTURE_SAFE: u64 = 1 << 14;
/// Capability: `stepmesh.vmm.v1` is there.
pub const SM_CAP_VMM: u64 = 1 << 15;
/// Capability: `stepmesh.memevent.v1` is there.
pub const SM_CAP_MEMEVENT: u64 = 1 << 16;
/// Capability: several instances may use the device at once.
pub const SM_CAP_CONCURRENT_CONTEXTS: u64 = 1 << 17;
/// Capability: `stepmesh.lazy.v1` is there.
pub const SM_CAP_LAZY: u64 = 1 << 18;
/// Capability: `probe` may be called before a fork without harm to the child.
pub const SM_CAP_FORK_SAFE_PROBE: u64 = 1 << 19;

/// DLPack device type of host memory.
pub const SM_DLPACK_CPU: i32 = 1;
/// DLPack device type of CUDA device memory.
pub const SM_DLPACK_CUDA: i32 = 2;
/// DLPack device type of ROCm device memory.
pub const SM_DLPACK_ROCM: i32 = 10;

/// Write ordering: RDMA writes are not ordered for anyone; flush first.
pub const SM_RDMA_ORDERING_NONE: u32 = 0;
/// Write ordering: ordered as the owning device sees them.
pub const SM_RDMA_ORDERING_OWNER: u32 = 1;
/// Write ordering: ordered as every device sees them.
pub const SM_RDMA_ORDERING_ALL_DEVICES: u32 = 2;

/// Flush option: the host can flush RDMA writes.
pub const SM_FLUSH_HOST: u32 = 1 << 0;
/// Flush option: a stream can flush RDMA writes.
pub const SM_FLUSH_MEMOPS: u32 = 1 << 1;

/// Health: the device works.
pub const SM_HEALTH_OK: u32 = 0;
/// Health: the device works but reports errors.
pub const SM_HEALTH_DEGRADED: u32 = 1;
/// Health: the device is gone or must be reset.
pub const SM_HEALTH_LOST: u32 = 2;

const _: () = assert!(size_of::<SmDeviceInfo>() == 232);
const _: () = assert!(offset_of!(SmDeviceInfo, uuid) == 144);
const _: () = assert!(offset_of!(SmDeviceInfo, total_mem) == 192);
