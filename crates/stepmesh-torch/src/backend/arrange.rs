//! Operations that move elements, and `index_add`, which moves and adds.

use stepmesh_graph::{Op, Shape};
use tch::{Kind, Tensor};

use super::evaluate::{Call, Fault};
use super::transfer::{dims, index, kind, signed, to};

/// The value; `None` for another kind of operation.
pub(super) fn apply(call: &Call<'_>) -> Result<Option<Tensor>, Fault> {
    let x = call.operands.first();
    let Some(x) = x else {
        return Ok(None);
    };
    Ok(Some(match call.op {
        Op::Reshape { shape } => x.f_reshape(dims(*shape))?,
        Op::Transpose { dims } => x.f_permute(signed(dims))?,
        Op::Broadcast { shape, dims } => broadcast(call, *shape, dims)?,
        Op::Slice {
            starts,
            limits,
            strides,
        } => {
            let mut part = x.shallow_clone();
            for (dim, start) in starts.iter().enumerate() {
                let (limit, step) = (index(limits[dim]), index(strides[dim]));
                part = part.f_slice(index(dim), index(*start), limit, step)?;
            }
            part
        }
        Op::Concat { dim } => Tensor::f_cat(call.operands, index(*dim))?,
        Op::Gather { dim } => gather(call, *dim)?,
        Op::IndexAdd { dim } => index_add(call, *dim)?,
        _ => return Ok(None),
    }))
}

fn broadcast(call: &Call<'_>, shape: Shape, places: &[usize]) -> Result<Tensor, Fault> {
    let mut extents = vec![1; shape.rank()];
    for (place, extent) in places.iter().zip(call.types[0].shape().dims()) {
        extents[*place] = index(*extent);
    }
    let aligned = call.operand(0).f_reshape(extents)?;
    Ok(aligned.f_expand(dims(shape), false)?)
}

fn gather(call: &Call<'_>, dim: usize) -> Result<Tensor, Fault> {
    let extents = dims(call.ty.shape());
    if call.ty.shape().element_count() == 0 {
        let options = (kind(call.ty.dtype()), call.device);
        return Ok(Tensor::f_zeros(extents, options)?);
    }
    let last = index(call.types[0].shape().dims()[dim]) - 1;
    let places = to(call.operand(1), Kind::Int64)?.f_reshape([-1])?;
    let places = places.f_clamp(0, last)?;
    let slices = call.operand(0).f_index_select(index(dim), &places)?;
    Ok(slices.f_reshape(extents)?)
}

fn index_add(call: &Call<'_>, dim: usize) -> Result<Tensor, Fault> {
    let extent = index(call.types[0].shape().dims()[dim]);
    let places = to(call.operand(1), Kind::Int64)?;
    let is_inside = places.f_ge(0)?.f_logical_and(&places.f_lt(extent)?)?;
    let inside = is_inside.f_nonzero()?.f_reshape([-1])?;
    let places = places.f_index_select(0, &inside)?;
    let updates = call.wide(2)?.f_index_select(index(dim), &inside)?;
    let sums = call.wide(0)?.f_index_add(index(dim), &places, &updates)?;
    call.narrow(&sums)
}
