//! Graphs as the ABI carries them, numbers and attributes by key, owned and not checked: between the
//! pointers of `SmGraph` and a [`Graph`] that can be relied on.

use std::sync::Arc;

use stepmesh_abi::compute::{
    SM_ATTR_DATA, SM_ATTR_DIM, SM_ATTR_DIMS, SM_ATTR_DIRECTION, SM_ATTR_EPSILON, SM_ATTR_LIMITS,
    SM_ATTR_STARTS, SM_ATTR_STRIDES, SM_ATTR_TRANSPOSE_A, SM_ATTR_TRANSPOSE_B,
};

use crate::graph::{Graph, NodeId, Parts};
use crate::{Alias, CompareDirection, DType, Error, F64, Op, OpKind, Shape, TensorType};

/// A graph that nobody has checked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawGraph {
    /// For messages and dumps.
    pub name: String,
    /// The nodes.
    pub nodes: Vec<RawNode>,
    /// Indices of the parameters' nodes by their number.
    pub params: Vec<u32>,
    /// Node and output of each result.
    pub results: Vec<RawValue>,
    /// The donations.
    pub aliases: Vec<Alias>,
}

/// A node that nobody has checked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawNode {
    /// `SM_OP_*`.
    pub op: u32,
    /// `SM_DTYPE_*` of the value.
    pub dtype: u32,
    /// Extents of the value.
    pub dims: Vec<u64>,
    /// The operands.
    pub operands: Vec<RawValue>,
    /// Attributes by `SM_ATTR_*`.
    pub attributes: Vec<(u32, Attribute)>,
    /// Where in the user's program it comes from.
    pub location: Option<Arc<str>>,
}

/// A reference to a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawValue {
    /// Index of the node.
    pub node: u32,
    /// Which output of it.
    pub output: u32,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum Attribute {
    /// `SM_ATTR_KIND_INT`.
    Int(i64),
    /// `SM_ATTR_KIND_FLOAT`.
    Float(f64),
    /// `SM_ATTR_KIND_INTS`.
    Ints(Vec<i64>),
    /// `SM_ATTR_KIND_BYTES`.
    Bytes(Arc<[u8]>),
}

impl Graph {
    /// The graph as the ABI carries it.
    #[must_use]
    pub fn to_raw(&self) -> RawGraph {
        let value = |id: &NodeId| RawValue {
            node: id.0,
            output: 0,
        };
        let node = |node: &crate::Node| RawNode {
            op: node.kind().number(),
            dtype: node.dtype().number(),
            dims: node.shape().dims().iter().map(|dim| *dim as u64).collect(),
            operands: node.operands().iter().map(value).collect(),
            attributes: attributes(node.op()),
            location: node.location.clone(),
        };
        RawGraph {
            name: self.name().to_owned(),
            nodes: self.nodes().iter().map(node).collect(),
            params: self.params().iter().map(|id| id.0).collect(),
            results: self.results().iter().map(value).collect(),
            aliases: self.aliases().to_vec(),
        }
    }

    /// Checks a graph that nobody need trust: every number, index, attribute, type and shape.
    ///
    /// # Errors
    /// `UnknownOp`, `UnknownDType` and `UnknownAttribute` for what a later version may know; else
    /// `Node` or `Graph`.
    pub fn from_raw(raw: RawGraph) -> Result<Self, Error> {
        let mut numbers = vec![None; raw.nodes.len()];
        for (number, node) in (0_u32..).zip(&raw.params) {
            match numbers.get_mut(NodeId(*node).index()) {
                Some(slot @ None) => *slot = Some(number),
                _ => {
                    return Err(Error::Graph {
                        name: raw.name,
                        fault: format!("parameter {number} is node {node}: no node, or twice"),
                    });
                }
            }
        }
        let mut wanted = Vec::with_capacity(raw.nodes.len());
        let mut parts = Parts {
            name: raw.name,
            aliases: raw.aliases,
            ..Parts::default()
        };
        for (idx, (node, number)) in raw.nodes.into_iter().zip(numbers).enumerate() {
            let location = node.location.clone();
            match from_raw_node(node, number) {
                Ok((op, operands, ty)) => {
                    wanted.push(ty);
                    parts.nodes.push((op, operands, location));
                }
                Err(error) => return Err(at_node(error, idx, location.as_deref())),
            }
        }
        for value in &raw.results {
            parts.results.push(first_output(*value)?);
        }
        let graph = Self::from_parts(parts)?;
        for (idx, (node, wanted)) in graph.nodes().iter().zip(wanted).enumerate() {
            if node.ty() != wanted {
                let fault = format!(
                    "says it is {wanted}, but {} gives {}",
                    node.kind(),
                    node.ty()
                );
                return Err(at_node(Error::shape(fault), idx, node.location()));
            }
        }
        Ok(graph)
    }
}

fn at_node(error: Error, node: usize, location: Option<&str>) -> Error {
    match error {
        Error::Shape { .. } | Error::Operation { .. } => Error::Node {
            node,
            location: location.map(ToOwned::to_owned),
            fault: error.to_string(),
        },
        other => other,
    }
}

fn first_output(value: RawValue) -> Result<NodeId, Error> {
    match value.output {
        0 => Ok(NodeId(value.node)),
        output => Err(Error::shape(format!(
            "output {output} of node {}, which has one",
            value.node
        ))),
    }
}

fn from_raw_node(
    node: RawNode,
    number: Option<u32>,
) -> Result<(Op, Vec<NodeId>, TensorType), Error> {
    let kind = OpKind::from_number(node.op).ok_or(Error::UnknownOp { number: node.op })?;
    let dtype = DType::from_number(node.dtype).ok_or(Error::UnknownDType { number: node.dtype })?;
    let dims: Result<Vec<usize>, _> = node.dims.iter().map(|dim| usize::try_from(*dim)).collect();
    let dims = dims.map_err(|_| Error::shape(format!("{:?} are too many elements", node.dims)))?;
    let ty = TensorType::new(dtype, Shape::new(&dims)?)?;
    if number.is_some() != (kind == OpKind::Parameter) {
        return Err(Error::shape(format!(
            "{kind} is {}in the list of parameters",
            if number.is_some() { "" } else { "not " }
        )));
    }
    let operands: Result<Vec<NodeId>, Error> =
        node.operands.into_iter().map(first_output).collect();
    let mut attributes = Attributes {
        kind,
        left: node.attributes,
    };
    let op = op_of(kind, ty, number.unwrap_or(0), &mut attributes)?;
    attributes.end()?;
    Ok((op, operands?, ty))
}

#[expect(clippy::too_many_lines, reason = "a line for each operation")]
fn op_of(
    kind: OpKind,
    ty: TensorType,
    number: u32,
    attributes: &mut Attributes,
) -> Result<Op, Error> {
    Ok(match kind {
        OpKind::Parameter => Op::Parameter { number, ty },
        OpKind::Constant => Op::Constant {
            ty,
            data: attributes.bytes(SM_ATTR_DATA)?,
        },
        OpKind::Cast => Op::Cast { dtype: ty.dtype() },
        OpKind::Add => Op::Add,
        OpKind::Sub => Op::Sub,
        OpKind::Mul => Op::Mul,
        OpKind::Div => Op::Div,
        OpKind::Pow => Op::Pow,
        OpKind::Max => Op::Max,
        OpKind::Min => Op::Min,
        OpKind::Neg => Op::Neg,
        OpKind::Exp => Op::Exp,
        OpKind::Log => Op::Log,
        OpKind::Sqrt => Op::Sqrt,
        OpKind::Rsqrt => Op::Rsqrt,
        OpKind::Tanh => Op::Tanh,
        OpKind::Sigmoid => Op::Sigmoid,
        OpKind::Relu => Op::Relu,
        OpKind::Silu => Op::Silu,
        OpKind::GeluErf => Op::GeluErf,
        OpKind::GeluTanh => Op::GeluTanh,
        OpKind::Compare => Op::Compare(attributes.direction()?),
        OpKind::Select => Op::Select,
        OpKind::Clamp => Op::Clamp,
        OpKind::Sum => Op::Sum {
            dims: attributes.dims(SM_ATTR_DIMS)?,
        },
        OpKind::Mean => Op::Mean {
            dims: attributes.dims(SM_ATTR_DIMS)?,
        },
        OpKind::ReduceMax => Op::ReduceMax {
            dims: attributes.dims(SM_ATTR_DIMS)?,
        },
        OpKind::Argmax => Op::Argmax {
            dim: attributes.dim()?,
        },
        OpKind::Matmul => Op::Matmul {
            transpose_a: attributes.flag(SM_ATTR_TRANSPOSE_A)?,
            transpose_b: attributes.flag(SM_ATTR_TRANSPOSE_B)?,
        },
        OpKind::Softmax => Op::Softmax {
            dim: attributes.dim()?,
        },
        OpKind::LayerNorm => Op::LayerNorm {
            dim: attributes.dim()?,
            epsilon: attributes.epsilon()?,
        },
        OpKind::RmsNorm => Op::RmsNorm {
            dim: attributes.dim()?,
            epsilon: attributes.epsilon()?,
        },
        OpKind::Reshape => Op::Reshape { shape: ty.shape() },
        OpKind::Transpose => Op::Transpose {
            dims: attributes.dims(SM_ATTR_DIMS)?,
        },
        OpKind::Broadcast => Op::Broadcast {
            shape: ty.shape(),
            dims: attributes.dims(SM_ATTR_DIMS)?,
        },
        OpKind::Slice => Op::Slice {
            starts: attributes.dims(SM_ATTR_STARTS)?,
            limits: attributes.dims(SM_ATTR_LIMITS)?,
            strides: attributes.dims(SM_ATTR_STRIDES)?,
        },
        OpKind::Concat => Op::Concat {
            dim: attributes.dim()?,
        },
        OpKind::Gather => Op::Gather {
            dim: attributes.dim()?,
        },
        OpKind::IndexAdd => Op::IndexAdd {
            dim: attributes.dim()?,
        },
        OpKind::RngUniform => Op::RngUniform { ty },
        OpKind::RngNormal => Op::RngNormal { ty },
    })
}

fn attributes(op: &Op) -> Vec<(u32, Attribute)> {
    match op {
        Op::Constant { data, .. } => vec![(SM_ATTR_DATA, Attribute::Bytes(Arc::clone(data)))],
        Op::Compare(direction) => {
            let number = i64::from(direction.number());
            vec![(SM_ATTR_DIRECTION, Attribute::Int(number))]
        }
        Op::Sum { dims }
        | Op::Mean { dims }
        | Op::ReduceMax { dims }
        | Op::Transpose { dims }
        | Op::Broadcast { dims, .. } => vec![(SM_ATTR_DIMS, ints(dims))],
        Op::Argmax { dim }
        | Op::Softmax { dim }
        | Op::Concat { dim }
        | Op::Gather { dim }
        | Op::IndexAdd { dim } => vec![(SM_ATTR_DIM, int(*dim))],
        Op::LayerNorm { dim, epsilon } | Op::RmsNorm { dim, epsilon } => vec![
            (SM_ATTR_DIM, int(*dim)),
            (SM_ATTR_EPSILON, Attribute::Float(epsilon.value())),
        ],
        Op::Matmul {
            transpose_a,
            transpose_b,
        } => vec![
            (SM_ATTR_TRANSPOSE_A, Attribute::Int((*transpose_a).into())),
            (SM_ATTR_TRANSPOSE_B, Attribute::Int((*transpose_b).into())),
        ],
        Op::Slice {
            starts,
            limits,
            strides,
        } => vec![
            (SM_ATTR_STARTS, ints(starts)),
            (SM_ATTR_LIMITS, ints(limits)),
            (SM_ATTR_STRIDES, ints(strides)),
        ],
        // The others have none, or what they have is the type of the value.
        _ => Vec::new(),
    }
}

fn int(of: usize) -> Attribute {
    // Dimensions and indices of valid shapes fit in an isize.
    Attribute::Int(i64::try_from(of).unwrap_or(i64::MAX))
}

fn ints(of: &[usize]) -> Attribute {
    let number = |of: &usize| i64::try_from(*of).unwrap_or(i64::MAX);
    Attribute::Ints(of.iter().map(number).collect())
}

/// The attributes of a node that were not asked for yet.
struct Attributes {
    kind: OpKind,
    left: Vec<(u32, Attribute)>,
}

impl Attributes {
    fn take(&mut self, key: u32) -> Option<Attribute> {
        let at = self.left.iter().position(|(has, _)| *has == key)?;
        Some(self.left.swap_remove(at).1)
    }

    fn fault(&self, fault: String) -> Error {
        Error::Operation {
            op: self.kind.name(),
            fault,
        }
    }

    fn wrong(&self, key: u32, found: Option<&Attribute>) -> Error {
        match found {
            Some(found) => self.fault(format!("attribute {key} is {found:?}")),
            None => self.fault(format!("attribute {key} is missing")),
        }
    }

    fn bytes(&mut self, key: u32) -> Result<Arc<[u8]>, Error> {
        match self.take(key) {
            Some(Attribute::Bytes(bytes)) => Ok(bytes),
            other => Err(self.wrong(key, other.as_ref())),
        }
    }

    fn dims(&mut self, key: u32) -> Result<Vec<usize>, Error> {
        let found = self.take(key);
        let list: Option<Vec<usize>> = match &found {
            Some(Attribute::Ints(ints)) if ints.len() <= crate::RANK_MAX => {
                ints.iter().map(|int| usize::try_from(*int).ok()).collect()
            }
            _ => None,
        };
        list.ok_or_else(|| self.wrong(key, found.as_ref()))
    }

    fn dim(&mut self) -> Result<usize, Error> {
        let found = self.take(SM_ATTR_DIM);
        let dim = match &found {
            Some(Attribute::Int(int)) => usize::try_from(*int).ok(),
            _ => None,
        };
        dim.ok_or_else(|| self.wrong(SM_ATTR_DIM, found.as_ref()))
    }

    fn flag(&mut self, key: u32) -> Result<bool, Error> {
        match self.take(key) {
            None | Some(Attribute::Int(0)) => Ok(false),
            Some(Attribute::Int(1)) => Ok(true),
            other => Err(self.wrong(key, other.as_ref())),
        }
    }

    fn epsilon(&mut self) -> Result<F64, Error> {
        match self.take(SM_ATTR_EPSILON) {
            Some(Attribute::Float(value)) => Ok(F64::new(value)),
            other => Err(self.wrong(SM_ATTR_EPSILON, other.as_ref())),
        }
    }

    fn direction(&mut self) -> Result<CompareDirection, Error> {
        let found = self.take(SM_ATTR_DIRECTION);
        let direction = match &found {
            Some(Attribute::Int(int)) => u32::try_from(*int)
                .ok()
                .and_then(CompareDirection::from_number),
            _ => None,
        };
        direction.ok_or_else(|| self.wrong(SM_ATTR_DIRECTION, found.as_ref()))
    }

    /// What nobody asked for: an attribute that came twice, or one of a later version.
    fn end(self) -> Result<(), Error> {
        match self.left.first() {
            None => Ok(()),
            Some((key, _)) => Err(Error::UnknownAttribute {
                op: self.kind.name(),
                key: *key,
            }),
        }
    }
}
