//! Elements by their indices, one for one; and what repeats, turns around or frames a value.

use stepmesh_graph::{DType, NodeId, Op, Shape};

use super::super::error::LoweringError;
use super::{Call, Translation, Value, one};

type Translated = Result<Vec<Value>, LoweringError>;

pub(super) const TABLE: &[(&str, Translation)] = &[
    ("aten::gather", gather),
    ("aten::scatter_add", scatter_add),
    ("aten::index_add", index_add),
    ("aten::flip", flip),
    ("aten::repeat", repeat),
    ("aten::constant_pad_nd", pad),
];

/// self, dim, index: at each place of the index, the element with that index in the dimension.
fn gather(call: &mut Call<'_>) -> Translated {
    let x = call.tensor(0)?;
    let index = call.tensor(2)?;
    let wanted = call.shape(index)?;
    let places = places(call, x, index)?;
    let flat = flat(call, x)?;
    let taken = call.node(Op::Gather { dim: 0 }, &[flat, places])?;
    one(call.reshape(taken, wanted)?)
}

/// self, dim, index, source: each element of the source added to where `gather` would take it.
fn scatter_add(call: &mut Call<'_>) -> Translated {
    let x = call.tensor(0)?;
    let ty = call.ty(x)?;
    let index = call.tensor(2)?;
    let wanted = call.shape(index)?;
    let places = places(call, x, index)?;
    let source = call.tensor(3)?;
    // The source may be larger than the index: the rest of it does not count.
    let rank = wanted.rank();
    let source = if call.shape(source)? == wanted {
        source
    } else {
        let op = Op::Slice {
            starts: vec![0; rank],
            limits: wanted.dims().to_vec(),
            strides: vec![1; rank],
        };
        call.node(op, &[source])?
    };
    let source = flat(call, source)?;
    let x = flat(call, x)?;
    let (x, source) = (call.wide(x)?, call.wide(source)?);
    let sum = call.node(Op::IndexAdd { dim: 0 }, &[x, places, source])?;
    let sum = call.cast(sum, ty.dtype())?;
    one(call.reshape(sum, ty.shape())?)
}

/// self, dim, index, source: each slice of the source added to the one that its index names.
fn index_add(call: &mut Call<'_>) -> Translated {
    let (x, index, source) = (call.tensor(0)?, call.tensor(2)?, call.tensor(3)?);
    let ty = call.ty(x)?;
    let dim = call.dim(call.int(1)?, ty.shape().rank())?;
    let index = flat(call, index)?;
    let (x, source) = (call.wide(x)?, call.wide(source)?);
    let sum = call.node(Op::IndexAdd { dim }, &[x, index, source])?;
    one(call.cast(sum, ty.dtype())?)
}

/// Where the elements that an index (for dimension input 1) names lie in `x`, row-major.
fn places(call: &mut Call<'_>, x: NodeId, index: NodeId) -> Result<NodeId, LoweringError> {
    let (from, wanted) = (call.shape(x)?, call.shape(index)?);
    let dim = call.dim(call.int(1)?, from.rank())?;
    let mut places = call.cast(index, DType::I64)?;
    if from.rank() == wanted.rank() && from.rank() > 0 {
        let strides = strides(from);
        let stride = signed(strides[dim]);
        let stride = call.int_constant(stride, DType::I64, wanted)?;
        places = call.node(Op::Mul, &[places, stride])?;
        for (other, stride) in strides.iter().enumerate() {
            if other == dim {
                continue;
            }
            let steps = (0..wanted.dims()[other]).map(|at| at * stride);
            let line = call.shape_of(&[wanted.dims()[other]])?;
            let data = steps.flat_map(|step| signed(step).to_le_bytes()).collect();
            let steps = call.known(DType::I64, line, data)?;
            let op = Op::Broadcast {
                shape: wanted,
                dims: vec![other],
            };
            let steps = call.node(op, &[steps])?;
            places = call.node(Op::Add, &[places, steps])?;
        }
    }
    flat(call, places)
}

/// How far apart neighbours of each dimension are.
fn strides(shape: Shape) -> Vec<usize> {
    let mut stride = 1;
    let from_last = shape.dims().iter().rev().map(|extent| {
        let own = stride;
        stride *= extent;
        own
    });
    let mut strides: Vec<usize> = from_last.collect();
    strides.reverse();
    strides
}

fn signed(index: usize) -> i64 {
    i64::try_from(index).unwrap_or(i64::MAX)
}

fn flat(call: &mut Call<'_>, x: NodeId) -> Result<NodeId, LoweringError> {
    let count = call.shape(x)?.element_count();
    let line = call.shape_of(&[count])?;
    call.reshape(x, line)
}

/// self, dims: each of them from its end to its start.
fn flip(call: &mut Call<'_>) -> Translated {
    let mut x = call.tensor(0)?;
    let shape = call.shape(x)?;
    for dim in call.ints(1)? {
        let dim = call.dim(dim, shape.rank())?;
        let extent = shape.dims().get(dim).copied().unwrap_or(1);
        if shape.rank() == 0 || extent == 0 {
            continue;
        }
        let line = call.shape_of(&[extent])?;
        let data = (0..extent).rev();
        let data = data.flat_map(|at| signed(at).to_le_bytes()).collect();
        let turned = call.known(DType::I64, line, data)?;
        x = call.node(Op::Gather { dim }, &[x, turned])?;
    }
    one(x)
}

/// self, how often along each dimension; dimensions that are missing come first.
fn repeat(call: &mut Call<'_>) -> Translated {
    let x = call.tensor(0)?;
    let from = call.shape(x)?;
    let repeats = call.ints(1)?;
    let Some(missing) = repeats.len().checked_sub(from.rank()) else {
        return Err(call.fault(format!("{from} is not repeated by {repeats:?}")));
    };
    let counts: Result<Vec<usize>, _> = repeats
        .iter()
        .map(|count| usize::try_from(*count))
        .collect();
    let counts = counts.map_err(|_| call.fault(format!("is repeated {repeats:?} times")))?;
    let mut x = x;
    let mut extents = vec![1; missing];
    extents.extend_from_slice(from.dims());
    for (dim, count) in counts.iter().enumerate() {
        if *count == 1 {
            continue;
        }
        // One dimension at a time, so that a value of many dimensions stays one of few.
        let (outer, inner) = extents.split_at(dim);
        let sizes = [outer.iter().product(), inner.iter().product()];
        let rows = call.shape_of(&sizes)?;
        let rows = call.reshape(x, rows)?;
        let shape = call.shape_of(&[sizes[0], *count, sizes[1]])?;
        let dims = vec![0, 2];
        x = call.node(Op::Broadcast { shape, dims }, &[rows])?;
        extents[dim] *= count;
    }
    let shape = call.shape_of(&extents)?;
    one(call.reshape(x, shape)?)
}

/// self, how much before and after each dimension from the last on, value. Below 0 it is cut off.
fn pad(call: &mut Call<'_>) -> Translated {
    let mut x = call.tensor(0)?;
    let pads = call.ints(1)?;
    let rank = call.shape(x)?.rank();
    for (from_last, pair) in pads.chunks_exact(2).enumerate() {
        let Some(dim) = rank.checked_sub(from_last + 1) else {
            return Err(call.fault("frames more dimensions than there are"));
        };
        x = cut(call, x, dim, [-pair[0], -pair[1]])?;
        let dtype = call.ty(x)?.dtype();
        let mut parts = vec![x];
        for (amount, at) in [(pair[0], 0), (pair[1], 1)] {
            let Some(amount) = usize::try_from(amount).ok().filter(|amount| *amount > 0) else {
                continue;
            };
            let mut extents = call.shape(x)?.dims().to_vec();
            extents[dim] = amount;
            let shape = call.shape_of(&extents)?;
            let frame = call.operand(2, dtype, shape)?;
            parts.insert(if at == 0 { 0 } else { parts.len() }, frame);
        }
        if parts.len() > 1 {
            x = call.node(Op::Concat { dim }, &parts)?;
        }
    }
    one(x)
}

/// Without so many at the start and the end of a dimension, where that is above 0.
fn cut(
    call: &mut Call<'_>,
    x: NodeId,
    dim: usize,
    amounts: [i64; 2],
) -> Result<NodeId, LoweringError> {
    let shape = call.shape(x)?;
    let [start, end] = amounts.map(|amount| usize::try_from(amount).unwrap_or(0));
    if start == 0 && end == 0 {
        return Ok(x);
    }
    let (mut starts, mut limits) = (vec![0; shape.rank()], shape.dims().to_vec());
    let Some(limit) = limits[dim].checked_sub(end).filter(|limit| *limit >= start) else {
        return Err(call.fault("cuts off more than there is"));
    };
    (starts[dim], limits[dim]) = (start, limit);
    let op = Op::Slice {
        starts,
        limits,
        strides: vec![1; shape.rank()],
    };
    call.node(op, &[x])
}
