//! Operations that move elements, and `index_add`, which moves and adds.

use super::element::{Element, rounded, unit};
use super::elementwise::{add, int};
use super::tensor::Tensor;
use crate::{DType, Op, RANK_MAX, Shape, TensorType};

/// The elements of the value; `None` for another kind of operation.
pub(super) fn apply(op: &Op, ty: TensorType, operands: &[&Tensor]) -> Option<Vec<Element>> {
    let shape = ty.shape();
    let first = *operands.first()?;
    let (from, strides) = (first.elements(), first.ty().shape().strides());
    Some(match op {
        Op::Reshape { .. } => from.to_vec(),
        Op::Transpose { dims } => each(shape, |at| {
            let place = dims.iter().zip(at).map(|(dim, idx)| strides[*dim] * idx);
            from[place.sum::<usize>()]
        }),
        Op::Broadcast { dims, .. } => {
            let extents = first.ty().shape();
            each(shape, |at| {
                let own = dims.iter().zip(extents.dims()).enumerate();
                let place = own.map(|(dim, (to, extent))| {
                    if *extent == 1 {
                        0
                    } else {
                        strides[dim] * at[*to]
                    }
                });
                from[place.sum::<usize>()]
            })
        }
        Op::Slice {
            starts,
            strides: steps,
            ..
        } => each(shape, |at| {
            let place =
                (0..shape.rank()).map(|dim| strides[dim] * (starts[dim] + at[dim] * steps[dim]));
            from[place.sum::<usize>()]
        }),
        Op::Concat { dim } => concat(*dim, shape, operands),
        Op::Gather { dim } => gather(*dim, shape, first, operands[1]),
        Op::IndexAdd { dim } => index_add(*dim, ty.dtype(), first, operands[1], operands[2]),
        _ => return None,
    })
}

/// Makes each element of its indices.
pub(super) fn each(shape: Shape, make: impl Fn(&[usize]) -> Element) -> Vec<Element> {
    let strides = shape.strides();
    let mut at = [0; RANK_MAX];
    (0..shape.element_count())
        .map(|place| {
            for (dim, extent) in shape.dims().iter().enumerate() {
                at[dim] = place / strides[dim] % extent;
            }
            make(&at[..shape.rank()])
        })
        .collect()
}

fn concat(dim: usize, shape: Shape, operands: &[&Tensor]) -> Vec<Element> {
    each(shape, |at| {
        let mut along = at[dim];
        for operand in operands {
            let own = operand.ty().shape();
            if along < own.dims()[dim] {
                let mut at = at.to_vec();
                at[dim] = along;
                let place = at.iter().zip(own.strides()).map(|(idx, step)| idx * step);
                return operand.elements()[place.sum::<usize>()];
            }
            along -= own.dims()[dim];
        }
        Element::OPEN
    })
}

fn gather(dim: usize, shape: Shape, data: &Tensor, indices: &Tensor) -> Vec<Element> {
    let (own, list) = (data.ty().shape(), indices.ty().shape());
    let (steps, list_steps) = (own.strides(), list.strides());
    each(shape, |at| {
        let (before, rest) = at.split_at(dim);
        let (named, after) = rest.split_at(list.rank());
        let place = named.iter().zip(list_steps).map(|(idx, step)| idx * step);
        let index = indices.elements()[place.sum::<usize>()];
        if index.is_open() {
            return Element::OPEN;
        }
        let last = own.dims()[dim].saturating_sub(1);
        let index = usize::try_from(index.int.max(0)).map_or(last, |index| index.min(last));
        let at = before.iter().chain([&index]).chain(after);
        let place = at.zip(steps).map(|(idx, step)| idx * step);
        data.elements()[place.sum::<usize>()]
    })
}

fn index_add(
    dim: usize,
    dtype: DType,
    data: &Tensor,
    indices: &Tensor,
    updates: &Tensor,
) -> Vec<Element> {
    if indices.elements().iter().any(Element::is_open) {
        return vec![Element::OPEN; data.elements().len()];
    }
    let own = updates.ty().shape();
    let steps = own.strides();
    let extent = data.ty().shape().dims()[dim];
    each(data.ty().shape(), |at| {
        let place = at.iter().zip(data.ty().shape().strides());
        let start = data.elements()[place.map(|(idx, step)| idx * step).sum::<usize>()];
        let mut terms = vec![start];
        for (number, index) in indices.elements().iter().enumerate() {
            if usize::try_from(index.int).ok().filter(|idx| *idx < extent) == Some(at[dim]) {
                let mut at = at.to_vec();
                at[dim] = number;
                let place = at.iter().zip(steps).map(|(idx, step)| idx * step);
                terms.push(updates.elements()[place.sum::<usize>()]);
            }
        }
        match terms.as_slice() {
            [only] => *only,
            [a, b] if dtype.is_float() => add(dtype, *a, *b),
            _ if dtype.is_float() => {
                // Each addition may round, in any order.
                #[expect(clippy::cast_precision_loss, reason = "a count of terms")]
                let count = terms.len() as f64;
                let size: f64 = terms.iter().map(|term| term.value.abs() + term.error).sum();
                let error: f64 = terms.iter().map(|term| term.error).sum();
                let value = terms.iter().map(|term| term.value).sum();
                rounded(dtype, value, error + count * unit(dtype) * size, 1.0)
            }
            _ => int(dtype, &terms, |n| {
                n.iter().fold(0, |sum, n| sum.wrapping_add(*n))
            }),
        }
    })
}
