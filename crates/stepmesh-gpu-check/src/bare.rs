//! CUDA's driver without the backend: what the backend's times are compared with, and the calls that
//! capture and replay a graph, which are a framework's and not the backend's.
#![expect(unsafe_code, reason = "calls the driver")]

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use stepmesh_driver::{Answer, Failure, Library};

stepmesh_driver::functions! {
    /// The functions of libcuda.
    struct Functions {
        fn cuInit(flags: c_uint);
        fn cuDriverGetVersion(version: *mut c_int);
        fn cuDeviceGet(device: *mut c_int, ordinal: c_int);
        fn cuDevicePrimaryCtxRetain(context: *mut *mut c_void, device: c_int);
        fn cuDevicePrimaryCtxRelease_v2(device: c_int);
        fn cuCtxSetCurrent(context: *mut c_void);
        fn cuMemcpyDtoDAsync_v2(dst: u64, src: u64, len: usize, stream: *mut c_void);
        fn cuMemHostRegister_v2(ptr: *mut c_void, len: usize, flags: c_uint);
        fn cuMemHostUnregister(ptr: *mut c_void);
        fn cuStreamQuery(stream: *mut c_void);
        fn cuStreamBeginCapture_v2(stream: *mut c_void, mode: c_uint);
        fn cuStreamEndCapture(stream: *mut c_void, graph: *mut *mut c_void);
        fn cuGraphInstantiateWithFlags(
            exec: *mut *mut c_void, graph: *mut c_void, flags: c_ulonglong,
        );
        fn cuGraphLaunch(exec: *mut c_void, stream: *mut c_void);
        fn cuGraphExecDestroy(exec: *mut c_void);
        fn cuGraphDestroy(graph: *mut c_void);
    }
}

/// The driver.
#[derive(Debug)]
pub(crate) struct Bare {
    functions: Functions,
    version: c_int,
}

/// A graph, ready to be replayed.
#[derive(Debug)]
pub(crate) struct Graph<'a> {
    bare: &'a Bare,
    exec: *mut c_void,
}

/// A device whose primary context is current on this thread.
#[derive(Debug)]
pub(crate) struct Current<'a> {
    bare: &'a Bare,
    device: c_int,
}

impl Bare {
    pub(crate) fn load() -> Result<Self> {
        let library = Library::open(&["libcuda.so.1", "libcuda.so"]).map_err(|why| anyhow!(why))?;
        let functions = Functions::of(&library);
        let mut version = 0;
        // SAFETY: `version` is a local.
        told(unsafe { functions.cuDriverGetVersion(&raw mut version) })?;
        // SAFETY: the only flag there is.
        told(unsafe { functions.cuInit(0) })?;
        Ok(Self { functions, version })
    }

    /// As people write it.
    pub(crate) fn version_text(&self) -> String {
        format!("{}.{}", self.version / 1000, self.version % 1000 / 10)
    }

    /// Makes a device current on this thread.
    pub(crate) fn enter(&self, ordinal: u32) -> Result<Current<'_>> {
        let (mut device, mut context) = (0, null_mut());
        let ordinal = c_int::try_from(ordinal)?;
        // SAFETY: `device` is a local.
        told(unsafe { self.functions.cuDeviceGet(&raw mut device, ordinal) })?;
        let out = &raw mut context;
        // SAFETY: `context` is a local.
        told(unsafe { self.functions.cuDevicePrimaryCtxRetain(out, device) })?;
        let current = Current { bare: self, device };
        // SAFETY: retained above.
        told(unsafe { self.functions.cuCtxSetCurrent(context) })?;
        Ok(current)
    }

    /// Copies within the current device, in the order of a stream.
    ///
    /// # Safety
    /// - Both ranges are memory of the device until the stream did the copy, and do not overlap.
    /// - The stream is a live one of the device.
    pub(crate) unsafe fn copy(&self, dst: u64, src: u64, len: u64, stream: u64) -> Result<()> {
        let len = usize::try_from(len)?;
        // SAFETY: this method's contract.
        told(unsafe {
            self.functions
                .cuMemcpyDtoDAsync_v2(dst, src, len, handle(stream))
        })
    }

    /// Registers host memory and undoes it, and says how long each took. A device is current.
    pub(crate) fn register(&self, memory: &mut [u8]) -> Result<[Duration; 2]> {
        let (ptr, len) = (memory.as_mut_ptr().cast(), memory.len());
        let start = Instant::now();
        // SAFETY: the memory is borrowed until this returns, and unregistered before.
        told(unsafe {
            self.functions
                .cuMemHostRegister_v2(ptr, len, PORTABLE_AND_MAPPED)
        })?;
        let registered = start.elapsed();
        let start = Instant::now();
        // SAFETY: registered above; no work uses it.
        told(unsafe { self.functions.cuMemHostUnregister(ptr) })?;
        Ok([registered, start.elapsed()])
    }

    /// Waits for a stream by asking.
    ///
    /// # Safety
    /// - The stream is a live one of the current device.
    pub(crate) unsafe fn wait(&self, stream: u64) -> Result<()> {
        loop {
            // SAFETY: this method's contract.
            match unsafe { self.functions.cuStreamQuery(handle(stream)) } {
                Err(Failure::Status {
                    status: NOT_READY, ..
                }) => std::hint::spin_loop(),
                answer => return told(answer),
            }
        }
    }

    /// Captures what `work` submits to a stream.
    ///
    /// # Safety
    /// - The stream is a live one of the current device.
    /// - What the work uses outlives the graph.
    pub(crate) unsafe fn capture(
        &self,
        stream: u64,
        work: impl FnOnce() -> Result<()>,
    ) -> Result<Graph<'_>> {
        let functions = &self.functions;
        // SAFETY: this method's contract.
        told(unsafe { functions.cuStreamBeginCapture_v2(handle(stream), RELAXED) })?;
        let worked = work();
        let mut graph = null_mut();
        // SAFETY: `graph` is a local; the stream is captured.
        told(unsafe { functions.cuStreamEndCapture(handle(stream), &raw mut graph) })?;
        worked?;
        let mut exec = null_mut();
        // SAFETY: `exec` is a local; the graph was made above.
        let made = unsafe { functions.cuGraphInstantiateWithFlags(&raw mut exec, graph, 0) };
        // SAFETY: made above, and not used any more.
        told(unsafe { functions.cuGraphDestroy(graph) })?;
        told(made)?;
        Ok(Graph { bare: self, exec })
    }
}

impl Graph<'_> {
    /// Replays it once.
    ///
    /// # Safety
    /// - The stream is a live one of the current device.
    pub(crate) unsafe fn launch(&self, stream: u64) -> Result<()> {
        // SAFETY: this method's contract; the graph is this one's own.
        told(unsafe { self.bare.functions.cuGraphLaunch(self.exec, handle(stream)) })
    }
}

impl Drop for Graph<'_> {
    fn drop(&mut self) {
        // SAFETY: this one's own, and not used any more.
        let _ = unsafe { self.bare.functions.cuGraphExecDestroy(self.exec) };
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        // SAFETY: retained once.
        let _ = unsafe {
            self.bare
                .functions
                .cuDevicePrimaryCtxRelease_v2(self.device)
        };
    }
}

fn told(answer: Answer<()>) -> Result<()> {
    match answer {
        Ok(()) => Ok(()),
        Err(Failure::Missing { call }) => bail!("the driver has no {call}"),
        Err(Failure::Status { call, status }) => bail!("{call} answered {status}"),
    }
}

fn handle(number: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(usize::try_from(number).unwrap_or(usize::MAX))
}

/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: i32 = 600;
/// `CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP`, as the backend has them.
const PORTABLE_AND_MAPPED: c_uint = 3;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: c_uint = 2;
