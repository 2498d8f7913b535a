//! The trait that a backend implements. The slots that call it live in the slots module.
#![expect(
    unsafe_code,
    reason = "declares methods whose caller vouches for addresses"
)]

use stepmesh_abi::note::NoteParams;
use stepmesh_abi::{SmDeviceInfo, SmPtrAttr};

use crate::request::{
    AllocRequest, CopyRequest, EventOptions, EventState, Extension, FillRequest, Health, HostFunc,
    Probe, Stream, WaitMode,
};
use crate::{Error, Host, Result};

/// An instance of an accelerator backend.
///
/// Device ordinals are checked before a method sees them, streams are never 0, sizes of allocations
/// never 0. Methods run on any thread, several at once, and leave the calling thread's current
/// device as they found it (except [`Backend::set_current_device`]). Dropping the instance is its
/// `close`: release everything, wait for nothing without a bound.
///
/// A method with a default belongs to an optional slot. Its slot is filled only if it is listed in
/// [`Backend::OPTIONAL`]; otherwise the host stands in.
pub trait Backend: Sized + Send + Sync + 'static {
    /// An event. Dropping it is `event_destroy`, and must be safe while it is pending.
    type Event: Send + Sync + 'static;

    /// Name, version, kind, aliases: what the ELF note says.
    const NOTE: NoteParams<'static>;
    /// Who made the plugin.
    const VENDOR: &'static str = "";
    /// What tells two builds apart.
    const BUILD_ID: &'static str = "";
    /// Optional slots that this backend fills.
    const OPTIONAL: &'static [Optional] = &[];

    /// Looks for devices without making a context, a thread or a file. No driver is 0 devices.
    ///
    /// # Errors
    /// Only if looking itself failed.
    fn probe(host: &Host) -> Result<Probe>;

    /// Makes an instance.
    ///
    /// # Errors
    /// If there is no device or it cannot be used.
    fn open(host: Host) -> Result<Self>;

    /// Drains work and stops threads, within a bound. Called at most once; afterwards only
    /// [`Backend::free`] and destroys come.
    ///
    /// # Errors
    /// If work did not end within the bound.
    fn quiesce(&self) -> Result<()>;

    /// Number of devices; asked once, after `open`.
    fn device_count(&self) -> u32;

    /// Facts about a device.
    ///
    /// # Errors
    /// If the device does not answer.
    fn device_info(&self, device: u32) -> Result<SmDeviceInfo>;

    /// Free and total bytes of memory.
    ///
    /// # Errors
    /// If the device does not answer.
    fn mem_info(&self, device: u32) -> Result<(u64, u64)> {
        let _ = device;
        Err(missing("mem_info"))
    }

    /// `SM_CAP_*` bits of a device.
    ///
    /// # Errors
    /// If the device does not answer.
    fn capabilities(&self, device: u32) -> Result<u64>;

    /// Makes a device the calling thread's current one.
    ///
    /// # Errors
    /// If the runtime refuses.
    fn set_current_device(&self, device: u32) -> Result<()>;

    /// The calling thread's current device.
    ///
    /// # Errors
    /// If the runtime does not answer.
    fn current_device(&self) -> Result<Option<u32>>;

    /// Waits until all work submitted to the device so far is done.
    ///
    /// # Errors
    /// If work failed.
    fn device_sync(&self, device: u32) -> Result<()>;

    /// Allocates memory and gives its address.
    ///
    /// # Errors
    /// [`Error::out_of_memory`]; `SM_UNIMPLEMENTED` for a kind the backend has not.
    fn alloc(&self, device: u32, request: &AllocRequest) -> Result<u64>;

    /// Gives memory back. The address is not 0.
    ///
    /// # Safety
    /// - No work on the memory is in flight, and no one uses it afterwards.
    ///
    /// # Errors
    /// `SM_INVALID_ARGUMENT`, naming the address, if it is not the first of a live allocation.
    unsafe fn free(&self, device: u32, ptr: u64) -> Result<()>;

    /// Allocates memory in stream order.
    ///
    /// # Errors
    /// As [`Backend::alloc`].
    fn alloc_async(&self, device: u32, len_bytes: u64, stream: Stream) -> Result<u64> {
        let _ = (device, len_bytes, stream);
        Err(missing("alloc_async"))
    }

    /// Frees memory in stream order.
    ///
    /// # Safety
    /// - No one uses the memory after the stream got there.
    ///
    /// # Errors
    /// As [`Backend::free`].
    unsafe fn free_async(&self, device: u32, ptr: u64, stream: Stream) -> Result<()> {
        let _ = (device, ptr, stream);
        Err(missing("free_async"))
    }

    /// Makes host memory known to every device and gives its device address.
    ///
    /// # Safety
    /// - The range is mapped, and stays so until it is unregistered.
    ///
    /// # Errors
    /// `SM_ALREADY_EXISTS` if it is registered.
    unsafe fn host_register(&self, ptr: u64, len_bytes: u64, read_only: bool) -> Result<u64> {
        let _ = (ptr, len_bytes, read_only);
        Err(missing("host_register"))
    }

    /// Undoes [`Backend::host_register`].
    ///
    /// # Errors
    /// `SM_NOT_FOUND` if it is not registered.
    fn host_unregister(&self, ptr: u64) -> Result<()> {
        let _ = ptr;
        Err(missing("host_unregister"))
    }

    /// What is known about an address. Unknown memory is not an error.
    ///
    /// # Errors
    /// If the runtime does not answer.
    fn pointer_attributes(&self, ptr: u64) -> Result<SmPtrAttr>;

    /// Makes a stream and gives its native handle, which is greater than 2.
    ///
    /// # Errors
    /// If there are too many.
    fn stream_create(&self, device: u32, priority: i32, non_blocking: bool) -> Result<u64>;

    /// Ends a stream; its work is still done.
    ///
    /// # Errors
    /// If the stream is unknown or a default one.
    fn stream_destroy(&self, stream: Stream) -> Result<()>;

    /// Waits for the work submitted so far, at most `timeout_ns`.
    ///
    /// # Errors
    /// `SM_DEADLINE_EXCEEDED`; the failure of earlier work.
    fn stream_sync(&self, stream: Stream, timeout_ns: u64) -> Result<()>;

    /// Whether all work submitted so far is done.
    ///
    /// # Errors
    /// If the stream is unknown.
    fn stream_is_done(&self, stream: Stream) -> Result<bool>;

    /// Makes later work on the stream wait for the event's last record.
    ///
    /// # Errors
    /// If the stream is unknown or its queue is full.
    fn stream_wait_event(&self, stream: Stream, event: &Self::Event) -> Result<()>;

    /// Copies in stream order.
    ///
    /// # Safety
    /// - Both ranges are valid until the stream did the copy, for reading and for writing.
    /// - They do not overlap, and no one writes the source or uses the destination meanwhile.
    ///
    /// # Errors
    /// If the stream is unknown or its queue is full.
    unsafe fn memcpy_async(&self, request: &CopyRequest, stream: Stream) -> Result<()>;

    /// Copies before it returns.
    ///
    /// # Safety
    /// - As [`Backend::memcpy_async`], until this returns.
    ///
    /// # Errors
    /// If the device fails.
    unsafe fn memcpy_sync(&self, request: &CopyRequest) -> Result<()> {
        let _ = request;
        Err(missing("memcpy_sync"))
    }

    /// Fills in stream order.
    ///
    /// # Safety
    /// - As [`Backend::memcpy_async`], for the written range.
    ///
    /// # Errors
    /// If the stream is unknown or its queue is full.
    unsafe fn memset_async(&self, request: &FillRequest, stream: Stream) -> Result<()> {
        let _ = (request, stream);
        Err(missing("memset_async"))
    }

    /// Makes an event.
    ///
    /// # Errors
    /// If an option is not supported.
    fn event_create(&self, device: u32, options: EventOptions) -> Result<Self::Event>;

    /// Marks the present end of the stream's work.
    ///
    /// # Errors
    /// If the stream is unknown or its queue is full.
    fn event_record(&self, event: &Self::Event, stream: Stream) -> Result<()>;

    /// State of the last record.
    ///
    /// # Errors
    /// If the runtime does not answer; failed work is a state.
    fn event_query(&self, event: &Self::Event) -> Result<EventState>;

    /// Waits for the last record, at most `timeout_ns`.
    ///
    /// # Errors
    /// `SM_DEADLINE_EXCEEDED`; the failure of the work.
    fn event_sync(&self, event: &Self::Event, timeout_ns: u64, mode: WaitMode) -> Result<()>;

    /// Milliseconds between two events that are done.
    ///
    /// # Errors
    /// `SM_FAILED_PRECONDITION` if one is not done or does not measure time.
    fn event_elapsed_ms(&self, start: &Self::Event, end: &Self::Event) -> Result<f64> {
        let _ = (start, end);
        Err(missing("event_elapsed"))
    }

    /// Runs a function of the host's in stream order.
    ///
    /// # Errors
    /// If the stream is unknown or its queue is full; the function is run all the same.
    fn launch_host_func(&self, stream: Stream, func: HostFunc) -> Result<()> {
        let _ = (stream, func);
        Err(missing("launch_host_func"))
    }

    /// Health of a device.
    ///
    /// # Errors
    /// The fault, where it is known.
    fn health(&self, device: u32) -> Result<Health> {
        let _ = device;
        Err(missing("health"))
    }

    /// The table of an extension of at least a version; the kit answers `SM_NOT_FOUND` for `None`.
    fn extension(&self, name: &str, min_version: u32) -> Option<Extension> {
        let _ = (name, min_version);
        None
    }
}

/// An optional slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Optional {
    /// [`Backend::mem_info`].
    MemInfo,
    /// [`Backend::alloc_async`] and [`Backend::free_async`].
    AllocAsync,
    /// [`Backend::host_register`] and [`Backend::host_unregister`].
    HostRegister,
    /// [`Backend::memcpy_sync`].
    MemcpySync,
    /// [`Backend::memset_async`].
    MemsetAsync,
    /// [`Backend::event_elapsed_ms`].
    EventElapsed,
    /// [`Backend::launch_host_func`].
    LaunchHostFunc,
    /// [`Backend::health`].
    Health,
}

fn missing(slot: &str) -> Error {
    Error::unimplemented(format!("{slot} is listed as filled but has no method"))
}
