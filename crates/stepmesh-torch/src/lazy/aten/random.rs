//! Random values. A graph is compiled once and executed many times, so seed and offset are arguments
//! of it that the backend fills anew at each execution.

use stepmesh_graph::{DType, NodeId, Op, Shape, TensorType};

use super::super::error::LoweringError;
use super::{Call, Translation, Value, one};

pub(super) const TABLE: &[(&str, Translation)] = &[
    ("aten::uniform", uniform),
    ("aten::normal_functional", normal),
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
