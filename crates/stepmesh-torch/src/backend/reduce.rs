//! Sums and what is made of them: reductions, products of matrices, softmax, norms.

use stepmesh_graph::{DType, Op};
use tch::{Kind, Tensor};

use super::evaluate::{Call, Fault};
use super::transfer::{dims, index, kind, signed, to};

/// The value; `None` for another kind of operation.
pub(super) fn apply(call: &Call<'_>) -> Result<Option<Tensor>, Fault> {
    Ok(Some(match call.op {
        // Torch takes no dimensions for all of them.
        Op::Sum { dims } | Op::Mean { dims } | Op::ReduceMax { dims } if dims.is_empty() => {
            call.operand(0).shallow_clone()
        }
        Op::Sum { dims } => {
            // Torch sums integers in i64, whose low bits are those of a sum in the type.
            let sum = call
                .wide(0)?
                .f_sum_dim_intlist(signed(dims), false, None::<Kind>)?;
            call.narrow(&sum)?
        }
        Op::Mean { dims } => {
            let mean = call.wide(0)?.f_mean_dim(signed(dims), false, None)?;
            call.narrow(&mean)?
        }
        Op::ReduceMax { dims } => greatest(call, dims)?,
        Op::Argmax { dim } => call.operand(0).f_argmax(index(*dim), false)?,
        Op::Matmul {
            transpose_a,
            transpose_b,
        } => matmul(call, [*transpose_a, *transpose_b])?,
        Op::Softmax { dim } => call.narrow(&call.wide(0)?.f_softmax(index(*dim), None)?)?,
        Op::LayerNorm { dim, epsilon } => layer_norm(call, *dim, epsilon.value())?,
        Op::RmsNorm { dim, epsilon } => rms_norm(call, *dim, epsilon.value())?,
        _ => return Ok(None),
    }))
}

fn greatest(call: &Call<'_>, dims_gone: &[usize]) -> Result<Tensor, Fault> {
    let from = call.types[0].shape();
    // Torch has no greatest of nothing.
    if dims_gone.iter().any(|dim| from.dims()[*dim] == 0) {
        let dtype = call.ty.dtype();
        let (extents, options) = (dims(call.ty.shape()), (kind(dtype), call.device));
        return Ok(match dtype {
            DType::I32 => Tensor::f_full(extents, i64::from(i32::MIN), options)?,
            DType::I64 => Tensor::f_full(extents, i64::MIN, options)?,
            DType::U8 | DType::Bool => Tensor::f_zeros(extents, options)?,
            _ => Tensor::f_full(extents, f64::NEG_INFINITY, options)?,
        });
    }
    Ok(call.operand(0).f_amax(signed(dims_gone), false)?)
}

fn matmul(call: &Call<'_>, is_exchanged: [bool; 2]) -> Result<Tensor, Fault> {
    let operand = |number: usize| -> Result<Tensor, Fault> {
        let wide = call.wide(number)?;
        Ok(if is_exchanged[number] {
            wide.f_transpose(-2, -1)?
        } else {
            wide
        })
    };
    let (a, b) = (operand(0)?, operand(1)?);
    if call.ty.dtype().is_float() {
        return call.narrow(&a.f_matmul(&b)?);
    }
    // CUDA has none of integers: every product, then their sums, of which the low bits are right.
    let products = a.f_unsqueeze(-1)?.f_mul(&b.f_unsqueeze(-3)?)?;
    let sums = products.f_sum_dim_intlist(-2, false, Kind::Int64)?;
    to(&sums, kind(call.ty.dtype()))
}

fn layer_norm(call: &Call<'_>, dim: usize, epsilon: f64) -> Result<Tensor, Fault> {
    let others: Result<Vec<Tensor>, Fault> = (1..call.operands.len())
        .map(|number| call.wide(number))
        .collect();
    let (others, shape) = (others?, call.ty.shape());
    let extents = signed(shape.dims().get(dim..).unwrap_or_default());
    let (weight, bias) = (others.first(), others.get(1));
    let norm = call
        .wide(0)?
        .f_layer_norm(extents, weight, bias, epsilon, false)?;
    call.narrow(&norm)
}

fn rms_norm(call: &Call<'_>, dim: usize, epsilon: f64) -> Result<Tensor, Fault> {
    let x = call.wide(0)?;
    let over: Vec<usize> = (dim..call.ty.shape().rank()).collect();
    let mean = x.f_mul(&x)?.f_mean_dim(signed(&over), true, None)?;
    let mut norm = x.f_mul(&mean.f_add_scalar(epsilon)?.f_rsqrt()?)?;
    if call.operands.len() > 1 {
        norm = norm.f_mul(&call.wide(1)?)?;
    }
    call.narrow(&norm)
}
