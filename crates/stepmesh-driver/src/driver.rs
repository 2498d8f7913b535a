//! The calls of a driver under neutral names. A plugin implements [`Driver`] in its `driver.rs`, where
//! each method names the vendor's function; what a backend makes of them lives in the other modules.
#![expect(
    unsafe_code,
    reason = "declares methods whose caller vouches for addresses and handles"
)]

use std::ffi::c_void;
use std::fmt::Debug;
use std::os::fd::OwnedFd;

use stepmesh_plugin::abi::note::NoteParams;
use stepmesh_plugin::{Capture, CopyRequest, DmabufMapping, FillRequest, FlagWait, FlushScope};

use crate::{Answer, Kind, Toolkit};

/// A vendor's driver, loaded and initialised.
///
/// Methods are called from any thread. Those that say so are called while the device is entered, that
/// is, between [`Driver::enter`] and [`Driver::leave`] on the same thread; they leave the current
/// device alone. No method waits for work unless it says so.
///
/// # Safety
/// Of the unsafe methods:
/// - addresses are those of memory that this driver gave and that is still there, or host memory that
///   the caller vouches for until the work is done;
/// - streams and events are live handles of this driver, or `SM_STREAM_LEGACY` and
///   `SM_STREAM_PER_THREAD`.
pub trait Driver: Toolkit {
    /// Name, version, kind, aliases: what the plugin's ELF note says.
    const NOTE: NoteParams<'static>;
    /// Who made the plugin.
    const VENDOR: &'static str;
    /// What people call the platform: `CUDA`, `ROCm`.
    const TITLE: &'static str;
    /// `SM_DLPACK_*` of device memory.
    const DLPACK_TYPE: i32;

    /// What the driver knows a device's state by; made once for each device and instance.
    type Context: Copy + Debug + Send + Sync + 'static;
    /// What was current before a device was entered.
    type Previous;

    /// Opens the library and initialises it, without a context, a thread or a file of ours.
    ///
    /// # Errors
    /// Why there is nothing to work with.
    fn load() -> Result<Self, Absent>;

    /// What a status means. Pure.
    fn kind(status: i32) -> Kind;

    /// The vendor's name of a status.
    fn status_name(&self, status: i32) -> String;

    /// Devices that the driver lets this process see. 0 is no error.
    ///
    /// # Errors
    /// If it does not tell.
    fn device_count(&self) -> Answer<u32>;

    /// What is known of a device without entering it.
    ///
    /// # Errors
    /// If it does not tell.
    fn facts(&self, device: u32) -> Answer<Facts>;

    /// Whether one device may map another one's memory. Asked without entering a device.
    ///
    /// # Errors
    /// If it does not tell.
    fn can_access_peer(&self, device: u32, peer: u32) -> Answer<bool>;

    /// Gets a device ready for this instance. Leaves the current device alone.
    ///
    /// # Errors
    /// If the device cannot be used.
    fn retain(&self, device: u32) -> Answer<Self::Context>;

    /// Undoes [`Driver::retain`], with no handle of this instance left.
    ///
    /// # Errors
    /// If the driver refuses.
    fn release(&self, device: u32, context: Self::Context) -> Answer<()>;

    /// Makes a device current for the calls that follow on this thread.
    ///
    /// # Errors
    /// If the driver refuses; what was current then still is.
    fn enter(&self, device: u32, context: Self::Context) -> Answer<Self::Previous>;

    /// Makes current again what was before [`Driver::enter`].
    ///
    /// # Errors
    /// If the driver refuses.
    fn leave(&self, previous: Self::Previous) -> Answer<()>;

    /// Makes a device the calling thread's current one.
    ///
    /// # Errors
    /// If the driver refuses.
    fn set_current(&self, device: u32, context: Self::Context) -> Answer<()>;

    /// The calling thread's current device, as the driver says.
    ///
    /// # Errors
    /// If the driver does not tell.
    fn current(&self) -> Answer<Option<u32>>;

    /// Lets the calls of this thread go on while another one captures a stream, and gives back what
    /// was set before; `None` where there is nothing to set.
    ///
    /// # Errors
    /// If the driver refuses.
    fn relax_capture(&self) -> Answer<Option<u32>>;

    /// Sets again what [`Driver::relax_capture`] gave.
    ///
    /// # Errors
    /// If the driver refuses.
    fn restore_capture(&self, previous: u32) -> Answer<()>;

    /// Lets the entered device map a peer's memory.
    ///
    /// # Errors
    /// [`Kind::AlreadyEnabled`] if it may already.
    fn enable_peer(&self, peer: u32, peer_context: Self::Context) -> Answer<()>;

    /// Waits for all work of the entered device. Its only bound is the driver's.
    ///
    /// # Errors
    /// The failure of the work.
    fn synchronize(&self) -> Answer<()>;

    /// Free and total bytes of the entered device. Also asked to find out whether the device is well.
    ///
    /// # Errors
    /// If it does not answer; a fault of earlier work.
    fn memory_info(&self) -> Answer<(u64, u64)>;

    /// Memory of the entered device, aligned to [`Facts::alloc_align_bytes`].
    ///
    /// # Errors
    /// [`Kind::OutOfMemory`].
    fn alloc_device(&self, len_bytes: u64) -> Answer<u64>;

    /// Gives it back, or managed memory.
    ///
    /// # Safety
    /// - As the trait says; the memory is not used afterwards.
    ///
    /// # Errors
    /// If the driver refuses.
    unsafe fn free_device(&self, ptr: u64) -> Answer<()>;

    /// Host memory that is locked and that every device reaches at the same address.
    ///
    /// # Errors
    /// [`Kind::OutOfMemory`].
    fn alloc_pinned(&self, len_bytes: u64) -> Answer<u64>;

    /// Gives it back.
    ///
    /// # Safety
    /// - As [`Driver::free_device`].
    ///
    /// # Errors
    /// If the driver refuses.
    unsafe fn free_pinned(&self, ptr: u64) -> Answer<()>;

    /// Memory that migrates, at first for the entered device.
    ///
    /// # Errors
    /// [`Kind::OutOfMemory`].
    fn alloc_managed(&self, len_bytes: u64) -> Answer<u64>;

    /// Memory of the entered device in stream order.
    ///
    /// # Safety
    /// - As the trait says.
    ///
    /// # Errors
    /// [`Kind::OutOfMemory`].
    unsafe fn alloc_async(&self, len_bytes: u64, stream: u64) -> Answer<u64>;

    /// Gives memory of [`Driver::alloc_async`] back in stream order.
    ///
    /// # Safety
    /// - As [`Driver::free_device`], once the stream got there.
    ///
    /// # Errors
    /// If the driver refuses.
    unsafe fn free_async(&self, ptr: u64, stream: u64) -> Answer<()>;

    /// Locks host memory for every device and gives its device address.
    ///
    /// # Safety
    /// - The range is mapped until it is unregistered.
    ///
    /// # Errors
    /// [`Kind::AlreadyRegistered`]; if it cannot be locked.
    unsafe fn register_host(&self, ptr: u64, len_bytes: u64, read_only: bool) -> Answer<u64>;

    /// Undoes [`Driver::register_host`].
    ///
    /// # Safety
    /// - As the trait says.
    ///
    /// # Errors
    /// [`Kind::NotRegistered`].
    unsafe fn unregister_host(&self, ptr: u64) -> Answer<()>;

    /// What the driver knows of an address, `None` if nothing.
    ///
    /// # Errors
    /// If it does not tell.
    fn pointer(&self, ptr: u64) -> Answer<Option<PointerFacts>>;

    /// A stream of the entered device. The priority is clamped to what there is.
    ///
    /// # Errors
    /// If there are too many.
    fn create_stream(&self, priority: i32, non_blocking: bool) -> Answer<u64>;

    /// Ends a stream; its work is still done.
    ///
    /// # Safety
    /// - As the trait says; the handle is not used afterwards.
    ///
    /// # Errors
    /// If the driver refuses.
    unsafe fn destroy_stream(&self, stream: u64) -> Answer<()>;

    /// Whether the work of a stream of the entered device is done.
    ///
    /// # Safety
    /// - As the trait says.
    ///
    /// # Errors
    /// The failure of the work.
    unsafe fn is_stream_done(&self, stream: u64) -> Answer<bool>;

    /// Makes a stream of the entered device wait for an event's last record.
    ///
    /// # Safety
    /// - As the trait says.
    ///
    /// # Errors
    /// If the driver refuses.
    unsafe fn wait_event(&self, stream: u64, event: u64) -> Answer<()>;

    /// Has a stream of the entered device call a host function once the work so far is done. It may
    /// not be called if that work fails.
    ///
    /// # Safety
    /// - As the trait says; `func` may be called with `arg` from any thread at any time.
    ///
    /// # Errors
    /// If the driver refuses.
    unsafe fn launch_host_function(
        &self,
        stream: u64,
        func: unsafe extern "C" fn(*mut c_void),
        arg: *mut c_void,
    ) -> Answer<()>;

    /// Has a stream of the entered device write 8 bytes to an address that devices reach, once all it
    /// did before can be seen by everyone.
    ///
    /// # Safety
    /// - As the trait says.
    ///
    /// # Errors
    /// [`Kind::NotSupported`] where streams cannot.
    unsafe fn write_value(&self, stream: u64, ptr: u64, value: u64) -> Answer<()>;

    /// An event of the entered device.
    ///
    /// # Errors
    /// If the driver refuses.
    fn create_event(&self, timing: bool, blocking: bool) -> Answer<u64>;

    /// Ends an event, pending or not.
    ///
    /// # Safety
    /// - As the trait says; the handle is not used afterwards.
    ///
    /// # Errors
    /// If the driver refuses.
    unsafe fn destroy_event(&self, event: u64) -> Answer<()>;

    /// Records an event on a stream of the entered device.
    ///
    /// # Safety
    /// - As the trait says.
    ///
    /// # Errors
    /// If the driver refuses.
    unsafe fn record_event(&self, event: u64, stream: u64) -> Answer<()>;

    /// Whether the last record of an event of the entered device was reached. Never recorded is.
    ///
    /// # Safety
    /// - As the trait says.
    ///
    /// # Errors
    /// The failure of the work.
    unsafe fn is_event_done(&self, event: u64) -> Answer<bool>;

    /// Milliseconds between two events that are done.
    ///
    /// # Safety
    /// - As the trait says.
    ///
    /// # Errors
    /// [`Kind::Invalid`] if one does not measure time.
    unsafe fn elapsed_ms(&self, start: u64, end: u64) -> Answer<f64>;

    /// Copies in the order of a stream of the entered device. `peers` are the contexts of the written
    /// and the read side if they are different devices.
    ///
    /// # Safety
    /// - As the trait says.
    ///
    /// # Errors
    /// If the driver refuses.
    unsafe fn copy_async(
        &self,
        request: &CopyRequest,
        peers: Option<(Self::Context, Self::Context)>,
        stream: u64,
    ) -> Answer<()>;

    /// Fills in the order of a stream of the entered device.
    ///
    /// # Safety
    /// - As the trait says.
    ///
    /// # Errors
    /// If the driver refuses.
    unsafe fn fill_async(&self, request: &FillRequest, stream: u64) -> Answer<()>;

    /// Exports whole pages of memory of the entered device as a dma-buf with `O_CLOEXEC`.
    ///
    /// # Safety
    /// - As the trait says.
    ///
    /// # Errors
    /// [`Kind::NotSupported`] for a mapping or memory that it has not.
    unsafe fn export_dmabuf(
        &self,
        ptr: u64,
        len_bytes: u64,
        mapping: DmabufMapping,
    ) -> Answer<Exported>;

    /// Closes a dma-buf, for drivers that have a call for it.
    ///
    /// # Errors
    /// If the driver refuses.
    fn close_dmabuf(&self, fd: OwnedFd) -> Answer<()> {
        drop(fd);
        Ok(())
    }

    /// Makes what network adapters wrote to the entered device visible.
    ///
    /// # Errors
    /// [`Kind::NotSupported`].
    fn flush_rdma_writes(&self, scope: FlushScope) -> Answer<()>;

    /// Makes synchronous copies and fills of an allocation synchronous for network adapters too.
    ///
    /// # Safety
    /// - As the trait says.
    ///
    /// # Errors
    /// [`Kind::NotSupported`].
    unsafe fn set_sync_memops(&self, ptr: u64) -> Answer<()>;

    /// The handle by which another process opens the allocation that starts at `ptr`.
    ///
    /// # Safety
    /// - As the trait says.
    ///
    /// # Errors
    /// [`Kind::NotSupported`].
    unsafe fn export_ipc(&self, ptr: u64) -> Answer<[u8; 64]>;

    /// Opens another process's allocation for the entered device and gives its first address.
    ///
    /// # Errors
    /// [`Kind::Invalid`] for a handle that is none.
    fn open_ipc(&self, handle: [u8; 64]) -> Answer<u64>;

    /// Undoes [`Driver::open_ipc`].
    ///
    /// # Safety
    /// - As [`Driver::free_device`].
    ///
    /// # Errors
    /// If the driver refuses.
    unsafe fn close_ipc(&self, ptr: u64) -> Answer<()>;

    /// Whether a stream of the entered device is being captured, and by which number.
    ///
    /// # Safety
    /// - As the trait says.
    ///
    /// # Errors
    /// [`Kind::NotSupported`].
    unsafe fn capture(&self, stream: u64) -> Answer<Capture>;

    /// Runs a kernel of the entered device that takes the flags' words; see [`Kernel`].
    ///
    /// # Safety
    /// - As the trait says; words are 8 bytes, aligned, and stay until the stream, and every graph
    ///   that captured it, is done with them.
    ///
    /// # Errors
    /// [`Kind::NotSupported`] where there are no kernels.
    unsafe fn launch(&self, device: u32, stream: u64, kernel: Kernel) -> Answer<()>;
}

/// Why there is no driver to work with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absent {
    /// Which library was looked for and what the loader or the driver answered.
    pub reason: String,
    /// The driver's status, 0 if the loader answered.
    pub status: i32,
}

/// What is known of a device without entering it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Marketing name.
    pub name: String,
    /// Architecture as the vendor's compiler names it.
    pub arch: String,
    /// PCI address, `0000:3b:00.0`; empty if unknown.
    pub pci_bdf: String,
    /// Identity; zero if unknown.
    pub uuid: [u8; 16],
    /// Major compute capability.
    pub cc_major: u32,
    /// Minor compute capability.
    pub cc_minor: u32,
    /// Bytes of memory.
    pub total_bytes: u64,
    /// Alignment in bytes of every allocation.
    pub alloc_align_bytes: u64,
    /// Whether it shares the host's memory.
    pub is_integrated: bool,
    /// `SM_RDMA_ORDERING_*`.
    pub rdma_write_ordering: u32,
    /// `SM_FLUSH_*` bits.
    pub flush_options: u32,
    /// Whether [`Driver::alloc_managed`] works.
    pub has_managed: bool,
    /// Whether [`Driver::alloc_async`] works.
    pub has_pools: bool,
    /// Whether [`Driver::write_value`] works.
    pub has_stream_writes: bool,
    /// Whether dma-bufs are exported with the default mapping.
    pub has_dmabuf: bool,
    /// Whether dma-bufs are exported with the PCIe mapping.
    pub has_dmabuf_pcie: bool,
    /// Whether a kernel module lets network adapters register device addresses as they are.
    pub has_peermem: bool,
    /// Whether [`Driver::set_sync_memops`] works.
    pub has_sync_memops: bool,
    /// Whether [`Driver::export_ipc`] works.
    pub has_ipc: bool,
    /// Whether [`Driver::capture`] and [`Driver::launch`] work.
    pub has_graphs: bool,
}

/// What a driver knows of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PointerFacts {
    /// `SM_MEMORY_*`.
    pub kind: u32,
    /// Device of the memory, if it has one.
    pub device: Option<u32>,
    /// First address of the allocation.
    pub base: u64,
    /// Bytes of the allocation.
    pub len_bytes: u64,
    /// The driver's number of the allocation, never given twice in this process; 0 if it has none.
    pub id: u64,
}

/// A dma-buf of whole pages.
#[derive(Debug)]
pub struct Exported {
    /// The descriptor.
    pub fd: OwnedFd,
    /// Where the first exported address is in the dma-buf, in bytes.
    pub offset_bytes: u64,
}

/// The kernels of flags in memory. Numbers are read from memory when the kernel runs, so that a graph
/// that is replayed sees new ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// `*flag = *seq`, after all that was done before (release, for everyone).
    WriteFlag {
        /// Address of the flag's word.
        flag: u64,
        /// Address of the number.
        seq: u64,
    },
    /// Waits until `*flag >= *seq` (acquire), until `*abort` is not 0, or until the time is up, and
    /// writes to `*outcome` which it was.
    WaitFlag(FlagWait),
    /// `*seq += 1`.
    AddOne {
        /// Address of the number.
        seq: u64,
    },
}
