//! Which function of HIP serves which call. What a backend makes of the calls lives in stepmesh-driver;
//! what a device is like, in the facts module.
#![expect(unsafe_code, reason = "calls HIP")]

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::os::fd::OwnedFd;
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use hip_sys::hiprt::{
    hipDeviceAttribute_t, hipError_t, hipEvent_t, hipEventBlockingSync, hipEventDefault,
    hipEventDisableTiming, hipFunction_t, hipHostMallocCoherent, hipHostMallocMapped,
    hipHostMallocPortable, hipHostRegisterMapped, hipHostRegisterPortable, hipIpcMemHandle_t,
    hipMemAttachGlobal, hipMemcpyKind, hipModule_t, hipStream_t, hipStreamCaptureMode,
    hipStreamCaptureStatus, hipStreamDefault, hipStreamNonBlocking,
};
use stepmesh_driver::{
    Absent, Answer, Compiler as _, Driver, Exported, Facts, Failure, Kernel, Kind, Library,
    PointerFacts,
};
use stepmesh_plugin::abi::device::SM_DLPACK_ROCM;
use stepmesh_plugin::abi::note::{NoteParams, SM_KIND_GPU, SM_NOTE_PROCESS_STATE};
use stepmesh_plugin::abi::stream::SM_STREAM_LEGACY;
use stepmesh_plugin::{Capture, CopyRequest, Direction, DmabufMapping, FillRequest, FlushScope};

use crate::compiler::Hiprtc;
use crate::functions::{ErrorName, Functions};
use crate::handles::{handle, made, ordinal, stream_of, to_u64, to_usize};
use crate::hsa::Hsa;
use crate::rocblas::Rocblas;
use crate::{facts, kernels, pointer, status};

/// HIP, loaded and initialised.
#[derive(Debug)]
pub struct Rocm {
    functions: Functions,
    error_name: ErrorName,
    compiler: Result<Hiprtc, String>,
    /// Opened when it is first asked for.
    blas: OnceLock<Result<Rocblas, String>>,
    hsa: Hsa,
    /// 60200000 is 6.2.
    version: i32,
    device_count: u32,
    /// The kernels' modules, by device.
    modules: Mutex<BTreeMap<u32, Module>>,
}

/// A module, as a number: handles may be used from any thread.
#[derive(Clone, Copy, Debug)]
struct Module(usize);

/// What was before a device was entered.
#[derive(Debug)]
pub struct Previous {
    /// The current device if it was another one.
    device: Option<c_int>,
    /// Whether the thread had no last error.
    was_clean: bool,
}

impl Rocm {
    pub(crate) fn functions(&self) -> &Functions {
        &self.functions
    }

    pub(crate) fn loaded_compiler(&self) -> &Result<Hiprtc, String> {
        &self.compiler
    }

    pub(crate) fn loaded_blas(&self) -> &Result<Rocblas, String> {
        self.blas.get_or_init(|| Rocblas::load(self.version))
    }

    pub(crate) fn hsa(&self) -> &Hsa {
        &self.hsa
    }

    /// Whether the thread has no last error. Without the function to ask, none is ever taken away.
    fn is_clean(&self) -> bool {
        // SAFETY: takes nothing.
        unsafe { self.functions.hipPeekAtLastError() }.is_ok()
    }

    /// Takes away an error of ours, so that a framework does not take it for its own.
    fn clean(&self, was_clean: bool) {
        if was_clean && !self.is_clean() {
            // The answer is the error.
            // SAFETY: takes nothing.
            let _ = unsafe { self.functions.hipGetLastError() };
        }
    }

    /// Asks without leaving an error behind: an answer may be there although a call failed on the way.
    fn quietly<T>(&self, ask: impl FnOnce(&Functions) -> Answer<T>) -> Answer<T> {
        let was_clean = self.is_clean();
        let answer = ask(&self.functions);
        self.clean(was_clean);
        answer
    }

    pub(crate) fn attribute(&self, device: u32, what: hipDeviceAttribute_t) -> Answer<u32> {
        let mut value = 0;
        #[expect(clippy::cast_possible_wrap, reason = "below 20000, all of them")]
        let what = what as u32 as c_int;
        // SAFETY: `value` is a local.
        self.quietly(|functions| unsafe {
            functions.hipDeviceGetAttribute(&raw mut value, what, ordinal(device))
        })?;
        Ok(u32::try_from(value).unwrap_or(0))
    }

    fn lock_modules(&self) -> MutexGuard<'_, BTreeMap<u32, Module>> {
        // Each change is one insert or remove, so the map is whole after a panic.
        self.modules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The module of the kernels on the entered device.
    fn module(&self, device: u32) -> Answer<hipModule_t> {
        if let Some(module) = self.lock_modules().get(&device) {
            return Ok(handle(to_u64(module.0)));
        }
        // Compiling is no work of a stream, so it does not concern a capture that is under way.
        let relaxed = self.relax_capture()?;
        let loaded = self.load_module(device);
        if let Some(mode) = relaxed {
            self.restore_capture(mode)?;
        }
        let module = loaded?;
        let mut modules = self.lock_modules();
        let ours = Module(module.expose_provenance());
        let kept = *modules.entry(device).or_insert(ours);
        drop(modules);
        if kept.0 != ours.0 {
            // Another thread was first.
            // SAFETY: loaded above, and no one else has it.
            unsafe { self.functions.hipModuleUnload(module)? };
        }
        Ok(handle(to_u64(kept.0)))
    }

    fn load_module(&self, device: u32) -> Answer<hipModule_t> {
        let clock = self.attribute(
            device,
            hipDeviceAttribute_t::hipDeviceAttributeWallClockRate,
        )?;
        let arch = facts::arch(self, device)?;
        let missing = Failure::Missing {
            call: "hiprtcCompileProgram",
        };
        let compiler = self.compiler.as_ref().map_err(|_| missing)?;
        let code = compiler.compile(&kernels::source(clock), &arch);
        let code = code.map_err(|uncompiled| uncompiled.failure)?;
        let mut module: hipModule_t = null_mut();
        // SAFETY: `module` is a local; the code is what the compiler made, and outlives the call.
        unsafe {
            self.functions
                .hipModuleLoadData(&raw mut module, code.as_ptr().cast())?;
        };
        Ok(module)
    }

    /// Initialises the runtime and counts devices. Without any, both answers tell why.
    fn find_devices(&mut self) -> Result<(), (String, i32)> {
        // SAFETY: the only flag there is.
        let initialised = unsafe { self.functions.hipInit(0) };
        let mut count = 0;
        // SAFETY: `count` is a local; the function initialises by itself.
        let counted = unsafe { self.functions.hipGetDeviceCount(&raw mut count) };
        match (initialised, counted) {
            (Ok(()), Ok(())) => {
                self.device_count = u32::try_from(count).unwrap_or(0);
                Ok(())
            }
            (Err(first), Err(second)) => Err((
                format!("{}, {}", first.text(self), second.text(self)),
                status_of(second),
            )),
            (Err(failure), Ok(())) | (Ok(()), Err(failure)) => {
                Err((failure.text(self), status_of(failure)))
            }
        }
    }
}

impl Driver for Rocm {
    const NOTE: NoteParams<'static> = NoteParams {
        kind: SM_KIND_GPU,
        aliases: "GPU",
        // A fault of one instance's work breaks the device for the process.
        flags: SM_NOTE_PROCESS_STATE,
        ..NoteParams::new("rocm", env!("CARGO_PKG_VERSION"))
    };
    const VENDOR: &'static str = "StepMesh";
    const TITLE: &'static str = "ROCm";
    const DLPACK_TYPE: i32 = SM_DLPACK_ROCM;

    /// HIP makes contexts by itself.
    type Context = u32;
    type Previous = Previous;

    /// `hipRuntimeGetVersion`, `hipInit`, `hipGetDeviceCount`.
    fn load() -> Result<Self, Absent> {
        let library = Library::open(LIBRARIES).map_err(|reason| Absent { reason, status: 0 })?;
        let file = library.file_of(c"hipInit");
        let file = file.map_or_else(
            || library.name().to_owned(),
            |file| file.display().to_string(),
        );
        let mut driver = Self {
            functions: Functions::of(&library),
            error_name: ErrorName::of(&library),
            compiler: Hiprtc::load(&library),
            blas: OnceLock::new(),
            hsa: Hsa::load(),
            version: 0,
            device_count: 0,
            modules: Mutex::default(),
        };
        let mut version = 0;
        // SAFETY: `version` is a local; the function works without `hipInit`.
        let asked = unsafe { driver.functions.hipRuntimeGetVersion(&raw mut version) };
        let absent = |reason, status| Absent {
            reason: format!("{file}: {reason}"),
            status,
        };
        if let Err(failure) = asked {
            return Err(absent(failure.text(&driver), status_of(failure)));
        }
        if version < VERSION_MIN {
            let [has, wants] = [version, VERSION_MIN].map(facts::version_text);
            let reason = format!("the runtime is HIP {has}, {wants} or later is needed");
            return Err(absent(reason, 0));
        }
        driver.version = version;
        let found = driver.find_devices();
        found.map_err(|(reason, status)| absent(reason, status))?;
        Ok(driver)
    }

    fn kind(status: i32) -> Kind {
        status::kind(status)
    }

    /// `hipGetErrorName`.
    fn status_name(&self, status: i32) -> String {
        status::foreign_name(status).unwrap_or_else(|| self.error_name.text(status))
    }

    fn device_count(&self) -> Answer<u32> {
        Ok(self.device_count)
    }

    /// `hipDeviceGetName`, `hipDeviceGetUuid`, `hipDeviceGetPCIBusId`, `hipDeviceTotalMem`,
    /// `hipDeviceGetAttribute`, `hipGetDeviceProperties` for the architecture alone.
    fn facts(&self, device: u32) -> Answer<Facts> {
        self.quietly(|_| facts::facts(self, device))
    }

    /// `hipDeviceCanAccessPeer`.
    fn can_access_peer(&self, device: u32, peer: u32) -> Answer<bool> {
        let mut can = 0;
        let (device, peer) = (ordinal(device), ordinal(peer));
        // SAFETY: `can` is a local.
        self.quietly(|functions| unsafe {
            functions.hipDeviceCanAccessPeer(&raw mut can, device, peer)
        })?;
        Ok(can != 0)
    }

    fn retain(&self, device: u32) -> Answer<u32> {
        Ok(device)
    }

    /// `hipModuleUnload`.
    fn release(&self, device: u32, context: u32) -> Answer<()> {
        let module = self.lock_modules().remove(&device);
        let Some(Module(module)) = module else {
            return Ok(());
        };
        let previous = self.enter(device, context)?;
        // SAFETY: loaded by this instance, which launches no more kernels.
        let unloaded = unsafe { self.functions.hipModuleUnload(handle(to_u64(module))) };
        self.leave(previous)?;
        unloaded
    }

    /// `hipGetDevice`, `hipSetDevice`, `hipPeekAtLastError`.
    fn enter(&self, device: u32, _context: u32) -> Answer<Previous> {
        let was_clean = self.is_clean();
        let mut current: c_int = -1;
        // SAFETY: `current` is a local.
        unsafe { self.functions.hipGetDevice(&raw mut current)? };
        let wanted = ordinal(device);
        if current == wanted {
            let device = None;
            return Ok(Previous { device, was_clean });
        }
        // SAFETY: takes a number.
        let set = unsafe { self.functions.hipSetDevice(wanted) };
        if set.is_err() {
            self.clean(was_clean);
        }
        set?;
        Ok(Previous {
            device: Some(current),
            was_clean,
        })
    }

    /// `hipSetDevice`, `hipGetLastError`.
    fn leave(&self, previous: Previous) -> Answer<()> {
        let left = previous.device.map_or(Ok(()), |device| {
            // SAFETY: takes a number.
            unsafe { self.functions.hipSetDevice(device) }
        });
        self.clean(previous.was_clean);
        left
    }

    /// `hipSetDevice`.
    fn set_current(&self, device: u32, _context: u32) -> Answer<()> {
        // SAFETY: takes a number.
        self.quietly(|functions| unsafe { functions.hipSetDevice(ordinal(device)) })
    }

    /// `hipGetDevice`. A thread that never set one has the first.
    fn current(&self) -> Answer<Option<u32>> {
        let mut device: c_int = -1;
        // SAFETY: `device` is a local.
        self.quietly(|functions| unsafe { functions.hipGetDevice(&raw mut device) })?;
        let device = u32::try_from(device).ok();
        Ok(device.filter(|device| *device < self.device_count))
    }

    /// `hipThreadExchangeStreamCaptureMode`.
    fn relax_capture(&self) -> Answer<Option<u32>> {
        let relaxed = hipStreamCaptureMode::hipStreamCaptureModeRelaxed as u32;
        let mut mode = relaxed;
        // SAFETY: `mode` is a local and one of the modes there are.
        let exchanged = unsafe {
            self.functions
                .hipThreadExchangeStreamCaptureMode(&raw mut mode)
        };
        match exchanged {
            // One that does not know captures forbids nothing.
            Err(Failure::Missing { .. }) => Ok(None),
            answer => answer.map(|()| (mode != relaxed).then_some(mode)),
        }
    }

    /// `hipThreadExchangeStreamCaptureMode`.
    fn restore_capture(&self, previous: u32) -> Answer<()> {
        let mut mode: c_uint = previous;
        // SAFETY: `mode` is a local and what HIP gave.
        unsafe {
            self.functions
                .hipThreadExchangeStreamCaptureMode(&raw mut mode)
        }
    }

    /// `hipDeviceEnablePeerAccess`.
    fn enable_peer(&self, peer: u32, _peer_context: u32) -> Answer<()> {
        // SAFETY: takes numbers; there is no flag.
        unsafe { self.functions.hipDeviceEnablePeerAccess(ordinal(peer), 0) }
    }

    /// `hipDeviceSynchronize`.
    fn synchronize(&self) -> Answer<()> {
        // SAFETY: takes nothing.
        unsafe { self.functions.hipDeviceSynchronize() }
    }

    /// `hipMemGetInfo`.
    fn memory_info(&self) -> Answer<(u64, u64)> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are locals.
        unsafe {
            self.functions
                .hipMemGetInfo(&raw mut free, &raw mut total)?
        };
        Ok((to_u64(free), to_u64(total)))
    }

    /// `hipMalloc`.
    fn alloc_device(&self, len_bytes: u64) -> Answer<u64> {
        let len = to_usize(len_bytes);
        // SAFETY: the place is a local of `made`.
        made(|ptr| unsafe { self.functions.hipMalloc(ptr, len) })
    }

    /// `hipFree`.
    unsafe fn free_device(&self, ptr: u64) -> Answer<()> {
        // SAFETY: this method's contract.
        unsafe { self.functions.hipFree(handle(ptr)) }
    }

    /// `hipHostMalloc`, portable and mapped: one address serves all. Coherent, so that the host sees what
    /// a stream writes while other work of it runs on.
    fn alloc_pinned(&self, len_bytes: u64) -> Answer<u64> {
        let flags = hipHostMallocPortable | hipHostMallocMapped | hipHostMallocCoherent;
        let len = to_usize(len_bytes);
        // SAFETY: the place is a local of `made`.
        made(|ptr| unsafe { self.functions.hipHostMalloc(ptr, len, flags) })
    }

    /// `hipHostFree`.
    unsafe fn free_pinned(&self, ptr: u64) -> Answer<()> {
        // SAFETY: this method's contract.
        unsafe { self.functions.hipHostFree(handle(ptr)) }
    }

    /// `hipMallocManaged`.
    fn alloc_managed(&self, len_bytes: u64) -> Answer<u64> {
        let len = to_usize(len_bytes);
        // SAFETY: the place is a local of `made`.
        made(|ptr| unsafe {
            self.functions
                .hipMallocManaged(ptr, len, hipMemAttachGlobal)
        })
    }

    /// `hipMallocAsync`.
    unsafe fn alloc_async(&self, len_bytes: u64, stream: u64) -> Answer<u64> {
        let len = to_usize(len_bytes);
        // SAFETY: the place is a local of `made`; this method's contract for the stream.
        made(|ptr| unsafe { self.functions.hipMallocAsync(ptr, len, stream_of(stream)) })
    }

    /// `hipFreeAsync`.
    unsafe fn free_async(&self, ptr: u64, stream: u64) -> Answer<()> {
        // SAFETY: this method's contract.
        unsafe { self.functions.hipFreeAsync(handle(ptr), stream_of(stream)) }
    }

    /// `hipHostRegister`, `hipHostGetDevicePointer`. Versions 5 and 6 have no flag for what is only read.
    unsafe fn register_host(&self, ptr: u64, len_bytes: u64, _read_only: bool) -> Answer<u64> {
        let flags = hipHostRegisterPortable | hipHostRegisterMapped;
        let (host, len) = (handle::<c_void>(ptr), to_usize(len_bytes));
        // SAFETY: this method's contract.
        unsafe { self.functions.hipHostRegister(host, len, flags)? };
        // SAFETY: registered above; the place is a local of `made`.
        let asked = made(|out| unsafe { self.functions.hipHostGetDevicePointer(out, host, 0) });
        if asked.is_err() {
            // SAFETY: registered above, and told to nobody.
            unsafe { self.functions.hipHostUnregister(host)? };
        }
        asked
    }

    /// `hipHostUnregister`.
    unsafe fn unregister_host(&self, ptr: u64) -> Answer<()> {
        // SAFETY: this method's contract.
        unsafe { self.functions.hipHostUnregister(handle(ptr)) }
    }

    /// `hipPointerGetAttributes`, `hipMemGetAddressRange`, `hipPointerGetAttribute`.
    fn pointer(&self, ptr: u64) -> Answer<Option<PointerFacts>> {
        self.quietly(|functions| pointer::facts(functions, self.version, ptr))
    }

    /// `hipDeviceGetStreamPriorityRange`, `hipStreamCreateWithPriority`.
    fn create_stream(&self, priority: i32, non_blocking: bool) -> Answer<u64> {
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: both are locals.
        unsafe {
            self.functions
                .hipDeviceGetStreamPriorityRange(&raw mut least, &raw mut greatest)?;
        };
        // The most urgent is the lowest number.
        let priority = priority.min(least).max(greatest);
        let flags = if non_blocking {
            hipStreamNonBlocking
        } else {
            hipStreamDefault
        };
        let mut stream: hipStream_t = null_mut();
        // SAFETY: `stream` is a local.
        unsafe {
            self.functions
                .hipStreamCreateWithPriority(&raw mut stream, flags, priority)?;
        };
        Ok(to_u64(stream.expose_provenance()))
    }

    /// `hipStreamDestroy`.
    unsafe fn destroy_stream(&self, stream: u64) -> Answer<()> {
        // SAFETY: this method's contract.
        unsafe { self.functions.hipStreamDestroy(stream_of(stream)) }
    }

    /// `hipStreamQuery`.
    unsafe fn is_stream_done(&self, stream: u64) -> Answer<bool> {
        // SAFETY: this method's contract.
        is_done(unsafe { self.functions.hipStreamQuery(stream_of(stream)) })
    }

    /// `hipStreamWaitEvent`.
    unsafe fn wait_event(&self, stream: u64, event: u64) -> Answer<()> {
        let (stream, event) = (stream_of(stream), handle(event));
        // SAFETY: this method's contract; there is no flag.
        unsafe { self.functions.hipStreamWaitEvent(stream, event, 0) }
    }

    /// `hipLaunchHostFunc`, which HIP has since 5.3.
    unsafe fn launch_host_function(
        &self,
        stream: u64,
        func: unsafe extern "C" fn(*mut c_void),
        arg: *mut c_void,
    ) -> Answer<()> {
        // SAFETY: this method's contract.
        unsafe {
            self.functions
                .hipLaunchHostFunc(stream_of(stream), Some(func), arg)
        }
    }

    /// `hipStreamWriteValue64`.
    unsafe fn write_value(&self, stream: u64, ptr: u64, value: u64) -> Answer<()> {
        let (stream, ptr) = (stream_of(stream), handle(ptr));
        // SAFETY: this method's contract; there is no flag.
        unsafe { self.functions.hipStreamWriteValue64(stream, ptr, value, 0) }
    }

    /// `hipEventCreateWithFlags`.
    fn create_event(&self, timing: bool, blocking: bool) -> Answer<u64> {
        let mut flags = hipEventDefault;
        if !timing {
            flags |= hipEventDisableTiming;
        }
        if blocking {
            flags |= hipEventBlockingSync;
        }
        let mut event: hipEvent_t = null_mut();
        // SAFETY: `event` is a local.
        unsafe {
            self.functions
                .hipEventCreateWithFlags(&raw mut event, flags)?
        };
        Ok(to_u64(event.expose_provenance()))
    }

    /// `hipEventDestroy`.
    unsafe fn destroy_event(&self, event: u64) -> Answer<()> {
        // SAFETY: this method's contract.
        unsafe { self.functions.hipEventDestroy(handle(event)) }
    }

    /// `hipEventRecord`.
    unsafe fn record_event(&self, event: u64, stream: u64) -> Answer<()> {
        let (event, stream) = (handle(event), stream_of(stream));
        // SAFETY: this method's contract.
        unsafe { self.functions.hipEventRecord(event, stream) }
    }

    /// `hipEventQuery`.
    unsafe fn is_event_done(&self, event: u64) -> Answer<bool> {
        // SAFETY: this method's contract.
        is_done(unsafe { self.functions.hipEventQuery(handle(event)) })
    }

    /// `hipEventElapsedTime`.
    unsafe fn elapsed_ms(&self, start: u64, end: u64) -> Answer<f64> {
        let mut ms = 0.0_f32;
        let (start, end) = (handle(start), handle(end));
        // SAFETY: `ms` is a local; this method's contract for the events.
        unsafe {
            self.functions
                .hipEventElapsedTime(&raw mut ms, start, end)?
        };
        Ok(f64::from(ms))
    }

    /// `hipMemcpyAsync`, `hipMemcpyPeerAsync`.
    unsafe fn copy_async(
        &self,
        request: &CopyRequest,
        peers: Option<(u32, u32)>,
        stream: u64,
    ) -> Answer<()> {
        let (dst, src) = (
            handle(request.dst),
            handle::<c_void>(request.src).cast_const(),
        );
        let (len, stream) = (to_usize(request.len_bytes), stream_of(stream));
        let functions = &self.functions;
        let kind = match (request.direction, peers) {
            (Direction::DeviceToDevice | Direction::PeerToPeer, Some((to, from))) => {
                let (to, from) = (ordinal(to), ordinal(from));
                // SAFETY: this method's contract.
                return unsafe { functions.hipMemcpyPeerAsync(dst, to, src, from, len, stream) };
            }
            (Direction::DeviceToDevice | Direction::PeerToPeer, None) => {
                hipMemcpyKind::hipMemcpyDeviceToDevice
            }
            (Direction::HostToDevice, _) => hipMemcpyKind::hipMemcpyHostToDevice,
            (Direction::DeviceToHost, _) => hipMemcpyKind::hipMemcpyDeviceToHost,
            // With unified addressing HIP finds the direction.
            _ => hipMemcpyKind::hipMemcpyDefault,
        };
        // SAFETY: this method's contract.
        unsafe { functions.hipMemcpyAsync(dst, src, len, kind as u32, stream) }
    }

    /// `hipMemsetD8Async`, `hipMemsetD16Async`, `hipMemsetD32Async`.
    unsafe fn fill_async(&self, request: &FillRequest, stream: u64) -> Answer<()> {
        let (functions, stream) = (&self.functions, stream_of(stream));
        let dst = handle(request.dst);
        let count = to_usize(request.len_bytes / u64::from(request.width_bytes.max(1)));
        let [low, second, ..] = request.value.to_le_bytes();
        match request.width_bytes {
            // SAFETY: this method's contract.
            1 => unsafe { functions.hipMemsetD8Async(dst, low, count, stream) },
            2 => {
                let value = u16::from_le_bytes([low, second]);
                // SAFETY: this method's contract.
                unsafe { functions.hipMemsetD16Async(dst, value, count, stream) }
            }
            _ => {
                let value = request.value.cast_signed();
                // SAFETY: this method's contract.
                unsafe { functions.hipMemsetD32Async(dst, value, count, stream) }
            }
        }
    }

    /// `hsa_amd_portable_export_dmabuf`.
    unsafe fn export_dmabuf(
        &self,
        ptr: u64,
        len_bytes: u64,
        mapping: DmabufMapping,
    ) -> Answer<Exported> {
        // SAFETY: this method's contract.
        unsafe { self.hsa.export(ptr, len_bytes, mapping) }
    }

    /// `hsa_amd_portable_close_dmabuf`.
    fn close_dmabuf(&self, fd: OwnedFd) -> Answer<()> {
        self.hsa.close(fd)
    }

    /// HIP has no call for it.
    fn flush_rdma_writes(&self, _scope: FlushScope) -> Answer<()> {
        Err(unsupported("flush of network adapters' writes"))
    }

    /// HIP has no call for it.
    unsafe fn set_sync_memops(&self, _ptr: u64) -> Answer<()> {
        Err(unsupported("attribute of synchronous copies"))
    }

    /// `hipIpcGetMemHandle`.
    unsafe fn export_ipc(&self, ptr: u64) -> Answer<[u8; 64]> {
        let mut ipc = hipIpcMemHandle_t { reserved: [0; 64] };
        // SAFETY: `ipc` is a local; this method's contract for the address.
        unsafe {
            self.functions
                .hipIpcGetMemHandle(&raw mut ipc, handle(ptr))?
        };
        Ok(ipc.reserved.map(|byte| byte.to_ne_bytes()[0]))
    }

    /// `hipIpcOpenMemHandle`, whose only flag changed its number between versions 5 and 6.
    fn open_ipc(&self, bytes: [u8; 64]) -> Answer<u64> {
        let reserved = bytes.map(|byte| c_char::from_ne_bytes([byte]));
        let open = |flag| {
            let ipc = hipIpcMemHandle_t { reserved };
            // SAFETY: the place is a local of `made`; HIP checks the handle.
            made(|ptr| unsafe { self.functions.hipIpcOpenMemHandle(ptr, ipc, flag) })
        };
        let [first, second] = if self.version >= facts::VERSION_6 {
            [1, 0]
        } else {
            [0, 1]
        };
        match open(first) {
            Err(failure) if failure.kind::<Self>() == Kind::Invalid => open(second),
            answer => answer,
        }
    }

    /// `hipIpcCloseMemHandle`.
    unsafe fn close_ipc(&self, ptr: u64) -> Answer<()> {
        // SAFETY: this method's contract.
        unsafe { self.functions.hipIpcCloseMemHandle(handle(ptr)) }
    }

    /// `hipStreamGetCaptureInfo`.
    unsafe fn capture(&self, stream: u64) -> Answer<Capture> {
        if stream == SM_STREAM_LEGACY {
            // It cannot be captured, and asking would disturb a capture of another stream.
            return Ok(Capture::None);
        }
        let (mut state, mut id): (c_int, u64) = (0, 0);
        // SAFETY: both are locals; this method's contract for the stream.
        unsafe {
            self.functions.hipStreamGetCaptureInfo(
                stream_of(stream),
                &raw mut state,
                &raw mut id,
            )?;
        };
        let is = |status: hipStreamCaptureStatus| i64::from(state) == i64::from(status as u32);
        Ok(
            if is(hipStreamCaptureStatus::hipStreamCaptureStatusActive) {
                Capture::Active(id)
            } else if is(hipStreamCaptureStatus::hipStreamCaptureStatusNone) {
                Capture::None
            } else {
                Capture::Invalidated
            },
        )
    }

    /// `hipModuleLoadData`, `hipModuleGetFunction`, `hipModuleLaunchKernel`, and the run-time compiler.
    unsafe fn launch(&self, device: u32, stream: u64, kernel: Kernel) -> Answer<()> {
        let module = self.module(device)?;
        let (name, mut arguments) = kernels::name_and_arguments(kernel);
        let mut function: hipFunction_t = null_mut();
        // SAFETY: `function` is a local; the module is loaded; the name has a NUL at its end.
        unsafe {
            self.functions
                .hipModuleGetFunction(&raw mut function, module, CStr::as_ptr(name))?;
        };
        let mut params: Vec<*mut c_void> = arguments
            .iter_mut()
            .map(|argument| std::ptr::from_mut(argument).cast())
            .collect();
        // SAFETY: one thread of a kernel that takes as many numbers of 8 bytes as there are, which HIP
        // copies before it returns; this method's contract for what they point to.
        unsafe {
            self.functions.hipModuleLaunchKernel(
                function,
                1,
                1,
                1,
                1,
                1,
                1,
                0,
                stream_of(stream),
                params.as_mut_ptr(),
                null_mut(),
            )
        }
    }
}

fn is_done(asked: Answer<()>) -> Answer<bool> {
    match asked {
        Ok(()) => Ok(true),
        Err(failure) if failure.kind::<Rocm>() == Kind::NotReady => Ok(false),
        Err(failure) => Err(failure),
    }
}

fn unsupported(call: &'static str) -> Failure {
    Failure::Status {
        call,
        status: status::number(hipError_t::hipErrorNotSupported),
    }
}

fn status_of(failure: Failure) -> i32 {
    match failure {
        Failure::Status { status, .. } => status,
        Failure::Missing { .. } => 0,
    }
}

/// HIP's library, the newest version first. The unversioned name is there where the development files are.
const LIBRARIES: &[&str] = &[
    "libamdhip64.so.7",
    "libamdhip64.so.6",
    "libamdhip64.so.5",
    "libamdhip64.so",
];
/// HIP 5.0: the numbers of attributes are those of the bindings from here on.
const VERSION_MIN: i32 = 50_000_000;
