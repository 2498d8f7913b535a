//! Kinds of memory, flags of allocations, directions of copies, and what a backend knows about a
//! pointer. The slots that allocate and copy are in [`crate::SmBackendApi`].

use core::mem::{offset_of, size_of};

use crate::header::SmHdr;

/// What a backend knows about an address. Filled up to the smaller of the plugin's size and the
/// caller's `hdr.struct_size`.
///
/// An interior pointer resolves to its allocation. Memory the backend does not know is not an
/// error: its kind is [`SM_MEMORY_UNKNOWN`] or [`SM_MEMORY_HOST_PAGEABLE`], the rest zero.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmPtrAttr {
    /// Size set by the caller.
    pub hdr: SmHdr,
    /// `SM_MEMORY_*`.
    pub kind: u32,
    /// Device that owns the memory; -1 if none.
    pub device: i32,
    /// First address of the allocation.
    pub base: u64,
    /// Bytes of the allocation as they were asked for.
    pub size: u64,
    /// Names the allocation; never given out again by the process, also when the address is, so
    /// that a cache of registrations can be keyed by it. 0 for unknown memory.
    pub alloc_id: u64,
    /// `SM_PTR_*` bits.
    pub flags: u64,
    /// Zero.
    pub reserved: u64,
}

impl SmPtrAttr {
    /// The attributes of unknown memory, with the size set, ready to be passed to
    /// `pointer_attributes`.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            hdr: SmHdr::of::<Self>(),
            kind: SM_MEMORY_UNKNOWN,
            device: -1,
            base: 0,
            size: 0,
            alloc_id: 0,
            flags: 0,
            reserved: 0,
        }
    }
}

impl Default for SmPtrAttr {
    fn default() -> Self {
        Self::new()
    }
}

/// Memory kind: not known to the backend.
pub const SM_MEMORY_UNKNOWN: u32 = 0;
/// Memory kind: the device's own.
pub const SM_MEMORY_DEVICE: u32 = 1;
/// Memory kind: host memory locked in place and known to the device.
pub const SM_MEMORY_HOST_PINNED: u32 = 2;
/// Memory kind: migrates between host and device.
pub const SM_MEMORY_MANAGED: u32 = 3;
/// Memory kind: ordinary host memory. A query's answer; cannot be allocated.
pub const SM_MEMORY_HOST_PAGEABLE: u32 = 4;
/// Memory kind: host memory that `host_register` made known. A query's answer.
pub const SM_MEMORY_HOST_REGISTERED: u32 = 5;

/// Alloc flag: a NIC will read and write the memory: aligned to [`SM_RDMA_ALIGN_BYTES`] at least,
/// and synchronous memory operations forced where the device needs that.
pub const SM_ALLOC_RDMA: u32 = 1 << 0;
/// Alloc flag: `stepmesh.ipc.v1` must be able to export the memory.
pub const SM_ALLOC_SHAREABLE: u32 = 1 << 1;

/// Alignment in bytes of an allocation with [`SM_ALLOC_RDMA`]: the page of GPUDirect RDMA.
pub const SM_RDMA_ALIGN_BYTES: u64 = 64 << 10;

/// Pointer flag: the host may load and store through the address.
pub const SM_PTR_HOST_ACCESSIBLE: u64 = 1 << 0;
/// Pointer flag: `stepmesh.ipc.v1` can export the memory.
pub const SM_PTR_SHAREABLE: u64 = 1 << 1;
/// Pointer flag: the memory is another process's, imported through `stepmesh.ipc.v1`.
pub const SM_PTR_IMPORTED: u64 = 1 << 2;
/// Pointer flag: the pages are locked in memory.
pub const SM_PTR_LOCKED: u64 = 1 << 3;

/// Copy direction: found from the pointers.
pub const SM_COPY_AUTO: u32 = 0;
/// Copy direction: host to device.
pub const SM_COPY_H2D: u32 = 1;
/// Copy direction: device to host.
pub const SM_COPY_D2H: u32 = 2;
/// Copy direction: within one device.
pub const SM_COPY_D2D: u32 = 3;
/// Copy direction: from one device to another.
pub const SM_COPY_P2P: u32 = 4;

/// Register flag: the device will only read the memory.
pub const SM_REGISTER_READ_ONLY: u32 = 1 << 0;

const _: () = assert!(size_of::<SmPtrAttr>() == 56);
const _: () = assert!(offset_of!(SmPtrAttr, base) == 16 && offset_of!(SmPtrAttr, alloc_id) == 32);
