//! A sample, and the arguments of samples.

use crate::reference::{Tensor, evaluate};
use crate::{DType, Error, Graph, GraphBuilder, NodeId, Op, Shape, TensorType, philox};

/// A small graph and arguments for it.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Operation, types and what is special about it.
    pub name: String,
    /// The graph.
    pub graph: Graph,
    /// Bytes of the arguments by number.
    pub args: Vec<Vec<u8>>,
}

impl Sample {
    /// What the results are, with their bounds.
    ///
    /// # Errors
    /// `Graph` if the arguments are not of the parameters' types.
    pub fn expected(&self) -> Result<Vec<Tensor>, Error> {
        evaluate(&self.graph, &self.arguments())
    }

    /// The arguments, as the interpreter takes them.
    #[must_use]
    pub fn arguments(&self) -> Vec<Tensor> {
        let args = self.graph.param_types().zip(&self.args);
        args.map(|(ty, bytes)| Tensor::from_bytes(ty, bytes))
            .collect()
    }
}

/// Builds a sample: parameters with their bytes, then nodes.
pub(super) struct Builder {
    name: String,
    graph: GraphBuilder,
    args: Vec<Vec<u8>>,
}

impl Builder {
    pub(super) fn new(name: impl Into<String>) -> Self {
        let name = name.into();
        Self {
            graph: GraphBuilder::new(name.clone()),
            args: Vec::new(),
            name,
        }
    }

    /// A parameter with everyday numbers.
    pub(super) fn plain(&mut self, dtype: DType, dims: &[usize]) -> Result<NodeId, Error> {
        let ty = typed(dtype, dims)?;
        let bytes = plain(ty, self.args.len() as u64);
        self.param(ty, bytes)
    }

    /// A parameter with these numbers.
    pub(super) fn numbers(
        &mut self,
        dtype: DType,
        dims: &[usize],
        numbers: &[f64],
    ) -> Result<NodeId, Error> {
        let ty = typed(dtype, dims)?;
        self.param(ty, Tensor::from_f64(ty, numbers).to_bytes())
    }

    pub(super) fn param(&mut self, ty: TensorType, bytes: Vec<u8>) -> Result<NodeId, Error> {
        self.args.push(bytes);
        self.graph.parameter(ty.dtype(), ty.shape())
    }

    pub(super) fn node(&mut self, op: Op, operands: &[NodeId]) -> Result<NodeId, Error> {
        self.graph.node(op, operands)
    }

    pub(super) fn build(self, result: NodeId) -> Result<Sample, Error> {
        Ok(Sample {
            name: self.name,
            graph: self.graph.build(&[result])?,
            args: self.args,
        })
    }
}

pub(super) fn typed(dtype: DType, dims: &[usize]) -> Result<TensorType, Error> {
    TensorType::new(dtype, Shape::new(dims)?)
}

/// Everyday numbers: floats in [-3, 3), small integers, both bools.
pub(super) fn plain(ty: TensorType, seed: u64) -> Vec<u8> {
    let number = |idx: usize| {
        let [word, ..] = philox::block(seed.wrapping_add(1), idx as u64);
        let unit = f64::from(philox::uniform(word, 24));
        match ty.dtype() {
            DType::Bool => f64::from(word >> 31),
            DType::U8 => (unit * 9.0).floor(),
            dtype if dtype.is_integer() => (unit * 11.0).floor() - 5.0,
            _ => unit * 6.0 - 3.0,
        }
    };
    let numbers: Vec<f64> = (0..ty.shape().element_count()).map(number).collect();
    Tensor::from_f64(ty, &numbers).to_bytes()
}

/// Elements at which arithmetic is strange, as bytes.
pub(super) fn special(dtype: DType) -> Vec<Vec<u8>> {
    if dtype.is_integer() || dtype == DType::Bool {
        let size = dtype.size_bytes();
        let [low, high] = match dtype {
            DType::I32 => [i32::MIN.into(), i32::MAX.into()],
            DType::I64 => [i64::MIN, i64::MAX],
            DType::U8 => [0, 255],
            _ => [0, 1],
        };
        let all = [
            0,
            1,
            -1,
            2,
            -2,
            3,
            7,
            30,
            65,
            low,
            low.wrapping_add(1),
            high,
        ];
        let in_range = all.into_iter().filter(|int| *int >= low && *int <= high);
        return in_range
            .map(|int| int.to_le_bytes()[..size].to_vec())
            .collect();
    }
    let max = crate::reference::greatest(dtype);
    let numbers = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -2.5,
        3.0,
        1e-3,
        -7.0,
        20.0,
        -20.0,
        87.0,
        200.0,
        -200.0,
        max,
        -max,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
    ];
    // What is too large for a small float has become an infinity, as a cast would make it.
    let ty = TensorType::new(dtype, Shape::SCALAR);
    let bytes = |number: f64| {
        ty.as_ref()
            .map_or(Vec::new(), |ty| Tensor::from_f64(*ty, &[number]).to_bytes())
    };
    numbers.map(bytes).to_vec()
}
