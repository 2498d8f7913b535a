//! Random values. A graph is compiled once and executed many times, so seed and offset are arguments
//! of it that the backend fills anew at each execution.

use stepmesh_graph::{CompareDirection, DType, NodeId, Op, Shape, TensorType};

use super::super::error::LoweringError;
use super::{Call, Translation, Value, one};

pub(super) const TABLE: &[(&str, Translation)] = &[
    ("aten::uniform", uniform),
    ("aten::normal_functional", normal),
    ("aten::native_dropout", dropout),
];

/// self, from, to.
fn uniform(call: &mut Call<'_>) -> Result<Vec<Value>, LoweringError> {
    let ty = call.ty(call.tensor(0)?)?;
    let drawn = draw(call, Op::RngUniform { ty })?;
    let low = call.operand(1, ty.dtype(), ty.shape())?;
    let high = call.operand(2, ty.dtype(), ty.shape())?;
    let width = call.node(Op::Sub, &[high, low])?;
    let scaled = call.node(Op::Mul, &[drawn, width])?;
    one(call.node(Op::Add, &[scaled, low])?)
}

/// self, mean, deviation.
fn normal(call: &mut Call<'_>) -> Result<Vec<Value>, LoweringError> {
    let ty = call.ty(call.tensor(0)?)?;
    let drawn = draw(call, Op::RngNormal { ty })?;
    let mean = call.operand(1, ty.dtype(), ty.shape())?;
    let deviation = call.operand(2, ty.dtype(), ty.shape())?;
    let scaled = call.node(Op::Mul, &[drawn, deviation])?;
    one(call.node(Op::Add, &[scaled, mean])?)
}

/// input, probability to be dropped, whether it is training (as when not said): what is kept of the
/// input, made larger by what is lost, and which elements those are.
fn dropout(call: &mut Call<'_>) -> Result<Vec<Value>, LoweringError> {
    let x = call.tensor(0)?;
    let ty = call.ty(x)?;
    let probability = call.double(1)?;
    let is_training = call.is_none(2) || call.flag(2)?;
    let wide = TensorType::new(DType::F32, ty.shape());
    let wide = wide.map_err(|error| call.fault(error.to_string()))?;
    if !is_training {
        let all = call.int_constant(1, DType::Bool, ty.shape())?;
        return Ok(vec![Value::Tensor(x), Value::Tensor(all)]);
    }
    let drawn = draw(call, Op::RngUniform { ty: wide })?;
    let bound = call.constant(probability, DType::F32, ty.shape())?;
    let mask = call.node(Op::Compare(CompareDirection::Ge), &[drawn, bound])?;
    let scale = if probability < 1.0 {
        1.0 / (1.0 - probability)
    } else {
        0.0
    };
    let scale = call.constant(scale, ty.dtype(), ty.shape())?;
    let factor = call.cast(mask, ty.dtype())?;
    let kept = call.node(Op::Mul, &[x, factor])?;
    let kept = call.node(Op::Mul, &[kept, scale])?;
    Ok(vec![Value::Tensor(kept), Value::Tensor(mask)])
}

/// Numbers that no other draw of this execution has: each draw goes on where the last one ended.
fn draw(call: &mut Call<'_>, op: Op) -> Result<NodeId, LoweringError> {
    let (seed, offset) = match *call.random {
        Some(state) => state,
        None => (argument(call)?, argument(call)?),
    };
    let drawn = call.node(op, &[seed, offset])?;
    let count = call.shape(drawn)?.element_count();
    let step = i64::try_from(count).map_err(|_| call.fault("draws too much"))?;
    let step = call.int_constant(step, DType::I64, Shape::SCALAR)?;
    let next = call.node(Op::Add, &[offset, step])?;
    *call.random = Some((seed, next));
    Ok(drawn)
}

fn argument(call: &mut Call<'_>) -> Result<NodeId, LoweringError> {
    let ty = TensorType::new(DType::I64, Shape::SCALAR);
    let ty = ty.map_err(|error| call.fault(error.to_string()))?;
    let made = call.builder.parameter(ty.dtype(), ty.shape());
    made.map_err(|error| call.fault(error.to_string()))
}
