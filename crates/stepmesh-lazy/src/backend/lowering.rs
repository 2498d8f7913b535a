//! From nodes to what a backend compiles.

use std::any::Any;
use std::fmt::{self, Debug};
use std::sync::Arc;

use crate::ir::NodePtr;
use crate::{BackendDataPtr, BackendDevice, Error, Shape};

/// A shared computation.
pub type ComputationPtr = Arc<dyn Computation>;

/// A graph that is to be compiled, or was.
pub trait Computation: Any + Debug + Send + Sync {
    /// Number of parameters.
    fn parameters_size(&self) -> usize;

    /// Their shapes.
    fn parameter_shapes(&self) -> Vec<Shape>;

    /// Their names.
    fn parameter_names(&self) -> Vec<String>;

    /// The shapes of the results.
    fn result_shapes(&self) -> Vec<Shape>;

    /// The parameters and the results that may take over their memory.
    fn aliases(&self) -> &[(usize, usize)];

    /// As text, for people.
    fn to_text(&self) -> String;

    /// Whether it was made at the end of a step, and not because a value was read.
    fn in_mark_step(&self) -> bool;

    /// The graph.
    fn graph(&self) -> &stepmesh_graph::Graph;

    /// Bytes of host memory that it takes, roughly.
    fn len_bytes(&self) -> usize;

    /// For the implementation to find its own type.
    fn as_any(&self) -> &dyn Any;
}

/// Lowers nodes one by one and makes a computation of them.
pub trait LoweringContext: Debug {
    /// Name of the computation.
    fn name(&self) -> &str;

    /// The device it is for.
    fn device(&self) -> BackendDevice;

    /// Lowers a node with all that it needs and makes it a result. Returns the result's number.
    ///
    /// # Errors
    /// `Graph`.
    fn add_result(&mut self, result: &NodePtr) -> Result<usize, Error>;

    /// Makes a node, whatever it is, the parameter `index`, to lower a single operation.
    ///
    /// # Errors
    /// `Lowering` unless `index` is the number of the next parameter and `shape` that of the node,
    /// `Graph`.
    fn add_parameter(
        &mut self,
        output: &NodePtr,
        index: usize,
        shape: &Shape,
        name: &str,
    ) -> Result<(), Error>;

    /// Allows executions to give the memory of a parameter to a result.
    ///
    /// # Errors
    /// `Lowering` if their types differ or one of them is in another donation.
    fn set_up_alias(&mut self, result: usize, parameter: usize) -> Result<(), Error>;

    /// Whether data has the shape of a result.
    fn check_result_shape(&self, data: &BackendDataPtr, result: usize) -> bool;

    /// The data of the parameters so far, by their number.
    fn get_parameters_data(&self) -> &[BackendDataPtr];

    /// Whether the computation is made at the end of a step.
    fn set_in_mark_step(&mut self, in_mark_step: bool);

    /// How many nodes were lowered.
    fn get_emitted_node_count(&self) -> usize;

    /// The computation, not compiled yet.
    ///
    /// # Errors
    /// `Graph` if there is no result.
    fn build(self: Box<Self>) -> Result<ComputationPtr, Error>;
}

impl fmt::Display for dyn Computation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_text())
    }
}
