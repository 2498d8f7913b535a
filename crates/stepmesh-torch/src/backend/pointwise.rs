//! Operations that make each element of elements at the same place.

use stepmesh_graph::{CompareDirection, DType, Op};
use tch::{Kind, Tensor};

use super::cast::cast;
use super::evaluate::{Call, Fault};
use super::transfer::to;

/// The value; `None` for another kind of operation.
pub(super) fn apply(call: &Call<'_>) -> Result<Option<Tensor>, Fault> {
    let x = |number| call.operand(number);
    let is_float = call.ty.dtype().is_float();
    Ok(Some(match call.op {
        Op::Cast { .. } => cast(call)?,
        Op::Compare(direction) => compare(*direction, x(0), x(1))?,
        Op::Select => x(1).f_where_self(x(0), x(2))?,
        Op::Clamp => x(0).f_maximum(x(1))?.f_minimum(x(2))?,
        Op::Max => x(0).f_maximum(x(1))?,
        Op::Min => x(0).f_minimum(x(1))?,
        Op::Neg => x(0).f_neg()?,
        Op::Relu => x(0).f_maximum(&x(0).f_zeros_like()?)?,
        Op::Div if !is_float => divide(call)?,
        Op::Add | Op::Sub | Op::Mul | Op::Div | Op::Pow => {
            let (a, b) = (call.wide(0)?, call.wide(1)?);
            let value = match call.op {
                Op::Add => a.f_add(&b),
                Op::Sub => a.f_sub(&b),
                Op::Mul => a.f_mul(&b),
                Op::Div => a.f_div(&b),
                _ => a.f_pow(&b),
            };
            call.narrow(&value?)?
        }
        _ => return function(call),
    }))
}

/// The functions of one float.
fn function(call: &Call<'_>) -> Result<Option<Tensor>, Fault> {
    let x = match call.op {
        // In f32 the exponential of torch's formulas overflows where the product with x is still a
        // number.
        Op::Silu | Op::GeluErf | Op::GeluTanh => to(call.operand(0), Kind::Double)?,
        Op::Exp | Op::Log | Op::Sqrt | Op::Rsqrt | Op::Tanh | Op::Sigmoid => call.wide(0)?,
        _ => return Ok(None),
    };
    let value = match call.op {
        Op::Exp => x.f_exp(),
        Op::Log => x.f_log(),
        Op::Sqrt => x.f_sqrt(),
        Op::Rsqrt => x.f_rsqrt(),
        Op::Tanh => x.f_tanh(),
        Op::Sigmoid => x.f_sigmoid(),
        Op::Silu => x.f_silu(),
        Op::GeluErf => x.f_gelu("none"),
        _ => x.f_gelu("tanh"),
    };
    call.narrow(&value?).map(Some)
}

fn compare(direction: CompareDirection, a: &Tensor, b: &Tensor) -> Result<Tensor, Fault> {
    Ok(match direction {
        CompareDirection::Eq => a.f_eq_tensor(b)?,
        CompareDirection::Ne => a.f_ne_tensor(b)?,
        CompareDirection::Lt => a.f_lt_tensor(b)?,
        CompareDirection::Le => a.f_le_tensor(b)?,
        CompareDirection::Gt => a.f_gt_tensor(b)?,
        CompareDirection::Ge => a.f_ge_tensor(b)?,
    })
}

/// Of integers. Torch throws where the divisor is 0, and the processor traps at the least number by
/// -1, so neither is divided by.
fn divide(call: &Call<'_>) -> Result<Tensor, Fault> {
    let (a, b) = (call.operand(0), call.operand(1));
    let by_zero = b.f_eq(0)?;
    let by_minus_one = if call.ty.dtype() == DType::U8 {
        by_zero.f_zeros_like()?
    } else {
        b.f_eq(-1)?
    };
    let divisor = b.f_masked_fill(&by_zero.f_logical_or(&by_minus_one)?, 1)?;
    let quotient = a.f_div_tensor_mode(&divisor, "trunc")?;
    let quotient = a.f_neg()?.f_where_self(&by_minus_one, &quotient)?;
    let all_bits = b.f_zeros_like()?.f_bitwise_not()?;
    Ok(all_bits.f_where_self(&by_zero, &quotient)?)
}
