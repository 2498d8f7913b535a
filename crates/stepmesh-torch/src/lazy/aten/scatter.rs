//! Writes into part of a value: what in-place operations on views, and gradients of views, become.

use stepmesh_graph::{DType, NodeId, Op, Shape};

use super::super::error::LoweringError;
use super::{Call, Translation, Value, clipped, one};

type Translated = Result<Vec<Value>, LoweringError>;

pub(super) const TABLE: &[(&str, Translation)] = &[
    ("aten::select_scatter", select_scatter),
    ("aten::slice_scatter", slice_scatter),
    ("aten::select_backward", select_backward),
    ("aten::slice_backward", slice_backward),
];

/// Indices of one dimension.
#[derive(Clone, Copy)]
struct Range {
    dim: usize,
    start: usize,
    end: usize,
    step: usize,
}

/// self, source, dim, index.
fn select_scatter(call: &mut Call<'_>) -> Translated {
    let x = call.tensor(0)?;
    let shape = call.shape(x)?;
    let range = selected(call, shape, 2)?;
    put(call, x, 1, range)
}

/// self, source, dim, start, end, step.
fn slice_scatter(call: &mut Call<'_>) -> Translated {
    let x = call.tensor(0)?;
    let shape = call.shape(x)?;
    let range = sliced(call, shape, 2)?;
    put(call, x, 1, range)
}

/// grad, sizes, dim, index.
fn select_backward(call: &mut Call<'_>) -> Translated {
    let x = zeros(call)?;
    let shape = call.shape(x)?;
    let range = selected(call, shape, 2)?;
    put(call, x, 0, range)
}

/// grad, sizes, dim, start, end, step.
fn slice_backward(call: &mut Call<'_>) -> Translated {
    let x = zeros(call)?;
    let shape = call.shape(x)?;
    let range = sliced(call, shape, 2)?;
    put(call, x, 0, range)
}

/// Nothing, in the shape of what a gradient is for.
fn zeros(call: &mut Call<'_>) -> Result<NodeId, LoweringError> {
    let dtype = call.ty(call.tensor(0)?)?.dtype();
    let sizes = call.ints(1)?;
    let extents: Result<Vec<usize>, _> = sizes.iter().map(|size| usize::try_from(*size)).collect();
    let extents = extents.map_err(|_| call.fault(format!("{sizes:?} is no shape")))?;
    let shape = call.shape_of(&extents)?;
    call.constant(0.0, dtype, shape)
}

fn selected(call: &Call<'_>, shape: Shape, at: usize) -> Result<Range, LoweringError> {
    let dim = call.dim(call.int(at)?, shape.rank())?;
    let start = clipped(
        call.int(at + 1)?,
        shape.dims().get(dim).copied().unwrap_or(0),
    );
    Ok(Range {
        dim,
        start,
        end: start + 1,
        step: 1,
    })
}

fn sliced(call: &Call<'_>, shape: Shape, at: usize) -> Result<Range, LoweringError> {
    let dim = call.dim(call.int_or(at, 0)?, shape.rank())?;
    let extent = shape.dims().get(dim).copied().unwrap_or(0);
    let start = clipped(call.int_or(at + 1, 0)?, extent);
    let step = usize::try_from(call.int_or(at + 3, 1)?).unwrap_or(0);
    if step == 0 {
        return Err(call.fault("its step is not above 0"));
    }
    Ok(Range {
        dim,
        start,
        end: clipped(call.int_or(at + 2, i64::MAX)?, extent),
        step,
    })
}

/// `x` with input `source` in the range: each index of the dimension takes one of the source, or
/// keeps its own.
fn put(call: &mut Call<'_>, x: NodeId, source: usize, range: Range) -> Translated {
    let ty = call.ty(x)?;
    let shape = ty.shape();
    let extent = shape.dims().get(range.dim).copied().unwrap_or(0);
    let is_in = |index: usize| {
        (range.start..range.end).contains(&index)
            && (index - range.start).is_multiple_of(range.step)
    };
    let count = (0..extent).filter(|index| is_in(*index)).count();
    if count == 0 || shape.element_count() == 0 {
        return one(x);
    }
    let mut part = shape.dims().to_vec();
    part[range.dim] = count;
    let part = call.shape_of(&part)?;
    let source = call.tensor(source)?;
    let source = call.cast(source, ty.dtype())?;
    let source = call.reshape(source, part)?;
    let taken: Vec<u8> = (0..extent)
        .map(|index| index.saturating_sub(range.start) / range.step)
        .flat_map(|index| (index.min(count - 1) as u64).to_le_bytes())
        .collect();
    let line = call.shape_of(&[extent])?;
    let taken = call.known(DType::I64, line, taken)?;
    let spread = call.node(Op::Gather { dim: range.dim }, &[source, taken])?;
    let mask: Vec<u8> = (0..extent).map(|index| u8::from(is_in(index))).collect();
    let mask = call.known(DType::Bool, line, mask)?;
    let dims = vec![range.dim];
    let mask = call.node(Op::Broadcast { shape, dims }, &[mask])?;
    one(call.node(Op::Select, &[mask, spread, x])?)
}
