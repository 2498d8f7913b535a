//! The backend over the devices of `stepmesh-core` and their extension `stepmesh.compute.v1`.

mod execute;
mod host;
mod lane;
mod lowering;
mod memory;
mod missing;
mod value;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use stepmesh_core::compute::Argument;
use stepmesh_core::{Backend, Buffer, Device, Stream};
use stepmesh_graph::{CompileOptions, DType, Graph, Op, OpKind, TensorType, TextForm};

use crate::backend::{
    BackendDeviceType, BackendDevices, FallbackDevice, LazyBackend, VirtualDevice, interpret,
    text_of_graph,
};
use crate::ir::{EmissionMap, NodePtr};
use crate::{
    BackendDataPtr, BackendDevice, Computation, ComputationPtr, Error, HostTensor, LoweringContext,
    Scalar, Shape,
};

pub use lowering::GraphLowering;

use execute::execute;
use host::Host;
use lane::Lane;
use lowering::{GraphComputation, Program};
use memory::Memory;
use missing::Missing;
use value::{Fetched, Value, ValueState};

/// The devices of an open backend, as the lazy engine drives them.
///
/// Each device has one stream, on which everything is launched in order, and a pool of memory. No
/// threads are started: executions are as asynchronous as the backend's streams.
#[derive(Debug)]
pub struct StepMeshBackend {
    backend: Backend,
    options: BackendOptions,
    devices: BackendDevices,
    /// Of each of them.
    states: Vec<DeviceState>,
    is_exiting: AtomicBool,
    /// Opened when an operation falls back for the first time.
    host: OnceLock<Option<Box<Host>>>,
}

/// How a [`StepMeshBackend`] works.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BackendOptions {
    /// Longest wait for the device. 60 s.
    pub timeout: Duration,
    /// Bytes of each device's memory that are kept for reuse. 1 GiB.
    pub pool_len_bytes_max: u64,
    /// Launches of each device in flight; the next one waits for the oldest. 64.
    pub in_flight_max: usize,
    /// How graphs are compiled; also bounds the threads of an execution on the host.
    pub compile: CompileOptions,
    /// Graphs are not compiled but interpreted on the host, node by node in f64: slow, and the one to
    /// compare with when an answer is in doubt. No.
    pub interpret: bool,
}

#[derive(Debug)]
struct DeviceState {
    device: Device,
    /// Made when it is first used: a process may use one device of many.
    lane: OnceLock<Arc<Lane>>,
}

impl Default for BackendOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(60),
            pool_len_bytes_max: 1 << 30,
            in_flight_max: 64,
            compile: CompileOptions::default(),
            interpret: false,
        }
    }
}

impl StepMeshBackend {
    /// All devices of a backend.
    ///
    /// # Errors
    /// `Backend` when the devices cannot be had.
    pub fn new(backend: &Backend, options: BackendOptions) -> Result<Self, Error> {
        let mut states = Vec::new();
        for ordinal in 0..backend.device_count() {
            let device = backend.device(ordinal);
            states.push(DeviceState {
                device: device.map_err(Error::backend("opening a device"))?,
                lane: OnceLock::new(),
            });
        }
        let types = states.iter().map(|state| device_type(&state.device));
        Ok(Self {
            backend: backend.clone(),
            options,
            devices: BackendDevices::new(backend.name(), types),
            states,
            is_exiting: AtomicBool::new(false),
            host: OnceLock::new(),
        })
    }

    /// The name that the engine has for a device of the backend.
    ///
    /// # Errors
    /// `UnknownDevice`.
    pub fn device_of(&self, device: &Device) -> Result<BackendDevice, Error> {
        self.devices.at(VirtualDevice(device.ordinal()))
    }

    /// Copies bytes of the host to a device, elements in row-major order, little-endian.
    ///
    /// # Errors
    /// `Elements` if there are not as many as the type has, `UnknownDevice`, `Backend`.
    pub fn upload(
        &self,
        ty: TensorType,
        bytes: &[u8],
        device: &BackendDevice,
    ) -> Result<BackendDataPtr, Error> {
        if bytes.len() != ty.len_bytes() {
            let fault = format!("{ty} has {} bytes, not {}", ty.len_bytes(), bytes.len());
            return Err(Error::elements("upload", fault));
        }
        let lane = self.lane(device)?;
        let memory = lane.idle_memory(bytes.len())?;
        memory
            .buffer()
            .write_bytes(memory.offset(), bytes)
            .map_err(Error::backend("writing to device memory"))?;
        let state = ValueState::Ready(Arc::new(memory), None);
        Ok(Arc::new(Value::new(*device, ty, lane, state)))
    }

    /// Waits for a value, and copies it to where the host has room for it.
    ///
    /// # Errors
    /// `Elements` if the room is not as large as the value; as for
    /// [`LazyBackend::make_tensor_from_computation_data`].
    pub fn download(&self, data: &BackendDataPtr, bytes: &mut [u8]) -> Result<(), Error> {
        own(data, "reading a value")?.read_into(bytes)
    }

    /// Compiles a graph that was not traced here.
    ///
    /// # Errors
    /// As for [`LazyBackend::compile`].
    pub fn compile_graph(
        &self,
        graph: Graph,
        device: &BackendDevice,
    ) -> Result<ComputationPtr, Error> {
        let operation = "compiling a graph";
        let compiled = self.compile(vec![GraphComputation::of(graph, *device)])?;
        let compiled = compiled.into_iter().next();
        compiled.ok_or_else(|| Error::lowering(operation, "nothing came of it"))
    }

    /// Existing memory as a value: nothing is copied, and the memory lives as long as the value. It
    /// must not be written to while graphs that use it are in flight.
    ///
    /// # Errors
    /// `Elements` unless `ty` fits behind `offset_bytes`, `ForeignValue` for memory of another
    /// device, `UnknownDevice`.
    pub fn wrap_buffer(
        &self,
        buffer: &Arc<Buffer>,
        offset_bytes: u64,
        ty: TensorType,
        device: &BackendDevice,
    ) -> Result<BackendDataPtr, Error> {
        let (lane, memory) = self.foreign(buffer, offset_bytes, ty, device)?;
        let state = ValueState::Ready(memory, None);
        Ok(Arc::new(Value::new(*device, ty, lane, state)))
    }

    /// A placeholder whose value is to be written into existing memory.
    ///
    /// # Errors
    /// As for [`StepMeshBackend::wrap_buffer`].
    pub fn create_placeholder_in(
        &self,
        buffer: &Arc<Buffer>,
        offset_bytes: u64,
        ty: TensorType,
        device: &BackendDevice,
    ) -> Result<BackendDataPtr, Error> {
        let (lane, memory) = self.foreign(buffer, offset_bytes, ty, device)?;
        let state = ValueState::Reserved(memory);
        Ok(Arc::new(Value::new(*device, ty, lane, state)))
    }

    /// Copies a value into a placeholder that has memory, in the order of launches.
    ///
    /// # Errors
    /// As for [`LazyBackend::execute_computation_into`]; `NoValue` for a placeholder without memory.
    pub fn copy_into(&self, from: &BackendDataPtr, to: &BackendDataPtr) -> Result<(), Error> {
        let operation = "copying a value";
        self.check_running(operation)?;
        let (source, target) = (own(from, operation)?, own(to, operation)?);
        let ValueState::Reserved(memory) = target.state().clone() else {
            return Err(Error::NoValue { ty: to.ty() });
        };
        if from.ty() != to.ty() {
            let fault = format!("{} into {}", from.ty(), to.ty());
            return Err(Error::elements(operation, fault));
        }
        let len_bytes = from.ty().len_bytes() as u64;
        let work =
            |args: &[Argument<'_>], outs: &[Argument<'_>], stream: &Stream| match (args, outs) {
                ([from], [to]) => {
                    stream.copy(to.buffer, to.offset, from.buffer, from.offset, len_bytes)
                }
                _ => Ok(()),
            };
        let memories = [memory];
        let completion = self.lane(&to.device())?.launch(
            &"copy".into(),
            &[source.source()?],
            &memories,
            work,
        )?;
        let [memory] = memories;
        target.set(ValueState::Ready(memory, Some(completion)));
        Ok(())
    }

    /// Waits for a value and gives out the memory that holds it, with the offset in bytes.
    ///
    /// # Errors
    /// As for [`LazyBackend::make_tensor_from_computation_data`]; `Elements` for numbers that are in
    /// no memory.
    pub fn buffer_of(&self, data: &BackendDataPtr) -> Result<(Arc<Buffer>, u64), Error> {
        match own(data, "buffer_of")?.fetch()? {
            Fetched::Memory(memory) => Ok(memory.share()),
            Fetched::Number(_) => Err(Error::elements(
                "buffer_of",
                "a number lies in no memory".to_owned(),
            )),
        }
    }

    /// The stream that a device's graphs are launched on, to order other work before or after them.
    ///
    /// # Errors
    /// `UnknownDevice`, `Backend`.
    pub fn with_stream<T>(
        &self,
        device: &BackendDevice,
        body: impl FnOnce(&Stream) -> T,
    ) -> Result<T, Error> {
        Ok(body(self.lane(device)?.stream()))
    }

    fn foreign(
        &self,
        buffer: &Arc<Buffer>,
        offset: u64,
        ty: TensorType,
        device: &BackendDevice,
    ) -> Result<(&Arc<Lane>, Arc<Memory>), Error> {
        let operation = "using a buffer";
        let lane = self.lane(device)?;
        let of = buffer.device();
        let is_same = of.ordinal() == lane.device().ordinal()
            && of.backend().name() == lane.device().backend().name();
        if !is_same {
            return Err(Error::ForeignValue {
                operation,
                found: format!("{}:{}", of.backend().name(), of.ordinal()),
                expected: device.to_string(),
            });
        }
        let (len, align) = (ty.len_bytes() as u64, ty.dtype().size_bytes() as u64);
        if offset
            .checked_add(len)
            .is_none_or(|end| end > buffer.len_bytes())
        {
            let fault = format!(
                "{ty} takes {len} bytes; from byte {offset} on, the buffer of {} has fewer",
                buffer.len_bytes()
            );
            return Err(Error::elements(operation, fault));
        }
        if !offset.is_multiple_of(align) {
            let fault = format!("{ty} at byte {offset}, which is no multiple of {align}");
            return Err(Error::elements(operation, fault));
        }
        Ok((lane, Arc::new(Memory::foreign(Arc::clone(buffer), offset))))
    }

    fn state(&self, device: &BackendDevice) -> Result<&DeviceState, Error> {
        Ok(&self.states[self.devices.position(device)?])
    }

    fn lane(&self, device: &BackendDevice) -> Result<&Arc<Lane>, Error> {
        let state = self.state(device)?;
        if let Some(lane) = state.lane.get() {
            return Ok(lane);
        }
        let lane = Arc::new(Lane::new(&state.device, &self.options)?);
        // Should another thread have made one meanwhile, that one stays.
        Ok(state.lane.get_or_init(|| lane))
    }

    fn check_running(&self, operation: &'static str) -> Result<(), Error> {
        if self.is_exiting.load(Ordering::Acquire) {
            return Err(Error::Exiting { operation });
        }
        Ok(())
    }

    fn lanes(&self) -> impl Iterator<Item = &Arc<Lane>> {
        self.states.iter().filter_map(|state| state.lane.get())
    }
}

impl LazyBackend for StepMeshBackend {
    fn name(&self) -> &str {
        self.backend.name()
    }

    fn devices(&self) -> &BackendDevices {
        &self.devices
    }

    fn prepare_to_exit(&self) -> Result<(), Error> {
        self.is_exiting.store(true, Ordering::Release);
        let mut outcome = Ok(());
        for lane in self.lanes() {
            let over = lane.wait_all();
            outcome = outcome.and(over);
            lane.pool().clear();
        }
        outcome
    }

    fn supports(&self, device: &BackendDevice, op: OpKind, dtype: DType) -> Result<bool, Error> {
        match self.lane(device)?.compute() {
            _ if self.options.interpret => Ok(op.allows(dtype)),
            Some(compute) => compute
                .supports(op, dtype)
                .map_err(Error::backend("asking for an operation")),
            None => Ok(false),
        }
    }

    fn make_computation_data_from_tensor(
        &self,
        tensor: &HostTensor,
        shape: &Shape,
        device: &BackendDevice,
    ) -> Result<BackendDataPtr, Error> {
        let ty = shape.ty();
        self.upload(ty, &tensor.bytes_as(ty)?, device)
    }

    fn make_computation_data_from_scalar(
        &self,
        scalar: Scalar,
        dtype: DType,
        device: &BackendDevice,
    ) -> Result<BackendDataPtr, Error> {
        let ty = TensorType::new(dtype, stepmesh_graph::Shape::SCALAR)?;
        let state = ValueState::Immediate(scalar.to_element(dtype));
        Ok(Arc::new(Value::new(*device, ty, self.lane(device)?, state)))
    }

    fn create_data_placeholder(&self, device: &BackendDevice, shape: &Shape) -> BackendDataPtr {
        let lane = match self.lane(device) {
            Ok(lane) => lane,
            // There is nothing to hold a place on: whoever asks for the value is told so.
            Err(error) => return Arc::new(Missing::new(*device, shape.ty(), error)),
        };
        Arc::new(Value::new(*device, shape.ty(), lane, ValueState::Empty))
    }

    fn make_tensor_from_computation_data(
        &self,
        data: &BackendDataPtr,
        dtype: Option<DType>,
    ) -> Result<HostTensor, Error> {
        let ty = data.ty();
        let bytes = own(data, "reading a value")?.read()?;
        let tensor = HostTensor::from_bytes(ty, bytes)?;
        Ok(match dtype {
            Some(dtype) if dtype != ty.dtype() => tensor.to_dtype(dtype)?,
            _ => tensor,
        })
    }

    fn create_lowering_context_with_post_order(
        &self,
        name: &str,
        device: &BackendDevice,
        post_order: Vec<NodePtr>,
        emit_status: EmissionMap,
    ) -> Result<Box<dyn LoweringContext>, Error> {
        self.state(device)?;
        let lowering = GraphLowering::new(name, *device, post_order, emit_status)?;
        Ok(Box::new(lowering))
    }

    fn compile(&self, instances: Vec<ComputationPtr>) -> Result<Vec<ComputationPtr>, Error> {
        let operation = "compiling a graph";
        self.check_running(operation)?;
        instances
            .iter()
            .map(|instance| {
                let computation = own_computation(instance, operation)?;
                if self.options.interpret {
                    let compiled: ComputationPtr =
                        Arc::new(computation.compiled(Program::Interpreted));
                    return Ok(compiled);
                }
                let compute = self.lane(&computation.device())?.compute();
                let compute = compute.ok_or_else(|| {
                    Error::lowering(operation, "the backend has no `stepmesh.compute.v1`")
                })?;
                let executable = compute
                    .compile(computation.graph(), &self.options.compile)
                    .map_err(Error::backend(operation))?;
                let compiled: ComputationPtr =
                    Arc::new(computation.compiled(Program::Compiled(executable)));
                Ok(compiled)
            })
            .collect()
    }

    fn execute_computation_into(
        &self,
        computation: &ComputationPtr,
        arguments: &[BackendDataPtr],
        results: &[BackendDataPtr],
        donations: &[(usize, usize)],
        device: &BackendDevice,
    ) -> Result<(), Error> {
        let operation = "executing a graph";
        let results: Result<Vec<&Value>, Error> =
            results.iter().map(|data| own(data, operation)).collect();
        let results = results?;
        let executed = self.check_running(operation).and_then(|()| {
            let computation = own_computation(computation, operation)?;
            let arguments: Result<Vec<&Value>, Error> =
                arguments.iter().map(|data| own(data, operation)).collect();
            let lane = self.lane(device)?;
            execute(lane, computation, &arguments?, &results, donations)
        });
        if let Err(error) = &executed {
            for result in results {
                result.set(ValueState::Failed(error.clone()));
            }
        }
        executed
    }

    fn wait_device_ops(&self, device: &BackendDevice) -> Result<(), Error> {
        match self.state(device)?.lane.get() {
            Some(lane) => lane.wait_all(),
            None => Ok(()),
        }
    }

    fn take_failure(&self, device: &BackendDevice) -> Option<Error> {
        self.state(device).ok()?.lane.get()?.take_failure()
    }

    fn evaluate_eagerly(
        &self,
        op: &Op,
        operands: &[HostTensor],
    ) -> Result<(HostTensor, FallbackDevice), Error> {
        // What the cpu backend itself lacks, or is suspected of, it is not asked for.
        let is_cpu = self.backend.name() == host::NAME;
        if !is_cpu && !self.options.interpret {
            let open = || Host::open(&self.options).map(Box::new);
            if let Some(host) = self.host.get_or_init(open)
                && let Some(result) = host.evaluate(op, operands)?
            {
                return Ok((result, FallbackDevice::Cpu));
            }
        }
        Ok((interpret(op, operands)?, FallbackDevice::Interpreter))
    }

    fn create_metric_report(&self) -> String {
        let mut text = String::new();
        for (state, device) in self.states.iter().zip(self.devices.names()) {
            let Some(lane) = state.lane.get() else {
                continue;
            };
            let (reused, allocated) = lane.pool().counts();
            for (name, value) in [
                ("PooledAllocation", reused),
                ("DeviceAllocation", allocated),
            ] {
                if value > 0 {
                    text += &format!("Counter: {name}.{device}\n  Value: {value}\n");
                }
            }
        }
        text
    }

    fn get_computation_backend_text(&self, computation: &ComputationPtr) -> String {
        let Ok(own) = own_computation(computation, "text") else {
            return computation.to_text();
        };
        let plan = match own.program() {
            Some(Program::Compiled(executable)) => executable.text(TextForm::Plan).ok(),
            Some(Program::Interpreted) | None => None,
        };
        plan.unwrap_or_else(|| computation.to_text())
    }

    fn computation_text(
        &self,
        computation: &ComputationPtr,
        format: &str,
    ) -> Result<String, Error> {
        let operation = "computation_text";
        let form = match format {
            "plan" => TextForm::Plan,
            "source" => TextForm::Source,
            _ => {
                return text_of_graph(computation, format).ok_or_else(|| Error::UnknownFormat {
                    format: format.to_owned(),
                    known: &["graph", "stablehlo", "plan", "source"],
                });
            }
        };
        match own_computation(computation, operation)?.program() {
            Some(Program::Compiled(executable)) => executable
                .text(form)
                .map_err(Error::backend("asking for the text of an executable")),
            Some(Program::Interpreted) => Err(Error::lowering(
                operation,
                format!("an interpreted graph has no {format}"),
            )),
            None => Err(Error::lowering(
                operation,
                format!("there is no {format} before it is compiled"),
            )),
        }
    }

    fn pooled_len_bytes(&self, device: &BackendDevice) -> u64 {
        let lane = self.state(device).ok().and_then(|state| state.lane.get());
        lane.map_or(0, |lane| lane.pool().len_bytes())
    }

    fn release_pools(&self) {
        for lane in self.lanes() {
            lane.pool().clear();
        }
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

fn own<'a>(data: &'a BackendDataPtr, operation: &'static str) -> Result<&'a Value, Error> {
    if let Some(value) = data.as_any().downcast_ref() {
        return Ok(value);
    }
    match data.as_any().downcast_ref::<Missing>() {
        Some(missing) => Err(missing.error()),
        None => Err(Error::ForeignObject { operation }),
    }
}

fn own_computation<'a>(
    computation: &'a ComputationPtr,
    operation: &'static str,
) -> Result<&'a GraphComputation, Error> {
    let found = computation.as_any().downcast_ref();
    found.ok_or(Error::ForeignObject { operation })
}

/// What DLPack says; some other kind of device if that is not a small number.
fn device_type(device: &Device) -> BackendDeviceType {
    i8::try_from(device.info().dlpack.0).map_or(BackendDeviceType::EXT_DEV, BackendDeviceType)
}
