//! Nodes to a graph, and the graph with its executable.

use std::any::Any;
use std::panic::Location;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use stepmesh_core::compute::Executable;
use stepmesh_graph::{Graph, GraphBuilder, NodeId, Op, TensorType};

use crate::ir::{EmissionMap, EmitStatus, NodeKind, NodePtr, post_order};
use crate::{
    BackendDataPtr, BackendDevice, Computation, ComputationPtr, Error, LoweringContext, Shape,
};

/// A graph, and what executes it once it is compiled.
#[derive(Debug)]
pub(crate) struct GraphComputation {
    graph: Graph,
    name: Arc<str>,
    device: BackendDevice,
    aliases: Vec<(usize, usize)>,
    in_mark_step: bool,
    program: Option<Program>,
}

/// What executes a graph.
#[derive(Debug)]
pub(crate) enum Program {
    /// The backend.
    Compiled(Executable),
    /// The host.
    Interpreted,
}

/// The lowering context of every backend whose computations are graphs of [`stepmesh_graph`]: lowers
/// nodes into a [`GraphBuilder`]. What it builds has the whole graph, [`Computation::graph`], and
/// nothing that executes it; that is the backend's.
#[derive(Debug)]
pub struct GraphLowering {
    name: String,
    device: BackendDevice,
    builder: GraphBuilder,
    emission: EmissionMap,
    ids: FxHashMap<u32, NodeId>,
    /// Keeps the nodes, by whose identity the maps know them.
    order: Vec<NodePtr>,
    data: Vec<BackendDataPtr>,
    results: Vec<(NodeId, TensorType)>,
    parameters: Vec<TensorType>,
    aliases: Vec<(usize, usize)>,
    locations: FxHashMap<&'static Location<'static>, Arc<str>>,
    in_mark_step: bool,
}

impl GraphComputation {
    /// A graph that nothing was lowered for, to be compiled.
    pub(crate) fn of(graph: Graph, device: BackendDevice) -> ComputationPtr {
        Arc::new(Self {
            name: graph.name().into(),
            graph,
            device,
            aliases: Vec::new(),
            in_mark_step: false,
            program: None,
        })
    }

    pub(crate) fn compiled(&self, program: Program) -> Self {
        Self {
            graph: self.graph.clone(),
            name: Arc::clone(&self.name),
            device: self.device,
            aliases: self.aliases.clone(),
            in_mark_step: self.in_mark_step,
            program: Some(program),
        }
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(crate) fn device(&self) -> BackendDevice {
        self.device
    }

    pub(crate) fn program(&self) -> Option<&Program> {
        self.program.as_ref()
    }
}

impl Computation for GraphComputation {
    fn parameters_size(&self) -> usize {
        self.graph.params().len()
    }

    fn parameter_shapes(&self) -> Vec<Shape> {
        self.graph.param_types().map(Shape::new).collect()
    }

    fn parameter_names(&self) -> Vec<String> {
        (0..self.parameters_size())
            .map(|number| format!("p{number}"))
            .collect()
    }

    fn result_shapes(&self) -> Vec<Shape> {
        self.graph.result_types().map(Shape::new).collect()
    }

    fn aliases(&self) -> &[(usize, usize)] {
        &self.aliases
    }

    fn to_text(&self) -> String {
        self.graph.to_string()
    }

    fn in_mark_step(&self) -> bool {
        self.in_mark_step
    }

    fn graph(&self) -> &Graph {
        &self.graph
    }

    fn len_bytes(&self) -> usize {
        let constants = self.graph.nodes().iter().map(|node| match node.op() {
            Op::Constant { data, .. } => data.len(),
            _ => 0,
        });
        // The executable has the graph once more in a form of its own.
        2 * (constants.sum::<usize>() + self.graph.nodes().len() * NODE_LEN_BYTES)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl GraphLowering {
    /// A context for nodes in their order; none for one that starts empty.
    ///
    /// # Errors
    /// `Graph`; `Lowering` if a node comes before one of its operands.
    pub fn new(
        name: &str,
        device: BackendDevice,
        order: Vec<NodePtr>,
        emission: EmissionMap,
    ) -> Result<Self, Error> {
        let mut lowering = Self {
            name: name.to_owned(),
            device,
            builder: GraphBuilder::new(name),
            emission,
            ids: FxHashMap::default(),
            order: Vec::new(),
            data: Vec::new(),
            results: Vec::new(),
            parameters: Vec::new(),
            aliases: Vec::new(),
            locations: FxHashMap::default(),
            in_mark_step: false,
        };
        lowering.lower(order)?;
        Ok(lowering)
    }

    fn lower(&mut self, order: Vec<NodePtr>) -> Result<(), Error> {
        for node in order {
            let location = node.location();
            let text = self
                .locations
                .entry(location)
                .or_insert_with(|| format!("{}:{}", location.file(), location.line()).into());
            self.builder.set_location(Some(Arc::clone(text)));
            let id = match node.kind() {
                NodeKind::DeviceData(data) => {
                    self.data.push(Arc::clone(data));
                    self.parameters.push(node.ty());
                    self.builder.parameter(node.dtype(), node.shape())?
                }
                NodeKind::Op(op) => {
                    let operands: Result<Vec<NodeId>, Error> = node
                        .operands()
                        .iter()
                        .map(|operand| self.id(operand))
                        .collect();
                    self.builder.node(op.clone(), &operands?)?
                }
            };
            if let Some(place) = self.emission.place(&node) {
                self.ids.insert(place, id);
            }
            self.order.push(node);
        }
        Ok(())
    }

    fn id(&self, node: &NodePtr) -> Result<NodeId, Error> {
        let place = self.emission.place(node);
        let id = place.and_then(|place| self.ids.get(&place)).copied();
        id.ok_or_else(|| Error::lowering("lowering", format!("{node:?} is not in the order")))
    }
}

impl LoweringContext for GraphLowering {
    fn name(&self) -> &str {
        &self.name
    }

    fn device(&self) -> BackendDevice {
        self.device
    }

    fn add_result(&mut self, result: &NodePtr) -> Result<usize, Error> {
        let missing = post_order(std::slice::from_ref(result), &mut self.emission);
        self.lower(missing)?;
        self.results.push((self.id(result)?, result.ty()));
        Ok(self.results.len() - 1)
    }

    fn add_parameter(
        &mut self,
        output: &NodePtr,
        index: usize,
        shape: &Shape,
        name: &str,
    ) -> Result<(), Error> {
        let operation = "add_parameter";
        if index != self.parameters.len() || shape.ty() != output.ty() {
            let fault = format!(
                "`{name}` is {shape} and number {index}, wanted are {} and number {}",
                output.ty(),
                self.parameters.len()
            );
            return Err(Error::lowering(operation, fault));
        }
        if self.emission.status(output) != EmitStatus::NotEmitted {
            let fault = format!("`{name}` was lowered already");
            return Err(Error::lowering(operation, fault));
        }
        let id = self.builder.parameter(output.dtype(), output.shape())?;
        let place = u32::try_from(self.order.len()).unwrap_or(u32::MAX);
        self.emission.set(output, EmitStatus::Emitted(place));
        self.ids.insert(place, id);
        self.parameters.push(output.ty());
        self.order.push(Arc::clone(output));
        Ok(())
    }

    fn set_up_alias(&mut self, result: usize, parameter: usize) -> Result<(), Error> {
        let to = self.results.get(result).map(|(_, ty)| *ty);
        let from = self.parameters.get(parameter).copied();
        let is_free = |&(param, other): &(usize, usize)| param != parameter && other != result;
        if to.is_none() || to != from || !self.aliases.iter().all(is_free) {
            let fault = format!("parameter {parameter} ({from:?}), result {result} ({to:?})");
            return Err(Error::lowering("set_up_alias", fault));
        }
        self.aliases.push((parameter, result));
        Ok(())
    }

    fn check_result_shape(&self, data: &BackendDataPtr, result: usize) -> bool {
        let ty = self.results.get(result).map(|(_, ty)| *ty);
        ty == Some(data.ty())
    }

    fn get_parameters_data(&self) -> &[BackendDataPtr] {
        &self.data
    }

    fn set_in_mark_step(&mut self, in_mark_step: bool) {
        self.in_mark_step = in_mark_step;
    }

    fn get_emitted_node_count(&self) -> usize {
        self.order.len()
    }

    fn build(self: Box<Self>) -> Result<ComputationPtr, Error> {
        let mut builder = self.builder;
        for (parameter, result) in &self.aliases {
            let number = |index: usize| u32::try_from(index).unwrap_or(u32::MAX);
            builder.donate(number(*parameter), number(*result));
        }
        let results: Vec<NodeId> = self.results.iter().map(|(id, _)| *id).collect();
        Ok(Arc::new(GraphComputation {
            graph: builder.build(&results)?,
            name: self.name.into(),
            device: self.device,
            aliases: self.aliases,
            in_mark_step: self.in_mark_step,
            program: None,
        }))
    }
}

/// A node with its operands, attributes and place in a program, roughly.
const NODE_LEN_BYTES: usize = 256;
