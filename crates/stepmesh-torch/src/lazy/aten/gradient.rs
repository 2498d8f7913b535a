//! Gradients of activations, normalisation and embeddings that PyTorch has as operations.

use stepmesh_graph::{CompareDirection, NodeId, Op};

use super::super::error::LoweringError;
use super::reduce::{kept, layer_dims};
use super::{Call, Translation, Value, one};

type Translated = Result<Vec<Value>, LoweringError>;

pub(super) const TABLE: &[(&str, Translation)] = &[
    ("aten::gelu_backward", gelu_backward),
    ("aten::leaky_relu_backward", leaky_relu_backward),
    ("aten::native_dropout_backward", dropout_backward),
    ("aten::native_layer_norm_backward", layer_norm_backward),
    ("aten::embedding_dense_backward", embedding_backward),
];

/// grad, self, approximation.
fn gelu_backward(call: &mut Call<'_>) -> Translated {
    let (grad, x) = (call.tensor(0)?, call.tensor(1)?);
    let narrow = call.ty(x)?.dtype();
    let (grad, x) = (call.wide(grad)?, call.wide(x)?);
    let slope = match call.text(2)? {
        "none" => slope_of_gelu_erf(call, x)?,
        "tanh" => slope_of_gelu_tanh(call, x)?,
        other => return Err(call.fault(format!("has no approximation {other:?}"))),
    };
    let result = call.node(Op::Mul, &[grad, slope])?;
    one(call.cast(result, narrow)?)
}

/// P(x) + x p(x), of the normal distribution P and its density p.
fn slope_of_gelu_erf(call: &mut Call<'_>, x: NodeId) -> Result<NodeId, LoweringError> {
    // There is no erf among our operations, but gelu is x P(x). Its quotient by x is as exact as
    // gelu is, except around 0, where P is 1/2.
    let (half, zero) = (call.like(x, 0.5)?, call.like(x, 0.0)?);
    let least = call.like(x, SMALLEST_DIVISOR)?;
    let size = {
        let negative = call.node(Op::Neg, &[x])?;
        call.node(Op::Max, &[x, negative])?
    };
    let is_zero = call.node(Op::Compare(CompareDirection::Lt), &[size, least])?;
    let unit = call.like(x, 1.0)?;
    let divisor = call.node(Op::Select, &[is_zero, unit, x])?;
    let gelu = call.node(Op::GeluErf, &[x])?;
    let quotient = call.node(Op::Div, &[gelu, divisor])?;
    let cumulative = call.node(Op::Select, &[is_zero, half, quotient])?;
    // e^(-x^2/2) / sqrt(2 pi)
    let exponent = {
        let square = call.node(Op::Mul, &[x, x])?;
        let halved = call.node(Op::Mul, &[square, half])?;
        call.node(Op::Sub, &[zero, halved])?
    };
    let power = call.node(Op::Exp, &[exponent])?;
    let scale = call.like(x, FRAC_1_SQRT_2_PI)?;
    let density = call.node(Op::Mul, &[power, scale])?;
    let part = call.node(Op::Mul, &[x, density])?;
    call.node(Op::Add, &[cumulative, part])
}

/// Of x/2 (1 + tanh(u)), with u = sqrt(2/pi) (x + 0.044715 x^3).
fn slope_of_gelu_tanh(call: &mut Call<'_>, x: NodeId) -> Result<NodeId, LoweringError> {
    let (half, unit) = (call.like(x, 0.5)?, call.like(x, 1.0)?);
    let square = call.node(Op::Mul, &[x, x])?;
    let scale = call.like(x, SQRT_2_OVER_PI)?;
    let polynomial = |call: &mut Call<'_>, factor: f64| {
        // scale (1 + factor x^2)
        let factor = call.like(x, factor)?;
        let term = call.node(Op::Mul, &[square, factor])?;
        let sum = call.node(Op::Add, &[unit, term])?;
        call.node(Op::Mul, &[scale, sum])
    };
    let inner = polynomial(call, CUBIC)?;
    let inner = call.node(Op::Mul, &[inner, x])?;
    let slope_of_inner = polynomial(call, 3.0 * CUBIC)?;
    let tanh = call.node(Op::Tanh, &[inner])?;
    let left = call.node(Op::Add, &[unit, tanh])?;
    let left = call.node(Op::Mul, &[left, half])?;
    let squared = call.node(Op::Mul, &[tanh, tanh])?;
    let slope_of_tanh = call.node(Op::Sub, &[unit, squared])?;
    let right = call.node(Op::Mul, &[x, half])?;
    let right = call.node(Op::Mul, &[right, slope_of_tanh])?;
    let right = call.node(Op::Mul, &[right, slope_of_inner])?;
    call.node(Op::Add, &[left, right])
}

/// grad, self or result, slope below 0, which of the two it is: their signs are the same.
fn leaky_relu_backward(call: &mut Call<'_>) -> Translated {
    let (grad, x) = (call.tensor(0)?, call.tensor(1)?);
    let ty = call.ty(x)?;
    let slope = call.operand(2, ty.dtype(), ty.shape())?;
    let zero = call.like(x, 0.0)?;
    let is_above = call.node(Op::Compare(CompareDirection::Gt), &[x, zero])?;
    let scaled = call.node(Op::Mul, &[grad, slope])?;
    one(call.node(Op::Select, &[is_above, grad, scaled])?)
}

/// grad, mask, scale.
fn dropout_backward(call: &mut Call<'_>) -> Translated {
    let grad = call.tensor(0)?;
    let ty = call.ty(grad)?;
    let mask = call.operand(1, ty.dtype(), ty.shape())?;
    let scale = call.operand(2, ty.dtype(), ty.shape())?;
    let kept = call.node(Op::Mul, &[grad, mask])?;
    one(call.node(Op::Mul, &[kept, scale])?)
}

/// grad, input, normalised shape, mean, 1 / deviation, weight, bias, which of the three are wanted.
fn layer_norm_backward(call: &mut Call<'_>) -> Translated {
    let (grad, x) = (call.tensor(0)?, call.tensor(1)?);
    let ty = call.ty(x)?;
    let shape = ty.shape();
    let dims = layer_dims(call, 2, shape.rank())?;
    let outer: Vec<usize> = (0..shape.rank() - dims.len()).collect();
    let wanted = call.flags::<3>(7)?;
    let (grad, x) = (call.wide(grad)?, call.wide(x)?);
    let wide = call.ty(x)?.dtype();
    let mean = call.operand(3, wide, shape)?;
    let scale = call.operand(4, wide, shape)?;
    let centred = call.node(Op::Sub, &[x, mean])?;
    let normalised = call.node(Op::Mul, &[centred, scale])?;
    let weighted = if call.is_none(5) {
        grad
    } else {
        let weight = call.operand(5, wide, shape)?;
        call.node(Op::Mul, &[grad, weight])?
    };
    // What a change of the mean, and of the deviation, takes back.
    let mut rest = weighted;
    let product = call.node(Op::Mul, &[weighted, normalised])?;
    for (value, factor) in [(weighted, None), (product, Some(normalised))] {
        let reduced = call.node(Op::Mean { dims: dims.clone() }, &[value])?;
        let reduced = kept(call, reduced, x, &dims)?;
        let mut part = call.broadcast(reduced, shape)?;
        if let Some(factor) = factor {
            part = call.node(Op::Mul, &[part, factor])?;
        }
        rest = call.node(Op::Sub, &[rest, part])?;
    }
    let of_input = call.node(Op::Mul, &[rest, scale])?;
    let of_input = call.cast(of_input, ty.dtype())?;
    let of_weight = call.node(Op::Mul, &[grad, normalised])?;
    // The core has no shape for what is not wanted.
    let mut results = vec![if wanted[0] {
        Value::Tensor(of_input)
    } else {
        Value::None
    }];
    for (number, value) in [(1, of_weight), (2, grad)] {
        if !wanted[number] {
            results.push(Value::None);
            continue;
        }
        let op = Op::Sum {
            dims: outer.clone(),
        };
        let sum = call.node(op, &[value])?;
        let expected = call.outputs.get(number).copied().flatten();
        let dtype = expected.unwrap_or(ty).dtype();
        results.push(Value::Tensor(call.cast(sum, dtype)?));
    }
    Ok(results)
}

/// grad, indices, count of rows, padding index, whether gradients are divided by the index's count.
fn embedding_backward(call: &mut Call<'_>) -> Translated {
    if call.flag(4)? {
        return Err(call.fault("scale_grad_by_freq is not supported"));
    }
    let (grad, indices) = (call.tensor(0)?, call.tensor(1)?);
    let dtype = call.ty(grad)?.dtype();
    let grad = call.wide(grad)?;
    let count = call.shape(indices)?.element_count();
    let width = call.shape(grad)?.dims().last().copied().unwrap_or(1);
    let rows = usize::try_from(call.int(2)?).map_err(|_| call.fault("its row count is below 0"))?;
    let line = call.shape_of(&[count])?;
    let mut indices = call.reshape(indices, line)?;
    // The row that pads learns nothing: an index out of range is left out.
    let padding = call.int(3)?;
    if padding >= 0 {
        let ty = call.ty(indices)?;
        let padding = call.operand(3, ty.dtype(), ty.shape())?;
        let is_padding = call.node(Op::Compare(CompareDirection::Eq), &[indices, padding])?;
        let none = call.like(indices, -1.0)?;
        indices = call.node(Op::Select, &[is_padding, none, indices])?;
    }
    let matrix = call.shape_of(&[count, width])?;
    let grad = call.reshape(grad, matrix)?;
    let shape = call.shape_of(&[rows, width])?;
    let wide = call.ty(grad)?.dtype();
    let zero = call.constant(0.0, wide, shape)?;
    let sum = call.node(Op::IndexAdd { dim: 0 }, &[zero, indices, grad])?;
    one(call.cast(sum, dtype)?)
}

/// sqrt(2 / pi), of gelu by tanh.
const SQRT_2_OVER_PI: f64 = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;
/// The factor of the cube in gelu by tanh.
const CUBIC: f64 = 0.044_715;
/// 1 / sqrt(2 pi), of the normal density.
const FRAC_1_SQRT_2_PI: f64 = 0.398_942_280_401_432_7;
/// Below it, halves of numbers lose bits, in f32 too; and P is 1/2 to the last bit.
const SMALLEST_DIVISOR: f64 = 1e-30;
