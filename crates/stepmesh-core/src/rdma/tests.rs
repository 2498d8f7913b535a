//! A backend whose dma-bufs are memory files, and which lies on demand: what it gives is checked,
//! and goes back to it whatever was wrong.

use std::cell::{Cell, RefCell};
use std::ffi::{c_char, c_void};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex};

use stepmesh_abi::error::{SM_NOT_FOUND, SM_OK, SM_UNAVAILABLE};
use stepmesh_abi::extension::SM_EXTENSION_RDMA_V1;
use stepmesh_abi::{SmBackend, SmBackendApi, SmError, SmHdr, SmHostApi, SmRdmaCaps, SmRdmaV1};

use super::{DmabufMapping, FlushScope, Functions, MemoryWatcher};
use crate::config::PluginsConfig;
use crate::{Device, Error, MemoryKind, Registry, StaticPlugin, fake};

/// What the next export does.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Honest,
    Inherited,
    Short,
    NoDescriptor,
    Refuses,
}

thread_local! {
    static WAY: Cell<Way> = const { Cell::new(Way::Honest) };
    /// Descriptors given out and not back.
    static OPEN: RefCell<Vec<i32>> = const { RefCell::new(Vec::new()) };
    static FLUSHED: Cell<u32> = const { Cell::new(0) };
    static CALLBACK: Cell<Option<Callback>> = const { Cell::new(None) };
}

type Callback = (unsafe extern "C" fn(*mut c_void, u64), *mut c_void);

unsafe extern "C" fn export(
    _: *mut SmBackend,
    _: u32,
    _: u64,
    len_bytes: u64,
    _: u32,
    fd: *mut i32,
    offset: *mut u64,
    len: *mut u64,
    err: *mut SmError,
) -> i32 {
    let way = WAY.get();
    if way == Way::Refuses {
        // SAFETY: the host's error struct.
        unsafe { *err = SmError::with_message(SM_UNAVAILABLE, "the driver will not") };
        return SM_UNAVAILABLE;
    }
    let flags = if way == Way::Inherited {
        0
    } else {
        libc::MFD_CLOEXEC
    };
    // SAFETY: the name is a literal with its NUL.
    let made = unsafe { libc::memfd_create(c"dmabuf".as_ptr(), flags) };
    OPEN.with_borrow_mut(|open| open.push(made));
    // SAFETY: the host's out pointer.
    unsafe { *fd = if way == Way::NoDescriptor { -1 } else { made } };
    // SAFETY: the host's out pointer.
    unsafe { *offset = 64 };
    // SAFETY: the host's out pointer.
    unsafe {
        *len = if way == Way::Short {
            len_bytes - 1
        } else {
            len_bytes + 1
        }
    };
    SM_OK
}

unsafe extern "C" fn close(_: *mut SmBackend, fd: i32, _: *mut SmError) -> i32 {
    OPEN.with_borrow_mut(|open| open.retain(|other| *other != fd));
    // SAFETY: the descriptor was made by `export`, and the host gives it back once.
    unsafe { libc::close(fd) }
}

unsafe extern "C" fn caps(_: *mut SmBackend, _: u32, out: *mut SmRdmaCaps, _: *mut SmError) -> i32 {
    let caps = SmRdmaCaps {
        mappings: 1 << super::SM_DMABUF_DEFAULT,
        memory_kinds: 1 << stepmesh_abi::memory::SM_MEMORY_DEVICE,
        flush_scopes: 1 << super::SM_RDMA_FLUSH_OWNER,
        dmabuf_granularity: 4096,
        ..SmRdmaCaps::new()
    };
    // SAFETY: the host's out pointer.
    unsafe { *out = caps };
    SM_OK
}

unsafe extern "C" fn flush(_: *mut SmBackend, _: u32, scope: u32, _: *mut SmError) -> i32 {
    FLUSHED.set(scope);
    SM_OK
}

unsafe extern "C" fn set_sync_memops(_: *mut SmBackend, _: u64, _: *mut SmError) -> i32 {
    SM_OK
}

unsafe extern "C" fn set_invalidate_callback(
    _: *mut SmBackend,
    func: Option<unsafe extern "C" fn(*mut c_void, u64)>,
    ctx: *mut c_void,
    _: *mut SmError,
) -> i32 {
    CALLBACK.set(func.map(|func| (func, ctx)));
    SM_OK
}

static TABLE: SmRdmaV1 = SmRdmaV1 {
    hdr: SmHdr::of::<SmRdmaV1>(),
    dmabuf_export: Some(export),
    dmabuf_close: Some(close),
    rdma_caps: Some(caps),
    flush_rdma_writes: Some(flush),
    set_sync_memops: Some(set_sync_memops),
    set_invalidate_callback: Some(set_invalidate_callback),
};

unsafe extern "C" fn get_extension(
    _: *mut SmBackend,
    id: *const c_char,
    len: u32,
    _: u32,
    table: *mut *const c_void,
    version: *mut u32,
    _: *mut SmError,
) -> i32 {
    // SAFETY: by the ABI the name has its length.
    let id = unsafe { std::slice::from_raw_parts(id.cast::<u8>(), len as usize) };
    if id != SM_EXTENSION_RDMA_V1.as_bytes() {
        return SM_NOT_FOUND;
    }
    // SAFETY: the host's out pointer.
    unsafe { *table = (&raw const TABLE).cast() };
    // SAFETY: the host's out pointer.
    unsafe { *version = 1 };
    SM_OK
}

unsafe extern "C" fn entry(_: *const SmHostApi, _: *mut SmError) -> *const SmBackendApi {
    let api = SmBackendApi {
        get_extension: Some(get_extension),
        ..fake::api()
    };
    Box::leak(Box::new(api))
}

fn device() -> Device {
    // SAFETY: the entry follows the contract.
    let plugin = unsafe { StaticPlugin::new(entry) };
    let registry = Registry::discover_with(&PluginsConfig::default(), &[plugin]);
    registry.select(Some("fake")).unwrap().device(0).unwrap()
}

fn open_count() -> usize {
    OPEN.with_borrow(Vec::len)
}

fn tell_of_end(alloc_id: u64) {
    let (func, ctx) = CALLBACK.get().unwrap();
    // SAFETY: what the host gave, for an instance that the test keeps open.
    unsafe { func(ctx, alloc_id) };
}

#[test]
fn an_export_covers_the_range_and_goes_back_to_the_plugin() {
    let device = device();
    let (rdma, buffer) = (device.rdma().unwrap(), device.alloc(8192).unwrap());
    let dmabuf = rdma
        .export(&buffer, 100, 4000, DmabufMapping::Default)
        .unwrap();
    assert_eq!((dmabuf.offset(), dmabuf.len_bytes()), (64, 4001));
    OPEN.with_borrow(|open| assert_eq!(open[..], [dmabuf.as_fd().as_raw_fd()]));
    dmabuf.release().unwrap();
    assert_eq!(open_count(), 0);
}

#[test]
fn an_export_outside_of_the_buffer_is_refused_before_the_plugin_is_asked() {
    let device = device();
    let (rdma, buffer) = (device.rdma().unwrap(), device.alloc(4096).unwrap());
    let refused = rdma.export(&buffer, 1, 4096, DmabufMapping::Default);
    assert!(matches!(refused, Err(Error::OutOfRange { .. })));
    let foreign = fake::backend().device(0).unwrap().alloc(64).unwrap();
    let refused = rdma.export(&foreign, 0, 64, DmabufMapping::Default);
    assert!(matches!(refused, Err(Error::ForeignHandle { .. })));
    assert_eq!(open_count(), 0);
}

#[test]
fn lies_about_an_export_are_errors_and_leak_no_descriptor() {
    let device = device();
    let (rdma, buffer) = (device.rdma().unwrap(), device.alloc(4096).unwrap());
    let fault = |way| {
        WAY.set(way);
        let error = rdma.export(&buffer, 0, 4096, DmabufMapping::Pcie);
        error.unwrap_err().to_string()
    };
    assert!(fault(Way::Inherited).ends_with("would be inherited by child processes"));
    assert!(fault(Way::Short).ends_with("4095 bytes at 64 for 4096 asked for"));
    assert!(fault(Way::Refuses).contains("the driver will not"));
    assert_eq!(open_count(), 0);
    assert!(fault(Way::NoDescriptor).ends_with("-1 is not an open descriptor"));
}

#[test]
fn capabilities_are_sets() {
    let caps = device().rdma().unwrap().capabilities().unwrap();
    assert!(caps.has_mapping(DmabufMapping::Default) && !caps.has_mapping(DmabufMapping::Pcie));
    assert!(caps.has_memory_kind(MemoryKind::Device));
    assert!(!caps.has_memory_kind(MemoryKind::HostPinned));
    assert!(caps.has_flush_scope(FlushScope::Owner));
    assert!(!caps.has_flush_scope(FlushScope::AllDevices));
    assert_eq!(caps.dmabuf_align_bytes(), 4096);
}

#[test]
fn a_flush_names_its_scope() {
    let rdma = device().rdma().unwrap();
    rdma.flush_writes(FlushScope::AllDevices).unwrap();
    assert_eq!(FLUSHED.get(), super::SM_RDMA_FLUSH_ALL_DEVICES);
}

#[test]
fn every_living_watcher_is_told_and_a_panic_stops_at_it() {
    let device = device();
    let told = Arc::new(Mutex::new(Vec::new()));
    let note = |name| -> Arc<MemoryWatcher> {
        let told = Arc::clone(&told);
        Arc::new(move |alloc_id| told.lock().unwrap().push((name, alloc_id)))
    };
    let angry: Arc<MemoryWatcher> = Arc::new(|_| panic!("a watcher that panics"));
    let (first, second) = (note("first"), note("second"));
    for watcher in [&first, &second, &angry] {
        device.backend().watch_memory(watcher).unwrap();
    }
    drop(first);
    tell_of_end(7);
    assert_eq!(*told.lock().unwrap(), [("second", 7)]);
}

#[test]
fn without_the_extension_there_is_none() {
    let device = fake::backend().device(0).unwrap();
    assert!(device.rdma().is_none());
    let watcher: Arc<MemoryWatcher> = Arc::new(|_| {});
    assert_eq!(
        device
            .backend()
            .watch_memory(&watcher)
            .unwrap_err()
            .to_string(),
        "backend fake does not support stepmesh.rdma.v1: the plugin has no such extension"
    );
    let table = SmRdmaV1 {
        dmabuf_close: None,
        ..TABLE
    };
    assert!(Functions::of(&table).is_none(), "a hole is as good as none");
}
