//! A lazy device: what users open, and what tensors belong to.

use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stepmesh_core::{Buffer, Device};
use stepmesh_graph::{DType, Op, OpKind, TensorType};

use super::live::LiveTensors;
use super::sync::SyncState;
use super::{FallbackReport, Options, Recompilation};
use crate::backend::{IrBuilder, Origin};
use crate::ir::{LiveNodes, NodePtr};
use crate::metrics::{Counter, Metric, Metrics};
use crate::{
    BackendDataPtr, BackendDevice, BackendPtr, Element, Error, HostTensor, LazyTensor, Scalar,
    Shape, StepMeshBackend,
};

/// A device on which tensors are traced, compiled and executed. Clones are cheap and mean the same
/// device. Any thread may use it.
///
/// Two `LazyDevice`s over the same device of a backend know nothing of each other's tensors.
#[derive(Clone)]
pub struct LazyDevice {
    context: Arc<DeviceContext>,
}

/// What a device and its engine hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryReport {
    /// Tensors that are alive.
    pub tensors: usize,
    /// Bytes of device memory that they hold; what several share counts for each.
    pub tensors_len_bytes: u64,
    /// Operations that are traced and not launched yet.
    pub nodes: usize,
    /// Bytes of device memory that are kept for reuse.
    pub pooled_len_bytes: u64,
    /// Compiled graphs that are kept.
    pub cached_graphs: usize,
    /// Bytes of host memory that they take, as far as that is known.
    pub cached_len_bytes: usize,
}

/// What all tensors of a device share.
#[derive(Debug)]
pub(crate) struct DeviceContext {
    backend: BackendPtr,
    device: BackendDevice,
    options: Options,
    metrics: Metrics,
    pub(super) live: LiveTensors,
    live_nodes: LiveNodes,
    next_id: AtomicU64,
    pub(super) steps: AtomicU64,
    pub(super) sync: Mutex<SyncState>,
    /// By operation and type: 0 is not known, 1 no, 2 yes.
    support: Box<[AtomicU8]>,
    fallbacks: Mutex<Vec<FallbackReport>>,
    pub(super) recompilations: Mutex<Vec<Recompilation>>,
}

impl LazyDevice {
    /// A device of `stepmesh-core`, with a backend of its own.
    ///
    /// # Errors
    /// `Backend` when the device cannot be used.
    pub fn open(device: &Device, options: Options) -> Result<Self, Error> {
        let backend = StepMeshBackend::new(device.backend(), options.backend.clone())?;
        let name = backend.device_of(device)?;
        Self::new(Arc::new(backend), name, options)
    }

    /// A device of a backend.
    ///
    /// # Errors
    /// `UnknownDevice`.
    pub fn new(
        backend: BackendPtr,
        device: BackendDevice,
        options: Options,
    ) -> Result<Self, Error> {
        let devices = backend.get_backend_devices();
        if !devices.contains(&device) {
            return Err(Error::UnknownDevice {
                backend: backend.name().to_owned(),
                device: device.to_string(),
                count: devices.len(),
            });
        }
        let support = OpKind::ALL.len() * DType::ALL.len();
        let sync = SyncState::new(&options);
        Ok(Self {
            context: Arc::new(DeviceContext {
                backend,
                device,
                options,
                metrics: Metrics::default(),
                live: LiveTensors::default(),
                live_nodes: LiveNodes::default(),
                next_id: AtomicU64::new(1),
                steps: AtomicU64::new(0),
                sync: Mutex::new(sync),
                support: (0..support).map(|_| AtomicU8::new(0)).collect(),
                fallbacks: Mutex::default(),
                recompilations: Mutex::default(),
            }),
        })
    }

    /// The default device of the backend that is registered, see
    /// [`BackendRegistrar`](crate::BackendRegistrar).
    ///
    /// # Errors
    /// `NotRegistered`, `UnknownDevice`.
    pub fn registered(options: Options) -> Result<Self, Error> {
        let backend = crate::get_backend()?;
        let device = BackendDevice::new(
            backend.get_default_device_type(),
            backend.get_default_device_ordinal(),
        );
        Self::new(backend, device, options)
    }

    /// The backend.
    #[must_use]
    pub fn backend(&self) -> &BackendPtr {
        &self.context.backend
    }

    /// Its name in the backend.
    #[must_use]
    pub fn device(&self) -> BackendDevice {
        self.context.device
    }

    /// What was counted and timed.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.context.metrics
    }

    /// Metrics and counters of the engine and the backend, then what to conclude from them.
    #[must_use]
    pub fn metrics_report(&self) -> String {
        let mut text = self.context.metrics.report();
        text += &self.context.backend.create_metric_report();
        for line in self.context.metrics.advice() {
            text += &format!("Advice: {line}\n");
        }
        text
    }

    /// The compilations after the first, and what made each necessary; the newest
    /// [`Options::recompilations_max`].
    #[must_use]
    pub fn recompilations(&self) -> Vec<Recompilation> {
        lock(&self.context.recompilations).clone()
    }

    /// The operations that ran on the host because the backend lacks them.
    #[must_use]
    pub fn fallbacks(&self) -> Vec<FallbackReport> {
        lock(&self.context.fallbacks).clone()
    }

    /// What the device and its engine hold.
    #[must_use]
    pub fn memory_report(&self) -> MemoryReport {
        let tensors = self.context.live.all();
        let held = tensors.iter().filter_map(|tensor| tensor.held_len_bytes());
        let sync = self.context.lock_sync();
        MemoryReport {
            tensors: tensors.len(),
            tensors_len_bytes: held.map(|len| len as u64).sum(),
            nodes: self.context.live_nodes.count(),
            pooled_len_bytes: self.context.backend.pooled_len_bytes(&self.context.device),
            cached_graphs: sync.cache.len(),
            cached_len_bytes: sync.cache.len_bytes(),
        }
    }

    /// Drops every compiled graph and all memory that is kept for reuse. What is in flight is done.
    pub fn clear_computation_cache(&self) {
        let count = self.context.lock_sync().cache.clear();
        self.context
            .metrics
            .count_many(Counter::DestroyCompileHandles, count as u64);
        self.context.backend.release_pools();
    }

    /// Starts random numbers afresh, on all devices of the backend.
    pub fn manual_seed(&self, seed: u64) {
        self.context.backend.set_rng_seed(seed);
    }

    /// A tensor of elements of the host.
    ///
    /// # Errors
    /// `Elements` if there are not as many as the extents say, `Graph`.
    pub fn from_slice<T: Element>(
        &self,
        dims: &[usize],
        elements: &[T],
    ) -> Result<LazyTensor, Error> {
        Ok(self.from_host(HostTensor::from_slice(dims, elements)?))
    }

    /// A tensor of the host's. It is copied to the device when it is first used there.
    #[must_use]
    pub fn from_host(&self, tensor: HostTensor) -> LazyTensor {
        LazyTensor::from_host(&self.context, tensor)
    }

    /// A tensor of which all elements are one number.
    ///
    /// # Errors
    /// `FallbackDenied`, `Graph`.
    #[track_caller]
    pub fn full(
        &self,
        dims: &[usize],
        value: impl Into<Scalar>,
        dtype: DType,
    ) -> Result<LazyTensor, Error> {
        let shape = stepmesh_graph::Shape::new(dims)?;
        let origin = self.context.origin(Location::caller());
        let number = self.context.number(origin, value.into(), dtype)?;
        let context = &self.context;
        if shape == number.shape() {
            return context.tensor(number);
        }
        let op = Op::Broadcast {
            shape,
            dims: Vec::new(),
        };
        context.emit(op, &[number], Location::caller())
    }

    /// Zeros.
    ///
    /// # Errors
    /// As for [`LazyDevice::full`].
    #[track_caller]
    pub fn zeros(&self, dims: &[usize], dtype: DType) -> Result<LazyTensor, Error> {
        self.full(dims, 0_i64, dtype)
    }

    /// Random numbers, uniform in [0, 1).
    ///
    /// # Errors
    /// `Operation` for types other than floats, `Graph`.
    #[track_caller]
    pub fn rand(&self, dims: &[usize], dtype: DType) -> Result<LazyTensor, Error> {
        let ty = TensorType::new(dtype, stepmesh_graph::Shape::new(dims)?)?;
        self.random(Op::RngUniform { ty }, ty, Location::caller())
    }

    /// Random numbers, normal with mean 0 and deviation 1.
    ///
    /// # Errors
    /// As for [`LazyDevice::rand`].
    #[track_caller]
    pub fn randn(&self, dims: &[usize], dtype: DType) -> Result<LazyTensor, Error> {
        let ty = TensorType::new(dtype, stepmesh_graph::Shape::new(dims)?)?;
        self.random(Op::RngNormal { ty }, ty, Location::caller())
    }

    /// Existing memory as a tensor: nothing is copied, and the memory lives as long as the tensor
    /// and what is launched with it. It must not be written to meanwhile.
    ///
    /// # Errors
    /// `Elements` unless it fits behind `offset_bytes`, `ForeignValue` for memory of another device,
    /// `ForeignObject` when the device's backend is not a [`StepMeshBackend`].
    pub fn wrap_buffer(
        &self,
        buffer: &Arc<Buffer>,
        offset_bytes: u64,
        dims: &[usize],
        dtype: DType,
    ) -> Result<LazyTensor, Error> {
        let ty = TensorType::new(dtype, stepmesh_graph::Shape::new(dims)?)?;
        let backend = self.context.stepmesh("wrap_buffer")?;
        let data = backend.wrap_buffer(buffer, offset_bytes, ty, &self.context.device)?;
        Ok(LazyTensor::from_data(&self.context, data))
    }

    /// Ends a step without the closure of [`LazyDevice::step`]: launches all that is traced and
    /// alive, waiting for it if asked to.
    ///
    /// # Errors
    /// As for [`LazyDevice::step`].
    pub fn mark_step(&self, wait: bool) -> Result<(), Error> {
        let pending = self.context.mark_step()?;
        if wait { pending.wait() } else { Ok(()) }
    }

    /// Launches what some tensors need, and no more.
    ///
    /// # Errors
    /// `Backend`, `TooManyCompiles`; `ForeignValue` for tensors of another device.
    pub fn sync_multi(&self, tensors: &[&LazyTensor]) -> Result<(), Error> {
        self.context.check_own("sync_multi", tensors)?;
        self.context.sync_tensors(tensors)
    }

    /// Launches what some tensors need, and writes each into memory of the caller's.
    ///
    /// # Errors
    /// As for [`LazyDevice::sync_multi`] and [`LazyDevice::wrap_buffer`].
    #[track_caller]
    pub fn sync_into(&self, targets: &[(&LazyTensor, &Arc<Buffer>, u64)]) -> Result<(), Error> {
        let tensors: Vec<&LazyTensor> = targets.iter().map(|(tensor, ..)| *tensor).collect();
        self.context.check_own("sync_into", &tensors)?;
        self.context.sync_into(targets)
    }

    /// Waits for all that was launched.
    ///
    /// # Errors
    /// `Execution`, `Timeout`.
    pub fn wait_device_ops(&self) -> Result<(), Error> {
        self.context.backend.wait_device_ops(&self.context.device)
    }

    pub(crate) fn context(&self) -> &Arc<DeviceContext> {
        &self.context
    }

    pub(crate) fn of(context: &Arc<DeviceContext>) -> Self {
        Self {
            context: Arc::clone(context),
        }
    }

    fn random(
        &self,
        op: Op,
        ty: TensorType,
        location: &'static Location<'static>,
    ) -> Result<LazyTensor, Error> {
        let per_block = if ty.dtype() == DType::F64 { 2 } else { 4 };
        let blocks = (ty.shape().element_count() as u64).div_ceil(per_block);
        let context = &self.context;
        let (seed, offset) = context.backend.take_rng_blocks(&context.device, blocks)?;
        // Parameters of the graph whatever the options say: they differ each time.
        let number = |value: u64| {
            let scalar = Scalar::Int(value.cast_signed());
            context.parameter(context.origin(location), scalar, DType::I64)
        };
        context.emit(op, &[number(seed)?, number(offset)?], location)
    }
}

impl DeviceContext {
    pub(crate) fn backend(&self) -> &BackendPtr {
        &self.backend
    }

    pub(crate) fn device(&self) -> BackendDevice {
        self.device
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    pub(crate) fn live(&self) -> &LiveTensors {
        &self.live
    }

    pub(crate) fn builder(&self) -> &dyn IrBuilder {
        self.backend.get_ir_builder()
    }

    pub(crate) fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    pub(crate) fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn origin(&self, location: &'static Location<'static>) -> Origin<'_> {
        Origin::new(location, &self.live_nodes)
    }

    /// `cpu:CPU0`.
    pub(crate) fn describe(&self) -> String {
        format!("{}:{}", self.backend.name(), self.device)
    }

    pub(crate) fn lock_sync(&self) -> MutexGuard<'_, SyncState> {
        lock(&self.sync)
    }

    pub(crate) fn stepmesh(&self, operation: &'static str) -> Result<&StepMeshBackend, Error> {
        let found = self.backend.as_any().downcast_ref();
        found.ok_or(Error::ForeignObject { operation })
    }

    /// A number as a node: a parameter of the graph, or a part of it.
    pub(crate) fn number(
        &self,
        origin: Origin<'_>,
        scalar: Scalar,
        dtype: DType,
    ) -> Result<NodePtr, Error> {
        let is_baked = match self.options.bake_scalars {
            super::BakeScalars::Never => false,
            super::BakeScalars::Special => scalar.is_special(),
            super::BakeScalars::Always => true,
        };
        if is_baked && self.supports(OpKind::Constant, dtype)? {
            self.builder().make_scalar(origin, scalar, dtype)
        } else {
            self.parameter(origin, scalar, dtype)
        }
    }

    fn parameter(
        &self,
        origin: Origin<'_>,
        scalar: Scalar,
        dtype: DType,
    ) -> Result<NodePtr, Error> {
        self.metrics.count(Counter::DeviceDataCacheMiss);
        let device = &self.device;
        let data = self
            .backend
            .make_computation_data_from_scalar(scalar, dtype, device)?;
        Ok(self.builder().make_device_data(origin, &data))
    }

    /// Traces an operation, or runs it on the host if the backend lacks it.
    pub(crate) fn emit_node(
        &self,
        op: Op,
        operands: &[NodePtr],
        origin: Origin<'_>,
    ) -> Result<NodePtr, Error> {
        let kind = op.kind();
        let started = self
            .metrics
            .count_lowered(kind)
            .then(std::time::Instant::now);
        let node = self.builder().make_generic(origin, op, operands)?;
        if let Some(started) = started {
            self.metrics.sample_time(Metric::LazyTracing, started);
        }
        let lacking = self.lacking(kind, &node, operands)?;
        match (lacking, node.op()) {
            (Some(dtype), Some(op)) => self.fall_back(op, dtype, operands, origin),
            _ => Ok(node),
        }
    }

    /// Traces an operation and makes a tensor of it.
    pub(crate) fn emit(
        self: &Arc<Self>,
        op: Op,
        operands: &[NodePtr],
        location: &'static Location<'static>,
    ) -> Result<LazyTensor, Error> {
        let node = self.emit_node(op, operands, self.origin(location))?;
        self.tensor(node)
    }

    /// A tensor of a node; launches what is traced if that is too much by now.
    pub(crate) fn tensor(self: &Arc<Self>, node: NodePtr) -> Result<LazyTensor, Error> {
        let tensor = LazyTensor::from_node(self, node);
        if self.live_nodes.count() > self.options.trim_threshold {
            self.metrics.count(Counter::TrimIrGraph);
            self.sync_live(false)?;
        }
        Ok(tensor)
    }

    /// The type for which the backend lacks the operation, if there is one.
    fn lacking(
        &self,
        kind: OpKind,
        node: &NodePtr,
        operands: &[NodePtr],
    ) -> Result<Option<DType>, Error> {
        if self.options.fallback.is_forced(kind) {
            return Ok(Some(node.dtype()));
        }
        let of_operand = operands
            .first()
            .map_or_else(|| node.dtype(), |first| first.dtype());
        let subjects = match kind {
            OpKind::Compare | OpKind::Argmax => [of_operand, of_operand],
            OpKind::Cast => [of_operand, node.dtype()],
            _ => [node.dtype(), node.dtype()],
        };
        for dtype in subjects {
            if !self.supports(kind, dtype)? {
                return Ok(Some(dtype));
            }
        }
        Ok(None)
    }

    fn supports(&self, kind: OpKind, dtype: DType) -> Result<bool, Error> {
        let slot = &self.support[kind as usize * DType::ALL.len() + dtype as usize];
        match slot.load(Ordering::Relaxed) {
            0 => {
                let is_supported = self.backend.supports(&self.device, kind, dtype)?;
                slot.store(if is_supported { 2 } else { 1 }, Ordering::Relaxed);
                Ok(is_supported)
            }
            known => Ok(known == 2),
        }
    }

    /// Counts a call that fell back; true for the first of its operation.
    pub(crate) fn note_fallback(&self, new: FallbackReport) -> bool {
        self.metrics.count_fallback(new.op);
        let mut reports = lock(&self.fallbacks);
        if let Some(report) = reports.iter_mut().find(|report| report.op == new.op) {
            report.calls += 1;
            report.computed_by = new.computed_by;
            return false;
        }
        reports.push(new);
        true
    }

    /// Copies a tensor of the host to the device.
    pub(crate) fn upload(&self, tensor: &HostTensor) -> Result<BackendDataPtr, Error> {
        let started = std::time::Instant::now();
        let shape = Shape::new(tensor.ty());
        let data = self
            .backend
            .make_computation_data_from_tensor(tensor, &shape, &self.device)?;
        self.metrics
            .sample_time(Metric::TransferToDeviceTime, started);
        self.metrics
            .sample_count(Metric::OutboundData, tensor.bytes().len());
        self.metrics.count(Counter::CreateDataHandles);
        Ok(data)
    }

    /// Waits for data and copies it to the host.
    pub(crate) fn download(&self, data: &BackendDataPtr) -> Result<HostTensor, Error> {
        let started = std::time::Instant::now();
        let tensor = self.backend.make_tensor_from_computation_data(data, None)?;
        self.metrics
            .sample_time(Metric::TransferFromDeviceTime, started);
        self.metrics
            .sample_count(Metric::InboundData, tensor.bytes().len());
        Ok(tensor)
    }

    fn check_own(
        self: &Arc<Self>,
        operation: &'static str,
        tensors: &[&LazyTensor],
    ) -> Result<(), Error> {
        match tensors.iter().find(|tensor| !tensor.is_of(self)) {
            Some(other) => Err(self.foreign_value(operation, &other.device().context)),
            None => Ok(()),
        }
    }

    /// A tensor of another device was given to one of this device.
    pub(crate) fn foreign_value(&self, operation: &'static str, other: &Self) -> Error {
        let (found, expected) = (other.describe(), self.describe());
        let found = if found == expected {
            format!("another `LazyDevice` that was opened over {found} (open one, and clone it)")
        } else {
            found
        };
        Error::ForeignValue {
            operation,
            found,
            expected,
        }
    }
}

impl fmt::Debug for LazyDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LazyDevice({})", self.context.describe())
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
