//! What a backend of the lazy engine is: `torch::lazy::BackendImplInterface` in Rust, every method
//! under its own name and with the same meaning. The one implementation over StepMesh's devices is
//! in `stepmesh_backend`; what calls the trait is in `engine`.

mod data;
mod device;
mod devices;
mod ir_builder;
mod lowering;
mod registry;

use std::fmt::{self, Debug};
use std::sync::Arc;

use stepmesh_graph::{DType, GraphBuilder, Op, reference, stablehlo};

use crate::ir::{EmissionMap, NodePtr};
use crate::{Error, HostTensor, LazyTensor, Scalar, Shape};

pub use data::{BackendData, BackendDataPtr, DeviceDataInfo};
pub use device::{BackendDevice, BackendDeviceType, VirtualDevice};
pub use devices::BackendDevices;
pub use ir_builder::{IrBuilder, Origin};
pub use lowering::{Computation, ComputationPtr, LoweringContext};
pub use registry::{BackendRegistrar, get_backend, has_backend};

/// A backend as the engine drives it.
///
/// The names are those of `torch::lazy::BackendImplInterface`, so that whoever has written one for
/// PyTorch finds each method again. Methods may be called from any thread.
pub trait LazyBackend: Debug + Send + Sync {
    /// Name, for messages.
    fn name(&self) -> &str;

    /// Its devices: what the methods about devices, seeds and random numbers answer from.
    fn devices(&self) -> &BackendDevices;

    // Start and end.

    /// Called once, when the backend is registered. Nothing to do by default.
    fn initialize_aten_bindings(&self) {}

    /// Waits for the work in flight and gives back what is cached. Afterwards nothing is compiled
    /// or executed any more; values that are there can still be read.
    ///
    /// # Errors
    /// The failure of work in flight.
    fn prepare_to_exit(&self) -> Result<(), Error>;

    // Configuration.

    /// Starts the random numbers of every device afresh: equal seeds and equal programs give equal
    /// numbers.
    fn set_rng_seed(&self, seed: u64) {
        self.devices().set_seed(seed);
    }

    /// The seed, and the first of the next `blocks` blocks of random numbers of a device, which are
    /// then used up.
    ///
    /// # Errors
    /// `UnknownDevice`.
    fn take_rng_blocks(&self, device: &BackendDevice, blocks: u64) -> Result<(u64, u64), Error> {
        self.devices().take_rng_blocks(device, blocks)
    }

    // Tracing.

    /// What makes nodes. By default as [`IrBuilder`] says by itself.
    fn get_ir_builder(&self) -> &dyn IrBuilder {
        &GraphIrBuilder
    }

    /// Whether a tensor that is alive at the end of a step is to be computed then. A tensor that
    /// holds data already never is. Every other one by default.
    fn should_sync_tensor(&self, _tensor: &LazyTensor) -> bool {
        true
    }

    /// Whether a device does an operation for a type, as `stepmesh.compute.v1` asks it.
    ///
    /// # Errors
    /// `UnknownDevice`, `Backend`.
    fn supports(
        &self,
        device: &BackendDevice,
        op: stepmesh_graph::OpKind,
        dtype: DType,
    ) -> Result<bool, Error>;

    // Data transfer.

    /// Copies a tensor of the host to a device; in the type of `shape`, which has its elements.
    ///
    /// # Errors
    /// `Elements` when the shape does not fit, `Backend`.
    fn make_computation_data_from_tensor(
        &self,
        tensor: &HostTensor,
        shape: &Shape,
        device: &BackendDevice,
    ) -> Result<BackendDataPtr, Error>;

    /// Makes a number a value of rank 0. It may travel with the execution that uses it.
    ///
    /// # Errors
    /// `UnknownDevice`, `Backend`.
    fn make_computation_data_from_scalar(
        &self,
        scalar: Scalar,
        dtype: DType,
        device: &BackendDevice,
    ) -> Result<BackendDataPtr, Error>;

    /// A value that will be there later, see [`BackendData::assign`].
    fn create_data_placeholder(&self, device: &BackendDevice, shape: &Shape) -> BackendDataPtr;

    /// The data of a leaf; `None` when the node holds none.
    fn get_computation_data_from_node(&self, node: &NodePtr) -> Option<BackendDataPtr> {
        node.device_data().cloned()
    }

    /// Waits for a value and copies it to the host, converted if a type is given.
    ///
    /// # Errors
    /// `Execution` and `Poisoned` when it could not be computed, `Donated`, `NoValue`, `Timeout`,
    /// `Backend`.
    fn make_tensor_from_computation_data(
        &self,
        data: &BackendDataPtr,
        dtype: Option<DType>,
    ) -> Result<HostTensor, Error>;

    // Lowering, compilation, execution.

    /// A context for nodes whose order is known.
    ///
    /// # Errors
    /// `UnknownDevice`, `Graph`.
    fn create_lowering_context_with_post_order(
        &self,
        name: &str,
        device: &BackendDevice,
        post_order: Vec<NodePtr>,
        emit_status: EmissionMap,
    ) -> Result<Box<dyn LoweringContext>, Error>;

    /// A context without nodes yet.
    ///
    /// # Errors
    /// `UnknownDevice`.
    fn create_lowering_context(
        &self,
        name: &str,
        device: &BackendDevice,
    ) -> Result<Box<dyn LoweringContext>, Error> {
        self.create_lowering_context_with_post_order(
            name,
            device,
            Vec::new(),
            EmissionMap::default(),
        )
    }

    /// The devices that take part in a compilation for `device`. Alone by default.
    fn get_compilation_devices(&self, device: &str, _devices: &[String]) -> Vec<String> {
        vec![device.to_owned()]
    }

    /// Compiles computations.
    ///
    /// # Errors
    /// `Backend`, `ForeignObject`.
    fn compile(&self, instances: Vec<ComputationPtr>) -> Result<Vec<ComputationPtr>, Error>;

    /// Launches a compiled computation and returns its results, which may still be on their way.
    ///
    /// # Errors
    /// As for [`LazyBackend::execute_computation_into`].
    fn execute_computation(
        &self,
        computation: &ComputationPtr,
        arguments: &[BackendDataPtr],
        device: &BackendDevice,
    ) -> Result<Vec<BackendDataPtr>, Error> {
        let shapes = computation.result_shapes();
        let results: Vec<BackendDataPtr> = shapes
            .iter()
            .map(|shape| self.create_data_placeholder(device, shape))
            .collect();
        self.execute_computation_into(computation, arguments, &results, &[], device)?;
        Ok(results)
    }

    /// Launches a compiled computation. Results that have no memory get some; those that have are
    /// written where they lie. `donations` are parameters and the results that take over their
    /// memory, among those that [`LoweringContext::set_up_alias`] allowed; their data is gone then.
    ///
    /// # Errors
    /// `Backend`, `Donated`, `NoValue`, `ForeignObject`, `ForeignValue`; `Execution` and `Poisoned`
    /// when an argument could not be computed. Failures later on are those of the results.
    fn execute_computation_into(
        &self,
        computation: &ComputationPtr,
        arguments: &[BackendDataPtr],
        results: &[BackendDataPtr],
        donations: &[(usize, usize)],
        device: &BackendDevice,
    ) -> Result<(), Error>;

    /// Waits until what was launched on a device is done, and returns a failure that nobody was
    /// told yet.
    ///
    /// # Errors
    /// `Execution`, `Poisoned`, `Timeout`.
    fn wait_device_ops(&self, device: &BackendDevice) -> Result<(), Error>;

    /// A failure of work that is over, and that nobody was told yet; does not wait.
    fn take_failure(&self, device: &BackendDevice) -> Option<Error>;

    // Devices.

    /// Type of the device that is taken when none is named.
    fn get_default_device_type(&self) -> BackendDeviceType {
        self.devices().default().device_type()
    }

    /// Sets it.
    ///
    /// # Errors
    /// `UnknownDevice` if the backend has none of this type.
    fn set_default_device_type(&self, device_type: BackendDeviceType) -> Result<(), Error> {
        self.devices().set_default_type(device_type)
    }

    /// Ordinal of the device that is taken when none is named.
    fn get_default_device_ordinal(&self) -> u32 {
        self.devices().default().ordinal()
    }

    /// Sets it.
    ///
    /// # Errors
    /// `UnknownDevice`.
    fn set_default_device_ordinal(&self, ordinal: u32) -> Result<(), Error> {
        let device = self.get_backend_device(VirtualDevice(ordinal))?;
        self.devices().set_default(device)
    }

    /// Where operations run that the backend lacks. On the host by default.
    fn eager_fallback_device_type(&self) -> BackendDeviceType {
        BackendDeviceType::CPU
    }

    /// Computes one operation that the backend lacks, waits for it, and says where it was done. By the
    /// reference interpreter unless the implementation knows better.
    ///
    /// # Errors
    /// `Graph` for operands that do not fit, `Backend`, `Execution`.
    fn evaluate_eagerly(
        &self,
        op: &Op,
        operands: &[HostTensor],
    ) -> Result<(HostTensor, FallbackDevice), Error> {
        Ok((interpret(op, operands)?, FallbackDevice::Interpreter))
    }

    /// Every device.
    fn get_backend_devices(&self) -> Vec<BackendDevice> {
        self.devices().names().collect()
    }

    /// The concrete device behind a virtual one.
    ///
    /// # Errors
    /// `UnknownDevice`.
    fn get_backend_device(&self, device: VirtualDevice) -> Result<BackendDevice, Error> {
        self.devices().at(device)
    }

    // Debug and metrics.

    /// What the backend itself counts, in the format of metrics reports; may be empty.
    fn create_metric_report(&self) -> String;

    /// A computation as the backend sees it, for people.
    fn get_computation_backend_text(&self, computation: &ComputationPtr) -> String;

    /// A computation as text in a form of its own: `graph`, `stablehlo`, and what the backend has
    /// beside them. A [`StepMeshBackend`](crate::StepMeshBackend) has `plan` and `source` once it was
    /// compiled, as far as the plugin has them.
    ///
    /// # Errors
    /// `UnknownFormat`; `Lowering` and `Backend` where there is no such text.
    fn computation_text(
        &self,
        computation: &ComputationPtr,
        format: &str,
    ) -> Result<String, Error> {
        text_of_graph(computation, format).ok_or_else(|| Error::UnknownFormat {
            format: format.to_owned(),
            known: &["graph", "stablehlo"],
        })
    }

    /// Bytes of device memory that are kept for reuse.
    fn pooled_len_bytes(&self, device: &BackendDevice) -> u64;

    /// Gives back what is kept for reuse.
    fn release_pools(&self);

    /// For callers that know the implementation.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// Makes nodes as the trait says by itself.
#[derive(Debug)]
struct GraphIrBuilder;

impl IrBuilder for GraphIrBuilder {}

/// Where an operation was computed that a backend lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FallbackDevice {
    /// By the cpu backend, compiled.
    Cpu,
    /// By the reference interpreter, which is right and slow.
    Interpreter,
}

impl fmt::Display for FallbackDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cpu => "the cpu backend",
            Self::Interpreter => "the reference interpreter",
        })
    }
}

/// The forms that any computation has.
pub(crate) fn text_of_graph(computation: &ComputationPtr, format: &str) -> Option<String> {
    match format {
        "graph" => Some(computation.to_text()),
        "stablehlo" => Some(stablehlo(computation.graph())),
        _ => None,
    }
}

/// One operation on tensors of the host, by the reference interpreter.
pub(crate) fn interpret(op: &Op, operands: &[HostTensor]) -> Result<HostTensor, Error> {
    let mut graph = GraphBuilder::new(op.kind().name());
    let mut nodes = Vec::with_capacity(operands.len());
    let mut arguments = Vec::with_capacity(operands.len());
    for operand in operands {
        let ty = operand.ty();
        nodes.push(graph.parameter(ty.dtype(), ty.shape())?);
        arguments.push(reference::Tensor::from_bytes(ty, operand.bytes()));
    }
    let result = graph.node(op.clone(), &nodes)?;
    let graph = graph.build(&[result])?;
    let results = reference::evaluate(&graph, &arguments)?;
    let Some(result) = results.first() else {
        return Err(Error::lowering("fallback", "it gave no result"));
    };
    HostTensor::from_bytes(result.ty(), result.to_bytes())
}

/// A shared backend.
pub type BackendPtr = Arc<dyn LazyBackend>;
