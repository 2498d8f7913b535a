//! Walks a graph and computes each node by torch.

use std::sync::Arc;

use stepmesh_graph::reference;
use stepmesh_graph::{Graph, GraphBuilder, Node, Op, TensorType};
use stepmesh_lazy::Error;
use tch::{Device, Kind, TchError, Tensor};

use super::{arrange, pointwise, reduce, transfer};

/// One operation on values.
pub(super) struct Call<'a> {
    pub(super) op: &'a Op,
    /// Type and shape of the value.
    pub(super) ty: TensorType,
    pub(super) operands: &'a [&'a Tensor],
    /// Types and shapes of the operands.
    pub(super) types: &'a [TensorType],
    pub(super) device: Device,
}

/// Why there is no value.
#[derive(Debug)]
pub(super) enum Fault {
    /// Torch threw.
    Torch(Arc<TchError>),
    /// One of ours.
    Own(Error),
}

/// The results of a graph for arguments of its parameters' types.
pub(super) fn evaluate(
    graph: &Graph,
    arguments: &[Tensor],
    device: Device,
) -> Result<Vec<Tensor>, Error> {
    let mut values: Vec<Tensor> = Vec::with_capacity(graph.nodes().len());
    for node in graph.nodes() {
        let made = value(graph, node, &values, arguments, device);
        values.push(made.map_err(|fault| fault.of(node.kind().name()))?);
    }
    let results = graph.results().iter();
    Ok(results
        .map(|id| values[id.index()].shallow_clone())
        .collect())
}

fn value(
    graph: &Graph,
    node: &Node,
    values: &[Tensor],
    arguments: &[Tensor],
    device: Device,
) -> Result<Tensor, Fault> {
    match node.op() {
        Op::Parameter { number, .. } => return Ok(arguments[*number as usize].shallow_clone()),
        Op::Constant { ty, data } => return transfer::upload(*ty, data, device),
        _ => {}
    }
    let ids = node.operands().iter();
    let operands: Vec<&Tensor> = ids.clone().map(|id| &values[id.index()]).collect();
    let types: Vec<TensorType> = ids.map(|id| graph.node(*id).ty()).collect();
    let call = Call {
        op: node.op(),
        ty: node.ty(),
        operands: &operands,
        types: &types,
        device,
    };
    if let Some(value) = pointwise::apply(&call)? {
        return Ok(value);
    }
    if let Some(value) = reduce::apply(&call)? {
        return Ok(value);
    }
    if let Some(value) = arrange::apply(&call)? {
        return Ok(value);
    }
    call.on_host()
}

impl Call<'_> {
    /// An operand. There are as many as the operation has: the graph is valid.
    pub(super) fn operand(&self, number: usize) -> &Tensor {
        self.operands[number]
    }

    /// An operand in the type that floats are computed in: f32 at least. Integers stay.
    pub(super) fn wide(&self, number: usize) -> Result<Tensor, Fault> {
        let kind = transfer::kind(self.types[number].dtype());
        let wide = match kind {
            Kind::Half | Kind::BFloat16 => Kind::Float,
            other => other,
        };
        transfer::to(self.operand(number), wide)
    }

    /// A value in the type of the operation, rounded once.
    pub(super) fn narrow(&self, value: &Tensor) -> Result<Tensor, Fault> {
        transfer::to(value, transfer::kind(self.ty.dtype()))
    }

    /// The value by the reference, for what torch has not.
    pub(super) fn on_host(&self) -> Result<Tensor, Fault> {
        let mut graph = GraphBuilder::new("");
        let (mut ids, mut arguments) = (Vec::new(), Vec::new());
        for (operand, ty) in self.operands.iter().zip(self.types) {
            let bytes = transfer::download(*ty, operand)?;
            ids.push(graph.parameter(ty.dtype(), ty.shape())?);
            arguments.push(reference::Tensor::from_bytes(*ty, &bytes));
        }
        let node = graph.node(self.op.clone(), &ids)?;
        let results = reference::evaluate(&graph.build(&[node])?, &arguments)?;
        let bytes = results.first().map(reference::Tensor::to_bytes);
        transfer::upload(self.ty, &bytes.unwrap_or_default(), self.device)
    }
}

impl Fault {
    /// The error of an operation.
    pub(super) fn of(self, operation: &'static str) -> Error {
        match self {
            Self::Torch(source) => Error::Library { operation, source },
            Self::Own(error) => error,
        }
    }
}

impl From<TchError> for Fault {
    fn from(error: TchError) -> Self {
        Self::Torch(Arc::new(error))
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Own(error)
    }
}

impl From<stepmesh_graph::Error> for Fault {
    fn from(error: stepmesh_graph::Error) -> Self {
        Self::Own(error.into())
    }
}
