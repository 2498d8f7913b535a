//! Views, parts and joins. The core has made views copies before we see them.

use stepmesh_graph::{DType, NodeId, Op, Shape};

use super::super::error::LoweringError;
use super::{Call, Translation, Value, clipped, one};

type Translated = Result<Vec<Value>, LoweringError>;

pub(super) const TABLE: &[(&str, Translation)] = &[
    ("aten::view_copy", reshape_to_input),
    ("aten::view", reshape_to_input),
    ("aten::reshape", reshape_to_input),
    ("aten::_unsafe_view", reshape_to_input),
    ("aten::_reshape_alias_copy", reshape_to_input),
    ("aten::squeeze_copy", reshape_as_expected),
    ("aten::squeeze_copy.dim", reshape_as_expected),
    ("aten::squeeze_copy.dims", reshape_as_expected),
    ("aten::unsqueeze_copy", unsqueeze),
    ("aten::alias_copy", same),
    ("aten::detach_copy", same),
    ("aten::clone", same),
    ("aten::expand_copy", expand),
    ("aten::expand", expand),
    ("aten::permute_copy", permute),
    ("aten::transpose_copy.int", transpose),
    ("aten::t_copy", matrix_transpose),
    ("aten::select_copy.int", select),
    ("aten::slice_copy.Tensor", slice),
    ("aten::narrow_copy", narrow),
    ("aten::cat", concat),
    ("aten::stack", stack),
    ("aten::embedding", embedding),
    ("aten::index_select", index_select),
    ("aten::tril", |call| {
        triangle(call, |row, column, diagonal| column <= row + diagonal)
    }),
    ("aten::triu", |call| {
        triangle(call, |row, column, diagonal| column >= row + diagonal)
    }),
];

fn same(call: &mut Call<'_>) -> Translated {
    one(call.tensor(0)?)
}

/// self, sizes of which one may be -1.
fn reshape_to_input(call: &mut Call<'_>) -> Translated {
    let x = call.tensor(0)?;
    let shape = match call.expected() {
        Some(expected) => expected.shape(),
        None => sizes(call, x)?,
    };
    one(call.reshape(x, shape)?)
}

fn sizes(call: &Call<'_>, x: NodeId) -> Result<Shape, LoweringError> {
    let wanted = call.ints(1)?;
    let known: usize = wanted
        .iter()
        .filter_map(|size| usize::try_from(*size).ok())
        .product();
    let count = call.shape(x)?.element_count();
    let extent = |size: &i64| match usize::try_from(*size) {
        Ok(size) => Ok(size),
        Err(_) if known > 0 => Ok(count / known),
        Err(_) => Err(call.fault(format!("{wanted:?} is no shape"))),
    };
    let extents: Result<Vec<usize>, _> = wanted.iter().map(extent).collect();
    call.shape_of(&extents?)
}

fn reshape_as_expected(call: &mut Call<'_>) -> Translated {
    let Some(expected) = call.expected() else {
        return Err(call.fault("the shape of its result is not known"));
    };
    let x = call.tensor(0)?;
    one(call.reshape(x, expected.shape())?)
}

fn unsqueeze(call: &mut Call<'_>) -> Translated {
    let x = call.tensor(0)?;
    let mut extents = call.shape(x)?.dims().to_vec();
    let dim = call.dim(call.int(1)?, extents.len() + 1)?;
    extents.insert(dim, 1);
    let shape = call.shape_of(&extents)?;
    one(call.reshape(x, shape)?)
}

/// self, sizes of which -1 keeps what is there.
fn expand(call: &mut Call<'_>) -> Translated {
    let x = call.tensor(0)?;
    let from = call.shape(x)?;
    let wanted = call.ints(1)?;
    let Some(missing) = wanted.len().checked_sub(from.rank()) else {
        return Err(call.fault(format!("{from} does not repeat to {wanted:?}")));
    };
    let extent = |(index, size): (usize, &i64)| match (usize::try_from(*size), index) {
        (Ok(size), _) => Ok(size),
        (Err(_), index) if index >= missing => Ok(from.dims()[index - missing]),
        _ => Err(call.fault(format!("{wanted:?} keeps a dimension that is not there"))),
    };
    let extents: Result<Vec<usize>, _> = wanted.iter().enumerate().map(extent).collect();
    let shape = call.shape_of(&extents?)?;
    one(call.broadcast(x, shape)?)
}

fn permute(call: &mut Call<'_>) -> Translated {
    let x = call.tensor(0)?;
    let rank = call.shape(x)?.rank();
    let dims: Result<Vec<usize>, _> = call
        .ints(1)?
        .iter()
        .map(|dim| call.dim(*dim, rank))
        .collect();
    one(call.node(Op::Transpose { dims: dims? }, &[x])?)
}

fn transpose(call: &mut Call<'_>) -> Translated {
    let x = call.tensor(0)?;
    let rank = call.shape(x)?.rank();
    let (a, b) = (call.dim(call.int(1)?, rank)?, call.dim(call.int(2)?, rank)?);
    swap(call, x, a, b)
}

fn matrix_transpose(call: &mut Call<'_>) -> Translated {
    let x = call.tensor(0)?;
    match call.shape(x)?.rank() {
        0 | 1 => one(x),
        _ => swap(call, x, 0, 1),
    }
}

fn swap(call: &mut Call<'_>, x: NodeId, a: usize, b: usize) -> Translated {
    let rank = call.shape(x)?.rank();
    if rank == 0 || a == b {
        return one(x);
    }
    let mut dims: Vec<usize> = (0..rank).collect();
    dims.swap(a, b);
    one(call.node(Op::Transpose { dims }, &[x])?)
}

/// A range of one dimension.
fn part(
    call: &mut Call<'_>,
    x: NodeId,
    dim: usize,
    range: (usize, usize),
    step: usize,
) -> Result<NodeId, LoweringError> {
    let shape = call.shape(x)?;
    let (mut starts, mut limits) = (vec![0; shape.rank()], shape.dims().to_vec());
    let mut strides = vec![1; shape.rank()];
    let (Some(start), Some(limit), Some(stride)) = (
        starts.get_mut(dim),
        limits.get_mut(dim),
        strides.get_mut(dim),
    ) else {
        return Err(call.fault(format!("{shape} has no dimension {dim}")));
    };
    (*start, *limit, *stride) = (range.0, range.1, step);
    let op = Op::Slice {
        starts,
        limits,
        strides,
    };
    call.node(op, &[x])
}

/// self, dim, index: that index, without the dimension.
fn select(call: &mut Call<'_>) -> Translated {
    let x = call.tensor(0)?;
    let shape = call.shape(x)?;
    let dim = call.dim(call.int(1)?, shape.rank())?;
    let extent = shape.dims().get(dim).copied().unwrap_or(0);
    let start = clipped(call.int(2)?, extent);
    let taken = part(call, x, dim, (start, start + 1), 1)?;
    let mut extents = shape.dims().to_vec();
    extents.remove(dim);
    let shape = call.shape_of(&extents)?;
    one(call.reshape(taken, shape)?)
}

/// self, dim, start, end, step.
fn slice(call: &mut Call<'_>) -> Translated {
    let x = call.tensor(0)?;
    let shape = call.shape(x)?;
    let dim = call.dim(call.int(1)?, shape.rank())?;
    let extent = shape.dims().get(dim).copied().unwrap_or(0);
    let start = clipped(call.int_or(2, 0)?, extent);
    let end = clipped(call.int_or(3, i64::MAX)?, extent).max(start);
    let step = usize::try_from(call.int_or(4, 1)?)
        .ok()
        .filter(|step| *step > 0)
        .ok_or_else(|| call.fault("its step is not above 0"))?;
    one(part(call, x, dim, (start, end), step)?)
}

/// self, dim, start, length.
fn narrow(call: &mut Call<'_>) -> Translated {
    let x = call.tensor(0)?;
    let shape = call.shape(x)?;
    let dim = call.dim(call.int(1)?, shape.rank())?;
    let extent = shape.dims().get(dim).copied().unwrap_or(0);
    let start = clipped(call.int(2)?, extent);
    let len = usize::try_from(call.int(3)?).unwrap_or(0);
    one(part(call, x, dim, (start, start.saturating_add(len)), 1)?)
}

/// tensors, dim.
fn concat(call: &mut Call<'_>) -> Translated {
    let mut parts = Vec::new();
    for id in call.tensors(0)? {
        // PyTorch skips empty vectors, whatever the shape of the others.
        if call.shape(id)?.dims() != [0] {
            parts.push(id);
        }
    }
    let Some(first) = parts.first().copied() else {
        return one(call
            .tensors(0)?
            .first()
            .copied()
            .ok_or_else(|| call.fault("joins nothing"))?);
    };
    let dtype = match call.expected() {
        Some(expected) => expected.dtype(),
        None => call.ty(first)?.dtype(),
    };
    let dim = call.dim(call.int(1)?, call.shape(first)?.rank())?;
    for id in &mut parts {
        *id = call.cast(*id, dtype)?;
    }
    one(call.node(Op::Concat { dim }, &parts)?)
}

/// tensors, dim: joined along a new dimension.
fn stack(call: &mut Call<'_>) -> Translated {
    let mut parts = call.tensors(0)?;
    let Some(first) = parts.first().copied() else {
        return Err(call.fault("joins nothing"));
    };
    let mut extents = call.shape(first)?.dims().to_vec();
    let dim = call.dim(call.int(1)?, extents.len() + 1)?;
    extents.insert(dim, 1);
    let shape = call.shape_of(&extents)?;
    for id in &mut parts {
        *id = call.reshape(*id, shape)?;
    }
    one(call.node(Op::Concat { dim }, &parts)?)
}

/// weight, indices.
fn embedding(call: &mut Call<'_>) -> Translated {
    let (weight, indices) = (call.tensor(0)?, call.tensor(1)?);
    one(call.node(Op::Gather { dim: 0 }, &[weight, indices])?)
}

/// self, dim, indices.
fn index_select(call: &mut Call<'_>) -> Translated {
    let (x, indices) = (call.tensor(0)?, call.tensor(2)?);
    let dim = call.dim(call.int(1)?, call.shape(x)?.rank())?;
    one(call.node(Op::Gather { dim }, &[x, indices])?)
}

/// self, diagonal: what is kept of each matrix, the rest is 0.
fn triangle(call: &mut Call<'_>, keeps: fn(i64, i64, i64) -> bool) -> Translated {
    let x = call.tensor(0)?;
    let ty = call.ty(x)?;
    let shape = ty.shape();
    let [.., rows, columns] = shape.dims() else {
        return Err(call.fault(format!("{ty} is no matrix")));
    };
    let diagonal = call.int_or(1, 0)?;
    let signed = |index: usize| i64::try_from(index).unwrap_or(i64::MAX);
    let mask: Vec<u8> = (0..*rows)
        .flat_map(|row| (0..*columns).map(move |column| (row, column)))
        .map(|(row, column)| u8::from(keeps(signed(row), signed(column), diagonal)))
        .collect();
    let matrix = call.shape_of(&[*rows, *columns])?;
    let mask = call.known(DType::Bool, matrix, mask)?;
    let mask = call.broadcast(mask, ty.shape())?;
    let zero = call.constant(0.0, ty.dtype(), ty.shape())?;
    one(call.node(Op::Select, &[mask, x, zero])?)
}

/// 0, 1, 2 and so on, as many as `count`.
pub(super) fn iota(call: &mut Call<'_>, count: usize) -> Result<NodeId, LoweringError> {
    let line = call.shape_of(&[count])?;
    let data = (0..count as u64).flat_map(u64::to_le_bytes).collect();
    call.known(DType::I64, line, data)
}
