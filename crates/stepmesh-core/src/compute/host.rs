//! What a device compiles (`stepmesh.compute.v1`). What comes of it lives in `executable`.
#![expect(unsafe_code, reason = "calls the extension")]

use std::ptr;

use stepmesh_abi::compute::SmExecutable;
use stepmesh_abi::{
    SmBackend, SmCompileOptions, SmComputeV1, SmError, SmExecutableInfo, SmFingerprint, SmGraph,
    SmHdr,
};
use stepmesh_graph::{CompileOptions, DType, Graph, Lowered, OpKind};

use super::executable::Executable;
use crate::{Device, Error};

/// A device that compiles graphs of tensor operations. Any thread may use it.
#[derive(Debug, Clone)]
pub struct Compute {
    device: Device,
    functions: Functions,
}

/// The functions of the extension, all of them present.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Functions {
    supported_ops:
        unsafe extern "C" fn(*mut SmBackend, u32, u32, u32, *mut u32, *mut SmError) -> i32,
    compile: unsafe extern "C" fn(
        *mut SmBackend,
        u32,
        *const SmGraph,
        *const SmCompileOptions,
        *mut *mut SmExecutable,
        *mut SmError,
    ) -> i32,
    pub(super) execute: unsafe extern "C" fn(
        *mut SmBackend,
        *mut SmExecutable,
        *const u64,
        u32,
        *const u64,
        u32,
        u32,
        u64,
        *mut SmError,
    ) -> i32,
    pub(super) info: unsafe extern "C" fn(
        *mut SmBackend,
        *mut SmExecutable,
        *mut SmExecutableInfo,
        *mut SmError,
    ) -> i32,
    pub(super) text: unsafe extern "C" fn(
        *mut SmBackend,
        *mut SmExecutable,
        u32,
        *mut std::ffi::c_char,
        u64,
        *mut u64,
        *mut SmError,
    ) -> i32,
    pub(super) serialize: unsafe extern "C" fn(
        *mut SmBackend,
        *mut SmExecutable,
        *mut u8,
        u64,
        *mut u64,
        *mut SmError,
    ) -> i32,
    deserialize: unsafe extern "C" fn(
        *mut SmBackend,
        u32,
        *const u8,
        u64,
        *mut *mut SmExecutable,
        *mut SmError,
    ) -> i32,
    fingerprint: unsafe extern "C" fn(*mut SmBackend, u32, *mut SmFingerprint, *mut SmError) -> i32,
    pub(super) destroy:
        unsafe extern "C" fn(*mut SmBackend, *mut SmExecutable, *mut SmError) -> i32,
}

impl Functions {
    /// `None` if one is missing: then the extension is as good as absent.
    pub(crate) fn of(table: &SmComputeV1) -> Option<Self> {
        Some(Self {
            supported_ops: table.supported_ops?,
            compile: table.compile?,
            execute: table.execute?,
            info: table.executable_info?,
            text: table.executable_text?,
            serialize: table.serialize?,
            deserialize: table.deserialize?,
            fingerprint: table.fingerprint?,
            destroy: table.executable_destroy?,
        })
    }
}

impl Compute {
    /// `None` when the backend has no `stepmesh.compute.v1`.
    pub(crate) fn of(device: &Device) -> Option<Self> {
        let functions = device.backend().instance().compute_functions()?;
        let device = device.clone();
        Some(Self { device, functions })
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Whether it does an operation for a type: that of the value, but of the operand for `compare`
    /// and `argmax`; a cast needs both of its types.
    ///
    /// # Errors
    /// `Backend`.
    pub fn supports(&self, op: OpKind, dtype: DType) -> Result<bool, Error> {
        let dev = self.device.ordinal();
        let mut supported = 0;
        let instance = self.device.backend().instance();
        instance.call("compute.supported_ops", Some(dev), |s, e| {
            let out = &raw mut supported;
            // SAFETY: the out pointer is a live local.
            unsafe { (self.functions.supported_ops)(s, dev, op.number(), dtype.number(), out, e) }
        })?;
        match supported {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(instance.bad_answer("compute.supported_ops", other.to_string())),
        }
    }

    /// Compiles a graph. May take long; the caller chooses the thread.
    ///
    /// # Errors
    /// `UnsupportedOp`, naming the first operation that the device does not do; `OutOfMemory`,
    /// `Backend`, `BadAnswer`.
    pub fn compile(&self, graph: &Graph, options: &CompileOptions) -> Result<Executable, Error> {
        let lowered = Lowered::new(graph.to_raw());
        let raw_graph = lowered.graph();
        let raw_options = SmCompileOptions {
            hdr: SmHdr::of::<SmCompileOptions>(),
            flags: options.flags(),
            threads_max: options.threads_max,
        };
        let compiled = self.make("compute.compile", |s, dev, out, e| {
            let (graph, options) = (&raw const raw_graph, &raw const raw_options);
            // SAFETY: graph and options are live locals, and `lowered` holds what the graph points
            // to; the out pointer is a live local of `make`.
            unsafe { (self.functions.compile)(s, dev, graph, options, out, e) }
        });
        let executable = match compiled {
            Err(error @ Error::Unsupported { .. }) => return Err(self.named(graph, error)),
            other => other?,
        };
        executable.check_is_of(graph)?;
        Ok(executable)
    }

    /// An executable of bytes that [`Executable::serialize`] gave, here or in another process.
    ///
    /// # Errors
    /// `Backend` with `FailedPrecondition` when they are of another build or another kind of device,
    /// `DataLoss` when they were changed; the caller then compiles. Else as
    /// [`Compute::compile`].
    pub fn deserialize(&self, bytes: &[u8]) -> Result<Executable, Error> {
        self.make("compute.deserialize", |s, dev, out, e| {
            let (at, len) = (bytes.as_ptr(), bytes.len() as u64);
            // SAFETY: a live slice, and an out pointer that is a live local of `make`.
            unsafe { (self.functions.deserialize)(s, dev, at, len, out, e) }
        })
    }

    /// Where serialised executables can be used: where it is the same.
    ///
    /// # Errors
    /// `Backend`.
    pub fn fingerprint(&self) -> Result<[u8; 32], Error> {
        let dev = self.device.ordinal();
        let mut out = SmFingerprint::new();
        let instance = self.device.backend().instance();
        instance.call("compute.fingerprint", Some(dev), |s, e| {
            // SAFETY: the out pointer is a live local whose size its header tells.
            unsafe { (self.functions.fingerprint)(s, dev, &raw mut out, e) }
        })?;
        Ok(out.bytes)
    }

    fn make(
        &self,
        operation: &'static str,
        slot: impl FnOnce(*mut SmBackend, u32, *mut *mut SmExecutable, *mut SmError) -> i32,
    ) -> Result<Executable, Error> {
        let (instance, dev) = (self.device.backend().instance(), self.device.ordinal());
        let mut raw = ptr::null_mut();
        instance.call(operation, Some(dev), |s, e| slot(s, dev, &raw mut raw, e))?;
        match ptr::NonNull::new(raw) {
            Some(raw) => Executable::new(self.device.clone(), self.functions, raw),
            None => Err(instance.bad_answer(operation, "no executable".into())),
        }
    }

    /// The refusal of a graph as an error that names the operation, if there is one to name.
    fn named(&self, graph: &Graph, error: Error) -> Error {
        let lacking = graph.first_unsupported(|op, dtype| self.supports(op, dtype).unwrap_or(true));
        let Some((id, dtype)) = lacking else {
            return error;
        };
        let node = graph.node(id);
        let message = match error {
            Error::Unsupported { message, .. } => message,
            other => other.to_string(),
        };
        Error::UnsupportedOp {
            backend: self.device.backend().instance().name(),
            device: self.device.ordinal(),
            op: node.kind(),
            dtype,
            location: node.location().map(ToOwned::to_owned),
            message,
        }
    }
}
