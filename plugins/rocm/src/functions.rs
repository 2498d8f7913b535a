//! The functions of HIP, of its run-time compiler and of HSA that are used, by their exported names and
//! with hip-sys' types for handles. Enums that a library writes are plain numbers here: a newer one may
//! write a number that the bindings do not have. What each serves is in the driver module.
#![expect(unsafe_code, reason = "names functions of C libraries")]

use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};

use hip_sys::hiprt::{
    hipEvent_t, hipFunction_t, hipHostFn_t, hipIpcMemHandle_t, hipModule_t, hipStream_t, hipUUID,
};
use stepmesh_driver::Library;

stepmesh_driver::functions! {
    /// The functions of libamdhip64.
    pub(crate) struct Functions {
        fn hipInit(flags: c_uint);
        fn hipRuntimeGetVersion(version: *mut c_int);
        fn hipPeekAtLastError();
        fn hipGetLastError();

        fn hipGetDeviceCount(count: *mut c_int);
        fn hipDeviceGetName(name: *mut c_char, len: c_int, device: c_int);
        fn hipDeviceGetUuid(uuid: *mut hipUUID, device: c_int);
        fn hipDeviceGetPCIBusId(bus_id: *mut c_char, len: c_int, device: c_int);
        fn hipDeviceTotalMem(bytes: *mut usize, device: c_int);
        fn hipDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int);
        fn hipGetDeviceProperties(properties: *mut c_void, device: c_int);
        fn hipGetDevicePropertiesR0600(properties: *mut c_void, device: c_int);
        fn hipDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int);

        fn hipSetDevice(device: c_int);
        fn hipGetDevice(device: *mut c_int);
        fn hipDeviceSynchronize();
        fn hipDeviceGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int);
        fn hipDeviceEnablePeerAccess(peer: c_int, flags: c_uint);

        fn hipMemGetInfo(free: *mut usize, total: *mut usize);
        fn hipMalloc(ptr: *mut *mut c_void, len: usize);
        fn hipFree(ptr: *mut c_void);
        fn hipHostMalloc(ptr: *mut *mut c_void, len: usize, flags: c_uint);
        fn hipHostFree(ptr: *mut c_void);
        fn hipMallocManaged(ptr: *mut *mut c_void, len: usize, flags: c_uint);
        fn hipMallocAsync(ptr: *mut *mut c_void, len: usize, stream: hipStream_t);
        fn hipFreeAsync(ptr: *mut c_void, stream: hipStream_t);
        fn hipHostRegister(ptr: *mut c_void, len: usize, flags: c_uint);
        fn hipHostGetDevicePointer(out: *mut *mut c_void, ptr: *mut c_void, flags: c_uint);
        fn hipHostUnregister(ptr: *mut c_void);
        fn hipPointerGetAttributes(attributes: *mut c_void, ptr: *const c_void);
        fn hipPointerGetAttribute(data: *mut c_void, attribute: c_uint, ptr: *mut c_void);
        fn hipMemGetAddressRange(base: *mut *mut c_void, len: *mut usize, ptr: *mut c_void);

        fn hipStreamCreateWithPriority(
            stream: *mut hipStream_t, flags: c_uint, priority: c_int,
        );
        fn hipStreamDestroy(stream: hipStream_t);
        fn hipStreamQuery(stream: hipStream_t);
        fn hipStreamWaitEvent(stream: hipStream_t, event: hipEvent_t, flags: c_uint);
        fn hipStreamWriteValue64(
            stream: hipStream_t, ptr: *mut c_void, value: u64, flags: c_uint,
        );
        fn hipLaunchHostFunc(stream: hipStream_t, func: hipHostFn_t, arg: *mut c_void);
        fn hipStreamGetCaptureInfo(
            stream: hipStream_t, status: *mut c_int, id: *mut c_ulonglong,
        );
        fn hipThreadExchangeStreamCaptureMode(mode: *mut c_uint);

        fn hipEventCreateWithFlags(event: *mut hipEvent_t, flags: c_uint);
        fn hipEventDestroy(event: hipEvent_t);
        fn hipEventRecord(event: hipEvent_t, stream: hipStream_t);
        fn hipEventQuery(event: hipEvent_t);
        fn hipEventElapsedTime(ms: *mut f32, start: hipEvent_t, end: hipEvent_t);

        fn hipMemcpyAsync(
            dst: *mut c_void, src: *const c_void, len: usize, kind: c_uint, stream: hipStream_t,
        );
        fn hipMemcpyPeerAsync(
            dst: *mut c_void, dst_device: c_int, src: *const c_void, src_device: c_int,
            len: usize, stream: hipStream_t,
        );
        fn hipMemsetD8Async(
            dst: *mut c_void, value: c_uchar, count: usize, stream: hipStream_t,
        );
        fn hipMemsetD16Async(
            dst: *mut c_void, value: c_ushort, count: usize, stream: hipStream_t,
        );
        fn hipMemsetD32Async(dst: *mut c_void, value: c_int, count: usize, stream: hipStream_t);

        fn hipIpcGetMemHandle(handle: *mut hipIpcMemHandle_t, ptr: *mut c_void);
        fn hipIpcOpenMemHandle(
            ptr: *mut *mut c_void, handle: hipIpcMemHandle_t, flags: c_uint,
        );
        fn hipIpcCloseMemHandle(ptr: *mut c_void);

        fn hipModuleLoadData(module: *mut hipModule_t, image: *const c_void);
        fn hipModuleGetFunction(
            function: *mut hipFunction_t, module: hipModule_t, name: *const c_char,
        );
        fn hipModuleUnload(module: hipModule_t);
        fn hipModuleLaunchKernel(
            function: hipFunction_t, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
            block_x: c_uint, block_y: c_uint, block_z: c_uint, shared_bytes: c_uint,
            stream: hipStream_t, params: *mut *mut c_void, extra: *mut *mut c_void,
        );
    }
}

/// `hipGetErrorName`, the one function that gives text instead of a status.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ErrorName(Option<unsafe extern "C" fn(c_int) -> *const c_char>);

impl ErrorName {
    pub(crate) fn of(library: &Library) -> Self {
        let address = library.address(c"hipGetErrorName");
        // SAFETY: HIP's header gives the function of this name this type.
        Self(address.map(|address| unsafe {
            std::mem::transmute::<*const c_void, unsafe extern "C" fn(c_int) -> *const c_char>(
                address,
            )
        }))
    }

    pub(crate) fn text(self, status: i32) -> String {
        let unknown = || "an unknown error".into();
        let Some(function) = self.0 else {
            return unknown();
        };
        // SAFETY: takes any number.
        let name = unsafe { function(status) };
        if name.is_null() {
            return unknown();
        }
        // SAFETY: HIP's own static text.
        let name = unsafe { CStr::from_ptr(name) };
        name.to_string_lossy().into_owned()
    }
}

stepmesh_driver::functions! {
    /// The functions of the run-time compiler, whose statuses are its own.
    pub(crate) struct CompilerFunctions {
        fn hiprtcCreateProgram(
            program: *mut *mut c_void, source: *const c_char, name: *const c_char,
            headers: c_int, sources: *const *const c_char, names: *const *const c_char,
        );
        fn hiprtcCompileProgram(
            program: *mut c_void, count: c_int, options: *const *const c_char,
        );
        fn hiprtcVersion(major: *mut c_int, minor: *mut c_int);
        fn hiprtcGetProgramLogSize(program: *mut c_void, size: *mut usize);
        fn hiprtcGetProgramLog(program: *mut c_void, log: *mut c_char);
        fn hiprtcGetCodeSize(program: *mut c_void, size: *mut usize);
        fn hiprtcGetCode(program: *mut c_void, code: *mut c_char);
        fn hiprtcDestroyProgram(program: *mut *mut c_void);
    }
}

stepmesh_driver::functions! {
    /// The functions of libhsa-runtime64, whose statuses are its own: from 4096 on.
    pub(crate) struct HsaFunctions {
        fn hsa_system_get_info(attribute: c_uint, value: *mut c_void);
        fn hsa_amd_portable_export_dmabuf(
            ptr: *const c_void, len: usize, fd: *mut c_int, offset: *mut u64,
        );
        fn hsa_amd_portable_export_dmabuf_v2(
            ptr: *const c_void, len: usize, fd: *mut c_int, offset: *mut u64, flags: u64,
        );
        fn hsa_amd_portable_close_dmabuf(fd: c_int);
    }
}
