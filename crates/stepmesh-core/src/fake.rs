//! A backend for unit tests whose device memory the host really cannot touch: its addresses are
//! disguised. Work is done at once, unless the instance is told to hang. Only required slots exist,
//! so everything else is the host's thunks.
#![expect(unsafe_code, reason = "plays a plugin")]

use std::alloc::Layout;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use stepmesh_abi::error::{
    SM_DEADLINE_EXCEEDED, SM_ERROR_OOM, SM_INVALID_ARGUMENT, SM_OK, SM_RESOURCE_EXHAUSTED,
    SM_UNAVAILABLE,
};
use stepmesh_abi::event::{SM_EVENT_DONE, SM_EVENT_PENDING};
use stepmesh_abi::memory::{
    SM_COPY_D2D, SM_COPY_D2H, SM_COPY_H2D, SM_MEMORY_DEVICE, SM_PTR_HOST_ACCESSIBLE,
};
use stepmesh_abi::{
    SmBackend, SmBackendApi, SmDeviceInfo, SmError, SmEvent, SmHostApi, SmOpenArgs, SmPluginInfo,
    SmPtrAttr,
};

use crate::loader::StaticPlugin;
use crate::{Backend, Registry};

/// What an instance counts and does on demand.
#[derive(Debug, Default)]
pub(crate) struct Fake {
    /// Work never ends.
    pub(crate) hangs: AtomicBool,
    /// `free` fails.
    pub(crate) free_fails: AtomicBool,
    /// `capabilities` of the device.
    pub(crate) capabilities: AtomicU64,
    /// Streams and events that exist.
    pub(crate) streams: AtomicU32,
    pub(crate) events: AtomicU32,
    next_id: AtomicU64,
    /// Real address to length, kind and alloc_id.
    memory: Mutex<BTreeMap<u64, (u64, u32, u64)>>,
}

impl Fake {
    /// The state behind a backend opened from [`query`].
    pub(crate) fn of(backend: &Backend) -> &Self {
        // SAFETY: `open` made the handle from a box, and `backend` keeps the instance open.
        unsafe { &*backend.as_raw().handle.cast::<Self>() }
    }

    pub(crate) fn live_allocations(&self) -> usize {
        self.memory.lock().unwrap().len()
    }
}

/// A fresh instance.
pub(crate) fn backend() -> Backend {
    // SAFETY: `query` follows the contract.
    let plugin = unsafe { StaticPlugin::new(query) };
    Registry::discover_with(&crate::config::PluginsConfig::default(), &[plugin])
        .select(Some("fake"))
        .unwrap()
}

pub(crate) static INFO: SmPluginInfo = SmPluginInfo::new("fake", "1.0.0", "tests", "");

/// The table with all required slots and no optional one.
pub(crate) fn api() -> SmBackendApi {
    SmBackendApi {
        probe: Some(probe),
        open: Some(open),
        close: Some(close),
        device_count: Some(device_count),
        device_info: Some(device_info),
        capabilities: Some(capabilities),
        set_current_device: Some(set_current_device),
        get_current_device: Some(get_current_device),
        device_sync: Some(device_sync),
        alloc: Some(alloc),
        free: Some(free),
        pointer_attributes: Some(pointer_attributes),
        stream_create: Some(stream_create),
        stream_destroy: Some(stream_destroy),
        stream_sync: Some(stream_sync),
        stream_query: Some(stream_query),
        stream_wait_event: Some(stream_wait_event),
        memcpy_async: Some(memcpy_async),
        event_create: Some(event_create),
        event_destroy: Some(event_destroy),
        event_record: Some(event_record),
        event_query: Some(event_query),
        event_sync: Some(event_sync),
        ..SmBackendApi::new(&raw const INFO)
    }
}

pub(crate) unsafe extern "C" fn query(_: *const SmHostApi, _: *mut SmError) -> *const SmBackendApi {
    Box::leak(Box::new(api()))
}

fn fake<'a>(s: *mut SmBackend) -> &'a Fake {
    // SAFETY: the host passes the handle that `open` gave, until `close`.
    unsafe { &*s.cast::<Fake>() }
}

fn fail(err: *mut SmError, code: i32, flags: u32, message: &str) -> i32 {
    // SAFETY: null or the host's struct of this size.
    if let Some(err) = unsafe { err.as_mut() } {
        *err = SmError::with_message(code, message);
        err.flags |= flags;
    }
    code
}

/// Writes an out parameter.
fn give<T>(out: *mut T, value: T) -> i32 {
    // SAFETY: out pointers of the host are never null and its own.
    unsafe { out.write(value) };
    SM_OK
}

unsafe extern "C" fn probe(n: *mut u32, score: *mut u32, _: *mut SmError) -> i32 {
    give(score, 1);
    give(n, 1)
}

unsafe extern "C" fn open(
    _: *const SmHostApi,
    _: *const SmOpenArgs,
    out: *mut *mut SmBackend,
    _: *mut SmError,
) -> i32 {
    give(out, Box::into_raw(Box::<Fake>::default()).cast())
}

unsafe extern "C" fn close(s: *mut SmBackend, _: *mut SmError) -> i32 {
    // SAFETY: `open` made it from a box, and the host closes once.
    drop(unsafe { Box::from_raw(s.cast::<Fake>()) });
    SM_OK
}

unsafe extern "C" fn device_count(_: *mut SmBackend, n: *mut u32, _: *mut SmError) -> i32 {
    give(n, 1)
}

unsafe extern "C" fn device_info(
    _: *mut SmBackend,
    _: u32,
    out: *mut SmDeviceInfo,
    _: *mut SmError,
) -> i32 {
    let mut info = SmDeviceInfo::new();
    for (to, from) in info.torch_device_type.iter_mut().zip(b"fake") {
        *to = from.cast_signed();
    }
    give(out, info)
}

unsafe extern "C" fn capabilities(
    s: *mut SmBackend,
    _: u32,
    bits: *mut u64,
    _: *mut SmError,
) -> i32 {
    give(bits, fake(s).capabilities.load(Ordering::Relaxed))
}

unsafe extern "C" fn set_current_device(_: *mut SmBackend, _: u32, _: *mut SmError) -> i32 {
    SM_OK
}

unsafe extern "C" fn get_current_device(_: *mut SmBackend, dev: *mut i32, _: *mut SmError) -> i32 {
    give(dev, -1)
}

unsafe extern "C" fn device_sync(_: *mut SmBackend, _: u32, _: *mut SmError) -> i32 {
    SM_OK
}

fn layout(size: u64) -> Layout {
    Layout::from_size_align(usize::try_from(size).unwrap(), 64).unwrap()
}

unsafe extern "C" fn alloc(
    s: *mut SmBackend,
    _: u32,
    size: u64,
    _: u64,
    kind: u32,
    _: u32,
    ptr: *mut u64,
    err: *mut SmError,
) -> i32 {
    if size == 0 {
        return give(ptr, 0);
    }
    if size > 1 << 30 {
        return fail(
            err,
            SM_RESOURCE_EXHAUSTED,
            SM_ERROR_OOM,
            "1 GiB is all there is",
        );
    }
    // SAFETY: the size is not 0.
    let real = unsafe { std::alloc::alloc_zeroed(layout(size)) }.expose_provenance() as u64;
    let id = fake(s).next_id.fetch_add(1, Ordering::Relaxed) + 1;
    fake(s)
        .memory
        .lock()
        .unwrap()
        .insert(real, (size, kind, id));
    give(
        ptr,
        if kind == SM_MEMORY_DEVICE {
            real ^ DISGUISE
        } else {
            real
        },
    )
}

unsafe extern "C" fn free(s: *mut SmBackend, _: u32, ptr: u64, err: *mut SmError) -> i32 {
    if fake(s).free_fails.load(Ordering::Relaxed) {
        return fail(err, SM_UNAVAILABLE, 0, "not today");
    }
    let real = ptr & !DISGUISE;
    let Some((size, ..)) = fake(s).memory.lock().unwrap().remove(&real) else {
        return fail(err, SM_INVALID_ARGUMENT, 0, "not an allocation");
    };
    // SAFETY: allocated above with this layout and taken out of the map just now.
    unsafe { std::alloc::dealloc(host(real), layout(size)) };
    SM_OK
}

unsafe extern "C" fn pointer_attributes(
    s: *mut SmBackend,
    ptr: u64,
    out: *mut SmPtrAttr,
    _: *mut SmError,
) -> i32 {
    let real = ptr & !DISGUISE;
    let mut facts = SmPtrAttr::new();
    let memory = fake(s).memory.lock().unwrap();
    if let Some((base, (size, kind, id))) = memory.range(..=real).next_back()
        && real < base + size
    {
        facts.kind = *kind;
        facts.device = 0;
        facts.base = base | (ptr & DISGUISE);
        facts.size = *size;
        facts.alloc_id = *id;
        facts.flags = if *kind == SM_MEMORY_DEVICE {
            0
        } else {
            SM_PTR_HOST_ACCESSIBLE
        };
    }
    give(out, facts)
}

unsafe extern "C" fn stream_create(
    s: *mut SmBackend,
    _: u32,
    _: i32,
    _: u32,
    stream: *mut u64,
    _: *mut SmError,
) -> i32 {
    fake(s).streams.fetch_add(1, Ordering::Relaxed);
    give(stream, 100)
}

unsafe extern "C" fn stream_destroy(s: *mut SmBackend, _: u32, _: u64, _: *mut SmError) -> i32 {
    fake(s).streams.fetch_sub(1, Ordering::Relaxed);
    SM_OK
}

unsafe extern "C" fn stream_sync(
    s: *mut SmBackend,
    _: u32,
    _: u64,
    _: u64,
    err: *mut SmError,
) -> i32 {
    wait(s, err)
}

fn wait(s: *mut SmBackend, err: *mut SmError) -> i32 {
    if fake(s).hangs.load(Ordering::Relaxed) {
        return fail(err, SM_DEADLINE_EXCEEDED, 0, "still running");
    }
    SM_OK
}

unsafe extern "C" fn stream_query(
    s: *mut SmBackend,
    _: u32,
    _: u64,
    done: *mut u32,
    _: *mut SmError,
) -> i32 {
    give(done, u32::from(!fake(s).hangs.load(Ordering::Relaxed)))
}

unsafe extern "C" fn stream_wait_event(
    _: *mut SmBackend,
    _: u32,
    _: u64,
    _: *mut SmEvent,
    _: *mut SmError,
) -> i32 {
    SM_OK
}

unsafe extern "C" fn memcpy_async(
    _: *mut SmBackend,
    dst: u64,
    src: u64,
    size: u64,
    dir: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u64,
    err: *mut SmError,
) -> i32 {
    let is_device = |at: u64| at & DISGUISE != 0;
    let fits = match dir {
        SM_COPY_H2D => is_device(dst) && !is_device(src),
        SM_COPY_D2H => !is_device(dst) && is_device(src),
        SM_COPY_D2D => is_device(dst) && is_device(src),
        _ => true,
    };
    if !fits {
        return fail(
            err,
            SM_INVALID_ARGUMENT,
            0,
            "the direction does not fit the addresses",
        );
    }
    let len = usize::try_from(size).unwrap();
    // SAFETY: the host guarantees both ranges once the disguise is off.
    unsafe { std::ptr::copy(host(src & !DISGUISE), host(dst & !DISGUISE), len) };
    SM_OK
}

unsafe extern "C" fn event_create(
    s: *mut SmBackend,
    _: u32,
    _: u32,
    out: *mut *mut SmEvent,
    _: *mut SmError,
) -> i32 {
    fake(s).events.fetch_add(1, Ordering::Relaxed);
    give(out, std::ptr::dangling_mut::<u64>().cast())
}

unsafe extern "C" fn event_destroy(s: *mut SmBackend, _: *mut SmEvent, _: *mut SmError) -> i32 {
    fake(s).events.fetch_sub(1, Ordering::Relaxed);
    SM_OK
}

unsafe extern "C" fn event_record(
    _: *mut SmBackend,
    _: *mut SmEvent,
    _: u32,
    _: u64,
    _: *mut SmError,
) -> i32 {
    SM_OK
}

unsafe extern "C" fn event_query(
    s: *mut SmBackend,
    _: *mut SmEvent,
    state: *mut u32,
    _: *mut SmError,
) -> i32 {
    let hangs = fake(s).hangs.load(Ordering::Relaxed);
    give(
        state,
        if hangs {
            SM_EVENT_PENDING
        } else {
            SM_EVENT_DONE
        },
    )
}

unsafe extern "C" fn event_sync(
    s: *mut SmBackend,
    _: *mut SmEvent,
    _: u64,
    _: u32,
    err: *mut SmError,
) -> i32 {
    wait(s, err)
}

fn host(at: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(usize::try_from(at).unwrap())
}

/// Makes an address that faults when the host touches it.
const DISGUISE: u64 = 1 << 62;
