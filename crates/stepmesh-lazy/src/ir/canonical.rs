//! The canonical form of a graph, by which compiled graphs are found again.
//!
//! Nodes are numbered by their place in the post order, leaves by their first use, and only what a
//! compiler sees is written: operations, attributes, operands by number, types of leaves, results.
//! Which data a leaf holds is not. Two graphs have the same form if and only if the same executable
//! computes both; the cache compares whole forms, so that no hash can confuse two.

use stepmesh_graph::{DType, Op, TensorType};

use super::{EmissionMap, NodeKind, NodePtr};

/// A graph without its data.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct Canonical(Box<[u64]>);

impl Canonical {
    pub(crate) fn len_bytes(&self) -> usize {
        size_of_val(&*self.0)
    }
}

/// The form of an order of nodes, with these roots as results.
pub(crate) fn canonical(
    order: &[NodePtr],
    emission: &EmissionMap,
    results: &[NodePtr],
) -> Canonical {
    let mut words = Words(Vec::with_capacity(order.len() * WORDS_PER_NODE));
    for node in order {
        match node.kind() {
            NodeKind::DeviceData(_) => {
                words.0.push(LEAF);
                words.ty(node.ty());
            }
            NodeKind::Op(op) => {
                let operands = node.operands();
                let count = operands.len() as u64;
                words.0.push(u64::from(op.kind().number()) << 32 | count);
                words.places(operands, emission);
                words.attributes(op);
            }
        }
    }
    words.0.push(RESULTS);
    words.places(results, emission);
    Canonical(words.0.into_boxed_slice())
}

/// Each entry starts with what says how long it is, so that no two graphs give the same words.
struct Words(Vec<u64>);

impl Words {
    fn places(&mut self, nodes: &[NodePtr], emission: &EmissionMap) {
        let places = nodes.iter().map(|node| emission.place(node));
        // The order has all nodes that these need.
        self.0
            .extend(places.map(|place| place.map_or(u64::MAX, u64::from)));
    }

    fn ty(&mut self, ty: TensorType) {
        let shape = ty.shape();
        self.dtype(ty.dtype(), shape.rank());
        self.0.extend(shape.dims().iter().map(|dim| *dim as u64));
    }

    fn dtype(&mut self, dtype: DType, rank: usize) {
        self.0.push(u64::from(dtype.number()) << 32 | rank as u64);
    }

    fn list(&mut self, numbers: &[usize]) {
        self.0.push(numbers.len() as u64);
        self.0.extend(numbers.iter().map(|number| *number as u64));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.0.push(bytes.len() as u64);
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0.push(u64::from_le_bytes(word));
        }
    }

    fn attributes(&mut self, op: &Op) {
        match op {
            Op::Parameter { number, ty } => {
                self.0.push(u64::from(*number));
                self.ty(*ty);
            }
            Op::Constant { ty, data } => {
                self.ty(*ty);
                self.bytes(data);
            }
            Op::Cast { dtype } => self.dtype(*dtype, 0),
            Op::Compare(direction) => self.0.push(u64::from(direction.number())),
            Op::Sum { dims }
            | Op::Mean { dims }
            | Op::ReduceMax { dims }
            | Op::Transpose { dims } => self.list(dims),
            Op::Argmax { dim }
            | Op::Softmax { dim }
            | Op::Concat { dim }
            | Op::Gather { dim }
            | Op::IndexAdd { dim } => self.0.push(*dim as u64),
            Op::Matmul {
                transpose_a,
                transpose_b,
            } => self
                .0
                .push(u64::from(*transpose_a) << 1 | u64::from(*transpose_b)),
            Op::LayerNorm { dim, epsilon } | Op::RmsNorm { dim, epsilon } => {
                self.0.push(*dim as u64);
                self.0.push(epsilon.value().to_bits());
            }
            Op::Reshape { shape } => self.list(shape.dims()),
            Op::Broadcast { shape, dims } => {
                self.list(shape.dims());
                self.list(dims);
            }
            Op::Slice {
                starts,
                limits,
                strides,
            } => [starts, limits, strides]
                .into_iter()
                .for_each(|list| self.list(list)),
            Op::RngUniform { ty } | Op::RngNormal { ty } => self.ty(*ty),
            Op::Add
            | Op::Sub
            | Op::Mul
            | Op::Div
            | Op::Pow
            | Op::Max
            | Op::Min
            | Op::Neg
            | Op::Exp
            | Op::Log
            | Op::Sqrt
            | Op::Rsqrt
            | Op::Tanh
            | Op::Sigmoid
            | Op::Relu
            | Op::Silu
            | Op::GeluErf
            | Op::GeluTanh
            | Op::Select
            | Op::Clamp => {}
        }
    }
}

/// Stands where a node has its operation; no operation has this number.
const LEAF: u64 = u64::MAX;
/// Stands before the results.
const RESULTS: u64 = u64::MAX - 1;
/// Words of a binary operation, and a spare one.
const WORDS_PER_NODE: usize = 4;
