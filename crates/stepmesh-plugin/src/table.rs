//! The table of a backend, its note, and the entry function's work. The symbol itself is written by
//! the macros in the export module.
#![expect(unsafe_code, reason = "takes the host's table")]

use std::sync::{Mutex, Once, PoisonError};

use stepmesh_abi::note::{NoteParams, SM_PANIC_ABORT, SM_PANIC_UNWIND};
use stepmesh_abi::{SmBackendApi, SmError, SmHostApi, SmPluginInfo};

use crate::boundary::fail;
use crate::slots::{device, event, lifecycle, memory, stream};
use crate::{Backend, Host, LogLevel, Optional};

/// The table of a backend. `info` says the same as the note; [`crate::static_backend!`] makes both.
#[must_use]
pub const fn table<B: Backend>(info: &'static SmPluginInfo) -> SmBackendApi {
    let mut api = SmBackendApi::new(info);
    api.probe = Some(lifecycle::probe::<B>);
    api.open = Some(lifecycle::open::<B>);
    api.quiesce = Some(lifecycle::quiesce::<B>);
    api.close = Some(lifecycle::close::<B>);
    api.device_count = Some(device::device_count::<B>);
    api.device_info = Some(device::device_info::<B>);
    api.capabilities = Some(device::capabilities::<B>);
    api.set_current_device = Some(device::set_current_device::<B>);
    api.get_current_device = Some(device::get_current_device::<B>);
    api.device_sync = Some(device::device_sync::<B>);
    api.alloc = Some(memory::alloc::<B>);
    api.free = Some(memory::free::<B>);
    api.pointer_attributes = Some(memory::pointer_attributes::<B>);
    api.stream_create = Some(stream::stream_create::<B>);
    api.stream_destroy = Some(stream::stream_destroy::<B>);
    api.stream_sync = Some(stream::stream_sync::<B>);
    api.stream_query = Some(stream::stream_query::<B>);
    api.stream_wait_event = Some(stream::stream_wait_event::<B>);
    api.memcpy_async = Some(memory::memcpy_async::<B>);
    api.event_create = Some(event::event_create::<B>);
    api.event_destroy = Some(event::event_destroy::<B>);
    api.event_record = Some(event::event_record::<B>);
    api.event_query = Some(event::event_query::<B>);
    api.event_sync = Some(event::event_sync::<B>);
    api.last_error = Some(lifecycle::last_error);
    api.get_extension = Some(lifecycle::get_extension::<B>);
    let mut idx = 0;
    while idx < B::OPTIONAL.len() {
        fill_optional::<B>(&mut api, B::OPTIONAL[idx]);
        idx += 1;
    }
    api
}

const fn fill_optional<B: Backend>(api: &mut SmBackendApi, slot: Optional) {
    match slot {
        Optional::MemInfo => api.mem_info = Some(device::mem_info::<B>),
        Optional::AllocAsync => {
            api.alloc_async = Some(memory::alloc_async::<B>);
            api.free_async = Some(memory::free_async::<B>);
        }
        Optional::HostRegister => {
            api.host_register = Some(memory::host_register::<B>);
            api.host_unregister = Some(memory::host_unregister::<B>);
        }
        Optional::MemcpySync => api.memcpy_sync = Some(memory::memcpy_sync::<B>),
        Optional::MemsetAsync => api.memset_async = Some(memory::memset_async::<B>),
        Optional::EventElapsed => api.event_elapsed = Some(event::event_elapsed::<B>),
        Optional::LaunchHostFunc => api.launch_host_func = Some(stream::launch_host_func::<B>),
        Optional::Health => api.health = Some(device::health::<B>),
    }
}

/// The note of a backend, with the panic strategy of this build.
#[must_use]
pub const fn note<B: Backend>() -> NoteParams<'static> {
    let panic_strategy = if cfg!(panic = "unwind") {
        SM_PANIC_UNWIND
    } else {
        SM_PANIC_ABORT
    };
    NoteParams {
        panic_strategy,
        ..B::NOTE
    }
}

/// The work of the entry symbol: takes over the host's table and answers with the plugin's, or with
/// null and the reason. Pure but for remembering the host for `probe`.
///
/// # Safety
/// - `host` is null or a table that lives as long as the process.
/// - `err` is null or valid for the `struct_size` bytes that it starts with saying.
pub unsafe fn query(
    api: &'static SmBackendApi,
    host: *const SmHostApi,
    err: *mut SmError,
) -> *const SmBackendApi {
    // SAFETY: this function's contract.
    match unsafe { Host::from_raw(host) } {
        Ok(host) => {
            *QUERIED_HOST.lock().unwrap_or_else(PoisonError::into_inner) = Some(host);
            api
        }
        Err(error) => {
            // SAFETY: this function's contract.
            unsafe { fail(err, &error) };
            std::ptr::null()
        }
    }
}

/// [`query`] for the exported symbol of a cdylib: also sends the messages of panics in this library
/// to the host's log. The library has its own copy of the standard library, so no one else's hook
/// is touched.
///
/// # Safety
/// - As [`query`].
pub unsafe fn query_exported(
    api: &'static SmBackendApi,
    host: *const SmHostApi,
    err: *mut SmError,
) -> *const SmBackendApi {
    // SAFETY: this function's contract.
    let answer = unsafe { query(api, host, err) };
    if !answer.is_null() {
        HOOK.call_once(|| {
            std::panic::set_hook(Box::new(|info| {
                queried_host().log(LogLevel::Error, "stepmesh::plugin", format_args!("{info}"));
            }));
        });
    }
    answer
}

/// The host that last asked, or none.
pub(crate) fn queried_host() -> Host {
    let host = QUERIED_HOST.lock().unwrap_or_else(PoisonError::into_inner);
    host.clone().unwrap_or_else(Host::absent)
}

/// The host's table as `query` got it: `probe` has no argument for it.
static QUERIED_HOST: Mutex<Option<Host>> = Mutex::new(None);
/// Sets the panic hook once.
static HOOK: Once = Once::new();
