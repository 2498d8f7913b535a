//! Which function of CUDA's driver API serves which call. What a backend makes of the calls lives in
//! stepmesh-driver; what a device is like, in the facts module.
#![expect(unsafe_code, reason = "calls the driver")]

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::{
    CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTREGISTER_DEVICEMAP,
    CU_MEMHOSTREGISTER_PORTABLE, CU_MEMHOSTREGISTER_READ_ONLY, CUcontext, CUdevice, CUevent,
    CUevent_flags, CUflushGPUDirectRDMAWritesScope, CUflushGPUDirectRDMAWritesTarget, CUfunction,
    CUipcMem_flags, CUipcMemHandle, CUmemAttach_flags, CUmemRangeHandleType, CUmodule,
    CUpointer_attribute, CUresult, CUstream, CUstream_flags, CUstreamCaptureMode,
    CUstreamCaptureStatus, CUstreamWriteValue_flags,
};
use stepmesh_driver::{
    Absent, Answer, Driver, Exported, Facts, Failure, Kernel, Kind, Library, PointerFacts,
};
use stepmesh_plugin::abi::device::SM_DLPACK_CUDA;
use stepmesh_plugin::abi::note::{NoteParams, SM_KIND_GPU, SM_NOTE_PROCESS_STATE};
use stepmesh_plugin::{Capture, CopyRequest, Direction, DmabufMapping, FillRequest, FlushScope};

use crate::functions::Functions;
use crate::toolkit::Libraries;
use crate::{facts, kernels, pointer, status};

/// CUDA's driver, loaded and initialised.
#[derive(Debug)]
pub struct Cuda {
    functions: Functions,
    version: i32,
    devices: Vec<CUdevice>,
    libraries: Libraries,
    /// The kernels' modules, by device.
    modules: Mutex<BTreeMap<u32, Module>>,
}

/// A module of a primary context, as a number: handles may be used from any thread.
#[derive(Clone, Copy, Debug)]
struct Module(usize);

/// A device's primary context, as a number: handles may be used from any thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Primary(usize);

/// What was current before a device was entered.
#[derive(Debug)]
pub enum Previous {
    /// The same context: nothing was done.
    Same,
    /// Another one, or none, below the one that was pushed.
    Below,
}

impl Cuda {
    /// The version of the driver: 12040 is 12.4.
    pub(crate) fn version(&self) -> i32 {
        self.version
    }

    pub(crate) fn functions(&self) -> &Functions {
        &self.functions
    }

    pub(crate) fn libraries(&self) -> &Libraries {
        &self.libraries
    }

    pub(crate) fn handle(&self, device: u32) -> Answer<CUdevice> {
        let idx = usize::try_from(device).unwrap_or(usize::MAX);
        let found = self.devices.get(idx);
        found.copied().ok_or_else(|| Failure::Status {
            call: "cuDeviceGet",
            status: status::number(CUresult::CUDA_ERROR_INVALID_DEVICE),
        })
    }

    fn lock_modules(&self) -> MutexGuard<'_, BTreeMap<u32, Module>> {
        // Each change is one insert or remove, so the map is whole after a panic.
        self.modules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find_devices(&mut self) -> Answer<()> {
        let mut count = 0;
        // SAFETY: `count` is a local.
        unsafe { self.functions.cuDeviceGetCount(&raw mut count)? };
        for ordinal in 0..count {
            let mut device = 0;
            // SAFETY: `device` is a local.
            unsafe { self.functions.cuDeviceGet(&raw mut device, ordinal)? };
            self.devices.push(device);
        }
        Ok(())
    }

    /// The module of the kernels in the entered device's context.
    fn module(&self, device: u32) -> Answer<CUmodule> {
        if let Some(module) = self.lock_modules().get(&device) {
            return Ok(handle(to_u64(module.0)));
        }
        // Compiling is no work of a stream, so it does not concern a capture that is under way.
        let relaxed = self.relax_capture()?;
        let mut module: CUmodule = null_mut();
        let ptx = kernels::PTX.as_ptr().cast();
        // SAFETY: `module` is a local; the PTX has a NUL at its end and outlives the call.
        let loaded = unsafe { self.functions.cuModuleLoadData(&raw mut module, ptx) };
        if let Some(mode) = relaxed {
            self.restore_capture(mode)?;
        }
        loaded?;
        let mut modules = self.lock_modules();
        let ours = Module(module.expose_provenance());
        let kept = *modules.entry(device).or_insert(ours);
        drop(modules);
        if kept.0 != ours.0 {
            // Another thread was first.
            // SAFETY: loaded above, and no one else has it.
            unsafe { self.functions.cuModuleUnload(module)? };
        }
        Ok(handle(to_u64(kept.0)))
    }
}

impl Driver for Cuda {
    const NOTE: NoteParams<'static> = NoteParams {
        kind: SM_KIND_GPU,
        aliases: "GPU",
        // A fault of one instance's work breaks the primary context for all.
        flags: SM_NOTE_PROCESS_STATE,
        ..NoteParams::new("cuda", env!("CARGO_PKG_VERSION"))
    };
    const VENDOR: &'static str = "StepMesh";
    const TITLE: &'static str = "CUDA";
    const DLPACK_TYPE: i32 = SM_DLPACK_CUDA;

    type Context = Primary;
    type Previous = Previous;

    /// `cuDriverGetVersion`, `cuInit`, `cuDeviceGetCount`, `cuDeviceGet`.
    fn load() -> Result<Self, Absent> {
        let library = Library::open(LIBRARIES).map_err(|reason| Absent { reason, status: 0 })?;
        let file = library.file_of(c"cuInit");
        let file = file.map_or_else(
            || library.name().to_owned(),
            |file| file.display().to_string(),
        );
        let mut driver = Self {
            functions: Functions::of(&library),
            version: 0,
            devices: Vec::new(),
            libraries: Libraries::default(),
            modules: Mutex::default(),
        };
        let absent = |driver: &Self, failure: Failure| Absent {
            reason: format!("{file}: {}", failure.text(driver)),
            status: match failure {
                Failure::Status { status, .. } => status,
                Failure::Missing { .. } => 0,
            },
        };
        let mut version = 0;
        // SAFETY: `version` is a local; the function works without `cuInit`.
        let asked = unsafe { driver.functions.cuDriverGetVersion(&raw mut version) };
        asked.map_err(|failure| absent(&driver, failure))?;
        if version < VERSION_MIN {
            let [has, wants] = [version, VERSION_MIN].map(facts::version_text);
            let reason =
                format!("{file}: the driver is one of CUDA {has}, {wants} or later is needed");
            return Err(Absent { reason, status: 0 });
        }
        driver.version = version;
        // SAFETY: the only flag there is.
        let initialised = unsafe { driver.functions.cuInit(0) };
        let found = initialised.and_then(|()| driver.find_devices());
        found.map_err(|failure| absent(&driver, failure))?;
        Ok(driver)
    }

    fn kind(status: i32) -> Kind {
        status::kind(status)
    }

    /// `cuGetErrorName`.
    fn status_name(&self, status: i32) -> String {
        if let Some(name) = status::foreign_name(status) {
            return name;
        }
        let mut name: *const c_char = std::ptr::null();
        // SAFETY: `name` is a local.
        let named = unsafe { self.functions.cuGetErrorName(status, &raw mut name) };
        if named.is_err() || name.is_null() {
            return "an unknown error".into();
        }
        // SAFETY: the driver's own static text.
        let name = unsafe { CStr::from_ptr(name) };
        name.to_string_lossy().into_owned()
    }

    fn device_count(&self) -> Answer<u32> {
        Ok(u32::try_from(self.devices.len()).unwrap_or(u32::MAX))
    }

    /// `cuDeviceGetName`, `cuDeviceGetUuid`, `cuDeviceGetPCIBusId`, `cuDeviceTotalMem`,
    /// `cuDeviceGetAttribute`.
    fn facts(&self, device: u32) -> Answer<Facts> {
        facts::facts(self, self.handle(device)?)
    }

    /// `cuDeviceCanAccessPeer`.
    fn can_access_peer(&self, device: u32, peer: u32) -> Answer<bool> {
        let (device, peer) = (self.handle(device)?, self.handle(peer)?);
        let mut can = 0;
        // SAFETY: `can` is a local.
        unsafe {
            self.functions
                .cuDeviceCanAccessPeer(&raw mut can, device, peer)?
        };
        Ok(can != 0)
    }

    /// `cuDevicePrimaryCtxRetain`.
    fn retain(&self, device: u32) -> Answer<Primary> {
        let device = self.handle(device)?;
        let mut context: CUcontext = null_mut();
        // SAFETY: `context` is a local.
        unsafe {
            self.functions
                .cuDevicePrimaryCtxRetain(&raw mut context, device)?
        };
        Ok(Primary(context.expose_provenance()))
    }

    /// `cuModuleUnload`, `cuDevicePrimaryCtxRelease`.
    fn release(&self, device: u32, context: Primary) -> Answer<()> {
        let module = self.lock_modules().remove(&device);
        if let Some(Module(module)) = module {
            let previous = self.enter(device, context)?;
            // SAFETY: loaded by this instance, which launches no more kernels.
            let unloaded = unsafe { self.functions.cuModuleUnload(handle(to_u64(module))) };
            self.leave(previous)?;
            unloaded?;
        }
        let device = self.handle(device)?;
        // SAFETY: retained once by this instance.
        unsafe { self.functions.cuDevicePrimaryCtxRelease_v2(device) }
    }

    /// `cuCtxGetCurrent`, `cuCtxPushCurrent`.
    fn enter(&self, _device: u32, context: Primary) -> Answer<Previous> {
        let mut current: CUcontext = null_mut();
        // SAFETY: `current` is a local.
        unsafe { self.functions.cuCtxGetCurrent(&raw mut current)? };
        if current.addr() == context.0 {
            return Ok(Previous::Same);
        }
        // SAFETY: a primary context that is retained.
        unsafe {
            self.functions
                .cuCtxPushCurrent_v2(handle(to_u64(context.0)))?
        };
        Ok(Previous::Below)
    }

    /// `cuCtxPopCurrent`.
    fn leave(&self, previous: Previous) -> Answer<()> {
        let mut popped: CUcontext = null_mut();
        match previous {
            Previous::Same => Ok(()),
            // SAFETY: `popped` is a local.
            Previous::Below => unsafe { self.functions.cuCtxPopCurrent_v2(&raw mut popped) },
        }
    }

    /// `cuCtxSetCurrent`.
    fn set_current(&self, _device: u32, context: Primary) -> Answer<()> {
        // SAFETY: a primary context that is retained.
        unsafe { self.functions.cuCtxSetCurrent(handle(to_u64(context.0))) }
    }

    /// `cuCtxGetCurrent`, `cuCtxGetDevice`.
    fn current(&self) -> Answer<Option<u32>> {
        let mut context: CUcontext = null_mut();
        // SAFETY: `context` is a local.
        unsafe { self.functions.cuCtxGetCurrent(&raw mut context)? };
        if context.is_null() {
            return Ok(None);
        }
        let mut device: CUdevice = 0;
        // SAFETY: `device` is a local, and a context is current.
        let asked = unsafe { self.functions.cuCtxGetDevice(&raw mut device) };
        match asked {
            // One that was destroyed while it was current.
            Err(failure) if matches!(failure.kind::<Self>(), Kind::Ended | Kind::Invalid) => {
                return Ok(None);
            }
            answer => answer?,
        }
        let ordinal = self.devices.iter().position(|own| *own == device);
        Ok(ordinal.and_then(|ordinal| u32::try_from(ordinal).ok()))
    }

    /// `cuThreadExchangeStreamCaptureMode`.
    fn relax_capture(&self) -> Answer<Option<u32>> {
        let relaxed = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as u32;
        let mut mode = relaxed;
        // SAFETY: `mode` is a local and one of the modes there are.
        unsafe {
            self.functions
                .cuThreadExchangeStreamCaptureMode(&raw mut mode)?
        };
        Ok((mode != relaxed).then_some(mode))
    }

    /// `cuThreadExchangeStreamCaptureMode`.
    fn restore_capture(&self, previous: u32) -> Answer<()> {
        let mut mode: c_uint = previous;
        // SAFETY: `mode` is a local and what the driver gave.
        unsafe {
            self.functions
                .cuThreadExchangeStreamCaptureMode(&raw mut mode)
        }
    }

    /// `cuCtxEnablePeerAccess`.
    fn enable_peer(&self, _peer: u32, peer_context: Primary) -> Answer<()> {
        let peer = handle(to_u64(peer_context.0));
        // SAFETY: a primary context that is retained; there is no flag.
        unsafe { self.functions.cuCtxEnablePeerAccess(peer, 0) }
    }

    /// `cuCtxSynchronize`.
    fn synchronize(&self) -> Answer<()> {
        // SAFETY: a context is current.
        unsafe { self.functions.cuCtxSynchronize() }
    }

    /// `cuMemGetInfo`.
    fn memory_info(&self) -> Answer<(u64, u64)> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are locals.
        unsafe {
            self.functions
                .cuMemGetInfo_v2(&raw mut free, &raw mut total)?
        };
        Ok((to_u64(free), to_u64(total)))
    }

    /// `cuMemAlloc`.
    fn alloc_device(&self, len_bytes: u64) -> Answer<u64> {
        let mut ptr = 0;
        // SAFETY: `ptr` is a local.
        unsafe {
            self.functions
                .cuMemAlloc_v2(&raw mut ptr, to_usize(len_bytes))?
        };
        Ok(ptr)
    }

    /// `cuMemFree`.
    unsafe fn free_device(&self, ptr: u64) -> Answer<()> {
        // SAFETY: this method's contract.
        unsafe { self.functions.cuMemFree_v2(ptr) }
    }

    /// `cuMemHostAlloc`, portable and mapped: with unified addressing one address serves all.
    fn alloc_pinned(&self, len_bytes: u64) -> Answer<u64> {
        let mut ptr: *mut c_void = null_mut();
        let flags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
        let len = to_usize(len_bytes);
        // SAFETY: `ptr` is a local.
        unsafe { self.functions.cuMemHostAlloc(&raw mut ptr, len, flags)? };
        Ok(to_u64(ptr.expose_provenance()))
    }

    /// `cuMemFreeHost`.
    unsafe fn free_pinned(&self, ptr: u64) -> Answer<()> {
        // SAFETY: this method's contract.
        unsafe { self.functions.cuMemFreeHost(handle(ptr)) }
    }

    /// `cuMemAllocManaged`.
    fn alloc_managed(&self, len_bytes: u64) -> Answer<u64> {
        let mut ptr = 0;
        let (len, flags) = (
            to_usize(len_bytes),
            CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL as u32,
        );
        // SAFETY: `ptr` is a local.
        unsafe { self.functions.cuMemAllocManaged(&raw mut ptr, len, flags)? };
        Ok(ptr)
    }

    /// `cuMemAllocAsync`.
    unsafe fn alloc_async(&self, len_bytes: u64, stream: u64) -> Answer<u64> {
        let mut ptr = 0;
        let (len, stream) = (to_usize(len_bytes), handle(stream));
        // SAFETY: `ptr` is a local; this method's contract for the stream.
        unsafe { self.functions.cuMemAllocAsync(&raw mut ptr, len, stream)? };
        Ok(ptr)
    }

    /// `cuMemFreeAsync`.
    unsafe fn free_async(&self, ptr: u64, stream: u64) -> Answer<()> {
        // SAFETY: this method's contract.
        unsafe { self.functions.cuMemFreeAsync(ptr, handle(stream)) }
    }

    /// `cuMemHostRegister`, `cuMemHostGetDevicePointer`.
    unsafe fn register_host(&self, ptr: u64, len_bytes: u64, read_only: bool) -> Answer<u64> {
        let mut flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
        if read_only {
            flags |= CU_MEMHOSTREGISTER_READ_ONLY;
        }
        let (host, len) = (handle::<c_void>(ptr), to_usize(len_bytes));
        // SAFETY: this method's contract.
        unsafe { self.functions.cuMemHostRegister_v2(host, len, flags)? };
        let mut address = 0;
        // SAFETY: registered above; `address` is a local.
        let asked = unsafe {
            self.functions
                .cuMemHostGetDevicePointer_v2(&raw mut address, host, 0)
        };
        if let Err(failure) = asked {
            // SAFETY: registered above, and told to nobody.
            unsafe { self.functions.cuMemHostUnregister(host)? };
            return Err(failure);
        }
        Ok(address)
    }

    /// `cuMemHostUnregister`.
    unsafe fn unregister_host(&self, ptr: u64) -> Answer<()> {
        // SAFETY: this method's contract.
        unsafe { self.functions.cuMemHostUnregister(handle(ptr)) }
    }

    /// `cuPointerGetAttributes`.
    fn pointer(&self, ptr: u64) -> Answer<Option<PointerFacts>> {
        pointer::facts(&self.functions, ptr)
    }

    /// `cuCtxGetStreamPriorityRange`, `cuStreamCreateWithPriority`.
    fn create_stream(&self, priority: i32, non_blocking: bool) -> Answer<u64> {
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: both are locals.
        unsafe {
            self.functions
                .cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest)?;
        };
        // The most urgent is the lowest number.
        let priority = priority.min(least).max(greatest);
        let flags = if non_blocking {
            CUstream_flags::CU_STREAM_NON_BLOCKING
        } else {
            CUstream_flags::CU_STREAM_DEFAULT
        };
        let mut stream: CUstream = null_mut();
        // SAFETY: `stream` is a local.
        unsafe {
            self.functions
                .cuStreamCreateWithPriority(&raw mut stream, flags as u32, priority)?;
        };
        Ok(to_u64(stream.expose_provenance()))
    }

    /// `cuStreamDestroy`.
    unsafe fn destroy_stream(&self, stream: u64) -> Answer<()> {
        // SAFETY: this method's contract.
        unsafe { self.functions.cuStreamDestroy_v2(handle(stream)) }
    }

    /// `cuStreamQuery`. The default streams have the numbers of the ABI.
    unsafe fn is_stream_done(&self, stream: u64) -> Answer<bool> {
        // SAFETY: this method's contract.
        is_done(unsafe { self.functions.cuStreamQuery(handle(stream)) })
    }

    /// `cuStreamWaitEvent`.
    unsafe fn wait_event(&self, stream: u64, event: u64) -> Answer<()> {
        let (stream, event) = (handle(stream), handle(event));
        // SAFETY: this method's contract; the default flag.
        unsafe { self.functions.cuStreamWaitEvent(stream, event, 0) }
    }

    /// `cuLaunchHostFunc`.
    unsafe fn launch_host_function(
        &self,
        stream: u64,
        func: unsafe extern "C" fn(*mut c_void),
        arg: *mut c_void,
    ) -> Answer<()> {
        // SAFETY: this method's contract.
        unsafe {
            self.functions
                .cuLaunchHostFunc(handle(stream), Some(func), arg)
        }
    }

    /// `cuStreamWriteValue64`, whose default flag is a barrier before the write.
    unsafe fn write_value(&self, stream: u64, ptr: u64, value: u64) -> Answer<()> {
        let flags = CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as u32;
        let stream = handle(stream);
        // SAFETY: this method's contract.
        unsafe {
            self.functions
                .cuStreamWriteValue64_v2(stream, ptr, value, flags)
        }
    }

    /// `cuEventCreate`.
    fn create_event(&self, timing: bool, blocking: bool) -> Answer<u64> {
        let mut flags = CUevent_flags::CU_EVENT_DEFAULT as u32;
        if !timing {
            flags |= CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        }
        if blocking {
            flags |= CUevent_flags::CU_EVENT_BLOCKING_SYNC as u32;
        }
        let mut event: CUevent = null_mut();
        // SAFETY: `event` is a local.
        unsafe { self.functions.cuEventCreate(&raw mut event, flags)? };
        Ok(to_u64(event.expose_provenance()))
    }

    /// `cuEventDestroy`.
    unsafe fn destroy_event(&self, event: u64) -> Answer<()> {
        // SAFETY: this method's contract.
        unsafe { self.functions.cuEventDestroy_v2(handle(event)) }
    }

    /// `cuEventRecord`.
    unsafe fn record_event(&self, event: u64, stream: u64) -> Answer<()> {
        // SAFETY: this method's contract.
        unsafe { self.functions.cuEventRecord(handle(event), handle(stream)) }
    }

    /// `cuEventQuery`.
    unsafe fn is_event_done(&self, event: u64) -> Answer<bool> {
        // SAFETY: this method's contract.
        is_done(unsafe { self.functions.cuEventQuery(handle(event)) })
    }

    /// `cuEventElapsedTime`.
    unsafe fn elapsed_ms(&self, start: u64, end: u64) -> Answer<f64> {
        let mut ms = 0.0_f32;
        let (start, end) = (handle(start), handle(end));
        // SAFETY: `ms` is a local; this method's contract for the events.
        unsafe { self.functions.cuEventElapsedTime(&raw mut ms, start, end)? };
        Ok(f64::from(ms))
    }

    /// `cuMemcpyHtoDAsync`, `cuMemcpyDtoHAsync`, `cuMemcpyDtoDAsync`, `cuMemcpyPeerAsync`,
    /// `cuMemcpyAsync`.
    unsafe fn copy_async(
        &self,
        request: &CopyRequest,
        peers: Option<(Primary, Primary)>,
        stream: u64,
    ) -> Answer<()> {
        let (dst, src, len) = (request.dst, request.src, to_usize(request.len_bytes));
        let (functions, stream) = (&self.functions, handle(stream));
        match (request.direction, peers) {
            (Direction::HostToDevice, _) => {
                let src = handle::<c_void>(src).cast_const();
                // SAFETY: this method's contract.
                unsafe { functions.cuMemcpyHtoDAsync_v2(dst, src, len, stream) }
            }
            (Direction::DeviceToHost, _) => {
                // SAFETY: this method's contract.
                unsafe { functions.cuMemcpyDtoHAsync_v2(handle(dst), src, len, stream) }
            }
            (Direction::DeviceToDevice | Direction::PeerToPeer, Some((to, from))) => {
                let (to, from) = (handle(to64(to)), handle(to64(from)));
                // SAFETY: this method's contract; both contexts are retained.
                unsafe { functions.cuMemcpyPeerAsync(dst, to, src, from, len, stream) }
            }
            (Direction::DeviceToDevice | Direction::PeerToPeer, None) => {
                // SAFETY: this method's contract.
                unsafe { functions.cuMemcpyDtoDAsync_v2(dst, src, len, stream) }
            }
            // SAFETY: this method's contract; with unified addressing the driver finds the direction.
            _ => unsafe { functions.cuMemcpyAsync(dst, src, len, stream) },
        }
    }

    /// `cuMemsetD8Async`, `cuMemsetD16Async`, `cuMemsetD32Async`.
    unsafe fn fill_async(&self, request: &FillRequest, stream: u64) -> Answer<()> {
        let (functions, stream) = (&self.functions, handle(stream));
        let count = to_usize(request.len_bytes / u64::from(request.width_bytes.max(1)));
        let [low, second, ..] = request.value.to_le_bytes();
        match request.width_bytes {
            // SAFETY: this method's contract.
            1 => unsafe { functions.cuMemsetD8Async(request.dst, low, count, stream) },
            2 => {
                let value = u16::from_le_bytes([low, second]);
                // SAFETY: this method's contract.
                unsafe { functions.cuMemsetD16Async(request.dst, value, count, stream) }
            }
            // SAFETY: this method's contract.
            _ => unsafe { functions.cuMemsetD32Async(request.dst, request.value, count, stream) },
        }
    }

    /// `cuMemGetHandleForAddressRange`.
    unsafe fn export_dmabuf(
        &self,
        ptr: u64,
        len_bytes: u64,
        mapping: DmabufMapping,
    ) -> Answer<Exported> {
        let kind = CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD as u32;
        let flags = match mapping {
            DmabufMapping::Pcie => DMA_BUF_MAPPING_TYPE_PCIE,
            _ => 0,
        };
        let (mut fd, len): (c_int, _) = (-1, to_usize(len_bytes));
        // SAFETY: `fd` is a local of the type that this kind of handle has; this method's contract for
        // the range.
        unsafe {
            self.functions.cuMemGetHandleForAddressRange(
                (&raw mut fd).cast(),
                ptr,
                len,
                kind,
                flags,
            )?;
        };
        // SAFETY: the call succeeded, so it is a descriptor that is nobody's yet.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // The documentation does not say that the driver does. Nothing can be done if it fails.
        let _ = rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC);
        Ok(Exported {
            fd,
            offset_bytes: 0,
        })
    }

    /// `cuFlushGPUDirectRDMAWrites`.
    fn flush_rdma_writes(&self, scope: FlushScope) -> Answer<()> {
        use CUflushGPUDirectRDMAWritesScope as Scope;
        let target =
            CUflushGPUDirectRDMAWritesTarget::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX;
        let scope = match scope {
            FlushScope::AllDevices => Scope::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES,
            _ => Scope::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER,
        };
        // SAFETY: a context is current.
        unsafe {
            self.functions
                .cuFlushGPUDirectRDMAWrites(target as u32, scope as u32)
        }
    }

    /// `cuPointerSetAttribute` of `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`.
    unsafe fn set_sync_memops(&self, ptr: u64) -> Answer<()> {
        let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS as c_int;
        let on: c_uint = 1;
        let value = (&raw const on).cast();
        // SAFETY: the attribute's value is an int, a local; this method's contract for the address.
        unsafe { self.functions.cuPointerSetAttribute(value, attribute, ptr) }
    }

    /// `cuIpcGetMemHandle`.
    unsafe fn export_ipc(&self, ptr: u64) -> Answer<[u8; 64]> {
        let mut ipc = CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: `ipc` is a local; this method's contract for the address.
        unsafe { self.functions.cuIpcGetMemHandle(&raw mut ipc, ptr)? };
        Ok(ipc.reserved.map(|byte| byte.to_ne_bytes()[0]))
    }

    /// `cuIpcOpenMemHandle`, with access between peers where it is needed.
    fn open_ipc(&self, bytes: [u8; 64]) -> Answer<u64> {
        let reserved = bytes.map(|byte| c_char::from_ne_bytes([byte]));
        let ipc = CUipcMemHandle { reserved };
        let flags = CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        let mut ptr = 0;
        // SAFETY: `ptr` is a local; the driver checks the handle.
        unsafe {
            self.functions
                .cuIpcOpenMemHandle_v2(&raw mut ptr, ipc, flags)?
        };
        Ok(ptr)
    }

    /// `cuIpcCloseMemHandle`.
    unsafe fn close_ipc(&self, ptr: u64) -> Answer<()> {
        // SAFETY: this method's contract.
        unsafe { self.functions.cuIpcCloseMemHandle(ptr) }
    }

    /// `cuStreamGetCaptureInfo`.
    unsafe fn capture(&self, stream: u64) -> Answer<Capture> {
        let (mut state, mut id): (c_int, u64) = (0, 0);
        // SAFETY: both are locals, and what is null is optional; this method's contract for the stream.
        unsafe {
            self.functions.cuStreamGetCaptureInfo_v2(
                handle(stream),
                &raw mut state,
                &raw mut id,
                null_mut(),
                null_mut(),
                null_mut(),
            )?;
        };
        let is = |status: CUstreamCaptureStatus| i64::from(state) == i64::from(status as u32);
        Ok(
            if is(CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE) {
                Capture::Active(id)
            } else if is(CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE) {
                Capture::None
            } else {
                Capture::Invalidated
            },
        )
    }

    /// `cuModuleLoadData`, `cuModuleGetFunction`, `cuLaunchKernel`.
    unsafe fn launch(&self, device: u32, stream: u64, kernel: Kernel) -> Answer<()> {
        let module = self.module(device)?;
        let (name, mut arguments) = kernels::name_and_arguments(kernel);
        let mut function: CUfunction = null_mut();
        // SAFETY: `function` is a local; the module is loaded; the name has a NUL at its end.
        unsafe {
            self.functions
                .cuModuleGetFunction(&raw mut function, module, name.as_ptr())?;
        };
        let mut params: Vec<*mut c_void> = arguments
            .iter_mut()
            .map(|argument| std::ptr::from_mut(argument).cast())
            .collect();
        // SAFETY: one thread of a kernel that takes as many numbers of 8 bytes as there are, which the
        // driver copies before it returns; this method's contract for what they point to.
        unsafe {
            self.functions.cuLaunchKernel(
                function,
                1,
                1,
                1,
                1,
                1,
                1,
                0,
                handle(stream),
                params.as_mut_ptr(),
                null_mut(),
            )
        }
    }
}

fn is_done(asked: Answer<()>) -> Answer<bool> {
    match asked {
        Ok(()) => Ok(true),
        Err(failure) if failure.kind::<Cuda>() == Kind::NotReady => Ok(false),
        Err(failure) => Err(failure),
    }
}

/// A handle or host address of the ABI as the pointer that it is to the driver.
pub(crate) fn handle<T>(number: u64) -> *mut T {
    std::ptr::with_exposed_provenance_mut(to_usize(number))
}

fn to64(context: Primary) -> u64 {
    to_u64(context.0)
}

pub(crate) fn to_u64(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

pub(crate) fn to_usize(number: u64) -> usize {
    // What does not fit is refused by the driver as out of memory or invalid.
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// The driver's library. The versioned name first: the other one may be the stub that toolkits link to.
const LIBRARIES: &[&str] = &["libcuda.so.1", "libcuda.so"];
/// CUDA 11.7: the first with dma-bufs of memory and with stream writes of 64 bits for everyone.
const VERSION_MIN: i32 = 11_070;
/// `CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE` of CUDA 12.8, newer than the bindings.
const DMA_BUF_MAPPING_TYPE_PCIE: u64 = 1;
