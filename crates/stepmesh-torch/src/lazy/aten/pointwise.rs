//! Operations on each element.

use stepmesh_graph::{CompareDirection, DType, NodeId, Op, Shape};

use super::super::error::LoweringError;
use super::{Call, Translation, Value, one};

type Translated = Result<Vec<Value>, LoweringError>;

pub(super) const TABLE: &[(&str, Translation)] = &[
    ("aten::neg", |call| unary(call, Op::Neg)),
    ("aten::exp", |call| float_unary(call, Op::Exp)),
    ("aten::log", |call| float_unary(call, Op::Log)),
    ("aten::sqrt", |call| float_unary(call, Op::Sqrt)),
    ("aten::rsqrt", |call| float_unary(call, Op::Rsqrt)),
    ("aten::tanh", |call| float_unary(call, Op::Tanh)),
    ("aten::sigmoid", |call| float_unary(call, Op::Sigmoid)),
    ("aten::relu", |call| unary(call, Op::Relu)),
    ("aten::silu", |call| unary(call, Op::Silu)),
    ("aten::gelu", gelu),
    ("aten::abs", abs),
    ("aten::log2", log2),
    ("aten::sgn", sign),
    ("aten::leaky_relu", leaky_relu),
    ("aten::threshold", threshold),
    ("aten::reciprocal", reciprocal),
    ("aten::add.Tensor", |call| scaled(call, Op::Add)),
    ("aten::add.Scalar", |call| scaled(call, Op::Add)),
    ("aten::sub.Tensor", |call| scaled(call, Op::Sub)),
    ("aten::sub.Scalar", |call| scaled(call, Op::Sub)),
    ("aten::mul.Tensor", |call| binary(call, Op::Mul)),
    ("aten::mul.Scalar", |call| binary(call, Op::Mul)),
    ("aten::div.Tensor", divide),
    ("aten::div.Scalar", divide),
    ("aten::pow.Tensor_Tensor", |call| binary(call, Op::Pow)),
    ("aten::pow.Tensor_Scalar", |call| binary(call, Op::Pow)),
    ("aten::maximum", |call| binary(call, Op::Max)),
    ("aten::minimum", |call| binary(call, Op::Min)),
    ("aten::eq.Tensor", |call| {
        compare(call, CompareDirection::Eq)
    }),
    ("aten::eq.Scalar", |call| {
        compare(call, CompareDirection::Eq)
    }),
    ("aten::ne.Tensor", |call| {
        compare(call, CompareDirection::Ne)
    }),
    ("aten::ne.Scalar", |call| {
        compare(call, CompareDirection::Ne)
    }),
    ("aten::lt.Tensor", |call| {
        compare(call, CompareDirection::Lt)
    }),
    ("aten::lt.Scalar", |call| {
        compare(call, CompareDirection::Lt)
    }),
    ("aten::le.Tensor", |call| {
        compare(call, CompareDirection::Le)
    }),
    ("aten::le.Scalar", |call| {
        compare(call, CompareDirection::Le)
    }),
    ("aten::gt.Tensor", |call| {
        compare(call, CompareDirection::Gt)
    }),
    ("aten::gt.Scalar", |call| {
        compare(call, CompareDirection::Gt)
    }),
    ("aten::ge.Tensor", |call| {
        compare(call, CompareDirection::Ge)
    }),
    ("aten::ge.Scalar", |call| {
        compare(call, CompareDirection::Ge)
    }),
    ("aten::clamp", clamp),
    ("aten::clamp.Tensor", clamp),
    ("aten::clamp_min.Tensor", clamp),
    ("aten::clamp_min", clamp),
    ("aten::where.self", select),
    ("aten::masked_fill.Scalar", masked_fill),
    ("aten::masked_fill.Tensor", masked_fill),
    ("aten::addcmul", |call| add_scaled(call, Op::Mul)),
    ("aten::addcdiv", |call| add_scaled(call, Op::Div)),
    ("aten::threshold_backward", threshold_backward),
    ("aten::sigmoid_backward", sigmoid_backward),
    ("aten::tanh_backward", tanh_backward),
    ("aten::zero", |call| filled(call, 0.0)),
    ("aten::to.dtype", to_dtype),
    ("aten::to.dtype_layout", to_dtype),
    ("aten::_to_copy", to_dtype),
];

fn unary(call: &mut Call<'_>, op: Op) -> Translated {
    let x = call.tensor(0)?;
    one(call.node(op, &[x])?)
}

/// Of integers it is of the default type with a fraction.
fn float_unary(call: &mut Call<'_>, op: Op) -> Translated {
    let x = float_input(call, 0)?;
    one(call.node(op, &[x])?)
}

fn float_input(call: &mut Call<'_>, index: usize) -> Result<NodeId, LoweringError> {
    let x = call.tensor(index)?;
    if call.ty(x)?.dtype().is_float() {
        return Ok(x);
    }
    call.cast(x, DType::F32)
}

fn gelu(call: &mut Call<'_>) -> Translated {
    let op = match call.text(1)? {
        "none" => Op::GeluErf,
        "tanh" => Op::GeluTanh,
        other => return Err(call.fault(format!("has no approximation {other:?}"))),
    };
    unary(call, op)
}

fn abs(call: &mut Call<'_>) -> Translated {
    let x = call.tensor(0)?;
    if matches!(call.ty(x)?.dtype(), DType::U8 | DType::Bool) {
        return one(x);
    }
    let negative = call.node(Op::Neg, &[x])?;
    one(call.node(Op::Max, &[x, negative])?)
}

fn log2(call: &mut Call<'_>) -> Translated {
    let x = float_input(call, 0)?;
    let dtype = call.ty(x)?.dtype();
    let x = call.wide(x)?;
    let logarithm = call.node(Op::Log, &[x])?;
    let scale = call.like(x, std::f64::consts::LOG2_E)?;
    let result = call.node(Op::Mul, &[logarithm, scale])?;
    one(call.cast(result, dtype)?)
}

/// -1, 0 or 1; NaN stays.
fn sign(call: &mut Call<'_>) -> Translated {
    let x = call.tensor(0)?;
    if call.ty(x)?.dtype() == DType::Bool {
        return one(x);
    }
    let zero = call.like(x, 0.0)?;
    // 0 of either sign is itself, too.
    let mut sign = x;
    for (direction, value) in [(CompareDirection::Gt, 1.0), (CompareDirection::Lt, -1.0)] {
        let is_so = call.node(Op::Compare(direction), &[x, zero])?;
        let value = call.like(x, value)?;
        sign = call.node(Op::Select, &[is_so, value, sign])?;
    }
    one(sign)
}

/// self, slope below 0.
fn leaky_relu(call: &mut Call<'_>) -> Translated {
    let x = call.tensor(0)?;
    let ty = call.ty(x)?;
    let slope = call.operand(1, ty.dtype(), ty.shape())?;
    let zero = call.like(x, 0.0)?;
    let is_above = call.node(Op::Compare(CompareDirection::Gt), &[x, zero])?;
    let scaled = call.node(Op::Mul, &[x, slope])?;
    one(call.node(Op::Select, &[is_above, x, scaled])?)
}

/// self, threshold, value: the value where self is not above.
fn threshold(call: &mut Call<'_>) -> Translated {
    let x = call.tensor(0)?;
    let ty = call.ty(x)?;
    let bound = call.operand(1, ty.dtype(), ty.shape())?;
    let value = call.operand(2, ty.dtype(), ty.shape())?;
    let is_below = call.node(Op::Compare(CompareDirection::Le), &[x, bound])?;
    one(call.node(Op::Select, &[is_below, value, x])?)
}

fn reciprocal(call: &mut Call<'_>) -> Translated {
    let x = float_input(call, 0)?;
    let ty = call.ty(x)?;
    let unit = call.constant(1.0, ty.dtype(), ty.shape())?;
    one(call.node(Op::Div, &[unit, x])?)
}

/// Two inputs as values alike, of the result's type. The core has numbers as values without
/// dimensions, so it alone knows what they count for.
fn pair(call: &mut Call<'_>) -> Result<[NodeId; 2], LoweringError> {
    let dtype = match call.expected() {
        Some(expected) => expected.dtype(),
        None => call.promoted(&[0, 1])?,
    };
    pair_as(call, dtype)
}

fn pair_as(call: &mut Call<'_>, dtype: DType) -> Result<[NodeId; 2], LoweringError> {
    let shape = call.common_shape(&[0, 1])?;
    Ok([
        call.operand(0, dtype, shape)?,
        call.operand(1, dtype, shape)?,
    ])
}

fn binary(call: &mut Call<'_>, op: Op) -> Translated {
    let operands = pair(call)?;
    // PyTorch multiplies truth values as `and`; our product is for numbers.
    let dtype = call.ty(operands[0])?.dtype();
    let op = match (op, dtype) {
        (Op::Mul, DType::Bool) => Op::Min,
        (op, _) => op,
    };
    one(call.node(op, &operands)?)
}

/// a + alpha * b, and the like.
fn scaled(call: &mut Call<'_>, op: Op) -> Translated {
    let [a, b] = pair(call)?;
    let ty = call.ty(b)?;
    let op = match (op, ty.dtype()) {
        (Op::Add, DType::Bool) => Op::Max,
        (op, _) => op,
    };
    let is_one = call.is_none(2) || matches!(call.inputs[2], Value::Int(1));
    if is_one {
        return one(call.node(op, &[a, b])?);
    }
    let alpha = call.operand(2, ty.dtype(), ty.shape())?;
    let scaled = call.node(Op::Mul, &[alpha, b])?;
    one(call.node(op, &[a, scaled])?)
}

/// True division: of integers it has a fraction.
fn divide(call: &mut Call<'_>) -> Translated {
    let dtype = match call.expected() {
        Some(expected) => expected.dtype(),
        None => call.promoted(&[0, 1])?,
    };
    let dtype = if dtype.is_float() { dtype } else { DType::F32 };
    let operands = pair_as(call, dtype)?;
    one(call.node(Op::Div, &operands)?)
}

fn compare(call: &mut Call<'_>, direction: CompareDirection) -> Translated {
    let dtype = call.promoted(&[0, 1])?;
    let operands = pair_as(call, dtype)?;
    one(call.node(Op::Compare(direction), &operands)?)
}

/// With either bound missing.
fn clamp(call: &mut Call<'_>) -> Translated {
    let given: Vec<usize> = (0..3).filter(|index| !call.is_none(*index)).collect();
    let dtype = match call.expected() {
        Some(expected) => expected.dtype(),
        None => call.promoted(&given)?,
    };
    let shape = call.shape(call.tensor(0)?)?;
    let mut x = call.operand(0, dtype, shape)?;
    for (index, op) in [(1, Op::Max), (2, Op::Min)] {
        if !call.is_none(index) {
            let bound = call.operand(index, dtype, shape)?;
            x = call.node(op, &[x, bound])?;
        }
    }
    one(x)
}

/// condition, self, other.
fn select(call: &mut Call<'_>) -> Translated {
    let dtype = match call.expected() {
        Some(expected) => expected.dtype(),
        None => call.promoted(&[1, 2])?,
    };
    let shape = call.common_shape(&[0, 1, 2])?;
    let condition = call.operand(0, DType::Bool, shape)?;
    let (x, other) = (
        call.operand(1, dtype, shape)?,
        call.operand(2, dtype, shape)?,
    );
    one(call.node(Op::Select, &[condition, x, other])?)
}

/// self, mask, value.
fn masked_fill(call: &mut Call<'_>) -> Translated {
    let dtype = call.ty(call.tensor(0)?)?.dtype();
    let shape = call.common_shape(&[0, 1])?;
    let mask = call.operand(1, DType::Bool, shape)?;
    let value = call.operand(2, dtype, shape)?;
    let x = call.operand(0, dtype, shape)?;
    one(call.node(Op::Select, &[mask, value, x])?)
}

/// self + value * (a op b).
fn add_scaled(call: &mut Call<'_>, op: Op) -> Translated {
    let dtype = call.promoted(&[0, 1, 2])?;
    let shape = call.common_shape(&[0, 1, 2])?;
    let [x, a, b] = three(call, dtype, shape)?;
    let inner = call.node(op, &[a, b])?;
    let value = if call.is_none(3) {
        inner
    } else {
        let value = call.operand(3, dtype, shape)?;
        call.node(Op::Mul, &[value, inner])?
    };
    one(call.node(Op::Add, &[x, value])?)
}

fn three(call: &mut Call<'_>, dtype: DType, shape: Shape) -> Result<[NodeId; 3], LoweringError> {
    Ok([
        call.operand(0, dtype, shape)?,
        call.operand(1, dtype, shape)?,
        call.operand(2, dtype, shape)?,
    ])
}

/// grad, self, threshold: the gradient where self is above.
fn threshold_backward(call: &mut Call<'_>) -> Translated {
    let dtype = call.ty(call.tensor(0)?)?.dtype();
    let shape = call.common_shape(&[0, 1])?;
    let [grad, x, threshold] = three(call, dtype, shape)?;
    let zero = call.constant(0.0, dtype, shape)?;
    let is_below = call.node(Op::Compare(CompareDirection::Le), &[x, threshold])?;
    one(call.node(Op::Select, &[is_below, zero, grad])?)
}

/// grad, output: grad * output * (1 - output).
fn sigmoid_backward(call: &mut Call<'_>) -> Translated {
    let [grad, output] = pair(call)?;
    let ty = call.ty(output)?;
    let unit = call.constant(1.0, ty.dtype(), ty.shape())?;
    let rest = call.node(Op::Sub, &[unit, output])?;
    let slope = call.node(Op::Mul, &[rest, output])?;
    one(call.node(Op::Mul, &[grad, slope])?)
}

/// grad, output: grad * (1 - output^2).
fn tanh_backward(call: &mut Call<'_>) -> Translated {
    let [grad, output] = pair(call)?;
    let ty = call.ty(output)?;
    let unit = call.constant(1.0, ty.dtype(), ty.shape())?;
    let square = call.node(Op::Mul, &[output, output])?;
    let slope = call.node(Op::Sub, &[unit, square])?;
    one(call.node(Op::Mul, &[grad, slope])?)
}

/// A value of the first input's type and shape.
fn filled(call: &mut Call<'_>, value: f64) -> Translated {
    let ty = call.ty(call.tensor(0)?)?;
    one(call.constant(value, ty.dtype(), ty.shape())?)
}

/// The core knows the type; what else the call says is about memory.
fn to_dtype(call: &mut Call<'_>) -> Translated {
    let Some(expected) = call.expected() else {
        return Err(call.fault("the type of its result is not known"));
    };
    let x = call.tensor(0)?;
    one(call.cast(x, expected.dtype())?)
}
