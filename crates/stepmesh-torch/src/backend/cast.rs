//! Casts. Torch's own convert out of range as the processor likes, and round twice where a type is
//! reached by way of f32.

use stepmesh_graph::{DType, float8};
use tch::{Kind, Tensor};

use super::evaluate::{Call, Fault};
use super::transfer::{dims, kind, to};

pub(super) fn cast(call: &Call<'_>) -> Result<Tensor, Fault> {
    let (from, into) = (call.types[0].dtype(), call.ty.dtype());
    if from == into {
        return Ok(call.operand(0).shallow_clone());
    }
    if is_rounded_twice(from, into) {
        return call.on_host();
    }
    let x = match from {
        DType::F8E4M3 => decoded(call, float8::e4m3_to_f32)?,
        DType::F8E5M2 => decoded(call, float8::e5m2_to_f32)?,
        _ => call.operand(0).shallow_clone(),
    };
    let is_from_float = !(from.is_integer() || from == DType::Bool);
    if into == DType::Bool {
        return Ok(x.f_ne(0)?);
    }
    if into.is_integer() && is_from_float {
        return truncated(&x, into);
    }
    to(&x, kind(into))
}

/// Whether torch goes by way of f32 and loses bits there that decide; fp8 it has not everywhere.
fn is_rounded_twice(from: DType, into: DType) -> bool {
    match into {
        DType::F8E4M3 | DType::F8E5M2 => true,
        DType::F16 | DType::BF16 => matches!(from, DType::F64 | DType::I32 | DType::I64),
        _ => false,
    }
}

/// The numbers of an fp8 tensor, in f32.
fn decoded(call: &Call<'_>, decode: fn(u8) -> f32) -> Result<Tensor, Fault> {
    let table: Vec<f32> = (0..=u8::MAX).map(decode).collect();
    let table = Tensor::f_from_slice(&table)?.f_to(call.device)?;
    let places = to(call.operand(0), Kind::Int64)?.f_reshape([-1])?;
    let numbers = table.f_index_select(0, &places)?;
    Ok(numbers.f_reshape(dims(call.ty.shape()))?)
}

/// Towards zero, what is out of range the nearest bound, NaN 0.
fn truncated(x: &Tensor, into: DType) -> Result<Tensor, Fault> {
    // The least and the greatest, and the number after that one, which f64 has exactly.
    let (least, greatest, limit) = match into {
        DType::I32 => (i32::MIN.into(), i32::MAX.into(), 2_147_483_648.0),
        DType::U8 => (0, 255, 256.0),
        _ => (i64::MIN, i64::MAX, 9_223_372_036_854_775_808.0),
    };
    let floor = if into == DType::U8 { 0.0 } else { -limit };
    let x = to(x, Kind::Double)?.f_trunc()?;
    let (is_low, is_high, is_nan) = (x.f_lt(floor)?, x.f_ge(limit)?, x.f_isnan()?);
    let is_strange = is_low.f_logical_or(&is_high)?.f_logical_or(&is_nan)?;
    let whole = to(&x.f_masked_fill(&is_strange, 0.0)?, Kind::Int64)?;
    let whole = whole.f_masked_fill(&is_low, least)?;
    let whole = whole.f_masked_fill(&is_high, greatest)?;
    to(&whole, kind(into))
}
