//! The table that a plugin returns, what `query` and `open` take, and the plugin's description of
//! itself. What the slots' arguments mean in detail lives with their types.
#![expect(unsafe_code, reason = "the tables are shared between threads")]

use core::ffi::{c_char, c_void};
use core::marker::{PhantomData, PhantomPinned};
use core::mem::{offset_of, size_of};

use crate::device::SmDeviceInfo;
use crate::error::SmError;
use crate::event::SmEvent;
use crate::header::{SmHdr, SmStr};
use crate::host::SmHostApi;
use crate::memory::SmPtrAttr;

/// An instance of a plugin, made by `open`. Opaque to the host.
#[repr(C)]
pub struct SmBackend {
    opaque: [u8; 0],
    marker: PhantomData<(*mut u8, PhantomPinned)>,
}

impl core::fmt::Debug for SmBackend {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("SmBackend")
    }
}

/// A plugin's description of itself. Name and version are those of its ELF note.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SmPluginInfo {
    /// Size and version.
    pub hdr: SmHdr,
    /// Name by which the backend is chosen: lower case letters, digits, `-` and `_`.
    pub name: SmStr,
    /// Version of the plugin.
    pub version: SmStr,
    /// Who made it.
    pub vendor: SmStr,
    /// What tells two builds apart; may be empty.
    pub build_id: SmStr,
}

impl SmPluginInfo {
    /// A description made of static text.
    #[must_use]
    pub const fn new(
        name: &'static str,
        version: &'static str,
        vendor: &'static str,
        build_id: &'static str,
    ) -> Self {
        Self {
            hdr: SmHdr::of::<Self>(),
            name: SmStr::of(name),
            version: SmStr::of(version),
            vendor: SmStr::of(vendor),
            build_id: SmStr::of(build_id),
        }
    }
}

// SAFETY: the texts are immutable and live as long as the process; reading them needs no order.
unsafe impl Send for SmPluginInfo {}
// SAFETY: as for `Send`.
unsafe impl Sync for SmPluginInfo {}

/// What `open` is asked for.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SmOpenArgs {
    /// Size set by the host.
    pub hdr: SmHdr,
    /// No bit is defined in version 1.0; unknown bits are `SM_INVALID_ARGUMENT`.
    pub flags: u64,
}

impl SmOpenArgs {
    /// The arguments with the size set.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            hdr: SmHdr::of::<Self>(),
            flags: 0,
        }
    }
}

impl Default for SmOpenArgs {
    fn default() -> Self {
        Self::new()
    }
}

/// The functions of a plugin. Static, immutable, and at the same address for every `query`.
///
/// Each slot returns a status code ([`crate::error`]) that is also in `err`, which may be null.
/// Out pointers must not be null and are written on success only. A slot that is null or beyond
/// `hdr.struct_size` is absent: the host puts a thunk of its own there if it is optional, and
/// refuses the plugin if it is required.
///
/// Threading classes:
/// - **A**: any thread, concurrently.
/// - **H**: any thread, one call at a time for each handle.
/// - **C**: callback context; must not call back into the table and must not block for long.
/// - **I**: the thread that initialises or ends the instance, with no other call in flight on it.
///
/// A slot leaves the calling thread's current device as it found it, also on failure (except
/// `set_current_device`), holds no lock while it calls the host, never aborts or exits, and installs
/// no signal handler. In a forked child an instance of the parent answers `SM_FAILED_PRECONDITION`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SmBackendApi {
    /// Size and version of the plugin's table.
    pub hdr: SmHdr,
    /// **Required.** The plugin's description of itself.
    pub info: *const SmPluginInfo,
    /// **Required, class A.** Counts usable devices and scores the backend (0: unusable; higher is
    /// better) without making a context, a thread or a file. No driver installed is 0 devices, not
    /// an error.
    pub probe: Option<
        unsafe extern "C" fn(n_devices: *mut u32, score: *mut u32, err: *mut SmError) -> i32,
    >,
    /// **Required, class I.** Makes an instance. Several may be open at once. `host` is the table
    /// that `query` was given.
    pub open: Option<
        unsafe extern "C" fn(
            host: *const SmHostApi,
            args: *const SmOpenArgs,
            out: *mut *mut SmBackend,
            err: *mut SmError,
        ) -> i32,
    >,
    /// **Optional, class I.** Drains the instance's work and stops its threads, within a bound.
    /// Idempotent; afterwards every slot but `close`, `free`, the destroys and `last_error` is
    /// `SM_FAILED_PRECONDITION`. Thunk: nothing.
    pub quiesce: Option<unsafe extern "C" fn(s: *mut SmBackend, err: *mut SmError) -> i32>,
    /// **Required, class I.** Ends the instance; quiesces first if that was not done. Handles that
    /// are still live are released. The pointer is invalid afterwards, whatever is returned.
    pub close: Option<unsafe extern "C" fn(s: *mut SmBackend, err: *mut SmError) -> i32>,
    /// **Required, class A.** Number of devices; constant for the life of the instance.
    pub device_count:
        Option<unsafe extern "C" fn(s: *mut SmBackend, n: *mut u32, err: *mut SmError) -> i32>,
    /// **Required, class A.** Facts about a device.
    pub device_info: Option<
        unsafe extern "C" fn(
            s: *mut SmBackend,
            dev: u32,
            out: *mut SmDeviceInfo,
            err: *mut SmError,
        ) -> i32,
    >,
    /// **Optional, class A.** Free and total bytes of memory, as the runtime (or what stands in its
    /// way) says now. Thunk: `SM_UNIMPLEMENTED`.
    pub mem_info: Option<
        unsafe extern "C" fn(
            s: *mut SmBackend,
            dev: u32,
            free: *mut u64,
            total: *mut u64,
            err: *mut SmError,
        ) -> i32,
    >,
    /// **Required, class A.** `SM_CAP_*` bits of a device.
    pub capabilities: Option<
        unsafe extern "C" fn(s: *mut SmBackend, dev: u32, bits: *mut u64, err: *mut SmError) -> i32,
    >,
    /// **Required, class A.** Makes a device the calling thread's current one.
    pub set_current_device:
        Option<unsafe extern "C" fn(s: *mut SmBackend, dev: u32, err: *mut SmError) -> i32>,
    /// **Required, class A.** The calling thread's current device, as the runtime says; -1 if there
    /// is none.
    pub get_current_device:
        Option<unsafe extern "C" fn(s: *mut SmBackend, dev: *mut i32, err: *mut SmError) -> i32>,
    /// **Required, class A.** Waits until all work submitted to the device so far is done. Use
    /// `stream_sync` for a wait with a bound of your choice.
    pub device_sync:
        Option<unsafe extern "C" fn(s: *mut SmBackend, dev: u32, err: *mut SmError) -> i32>,
    /// **Required, class A.** Memory of `size` bytes. `align` is a power of two, or 0 for the
    /// backend's choice; `kind` is `SM_MEMORY_*`, `flags` are `SM_ALLOC_*`. Size 0 gives address 0.
    /// Out of memory is `SM_RESOURCE_EXHAUSTED` with `SM_ERROR_OOM`, and leaves the device usable.
    pub alloc: Option<
        unsafe extern "C" fn(
            s: *mut SmBackend,
            dev: u32,
            size: u64,
            align: u64,
            kind: u32,
            flags: u32,
            ptr: *mut u64,
            err: *mut SmError,
        ) -> i32,
    >,
    /// **Required, class A.** Gives memory back, from any thread. 0 is fine; an address that is not
    /// the first of a live allocation is `SM_INVALID_ARGUMENT`. Work in flight on the memory must
    /// be done.
    pub free: Option<
        unsafe extern "C" fn(s: *mut SmBackend, dev: u32, ptr: u64, err: *mut SmError) -> i32,
    >,
    /// **Optional, class A.** Memory usable by work submitted to the stream after this call. Thunk:
    /// `alloc`.
    pub alloc_async: Option<
        unsafe extern "C" fn(
            s: *mut SmBackend,
            dev: u32,
            size: u64,
            stream_dev: u32,
            stream: u64,
            ptr: *mut u64,
            err: *mut SmError,
        ) -> i32,
    >,
    /// **Optional, class A.** Gives memory back when the stream gets there. Thunk: `stream_sync`,
    /// then `free`.
    pub free_async: Option<
        unsafe extern "C" fn(
            s: *mut SmBackend,
            dev: u32,
            ptr: u64,
            stream_dev: u32,
            stream: u64,
            err: *mut SmError,
        ) -> i32,
    >,
    /// **Optional, class A.** Makes host memory known to every device (`SM_REGISTER_*`) and gives
    /// its device address. Registered already: `SM_ALREADY_EXISTS`. Thunk: `SM_UNIMPLEMENTED`.
    pub host_register: Option<
        unsafe extern "C" fn(
            s: *mut SmBackend,
            ptr: *mut c_void,
            size: u64,
            flags: u32,
            dptr: *mut u64,
            err: *mut SmError,
        ) -> i32,
    >,
    /// **Optional, class A.** Undoes `host_register`. Unknown: `SM_NOT_FOUND`. Thunk:
    /// `SM_UNIMPLEMENTED`.
    pub host_unregister:
        Option<unsafe extern "C" fn(s: *mut SmBackend, ptr: *mut c_void, err: *mut SmError) -> i32>,
    /// **Required, class A.** What is known about an address; interior addresses resolve. Unknown
    /// memory is not an error.
    pub pointer_attributes: Option<
        unsafe extern "C" fn(
            s: *mut SmBackend,
            ptr: u64,
            out: *mut SmPtrAttr,
            err: *mut SmError,
        ) -> i32,
    >,
    /// **Required, class A.** A stream: work on it runs in order, and asynchronously to the caller
    /// where the device can; a backend may also do it before the slot that submits it returns.
    /// Lower `priority` numbers are more urgent, 0 is ordinary, and the value is clamped. `flags`
    /// are `SM_STREAM_*`.
    pub stream_create: Option<
        unsafe extern "C" fn(
            s: *mut SmBackend,
            dev: u32,
            priority: i32,
            flags: u32,
            stream: *mut u64,
            err: *mut SmError,
        ) -> i32,
    >,
    /// **Required, class H.** Ends a stream. Work already submitted is still done; the call does
    /// not wait for it.
    pub stream_destroy: Option<
        unsafe extern "C" fn(
            s: *mut SmBackend,
            stream_dev: u32,
            stream: u64,
            err: *mut SmError,
        ) -> i32,
    >,
    /// **Required, class A.** Waits until the work submitted so far is done, `SM_DEADLINE_EXCEEDED`
    /// at the latest after `timeout_ns`. A failure of earlier work on the stream is returned.
    pub stream_sync: Option<
        unsafe extern "C" fn(
            s: *mut SmBackend,
            stream_dev: u32,
            stream: u64,
            timeout_ns: u64,
            err: *mut SmError,
        ) -> i32,
    >,
    /// **Required, class A.** 1 if all work submitted so far is done.
    pub stream_query: Option<
        unsafe extern "C" fn(
            s: *mut SmBackend,
            stream_dev: u32,
            stream: u64,
            done: *mut u32,
            err: *mut SmError,
        ) -> i32,
    >,
    /// **Required, class A.** Later work on the stream waits for the event's last record; records
    /// made after this call do not matter. Returns at once.
    pub stream_wait_event: Option<
        unsafe extern "C" fn(
            s: *mut SmBackend,
            stream_dev: u32,
            stream: u64,
            event: *mut SmEvent,
            err: *mut SmError,
        ) -> i32,
    >,
    /// **Required, class A.** Copies in stream order. `dir` is `SM_COPY_*`; a device argument of a
    /// host side is ignored. The ranges may not overlap, and stay valid until the copy is done.
    /// Size 0 is fine.
    pub memcpy_async: Option<
        unsafe extern "C" fn(
            s: *mut SmBackend,
            dst: u64,
            src: u64,
            size: u64,
            dir: u32,
            dst_dev: u32,
            src_dev: u32,
            stream_dev: u32,
            stream: u64,
            err: *mut SmError,
        ) -> i32,
    >,
    /// **Optional, class A.** Copies before it returns. Thunk: `memcpy_async` on a stream of the
    /// host's, then `stream_sync`.
    pub memcpy_sync: Option<
        unsafe extern "C" fn(
            s: *mut SmBackend,
            dst: u64,
            src: u64,
            size: u64,
            dir: u32,
            dst_dev: u32,
            src_dev: u32,
            err: *mut SmError,
        ) -> i32,
    >,
    /// **Optional, class A.** Fills `size` bytes with the low `width` (1, 2 or 4) bytes of `value`,
    /// in stream order. `size` and `dst` are multiples of `width`. Thunk: `SM_UNIMPLEMENTED`.
    pub memset_async: Option<
        unsafe extern "C" fn(
            s: *mut SmBackend,
            dst: u64,
            value: u32,
            width: u32,
            size: u64,
            stream_dev: u32,
            stream: u64,
            err: *mut SmError,
        ) -> i32,
    >,
    /// **Required, class A.** An event (`SM_EVENT_*` flags). Success is never null.
    pub event_create: Option<
        unsafe extern "C" fn(
            s: *mut SmBackend,
            dev: u32,
            flags: u32,
            out: *mut *mut SmEvent,
            err: *mut SmError,
        ) -> i32,
    >,
    /// **Required, class H.** Ends an event; safe while it is pending or waited for by a stream.
    /// Null is fine.
    pub event_destroy: Option<
        unsafe extern "C" fn(s: *mut SmBackend, event: *mut SmEvent, err: *mut SmError) -> i32,
    >,
    /// **Required, class H.** Marks the present end of the stream's work. Recording again moves the
    /// mark; those who wait for the earlier one are not disturbed.
    pub event_record: Option<
        unsafe extern "C" fn(
            s: *mut SmBackend,
            event: *mut SmEvent,
            stream_dev: u32,
            stream: u64,
            err: *mut SmError,
        ) -> i32,
    >,
    /// **Required, class A.** `SM_EVENT_PENDING`, `DONE` or `ERROR`. Never recorded is `DONE`.
    pub event_query: Option<
        unsafe extern "C" fn(
            s: *mut SmBackend,
            event: *mut SmEvent,
            state: *mut u32,
            err: *mut SmError,
        ) -> i32,
    >,
    /// **Required, class A.** Waits for the last record in the way `wait` (`SM_WAIT_*`) says;
    /// `SM_DEADLINE_EXCEEDED` at the latest after `timeout_ns`, and the event stays usable. A
    /// failure of the work is returned.
    pub event_sync: Option<
        unsafe extern "C" fn(
            s: *mut SmBackend,
            event: *mut SmEvent,
            timeout_ns: u64,
            wait: u32,
            err: *mut SmError,
        ) -> i32,
    >,
    /// **Optional, class A.** Milliseconds between two events that have `SM_EVENT_TIMING` and are
    /// done. Thunk: `SM_UNIMPLEMENTED`.
    pub event_elapsed: Option<
        unsafe extern "C" fn(
            s: *mut SmBackend,
            start: *mut SmEvent,
            end: *mut SmEvent,
            ms: *mut f64,
            err: *mut SmError,
        ) -> i32,
    >,
    /// **Optional, class A.** Runs `func(arg)` exactly once when the stream gets there, also when
    /// earlier work failed or the instance is closed first. `func` is class C. Thunk: a thread of
    /// the host's that waits.
    pub launch_host_func: Option<
        unsafe extern "C" fn(
            s: *mut SmBackend,
            stream_dev: u32,
            stream: u64,
            func: Option<unsafe extern "C" fn(arg: *mut c_void)>,
            arg: *mut c_void,
            err: *mut SmError,
        ) -> i32,
    >,
    /// **Optional, class A.** The calling thread's last error on any instance, for callers that
    /// passed null. `SM_OK` and an empty message if there was none. Returns its code. Thunk:
    /// `SM_OK`.
    pub last_error: Option<unsafe extern "C" fn(s: *mut SmBackend, err: *mut SmError) -> i32>,
    /// **Optional, class A.** `SM_HEALTH_*`; the error, if any, tells the fault. Thunk:
    /// `SM_HEALTH_OK`.
    pub health: Option<
        unsafe extern "C" fn(
            s: *mut SmBackend,
            dev: u32,
            state: *mut u32,
            err: *mut SmError,
        ) -> i32,
    >,
    /// **Optional, class A.** The table of an extension (`SM_EXTENSION_*` or a vendor's own
    /// reverse-DNS name) of at least `min_version`. Unknown: `SM_NOT_FOUND`. The table lives as
    /// long as the process. Thunk: `SM_NOT_FOUND`.
    pub get_extension: Option<
        unsafe extern "C" fn(
            s: *mut SmBackend,
            id: *const c_char,
            id_len: u32,
            min_version: u32,
            table: *mut *const c_void,
            version: *mut u32,
            err: *mut SmError,
        ) -> i32,
    >,
}

// SAFETY: the table is immutable and its pointers are to static data and to functions whose
// threading class says who may call them; reading the table needs no order.
unsafe impl Send for SmBackendApi {}
// SAFETY: as for `Send`.
unsafe impl Sync for SmBackendApi {}

impl SmBackendApi {
    /// A table in which every slot is missing, with the size and version set.
    #[must_use]
    pub const fn new(info: *const SmPluginInfo) -> Self {
        Self {
            hdr: SmHdr::of::<Self>(),
            info,
            probe: None,
            open: None,
            quiesce: None,
            close: None,
            device_count: None,
            device_info: None,
            mem_info: None,
            capabilities: None,
            set_current_device: None,
            get_current_device: None,
            device_sync: None,
            alloc: None,
            free: None,
            alloc_async: None,
            free_async: None,
            host_register: None,
            host_unregister: None,
            pointer_attributes: None,
            stream_create: None,
            stream_destroy: None,
            stream_sync: None,
            stream_query: None,
            stream_wait_event: None,
            memcpy_async: None,
            memcpy_sync: None,
            memset_async: None,
            event_create: None,
            event_destroy: None,
            event_record: None,
            event_query: None,
            event_sync: None,
            event_elapsed: None,
            launch_host_func: None,
            last_error: None,
            health: None,
            get_extension: None,
        }
    }

    /// Name of the first required slot that is missing.
    #[must_use]
    pub fn missing_required_slot(&self) -> Option<&'static str> {
        let missing = [
            ("info", self.info.is_null()),
            ("probe", self.probe.is_none()),
            ("open", self.open.is_none()),
            ("close", self.close.is_none()),
            ("device_count", self.device_count.is_none()),
            ("device_info", self.device_info.is_none()),
            ("capabilities", self.capabilities.is_none()),
            ("set_current_device", self.set_current_device.is_none()),
            ("get_current_device", self.get_current_device.is_none()),
            ("device_sync", self.device_sync.is_none()),
            ("alloc", self.alloc.is_none()),
            ("free", self.free.is_none()),
            ("pointer_attributes", self.pointer_attributes.is_none()),
            ("stream_create", self.stream_create.is_none()),
            ("stream_destroy", self.stream_destroy.is_none()),
            ("stream_sync", self.stream_sync.is_none()),
            ("stream_query", self.stream_query.is_none()),
            ("stream_wait_event", self.stream_wait_event.is_none()),
            ("memcpy_async", self.memcpy_async.is_none()),
            ("event_create", self.event_create.is_none()),
            ("event_destroy", self.event_destroy.is_none()),
            ("event_record", self.event_record.is_none()),
            ("event_query", self.event_query.is_none()),
            ("event_sync", self.event_sync.is_none()),
        ];
        missing
            .iter()
            .find(|(_, is_missing)| *is_missing)
            .map(|(name, _)| *name)
    }
}

/// Type of the entry symbol. Pure: opens no device, starts no thread, reads no environment. Returns
/// the same table each time, or null with `err` filled in if the host cannot be served. The host's
/// table lives as long as the process; the plugin logs through it from here on.
pub type SmBackendQueryFn =
    unsafe extern "C" fn(host: *const SmHostApi, err: *mut SmError) -> *const SmBackendApi;

/// Name of the entry symbol, the only one that a plugin exports.
pub const QUERY_SYMBOL: &str = "stepmesh_backend_query_v1";

/// Bytes of the plugin's table in version 1.0; a plugin's table is never smaller.
pub const SM_BACKEND_API_LEN_V1_0: usize = 304;

const _: () = assert!(size_of::<SmPluginInfo>() == 72);
const _: () = assert!(size_of::<SmOpenArgs>() == 16);
const _: () = assert!(size_of::<SmBackendApi>() >= SM_BACKEND_API_LEN_V1_0);
const _: () = assert!(offset_of!(SmBackendApi, get_extension) + 8 == SM_BACKEND_API_LEN_V1_0);
