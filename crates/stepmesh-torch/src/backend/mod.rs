//! A backend of `stepmesh-lazy` that libtorch serves: each operation of a graph is a call of torch, on
//! any of its devices. It is there to compare with: the same program runs on a plugin and on torch,
//! and so does each operation alone.
//!
//! What an operation means is what `stepmesh_abi::compute` says. Where torch differs (casts out of
//! range, integer division by 0, floats that are rounded twice), or has nothing of the kind (Philox),
//! the calls are arranged so that it does not show, or the reference of `stepmesh-graph` computes.
#![forbid(unsafe_code)]

mod arrange;
mod cast;
mod evaluate;
mod pointwise;
mod reduce;
mod transfer;
mod value;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use stepmesh_graph::{DType, OpKind, TensorType};
use stepmesh_lazy::{
    BackendDataPtr, BackendDevice, BackendDeviceType, BackendDevices, ComputationPtr, EmissionMap,
    Error, GraphLowering, HostTensor, LazyBackend, LoweringContext, NodePtr, Scalar, Shape,
};
use tch::{Device, Kind, Tensor};

use evaluate::Fault;
use value::{Value, ValueState};

/// Torch's devices, as the lazy engine drives them.
///
/// Graphs are not compiled: each execution walks the graph and calls torch node by node, on torch's
/// current stream of the calling thread. No memory is donated: torch's allocator reuses it. Any
/// computation that has a graph can be executed, whoever lowered it.
///
/// It may be used from any thread.
///
/// ```no_run
/// use std::sync::Arc;
/// use stepmesh_lazy::{LazyBackend, LazyDevice, Options};
/// use stepmesh_torch::TorchBackend;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let torch = TorchBackend::new(&[tch::Device::Cpu])?;
/// let name = torch.get_backend_devices()[0];
/// let device = LazyDevice::new(Arc::new(torch), name, Options::default())?;
/// let x = device.from_slice(&[2], &[1.0_f32, -2.0])?;
/// assert_eq!(x.relu()?.to_vec::<f32>()?, [1.0, 0.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TorchBackend {
    /// Tells its values from those of others.
    number: u64,
    devices: BackendDevices,
    /// Torch's of each of them.
    torch: Vec<Device>,
    is_exiting: AtomicBool,
}

impl TorchBackend {
    /// A backend of these devices, `lazy:0` the first of them.
    ///
    /// # Errors
    /// [`crate::Error::UnservedDevice`] for another device than the CPU and CUDA's (ROCm's have that
    /// name too); [`crate::Error::NoCuda`] when torch's CUDA half cannot be loaded.
    pub fn new(devices: &[Device]) -> Result<Self, crate::Error> {
        let device_type = |device: &Device| match device {
            Device::Cpu => Ok(BackendDeviceType::CPU),
            Device::Cuda(_) => crate::register_cuda().map(|()| BackendDeviceType::CUDA),
            other => Err(crate::Error::UnservedDevice { device: *other }),
        };
        let types: Result<Vec<_>, _> = devices.iter().map(device_type).collect();
        Ok(Self {
            number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
            devices: BackendDevices::new(NAME, types?),
            torch: devices.to_vec(),
            is_exiting: AtomicBool::new(false),
        })
    }

    /// The torch tensor of a value of this backend. It shares the value's memory, so it must not be
    /// written to.
    ///
    /// # Errors
    /// `ForeignObject`, `ForeignValue`, `NoValue`, `Donated`; the failure of the graph that was to
    /// make it.
    pub fn tensor_of(&self, data: &BackendDataPtr) -> Result<Tensor, Error> {
        self.own(data, "reading a value")?.tensor()
    }

    fn torch(&self, device: &BackendDevice) -> Result<Device, Error> {
        Ok(self.torch[self.devices.position(device)?])
    }

    fn own<'a>(
        &self,
        data: &'a BackendDataPtr,
        operation: &'static str,
    ) -> Result<&'a Value, Error> {
        let value: Option<&Value> = data.as_any().downcast_ref();
        let value = value.ok_or(Error::ForeignObject { operation })?;
        if !value.is_of(self.number) {
            return Err(Error::ForeignValue {
                operation,
                found: "another torch backend".to_owned(),
                expected: data.device().to_string(),
            });
        }
        Ok(value)
    }

    fn check_running(&self, operation: &'static str) -> Result<(), Error> {
        if self.is_exiting.load(Ordering::Acquire) {
            return Err(Error::Exiting { operation });
        }
        Ok(())
    }

    fn value(&self, device: &BackendDevice, ty: TensorType, state: ValueState) -> BackendDataPtr {
        Arc::new(Value::new(self.number, *device, ty, state))
    }

    fn upload(
        &self,
        ty: TensorType,
        bytes: &[u8],
        device: &BackendDevice,
    ) -> Result<BackendDataPtr, Error> {
        let torch = self.torch(device)?;
        let tensor = transfer::upload(ty, bytes, torch);
        let tensor = tensor.map_err(|fault| fault.of("upload"))?;
        Ok(self.value(device, ty, ValueState::Ready(tensor)))
    }

    fn execute(
        &self,
        computation: &ComputationPtr,
        arguments: &[BackendDataPtr],
        results: &[&Value],
        device: &BackendDevice,
    ) -> Result<(), Error> {
        self.check_running(EXECUTING)?;
        let torch = self.torch(device)?;
        let graph = computation.graph();
        let argument = |data: &BackendDataPtr| self.on_device(data, device)?.tensor();
        let tensors: Result<Vec<Tensor>, Error> = arguments.iter().map(argument).collect();
        let has = [
            arguments.iter().map(|data| data.ty()).collect::<Vec<_>>(),
            results.iter().map(|value| value.shape_and_type()).collect(),
        ];
        let wanted = [
            graph.param_types().collect::<Vec<_>>(),
            graph.result_types().collect(),
        ];
        if has != wanted {
            let fault = format!("{has:?} are its arguments and results, it has {wanted:?}");
            let operation = EXECUTING;
            return Err(Error::Lowering { operation, fault });
        }
        let made = evaluate::evaluate(graph, &tensors?, torch)?;
        for (value, tensor) in results.iter().zip(made) {
            value.set(ValueState::Ready(tensor));
        }
        Ok(())
    }

    fn on_device<'a>(
        &self,
        data: &'a BackendDataPtr,
        device: &BackendDevice,
    ) -> Result<&'a Value, Error> {
        let value = self.own(data, EXECUTING)?;
        if data.device() == *device {
            return Ok(value);
        }
        Err(Error::ForeignValue {
            operation: EXECUTING,
            found: data.device().to_string(),
            expected: device.to_string(),
        })
    }

    /// Waits for torch's current stream: what comes back to the host is made after all else on it.
    fn synchronize(device: Device) -> Result<(), Fault> {
        if device != Device::Cpu {
            let _ = Tensor::f_zeros([1], (Kind::Uint8, device))?.f_to(Device::Cpu)?;
        }
        Ok(())
    }
}

impl LazyBackend for TorchBackend {
    fn name(&self) -> &str {
        NAME
    }

    fn devices(&self) -> &BackendDevices {
        &self.devices
    }

    fn prepare_to_exit(&self) -> Result<(), Error> {
        self.is_exiting.store(true, Ordering::Release);
        let wait = |name| self.wait_device_ops(&name);
        self.devices.names().map(wait).fold(Ok(()), Result::and)
    }

    fn supports(&self, device: &BackendDevice, op: OpKind, dtype: DType) -> Result<bool, Error> {
        self.devices.position(device)?;
        Ok(op.allows(dtype))
    }

    fn make_computation_data_from_tensor(
        &self,
        tensor: &HostTensor,
        shape: &Shape,
        device: &BackendDevice,
    ) -> Result<BackendDataPtr, Error> {
        self.upload(shape.ty(), &tensor.bytes_as(shape.ty())?, device)
    }

    fn make_computation_data_from_scalar(
        &self,
        scalar: Scalar,
        dtype: DType,
        device: &BackendDevice,
    ) -> Result<BackendDataPtr, Error> {
        let element = scalar.to_element(dtype);
        self.upload(TensorType::scalar(dtype), element.as_slice(), device)
    }

    fn create_data_placeholder(&self, device: &BackendDevice, shape: &Shape) -> BackendDataPtr {
        let state = match self.devices.position(device) {
            Ok(_) => ValueState::Empty,
            // There is nothing to hold a place on: whoever asks for the value is told so.
            Err(error) => ValueState::Failed(error),
        };
        self.value(device, shape.ty(), state)
    }

    fn make_tensor_from_computation_data(
        &self,
        data: &BackendDataPtr,
        dtype: Option<DType>,
    ) -> Result<HostTensor, Error> {
        let (operation, ty) = ("reading a value", data.ty());
        let tensor = self.own(data, operation)?.tensor()?;
        let bytes = transfer::download(ty, &tensor).map_err(|fault| fault.of(operation))?;
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
        self.devices.position(device)?;
        let lowering = GraphLowering::new(name, *device, post_order, emit_status)?;
        Ok(Box::new(lowering))
    }

    fn compile(&self, instances: Vec<ComputationPtr>) -> Result<Vec<ComputationPtr>, Error> {
        self.check_running("compiling a graph")?;
        Ok(instances)
    }

    fn execute_computation_into(
        &self,
        computation: &ComputationPtr,
        arguments: &[BackendDataPtr],
        results: &[BackendDataPtr],
        donations: &[(usize, usize)],
        device: &BackendDevice,
    ) -> Result<(), Error> {
        let own = |data| self.on_device(data, device);
        let results: Result<Vec<&Value>, Error> = results.iter().map(own).collect();
        let results = results?;
        if let Err(error) = self.execute(computation, arguments, &results, device) {
            for result in results {
                result.set(ValueState::Failed(error.clone()));
            }
            return Err(error);
        }
        for (parameter, _) in donations {
            if let Some(data) = arguments.get(*parameter) {
                self.own(data, EXECUTING)?.set(ValueState::Donated);
            }
        }
        Ok(())
    }

    fn wait_device_ops(&self, device: &BackendDevice) -> Result<(), Error> {
        let torch = self.torch(device)?;
        Self::synchronize(torch).map_err(|fault| fault.of("waiting for a device"))
    }

    fn take_failure(&self, _device: &BackendDevice) -> Option<Error> {
        // Torch tells failures to the next call that can fail.
        None
    }

    fn create_metric_report(&self) -> String {
        String::new()
    }

    fn get_computation_backend_text(&self, computation: &ComputationPtr) -> String {
        computation.to_text()
    }

    fn pooled_len_bytes(&self, _device: &BackendDevice) -> u64 {
        0
    }

    fn release_pools(&self) {}

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

/// For messages and reports.
const NAME: &str = "torch";
/// As errors name it.
const EXECUTING: &str = "executing a graph";

static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);
