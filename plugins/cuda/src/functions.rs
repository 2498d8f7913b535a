//! The functions of CUDA's driver API that are used, by their exported names and with cudarc's types.
//! Enums that the driver writes are plain numbers here: a newer driver may write one that the bindings
//! do not have. What each serves is in the driver module.

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUhostFn, CUipcMemHandle, CUmodule,
    CUstream, CUuuid,
};

stepmesh_driver::functions! {
    /// The functions of libcuda.
    pub(crate) struct Functions {
        fn cuInit(flags: c_uint);
        fn cuDriverGetVersion(version: *mut c_int);
        fn cuGetErrorName(status: c_int, name: *mut *const c_char);

        fn cuDeviceGetCount(count: *mut c_int);
        fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
        fn cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice);
        fn cuDeviceGetUuid(uuid: *mut CUuuid, device: CUdevice);
        fn cuDeviceGetUuid_v2(uuid: *mut CUuuid, device: CUdevice);
        fn cuDeviceGetPCIBusId(bus_id: *mut c_char, len: c_int, device: CUdevice);
        fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
        fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: CUdevice);
        fn cuDeviceCanAccessPeer(can: *mut c_int, device: CUdevice, peer: CUdevice);

        fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
        fn cuDevicePrimaryCtxRelease_v2(device: CUdevice);
        fn cuCtxGetCurrent(context: *mut CUcontext);
        fn cuCtxSetCurrent(context: CUcontext);
        fn cuCtxPushCurrent_v2(context: CUcontext);
        fn cuCtxPopCurrent_v2(context: *mut CUcontext);
        fn cuCtxGetDevice(device: *mut CUdevice);
        fn cuCtxSynchronize();
        fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int);
        fn cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint);

        fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
        fn cuMemAlloc_v2(ptr: *mut CUdeviceptr, len: usize);
        fn cuMemFree_v2(ptr: CUdeviceptr);
        fn cuMemHostAlloc(ptr: *mut *mut c_void, len: usize, flags: c_uint);
        fn cuMemFreeHost(ptr: *mut c_void);
        fn cuMemAllocManaged(ptr: *mut CUdeviceptr, len: usize, flags: c_uint);
        fn cuMemAllocAsync(ptr: *mut CUdeviceptr, len: usize, stream: CUstream);
        fn cuMemFreeAsync(ptr: CUdeviceptr, stream: CUstream);
        fn cuMemHostRegister_v2(ptr: *mut c_void, len: usize, flags: c_uint);
        fn cuMemHostGetDevicePointer_v2(out: *mut CUdeviceptr, ptr: *mut c_void, flags: c_uint);
        fn cuMemHostUnregister(ptr: *mut c_void);
        fn cuPointerGetAttributes(
            count: c_uint, attributes: *mut c_int, data: *mut *mut c_void, ptr: CUdeviceptr,
        );
        fn cuPointerSetAttribute(value: *const c_void, attribute: c_int, ptr: CUdeviceptr);

        fn cuStreamCreateWithPriority(stream: *mut CUstream, flags: c_uint, priority: c_int);
        fn cuStreamDestroy_v2(stream: CUstream);
        fn cuStreamQuery(stream: CUstream);
        fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
        fn cuStreamWriteValue64_v2(
            stream: CUstream, ptr: CUdeviceptr, value: u64, flags: c_uint,
        );
        fn cuLaunchHostFunc(stream: CUstream, func: CUhostFn, arg: *mut c_void);
        fn cuStreamGetCaptureInfo_v2(
            stream: CUstream, status: *mut c_int, id: *mut u64, graph: *mut c_void,
            dependencies: *mut c_void, count: *mut usize,
        );
        fn cuThreadExchangeStreamCaptureMode(mode: *mut c_uint);

        fn cuEventCreate(event: *mut CUevent, flags: c_uint);
        fn cuEventDestroy_v2(event: CUevent);
        fn cuEventRecord(event: CUevent, stream: CUstream);
        fn cuEventQuery(event: CUevent);
        fn cuEventElapsedTime(ms: *mut f32, start: CUevent, end: CUevent);

        fn cuMemcpyHtoDAsync_v2(
            dst: CUdeviceptr, src: *const c_void, len: usize, stream: CUstream,
        );
        fn cuMemcpyDtoHAsync_v2(dst: *mut c_void, src: CUdeviceptr, len: usize, stream: CUstream);
        fn cuMemcpyDtoDAsync_v2(
            dst: CUdeviceptr, src: CUdeviceptr, len: usize, stream: CUstream,
        );
        fn cuMemcpyPeerAsync(
            dst: CUdeviceptr, dst_context: CUcontext, src: CUdeviceptr, src_context: CUcontext,
            len: usize, stream: CUstream,
        );
        fn cuMemcpyAsync(dst: CUdeviceptr, src: CUdeviceptr, len: usize, stream: CUstream);
        fn cuMemsetD8Async(dst: CUdeviceptr, value: c_uchar, count: usize, stream: CUstream);
        fn cuMemsetD16Async(dst: CUdeviceptr, value: c_ushort, count: usize, stream: CUstream);
        fn cuMemsetD32Async(dst: CUdeviceptr, value: c_uint, count: usize, stream: CUstream);

        fn cuMemGetHandleForAddressRange(
            handle: *mut c_void, ptr: CUdeviceptr, len: usize, kind: c_uint, flags: c_ulonglong,
        );
        fn cuFlushGPUDirectRDMAWrites(target: c_uint, scope: c_uint);
        fn cuIpcGetMemHandle(handle: *mut CUipcMemHandle, ptr: CUdeviceptr);
        fn cuIpcOpenMemHandle_v2(ptr: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint);
        fn cuIpcCloseMemHandle(ptr: CUdeviceptr);

        fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void);
        fn cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
        fn cuModuleUnload(module: CUmodule);
        fn cuLaunchKernel(
            function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
            block_x: c_uint, block_y: c_uint, block_z: c_uint, shared_bytes: c_uint,
            stream: CUstream, params: *mut *mut c_void, extra: *mut *mut c_void,
        );
    }
}
