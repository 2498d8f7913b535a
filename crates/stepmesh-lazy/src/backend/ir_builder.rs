//! What makes nodes.

use std::panic::Location;
use std::sync::Arc;

use stepmesh_graph::{DType, Op, TensorType, infer};

use crate::ir::{LiveNodes, Node, NodeKind, NodePtr, Operands};
use crate::{BackendDataPtr, Error};

/// Where nodes come from: a place in the user's program, and the device that counts them.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    location: &'static Location<'static>,
    live: &'a LiveNodes,
}

/// Makes nodes. The methods have bodies that suit every backend over [`stepmesh_graph`]'s
/// operations; one that has leaves of its own overrides them.
pub trait IrBuilder: std::fmt::Debug + Send + Sync {
    /// A leaf that holds data.
    fn make_device_data(&self, origin: Origin<'_>, data: &BackendDataPtr) -> NodePtr {
        let kind = NodeKind::DeviceData(Arc::clone(data));
        Node::new(
            kind,
            Operands::None,
            data.ty(),
            origin.location,
            origin.live,
        )
    }

    /// A number that is part of the graph.
    ///
    /// # Errors
    /// None for nodes of this crate.
    fn make_scalar(
        &self,
        origin: Origin<'_>,
        scalar: crate::Scalar,
        dtype: DType,
    ) -> Result<NodePtr, Error> {
        let op = Op::Constant {
            ty: TensorType::new(dtype, stepmesh_graph::Shape::SCALAR)?,
            data: scalar.to_element(dtype).as_slice().into(),
        };
        self.make_generic(origin, op, &[])
    }

    /// The node repeated to a shape.
    ///
    /// # Errors
    /// `Operation` if it does not repeat to that.
    fn make_expand(
        &self,
        origin: Origin<'_>,
        input: &NodePtr,
        shape: stepmesh_graph::Shape,
    ) -> Result<NodePtr, Error> {
        if input.shape() == shape {
            return Ok(Arc::clone(input));
        }
        let (from, to) = (input.shape().rank(), shape.rank());
        if from > to {
            let fault = format!("{} cannot repeat to {shape}", input.shape());
            return Err(origin.fault("broadcast", fault));
        }
        let dims = crate::broadcast::aligned_dims(from, to);
        let input = std::slice::from_ref(input);
        self.make_generic(origin, Op::Broadcast { shape, dims }, input)
    }

    /// The node in another type.
    ///
    /// # Errors
    /// None for nodes of this crate.
    fn make_cast(
        &self,
        origin: Origin<'_>,
        input: &NodePtr,
        dtype: DType,
    ) -> Result<NodePtr, Error> {
        if input.dtype() == dtype {
            return Ok(Arc::clone(input));
        }
        self.make_generic(origin, Op::Cast { dtype }, std::slice::from_ref(input))
    }

    /// A list of tensors, as operations like `concat` take it.
    fn make_tensor_list(&self, inputs: &[NodePtr]) -> Operands {
        Operands::from_slice(inputs)
    }

    /// An operation.
    ///
    /// # Errors
    /// `Operation` if it does not fit its operands.
    fn make_generic(
        &self,
        origin: Origin<'_>,
        op: Op,
        operands: &[NodePtr],
    ) -> Result<NodePtr, Error> {
        let ty = match operands {
            [] => infer(&op, &[]),
            [a] => infer(&op, &[a.ty()]),
            [a, b] => infer(&op, &[a.ty(), b.ty()]),
            more => infer(&op, &more.iter().map(|node| node.ty()).collect::<Vec<_>>()),
        };
        let ty = ty.map_err(|error| {
            let text = error.to_string();
            let name = op.kind().name();
            // The fault names the operation already.
            let fault = text
                .strip_prefix(name)
                .map_or(&*text, |rest| rest.strip_prefix(": ").unwrap_or(rest));
            origin.fault(name, fault.to_owned())
        })?;
        let operands = Operands::from_slice(operands);
        Ok(Node::new(
            NodeKind::Op(op),
            operands,
            ty,
            origin.location,
            origin.live,
        ))
    }

    /// The size of a dimension, as a number of the graph: sizes are known when tracing.
    ///
    /// # Errors
    /// `Operation` if there is no such dimension.
    fn make_size_node(
        &self,
        origin: Origin<'_>,
        input: &NodePtr,
        dim: usize,
    ) -> Result<NodePtr, Error> {
        let shape = input.shape();
        let Some(size) = shape.dims().get(dim) else {
            return Err(origin.fault("size", format!("{shape} has no dimension {dim}")));
        };
        let size = i64::try_from(*size).unwrap_or(i64::MAX);
        self.make_scalar(origin, crate::Scalar::Int(size), DType::I64)
    }

    /// The sum of two sizes.
    ///
    /// # Errors
    /// `Operation` if one is not a size.
    fn make_size_add(
        &self,
        origin: Origin<'_>,
        a: &NodePtr,
        b: &NodePtr,
    ) -> Result<NodePtr, Error> {
        self.make_generic(origin, Op::Add, &[Arc::clone(a), Arc::clone(b)])
    }

    /// The product of two sizes.
    ///
    /// # Errors
    /// `Operation` if one is not a size.
    fn make_size_mul(
        &self,
        origin: Origin<'_>,
        a: &NodePtr,
        b: &NodePtr,
    ) -> Result<NodePtr, Error> {
        self.make_generic(origin, Op::Mul, &[Arc::clone(a), Arc::clone(b)])
    }

    /// The quotient of two sizes.
    ///
    /// # Errors
    /// `Operation` if one is not a size.
    fn make_size_div(
        &self,
        origin: Origin<'_>,
        a: &NodePtr,
        b: &NodePtr,
    ) -> Result<NodePtr, Error> {
        self.make_generic(origin, Op::Div, &[Arc::clone(a), Arc::clone(b)])
    }
}

impl<'a> Origin<'a> {
    pub(crate) fn new(location: &'static Location<'static>, live: &'a LiveNodes) -> Self {
        Self { location, live }
    }

    /// Where in the user's program.
    #[must_use]
    pub fn location(&self) -> &'static Location<'static> {
        self.location
    }

    pub(crate) fn fault(&self, op: &'static str, fault: impl Into<String>) -> Error {
        Error::Operation {
            op,
            location: self.location,
            fault: fault.into(),
        }
    }
}
