//! Sums and the like, softmax, and normalisation.

use stepmesh_graph::{CompareDirection, DType, NodeId, Op, TensorType};

use super::super::error::LoweringError;
use super::{Call, Translation, Value, one};

type Translated = Result<Vec<Value>, LoweringError>;

pub(super) const TABLE: &[(&str, Translation)] = &[
    ("aten::sum", |call| all(call, Kind::Sum)),
    ("aten::sum.dim_IntList", |call| over(call, Kind::Sum)),
    ("aten::mean", |call| all(call, Kind::Mean)),
    ("aten::mean.dim", |call| over(call, Kind::Mean)),
    ("aten::max", |call| all(call, Kind::Max)),
    ("aten::min", |call| all(call, Kind::Min)),
    ("aten::max.dim", greatest_and_index),
    ("aten::any", |call| truth(call, true)),
    ("aten::all", |call| truth(call, false)),
    ("aten::_softmax", softmax),
    ("aten::_log_softmax", log_softmax),
    ("aten::_softmax_backward_data", softmax_backward),
    ("aten::_log_softmax_backward_data", log_softmax_backward),
    ("aten::native_layer_norm", layer_norm),
];

#[derive(Clone, Copy)]
enum Kind {
    Sum,
    Mean,
    Max,
    Min,
}

/// Over every dimension.
fn all(call: &mut Call<'_>, kind: Kind) -> Translated {
    let x = call.tensor(0)?;
    let dims = (0..call.shape(x)?.rank()).collect();
    one(reduce(call, x, kind, dims)?)
}

/// self, dims or none, keepdim.
fn over(call: &mut Call<'_>, kind: Kind) -> Translated {
    let x = call.tensor(0)?;
    let rank = call.shape(x)?.rank();
    let mut dims = Vec::new();
    if !call.is_none(1) {
        for dim in call.ints(1)? {
            dims.push(call.dim(dim, rank)?);
        }
    }
    // None, and an empty list, mean all; a value without dimensions has none to reduce.
    if dims.is_empty() {
        dims = (0..rank).collect();
    }
    dims.retain(|dim| *dim < rank);
    dims.sort_unstable();
    dims.dedup();
    let reduced = reduce(call, x, kind, dims.clone())?;
    if !call.flag(2)? {
        return one(reduced);
    }
    one(kept(call, reduced, x, &dims)?)
}

/// self, dim, keepdim: the greatest along the dimension, and where it is first.
fn greatest_and_index(call: &mut Call<'_>) -> Translated {
    let x = call.tensor(0)?;
    let ty = call.ty(x)?;
    let Some(dim) = dim_of(call, 1)? else {
        let zero = call.constant(0.0, DType::I64, ty.shape())?;
        return Ok(vec![Value::Tensor(x), Value::Tensor(zero)]);
    };
    let greatest = call.node(Op::ReduceMax { dims: vec![dim] }, &[x])?;
    let numbers = match ty.dtype() {
        DType::Bool => call.cast(x, DType::I32)?,
        _ => x,
    };
    let index = call.node(Op::Argmax { dim }, &[numbers])?;
    let mut results = [greatest, index];
    if call.flag(2)? {
        for result in &mut results {
            *result = kept(call, *result, x, &[dim])?;
        }
    }
    Ok(results.map(Value::Tensor).to_vec())
}

/// Whether any element, or all of them, are not 0.
fn truth(call: &mut Call<'_>, is_any: bool) -> Translated {
    let x = call.tensor(0)?;
    let shape = call.shape(x)?;
    let no = call.constant(0.0, DType::Bool, shape)?;
    let mut truth = call.cast(x, DType::Bool)?;
    let equal = Op::Compare(CompareDirection::Eq);
    if !is_any {
        truth = call.node(equal.clone(), &[truth, no])?;
    }
    let dims = (0..shape.rank()).collect();
    let mut found = call.node(Op::ReduceMax { dims }, &[truth])?;
    if !is_any {
        let no = call.like(found, 0.0)?;
        found = call.node(equal, &[found, no])?;
    }
    // PyTorch answers bytes with bytes.
    narrowed(call, found)
}

fn reduce(
    call: &mut Call<'_>,
    x: NodeId,
    kind: Kind,
    dims: Vec<usize>,
) -> Result<NodeId, LoweringError> {
    // The core knows what an integer sum is counted in, and what a wanted type changes.
    let found = call.ty(x)?.dtype();
    let dtype = call.expected().map_or(found, |expected| expected.dtype());
    let x = call.cast(x, dtype)?;
    match kind {
        Kind::Sum => call.node(Op::Sum { dims }, &[x]),
        Kind::Mean => call.node(Op::Mean { dims }, &[x]),
        Kind::Max => call.node(Op::ReduceMax { dims }, &[x]),
        Kind::Min => {
            let mirror = mirrored(call, x)?;
            let greatest = call.node(Op::ReduceMax { dims }, &[mirror])?;
            mirrored(call, greatest)
        }
    }
}

/// The value with its order turned around, so that the least is the greatest; every number of every
/// type has its mirror image.
fn mirrored(call: &mut Call<'_>, x: NodeId) -> Result<NodeId, LoweringError> {
    let from = match call.ty(x)?.dtype() {
        DType::Bool => {
            let no = call.like(x, 0.0)?;
            return call.node(Op::Compare(CompareDirection::Eq), &[x, no]);
        }
        DType::U8 => 255.0,
        DType::I32 | DType::I64 => -1.0,
        _ => return call.node(Op::Neg, &[x]),
    };
    let from = call.like(x, from)?;
    call.node(Op::Sub, &[from, x])
}

/// The reduced value with the dimensions of `x` that are gone as 1.
pub(super) fn kept(
    call: &mut Call<'_>,
    reduced: NodeId,
    x: NodeId,
    dims: &[usize],
) -> Result<NodeId, LoweringError> {
    let mut extents = call.shape(x)?.dims().to_vec();
    for dim in dims {
        extents[*dim] = 1;
    }
    let shape = call.shape_of(&extents)?;
    call.reshape(reduced, shape)
}

/// The sum over one dimension, repeated to the whole shape.
fn spread_sum(call: &mut Call<'_>, x: NodeId, dim: usize) -> Result<NodeId, LoweringError> {
    spread(call, x, dim, Op::Sum { dims: vec![dim] })
}

fn spread(call: &mut Call<'_>, x: NodeId, dim: usize, op: Op) -> Result<NodeId, LoweringError> {
    let shape = call.shape(x)?;
    let reduced = call.node(op, &[x])?;
    let column = kept(call, reduced, x, &[dim])?;
    call.broadcast(column, shape)
}

/// Input 1 as a dimension of input 0; `None` when that has none, so that there is one element.
fn dim_of(call: &Call<'_>, index: usize) -> Result<Option<usize>, LoweringError> {
    let rank = call.shape(call.tensor(0)?)?.rank();
    let dim = call.dim(call.int(index)?, rank)?;
    Ok((rank > 0).then_some(dim))
}

/// self, dim, half_to_float.
fn softmax(call: &mut Call<'_>) -> Translated {
    let x = wide_input(call)?;
    let Some(dim) = dim_of(call, 1)? else {
        let ty = call.ty(x)?;
        return one(call.constant(1.0, ty.dtype(), ty.shape())?);
    };
    one(call.node(Op::Softmax { dim }, &[x])?)
}

fn log_softmax(call: &mut Call<'_>) -> Translated {
    let x = wide_input(call)?;
    let Some(dim) = dim_of(call, 1)? else {
        let ty = call.ty(x)?;
        return one(call.constant(0.0, ty.dtype(), ty.shape())?);
    };
    let dtype = call.ty(x)?.dtype();
    let x = call.wide(x)?;
    let greatest = spread(call, x, dim, Op::ReduceMax { dims: vec![dim] })?;
    let shifted = call.node(Op::Sub, &[x, greatest])?;
    let powers = call.node(Op::Exp, &[shifted])?;
    let sum = spread_sum(call, powers, dim)?;
    let logarithm = call.node(Op::Log, &[sum])?;
    let result = call.node(Op::Sub, &[shifted, logarithm])?;
    one(call.cast(result, dtype)?)
}

/// With half_to_float the result is wider than the input.
fn wide_input(call: &mut Call<'_>) -> Result<NodeId, LoweringError> {
    let x = call.tensor(0)?;
    let dtype = if call.flag(2)? {
        DType::F32
    } else {
        call.ty(x)?.dtype()
    };
    call.cast(x, dtype)
}

/// grad, output, dim: output * (grad - sum(grad * output)).
fn softmax_backward(call: &mut Call<'_>) -> Translated {
    let [grad, output] = wide_pair(call)?;
    let product = call.node(Op::Mul, &[grad, output])?;
    let Some(dim) = dim_of(call, 2)? else {
        let rest = call.node(Op::Sub, &[grad, product])?;
        return narrowed(call, rest);
    };
    let sum = spread_sum(call, product, dim)?;
    let rest = call.node(Op::Sub, &[grad, sum])?;
    let result = call.node(Op::Mul, &[output, rest])?;
    narrowed(call, result)
}

/// grad, output, dim: grad - e^output * sum(grad).
fn log_softmax_backward(call: &mut Call<'_>) -> Translated {
    let [grad, output] = wide_pair(call)?;
    let powers = call.node(Op::Exp, &[output])?;
    let sum = match dim_of(call, 2)? {
        Some(dim) => spread_sum(call, grad, dim)?,
        None => grad,
    };
    let part = call.node(Op::Mul, &[powers, sum])?;
    let result = call.node(Op::Sub, &[grad, part])?;
    narrowed(call, result)
}

/// Gradient and output, as wide as sums of narrow types should be.
fn wide_pair(call: &mut Call<'_>) -> Result<[NodeId; 2], LoweringError> {
    let (grad, output) = (call.tensor(0)?, call.tensor(1)?);
    Ok([call.wide(grad)?, call.wide(output)?])
}

/// The result in the type that the core expects, which may be narrower.
fn narrowed(call: &mut Call<'_>, id: NodeId) -> Translated {
    match call.expected() {
        Some(expected) => one(call.cast(id, expected.dtype())?),
        None => {
            let dtype = call.ty(call.tensor(0)?)?.dtype();
            one(call.cast(id, dtype)?)
        }
    }
}

/// The last dimensions of `rank`, as many as input `index` lists.
pub(super) fn layer_dims(
    call: &Call<'_>,
    index: usize,
    rank: usize,
) -> Result<Vec<usize>, LoweringError> {
    let dim = rank.checked_sub(call.ints(index)?.len());
    match dim.filter(|dim| *dim < rank) {
        Some(dim) => Ok((dim..rank).collect()),
        None => Err(call.fault("normalises more dimensions than there are")),
    }
}

/// input, normalised shape, weight, bias, epsilon: output, mean, 1 / deviation.
fn layer_norm(call: &mut Call<'_>) -> Translated {
    let x = call.tensor(0)?;
    let ty = call.ty(x)?;
    let dims = layer_dims(call, 1, ty.shape().rank())?;
    let epsilon = call.double(4)?;
    // Statistics of narrow types are wide ones in PyTorch's CPU kernel; only their type is narrow.
    let wide_x = call.wide(x)?;
    let wide = call.ty(wide_x)?.dtype();
    let (mean, deviation) = statistics(call, wide_x, &dims, epsilon)?;
    let centred = {
        let mean = call.broadcast(mean, ty.shape())?;
        call.node(Op::Sub, &[wide_x, mean])?
    };
    let scale = call.broadcast(deviation, ty.shape())?;
    let mut output = call.node(Op::Mul, &[centred, scale])?;
    for (index, op) in [(2, Op::Mul), (3, Op::Add)] {
        if call.optional_tensor(index)?.is_some() {
            let part = call.operand(index, wide, ty.shape())?;
            output = call.node(op, &[output, part])?;
        }
    }
    let output = call.cast(output, ty.dtype())?;
    let as_expected = |call: &mut Call<'_>, id, number: usize| {
        let dtype = call.outputs.get(number).copied().flatten();
        call.cast(id, dtype.map_or(wide, |ty: TensorType| ty.dtype()))
    };
    let mean = as_expected(call, mean, 1)?;
    let deviation = as_expected(call, deviation, 2)?;
    Ok([output, mean, deviation].map(Value::Tensor).to_vec())
}

/// Mean, and 1 / sqrt(variance + epsilon), with the reduced dimensions kept.
fn statistics(
    call: &mut Call<'_>,
    x: NodeId,
    dims: &[usize],
    epsilon: f64,
) -> Result<(NodeId, NodeId), LoweringError> {
    let ty = call.ty(x)?;
    let mean_op = || Op::Mean {
        dims: dims.to_vec(),
    };
    let mean = call.node(mean_op(), &[x])?;
    let mean = kept(call, mean, x, dims)?;
    let spread = call.broadcast(mean, ty.shape())?;
    let centred = call.node(Op::Sub, &[x, spread])?;
    let squares = call.node(Op::Mul, &[centred, centred])?;
    let variance = call.node(mean_op(), &[squares])?;
    let variance = kept(call, variance, x, dims)?;
    let shape = call.shape(variance)?;
    let epsilon = call.constant(epsilon, ty.dtype(), shape)?;
    let variance = call.node(Op::Add, &[variance, epsilon])?;
    Ok((mean, call.node(Op::Rsqrt, &[variance])?))
}
