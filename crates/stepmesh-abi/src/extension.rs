//! Names of the extensions, and the tables of those that version 1.0 defines. Extensions are
//! looked up by name through `get_extension`, so a vendor adds its own without a central list.

use core::ffi::c_void;
use core::marker::{PhantomData, PhantomPinned};
use core::mem::{offset_of, size_of};

use crate::backend::SmBackend;
use crate::error::SmError;
use crate::header::SmHdr;

/// A piece of memory that another process can map or import. Filled by `SmIpcV1::export_memory`,
/// carried to the other process by the host.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SmIpcHandle {
    /// Size set by the caller.
    pub hdr: SmHdr,
    /// `SM_IPC_FD` or `SM_IPC_OPAQUE`.
    pub kind: u32,
    /// With `SM_IPC_FD`: a descriptor with `O_CLOEXEC`; -1 otherwise.
    pub fd: i32,
    /// Where the exported range starts in the file or in the opaque object, in bytes.
    pub offset: u64,
    /// Bytes of the exported range.
    pub len: u64,
    /// `SM_IPC_*` flags.
    pub flags: u32,
    /// Zero.
    pub pad0: u32,
    /// With `SM_IPC_OPAQUE`: the vendor's handle (64 bytes are enough for CUDA and HIP).
    pub bytes: [u8; 64],
}

impl SmIpcHandle {
    /// An empty handle with the size set, ready to be passed to `export_memory`.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            hdr: SmHdr::of::<Self>(),
            kind: 0,
            fd: -1,
            offset: 0,
            len: 0,
            flags: 0,
            pad0: 0,
            bytes: [0; 64],
        }
    }
}

impl Default for SmIpcHandle {
    fn default() -> Self {
        Self::new()
    }
}

/// `stepmesh.ipc.v1`: memory shared between processes of one host. Every function is class A and
/// required; the table lives as long as the plugin, that is, as long as the process.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SmIpcV1 {
    /// Size and version of the plugin's table.
    pub hdr: SmHdr,
    /// Exports `size` bytes at `ptr` (interior pointers are fine) of an allocation of `dev`.
    ///
    /// The descriptor in an `SM_IPC_FD` handle belongs to the caller, who closes it with `close`
    /// when it was sent or mapped; the plugin keeps no use of it. The memory stays alive through
    /// the descriptor and its mappings, also after `free`. A range that is not within one
    /// allocation is `SM_INVALID_ARGUMENT`; memory that cannot be shared is `SM_UNIMPLEMENTED`.
    pub export_memory: Option<
        unsafe extern "C" fn(
            s: *mut SmBackend,
            dev: u32,
            ptr: u64,
            size: u64,
            out: *mut SmIpcHandle,
            err: *mut SmError,
        ) -> i32,
    >,
    /// Makes another process's memory usable by `dev` and gives its address. The descriptor in the
    /// handle stays the caller's. Size and offset are checked against the object itself.
    pub import_memory: Option<
        unsafe extern "C" fn(
            s: *mut SmBackend,
            dev: u32,
            handle: *const SmIpcHandle,
            ptr: *mut u64,
            err: *mut SmError,
        ) -> i32,
    >,
    /// Ends an import. `ptr` is the address that `import_memory` gave; 0 is fine.
    pub close_import: Option<
        unsafe extern "C" fn(s: *mut SmBackend, dev: u32, ptr: u64, err: *mut SmError) -> i32,
    >,
}

/// A mem-event of a plugin. Opaque to the host; made by `create`, given back to `destroy`.
#[repr(C)]
pub struct SmMemEvent {
    opaque: [u8; 0],
    marker: PhantomData<(*mut u8, PhantomPinned)>,
}

impl core::fmt::Debug for SmMemEvent {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("SmMemEvent")
    }
}

/// `stepmesh.memevent.v1`: an event that the host waits for with nothing but loads. It is a word of
/// 8 bytes, at first 0, that only ever grows. Each `arm` names a number greater than the one before,
/// which the word has once the stream got there; so nothing is ever reset, and who waits for an
/// earlier number cannot miss it.
///
/// Every function is required. The table lives as long as the plugin, that is, as long as the
/// process.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SmMemEventV1 {
    /// Size and version of the plugin's table.
    pub hdr: SmHdr,
    /// Class A. Makes a mem-event whose word is 0. Success is never null.
    pub create: Option<
        unsafe extern "C" fn(
            s: *mut SmBackend,
            dev: u32,
            out: *mut *mut SmMemEvent,
            err: *mut SmError,
        ) -> i32,
    >,
    /// Class H. Ends one; safe while it is armed. Its word may not be read any more. Null is fine.
    pub destroy: Option<
        unsafe extern "C" fn(s: *mut SmBackend, event: *mut SmMemEvent, err: *mut SmError) -> i32,
    >,
    /// Class H. Once the stream's work so far is done, and what it wrote can be seen by who loads
    /// the word (acquire) and by other devices, the word becomes `seq`. `seq` is greater than that
    /// of every earlier call, else `SM_INVALID_ARGUMENT`. The caller takes another stream than for
    /// the call before only if the word has that call's number or never will, or if the streams are
    /// ordered: the plugin writes numbers as they become due.
    pub arm: Option<
        unsafe extern "C" fn(
            s: *mut SmBackend,
            event: *mut SmMemEvent,
            stream_dev: u32,
            stream: u64,
            seq: u64,
            err: *mut SmError,
        ) -> i32,
    >,
    /// Class A. Where the word is: 8 bytes, aligned, in memory that the host reads; the same for the
    /// life of the event.
    pub poll_addr: Option<
        unsafe extern "C" fn(
            s: *mut SmBackend,
            event: *mut SmMemEvent,
            addr: *mut *const u64,
            err: *mut SmError,
        ) -> i32,
    >,
    /// Class A. What became of the last arm: `SM_EVENT_PENDING` or `DONE`. If the work before it
    /// failed, or the device is lost, the word will never be what was armed: that failure is then
    /// the answer of this function. A host that polls asks now and then.
    pub query: Option<
        unsafe extern "C" fn(
            s: *mut SmBackend,
            event: *mut SmMemEvent,
            state: *mut u32,
            err: *mut SmError,
        ) -> i32,
    >,
}

/// What a device offers to network adapters. Filled up to the smaller of the plugin's size and the
/// caller's `hdr.struct_size`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmRdmaCaps {
    /// Size set by the caller.
    pub hdr: SmHdr,
    /// Bits `1 << SM_DMABUF_*` of the mappings that `dmabuf_export` makes.
    pub mappings: u32,
    /// Bits `1 << SM_MEMORY_*` of the kinds of memory that it exports.
    pub memory_kinds: u32,
    /// Bits `1 << SM_RDMA_FLUSH_*` of the scopes that `flush_rdma_writes` knows.
    pub flush_scopes: u32,
    /// `SM_RDMA_ORDERING_*`, as in `SmDeviceInfo`.
    pub write_ordering: u32,
    /// Bytes to which exports are aligned, as in `SmDeviceInfo`; 0 if there are none.
    pub dmabuf_granularity: u64,
    /// `SM_RDMA_CAPS_*` flags.
    pub flags: u32,
    /// Zero.
    pub pad0: u32,
}

impl SmRdmaCaps {
    /// An empty struct with the size set, ready to be passed to `rdma_caps`.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            hdr: SmHdr::of::<Self>(),
            mappings: 0,
            memory_kinds: 0,
            flush_scopes: 0,
            write_ordering: 0,
            dmabuf_granularity: 0,
            flags: 0,
            pad0: 0,
        }
    }
}

impl Default for SmRdmaCaps {
    fn default() -> Self {
        Self::new()
    }
}

/// `stepmesh.rdma.v1`: memory that a network adapter reads and writes. Every function is class A and
/// required; what a device cannot do is answered with `SM_UNIMPLEMENTED` and with what there is
/// instead. The table lives as long as the plugin, that is, as long as the process.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SmRdmaV1 {
    /// Size and version of the plugin's table.
    pub hdr: SmHdr,
    /// Exports `size` bytes at `ptr` (interior pointers are fine) of an allocation of `dev` as a
    /// dma-buf, whose descriptor has `O_CLOEXEC` and belongs to the caller until `dmabuf_close`.
    ///
    /// `mapping` is `SM_DMABUF_*`. A dma-buf has whole pages: `offset` is where `ptr` is in it, and
    /// `len` the bytes that may be used from there, `size` at least. The memory stays alive through
    /// the descriptor, also after `free`, and what is allocated later cannot be reached through it.
    ///
    /// An unknown mapping, or a range that is not within one allocation, is `SM_INVALID_ARGUMENT`;
    /// a mapping or a kind of memory that is not supported is `SM_UNIMPLEMENTED`; a driver that
    /// could and will not is `SM_UNAVAILABLE`. Never is less covered than was asked for.
    pub dmabuf_export: Option<
        unsafe extern "C" fn(
            s: *mut SmBackend,
            dev: u32,
            ptr: u64,
            size: u64,
            mapping: u32,
            fd: *mut i32,
            offset: *mut u64,
            len: *mut u64,
            err: *mut SmError,
        ) -> i32,
    >,
    /// Closes a descriptor of `dmabuf_export`, once, after the last registration of it. Served after
    /// `quiesce` too.
    pub dmabuf_close:
        Option<unsafe extern "C" fn(s: *mut SmBackend, fd: i32, err: *mut SmError) -> i32>,
    /// What the device offers.
    pub rdma_caps: Option<
        unsafe extern "C" fn(
            s: *mut SmBackend,
            dev: u32,
            out: *mut SmRdmaCaps,
            err: *mut SmError,
        ) -> i32,
    >,
    /// Makes what network adapters wrote to the device's memory, and told the host of, visible to
    /// `scope` (`SM_RDMA_FLUSH_*`) before it returns. An unknown scope is `SM_INVALID_ARGUMENT`.
    pub flush_rdma_writes: Option<
        unsafe extern "C" fn(s: *mut SmBackend, dev: u32, scope: u32, err: *mut SmError) -> i32,
    >,
    /// From here on, synchronous copies and fills of the allocation that `ptr` lies in are over when
    /// they return, for network adapters too. An address that is in no allocation is
    /// `SM_INVALID_ARGUMENT`.
    pub set_sync_memops:
        Option<unsafe extern "C" fn(s: *mut SmBackend, ptr: u64, err: *mut SmError) -> i32>,
    /// Has `func` called with the `alloc_id` of each allocation, registration and import of the
    /// instance that ends, before its address may be given to anything else and at the latest
    /// before the call that ended it returns. So a cache of registrations is told in time.
    ///
    /// There is one for each instance: it takes the place of the one before, and null ends it. A call
    /// under way in another thread may still reach the old one, so both stay valid until the
    /// instance is closed. `func` is class C, may come from any thread and several at once, and is
    /// called with no lock held. `close` ends all memory and calls nothing.
    pub set_invalidate_callback: Option<
        unsafe extern "C" fn(
            s: *mut SmBackend,
            func: Option<unsafe extern "C" fn(ctx: *mut c_void, alloc_id: u64)>,
            ctx: *mut c_void,
            err: *mut SmError,
        ) -> i32,
    >,
}

/// `stepmesh.graph.v1`: work that is captured into a graph and replayed, and flags in memory by which
/// it and the host wait for each other. Every function is class A and required; what a device cannot
/// do is answered with `SM_UNIMPLEMENTED`. The table lives as long as the plugin, that is, as long as
/// the process.
///
/// A flag and a sequence number are words of 8 bytes, aligned, in memory that the device reaches
/// (device memory, pinned or registered memory), and stay there until the stream, and every graph that
/// captured the work, is done with them. All three kinds of work read the sequence number from memory
/// when they run and not when they are submitted, so that a graph that is replayed sees new ones:
/// `seq_add_one` in the graph counts them. Copies, fills, events and mem-events are captured through
/// their own slots.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SmGraphV1 {
    /// Size and version of the plugin's table.
    pub hdr: SmHdr,
    /// Whether a stream is being captured (`SM_CAPTURE_*`), and the number of that capture, 0 if there
    /// is none.
    pub capture_state: Option<
        unsafe extern "C" fn(
            s: *mut SmBackend,
            stream_dev: u32,
            stream: u64,
            state: *mut u32,
            id: *mut u64,
            err: *mut SmError,
        ) -> i32,
    >,
    /// In stream order: the word at `flag` becomes that at `seq`, once all earlier work of the stream
    /// can be seen by who loads the flag (acquire).
    pub write_flag: Option<
        unsafe extern "C" fn(
            s: *mut SmBackend,
            stream_dev: u32,
            stream: u64,
            flag: u64,
            seq: u64,
            err: *mut SmError,
        ) -> i32,
    >,
    /// In stream order: waits until the word at `flag` is that at `seq` or greater (acquire), until
    /// the word at `abort` is not 0, or for `timeout_ns`, which is not 0. The word at `outcome`
    /// becomes `SM_FLAG_WAIT_*`. `abort` and `outcome` may be 0: none.
    ///
    /// The stream goes on in each case, and so does a graph; who submitted it looks at the outcome.
    pub wait_flag: Option<
        unsafe extern "C" fn(
            s: *mut SmBackend,
            stream_dev: u32,
            stream: u64,
            flag: u64,
            seq: u64,
            abort: u64,
            outcome: u64,
            timeout_ns: u64,
            err: *mut SmError,
        ) -> i32,
    >,
    /// In stream order: adds 1 to the word at `seq`.
    pub seq_add_one: Option<
        unsafe extern "C" fn(
            s: *mut SmBackend,
            stream_dev: u32,
            stream: u64,
            seq: u64,
            err: *mut SmError,
        ) -> i32,
    >,
}

/// Extension: memory shared between processes ([`SmIpcV1`]).
pub const SM_EXTENSION_IPC_V1: &str = "stepmesh.ipc.v1";
/// Extension: memory that a network adapter reads and writes ([`SmRdmaV1`]).
pub const SM_EXTENSION_RDMA_V1: &str = "stepmesh.rdma.v1";
/// Extension: events as a number in memory ([`SmMemEventV1`]).
pub const SM_EXTENSION_MEMEVENT_V1: &str = "stepmesh.memevent.v1";
/// Extension: device timestamps.
pub const SM_EXTENSION_TIMING_V1: &str = "stepmesh.timing.v1";
/// Extension: work that is captured and replayed ([`SmGraphV1`]).
pub const SM_EXTENSION_GRAPH_V1: &str = "stepmesh.graph.v1";
/// Extension: virtual memory management.
pub const SM_EXTENSION_VMM_V1: &str = "stepmesh.vmm.v1";
/// Extension: kernels that a backend can run.
pub const SM_EXTENSION_COMPUTE_V1: &str = "stepmesh.compute.v1";
/// Extension: lazy tensors.
pub const SM_EXTENSION_LAZY_V1: &str = "stepmesh.lazy.v1";

/// Handle kind: a file descriptor.
pub const SM_IPC_FD: u32 = 1;
/// Handle kind: bytes that only the vendor's library understands.
pub const SM_IPC_OPAQUE: u32 = 2;
/// Handle flag: the descriptor can be mapped by the host (`mmap`) for reading and writing.
pub const SM_IPC_MAPPABLE: u32 = 1 << 0;

/// Mapping of a dma-buf: what the driver takes by default.
pub const SM_DMABUF_DEFAULT: u32 = 0;
/// Mapping of a dma-buf: through the device's PCIe window, also where another way would be default.
pub const SM_DMABUF_PCIE: u32 = 1;

/// Flush scope: the device whose memory it is.
pub const SM_RDMA_FLUSH_OWNER: u32 = 1;
/// Flush scope: every device.
pub const SM_RDMA_FLUSH_ALL_DEVICES: u32 = 2;

/// Flag of the capabilities: memory of `alloc_async` is exported too.
pub const SM_RDMA_CAPS_ASYNC_POOL: u32 = 1 << 0;

/// Capture: the stream is not captured.
pub const SM_CAPTURE_NONE: u32 = 0;
/// Capture: it is.
pub const SM_CAPTURE_ACTIVE: u32 = 1;
/// Capture: it was, and an error ended that; ending the capture tells which.
pub const SM_CAPTURE_INVALIDATED: u32 = 2;

/// Outcome of a wait for a flag: the flag has the number.
pub const SM_FLAG_WAIT_REACHED: u64 = 1;
/// Outcome of a wait for a flag: the abort word was set.
pub const SM_FLAG_WAIT_ABORTED: u64 = 2;
/// Outcome of a wait for a flag: the time was up.
pub const SM_FLAG_WAIT_TIMED_OUT: u64 = 3;

const _: () = assert!(size_of::<SmIpcHandle>() == 104);
const _: () = assert!(offset_of!(SmIpcHandle, bytes) == 40);
const _: () = assert!(size_of::<SmIpcV1>() == 32);
const _: () = assert!(size_of::<SmMemEventV1>() == 48);
const _: () = assert!(size_of::<SmRdmaCaps>() == 40);
const _: () = assert!(offset_of!(SmRdmaCaps, dmabuf_granularity) == 24);
const _: () = assert!(size_of::<SmRdmaV1>() == 56);
const _: () = assert!(size_of::<SmGraphV1>() == 40);
