//! Nodes: operations on values of other nodes, and leaves that hold data.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use stepmesh_graph::{DType, Op, Shape, TensorType};

use crate::backend::BackendDataPtr;

/// A shared node. A node has one value, so that it stands for its value, too.
pub type NodePtr = Arc<Node>;

/// An operation that was traced, or a leaf. Immutable once made, so that graphs have no cycles.
pub struct Node {
    kind: NodeKind,
    operands: Operands,
    ty: TensorType,
    location: &'static Location<'static>,
    live: LiveNodes,
}

/// What a node is.
#[derive(Clone, Debug)]
pub enum NodeKind {
    /// A value that is there or on its way: a parameter of each graph that uses it.
    DeviceData(BackendDataPtr),
    /// An operation.
    Op(Op),
}

/// The operands of a node. Few operations have more than three, which need no memory of their own.
#[derive(Clone, Debug, Default)]
pub enum Operands {
    /// None.
    #[default]
    None,
    /// One.
    One([NodePtr; 1]),
    /// Two.
    Two([NodePtr; 2]),
    /// Three.
    Three([NodePtr; 3]),
    /// More.
    Many(Vec<NodePtr>),
}

/// How many operations of a device are traced. One counts from its making to its drop.
#[derive(Clone, Debug, Default)]
pub(crate) struct LiveNodes(Arc<AtomicUsize>);

impl Node {
    pub(crate) fn new(
        kind: NodeKind,
        operands: Operands,
        ty: TensorType,
        location: &'static Location<'static>,
        live: &LiveNodes,
    ) -> NodePtr {
        if matches!(kind, NodeKind::Op(_)) {
            live.0.fetch_add(1, Ordering::Relaxed);
        }
        Arc::new(Self {
            kind,
            operands,
            ty,
            location,
            live: live.clone(),
        })
    }

    /// What it is.
    #[must_use]
    pub fn kind(&self) -> &NodeKind {
        &self.kind
    }

    /// The operation; `None` for a leaf.
    #[must_use]
    pub fn op(&self) -> Option<&Op> {
        match &self.kind {
            NodeKind::Op(op) => Some(op),
            NodeKind::DeviceData(_) => None,
        }
    }

    /// The data of a leaf; `None` for an operation.
    #[must_use]
    pub fn device_data(&self) -> Option<&BackendDataPtr> {
        match &self.kind {
            NodeKind::DeviceData(data) => Some(data),
            NodeKind::Op(_) => None,
        }
    }

    /// The operands.
    #[must_use]
    pub fn operands(&self) -> &[NodePtr] {
        self.operands.as_slice()
    }

    /// Type and shape of the value.
    #[must_use]
    pub fn ty(&self) -> TensorType {
        self.ty
    }

    /// Type of the value's elements.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.ty.dtype()
    }

    /// Shape of the value.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.ty.shape()
    }

    /// Where in the user's program it was traced.
    #[must_use]
    pub fn location(&self) -> &'static Location<'static> {
        self.location
    }

    /// Name of the operation, `device_data` for a leaf.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.op().map_or("device_data", |op| op.kind().name())
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the operands' operands: graphs are deep.
        write!(f, "{}: {} at {}", self.name(), self.ty, self.location)
    }
}

impl Drop for Node {
    /// Chains are as long as programs: they are taken apart one by one, not by recursion.
    fn drop(&mut self) {
        if matches!(self.kind, NodeKind::Op(_)) {
            self.live.0.fetch_sub(1, Ordering::Relaxed);
        }
        let mut left = Vec::new();
        self.operands.take_into(&mut left);
        while let Some(node) = left.pop() {
            if let Some(mut last) = Arc::into_inner(node) {
                last.operands.take_into(&mut left);
            }
        }
    }
}

impl Operands {
    /// The operands of a slice.
    #[must_use]
    pub fn from_slice(operands: &[NodePtr]) -> Self {
        match operands {
            [] => Self::None,
            [a] => Self::One([Arc::clone(a)]),
            [a, b] => Self::Two([Arc::clone(a), Arc::clone(b)]),
            [a, b, c] => Self::Three([Arc::clone(a), Arc::clone(b), Arc::clone(c)]),
            more => Self::Many(more.to_vec()),
        }
    }

    /// As a slice.
    #[must_use]
    pub fn as_slice(&self) -> &[NodePtr] {
        match self {
            Self::None => &[],
            Self::One(one) => one,
            Self::Two(two) => two,
            Self::Three(three) => three,
            Self::Many(many) => many,
        }
    }

    fn take_into(&mut self, out: &mut Vec<NodePtr>) {
        match std::mem::take(self) {
            Self::None => {}
            Self::One(one) => out.extend(one),
            Self::Two(two) => out.extend(two),
            Self::Three(three) => out.extend(three),
            Self::Many(many) => out.extend(many),
        }
    }
}

impl LiveNodes {
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}
