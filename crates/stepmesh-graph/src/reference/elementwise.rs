//! Operations that make each element of elements at the same place.

use super::element::{Element, nearest, rounded, rounded_basic, unit, wrapped};
use super::tensor::Tensor;
use crate::{CompareDirection, DType, Op, TensorType};

/// The elements of the value; `None` for another kind of operation.
pub(super) fn apply(op: &Op, ty: TensorType, operands: &[&Tensor]) -> Option<Vec<Element>> {
    let dtype = ty.dtype();
    let is_float = dtype.is_float();
    let count = ty.shape().element_count();
    let at = |operand: usize, idx: usize| operands[operand].elements()[idx];
    let from = operands.first().map_or(dtype, |first| first.ty().dtype());
    let one: Box<dyn Fn(usize) -> Element + '_> = match op {
        Op::Cast { .. } => Box::new(move |i| cast(from, dtype, at(0, i))),
        Op::Compare(direction) => Box::new(move |i| compare(*direction, from, at(0, i), at(1, i))),
        Op::Select => Box::new(move |i| select(at(0, i), at(1, i), at(2, i))),
        Op::Clamp => Box::new(move |i| {
            let low = extreme(Op::Max, dtype, at(0, i), at(1, i));
            extreme(Op::Min, dtype, low, at(2, i))
        }),
        Op::Max | Op::Min => {
            let op = op.clone();
            Box::new(move |i| extreme(op.clone(), dtype, at(0, i), at(1, i)))
        }
        Op::Add | Op::Sub | Op::Mul | Op::Div | Op::Pow if is_float => {
            Box::new(move |i| binary(op, dtype, at(0, i), at(1, i)))
        }
        Op::Add | Op::Sub | Op::Mul | Op::Div | Op::Pow => {
            Box::new(move |i| binary_int(op, dtype, at(0, i), at(1, i)))
        }
        Op::Neg if is_float => Box::new(move |i| Element {
            value: -at(0, i).value,
            ..at(0, i)
        }),
        Op::Neg => Box::new(move |i| int(dtype, &[at(0, i)], |n| n[0].wrapping_neg())),
        Op::Relu if is_float => {
            Box::new(move |i| extreme(Op::Max, dtype, at(0, i), Element::exact(0.0)))
        }
        Op::Relu => Box::new(move |i| int(dtype, &[at(0, i)], |n| n[0].max(0))),
        Op::Exp
        | Op::Log
        | Op::Sqrt
        | Op::Rsqrt
        | Op::Tanh
        | Op::Sigmoid
        | Op::Silu
        | Op::GeluErf
        | Op::GeluTanh => Box::new(move |i| unary(op, dtype, at(0, i))),
        _ => return None,
    };
    Some((0..count).map(one).collect())
}

/// A result of integers, open if one of them is.
pub(super) fn int(dtype: DType, of: &[Element], make: impl Fn(&[i64]) -> i64) -> Element {
    if of.iter().any(Element::is_open) {
        return Element::OPEN;
    }
    let numbers: Vec<i64> = of.iter().map(|element| element.int).collect();
    Element::of_int(wrapped(dtype, make(&numbers)))
}

/// a + b of floats.
pub(super) fn add(dtype: DType, a: Element, b: Element) -> Element {
    rounded_basic(dtype, a.value + b.value, a.error + b.error)
}

/// a * b of floats.
pub(super) fn mul(dtype: DType, a: Element, b: Element) -> Element {
    rounded_basic(dtype, a.value * b.value, product_error(a, b))
}

/// How far a product may be from that of the values.
pub(super) fn product_error(a: Element, b: Element) -> f64 {
    if a.is_exact() && b.is_exact() {
        return 0.0;
    }
    a.value.abs() * b.error + b.value.abs() * a.error + a.error * b.error
}

fn binary(op: &Op, dtype: DType, a: Element, b: Element) -> Element {
    match op {
        Op::Add => add(dtype, a, b),
        Op::Sub => rounded_basic(dtype, a.value - b.value, a.error + b.error),
        Op::Mul => mul(dtype, a, b),
        Op::Div => div(dtype, a, b),
        _ => pow(dtype, a, b),
    }
}

fn div(dtype: DType, a: Element, b: Element) -> Element {
    let value = a.value / b.value;
    if a.is_exact() && b.is_exact() {
        return rounded(dtype, value, 0.0, 1.0);
    }
    let least = b.value.abs() - b.error;
    if least <= 0.0 {
        return Element::OPEN;
    }
    rounded(dtype, value, (a.error + value.abs() * b.error) / least, 1.0)
}

fn pow(dtype: DType, a: Element, b: Element) -> Element {
    let value = libm::pow(a.value, b.value);
    if !(a.is_exact() && b.is_exact()) {
        // Corners of the box that both are in; the function is monotone along each side for
        // positive bases.
        if a.value - a.error <= 0.0 {
            return Element::OPEN;
        }
        let corner = |x: f64, y: f64| (libm::pow(x, y) - value).abs();
        let [a0, a1] = a.range();
        let [b0, b1] = b.range();
        let corners = [
            corner(a0, b0),
            corner(a0, b1),
            corner(a1, b0),
            corner(a1, b1),
        ];
        let error = corners.into_iter().fold(0.0, f64::max);
        return rounded(
            dtype,
            value,
            error,
            approximate(b.value * libm::log(a.value)),
        );
    }
    rounded(
        dtype,
        value,
        0.0,
        approximate(b.value * libm::log(a.value.abs())),
    )
}

/// Units for a function that is approximated, by way of an exponent of this size.
fn approximate(exponent: f64) -> f64 {
    let size = exponent.abs();
    APPROXIMATE_UNITS + if size.is_finite() { size } else { 0.0 }
}

fn binary_int(op: &Op, dtype: DType, a: Element, b: Element) -> Element {
    int(dtype, &[a, b], |n| match op {
        Op::Add => n[0].wrapping_add(n[1]),
        Op::Sub => n[0].wrapping_sub(n[1]),
        Op::Mul => n[0].wrapping_mul(n[1]),
        Op::Div if n[1] == 0 => -1,
        Op::Div => n[0].wrapping_div(n[1]),
        _ => pow_int(dtype, n[0], n[1]),
    })
}

fn pow_int(dtype: DType, base: i64, exponent: i64) -> i64 {
    match (base, exponent) {
        (1, _) => 1,
        (-1, even) if even % 2 == 0 => 1,
        (-1, _) => -1,
        (_, ..0) => 0,
        _ => {
            let (mut power, mut square, mut left) = (1_i64, base, exponent);
            while left > 0 {
                if left % 2 == 1 {
                    power = wrapped(dtype, power.wrapping_mul(square));
                }
                square = wrapped(dtype, square.wrapping_mul(square));
                left /= 2;
            }
            power
        }
    }
}

/// The greater or the lesser of two.
pub(super) fn extreme(op: Op, dtype: DType, a: Element, b: Element) -> Element {
    let is_max = op == Op::Max;
    if !dtype.is_float() {
        return int(dtype, &[a, b], |n| {
            if is_max {
                n[0].max(n[1])
            } else {
                n[0].min(n[1])
            }
        });
    }
    if a.is_open() || b.is_open() {
        return Element::OPEN;
    }
    if a.value.is_nan() || b.value.is_nan() {
        return Element::exact(f64::NAN);
    }
    let first = (a.value >= b.value) == is_max;
    let (taken, other) = if first { (a, b) } else { (b, a) };
    // The other matters only where the ranges touch.
    let is_apart = (a.value - b.value).abs() > a.error + b.error;
    let error = if is_apart {
        taken.error
    } else {
        taken.error.max(other.error)
    };
    Element { error, ..taken }
}

fn compare(direction: CompareDirection, from: DType, a: Element, b: Element) -> Element {
    if a.is_open() || b.is_open() {
        return Element::OPEN;
    }
    if !from.is_float() {
        return Element::of_bool(direction.holds(&a.int, &b.int));
    }
    let slack = a.error + b.error;
    if slack > 0.0 && (a.value - b.value).abs() <= slack {
        return Element::OPEN;
    }
    Element::of_bool(direction.holds(&a.value, &b.value))
}

fn select(condition: Element, yes: Element, no: Element) -> Element {
    match (condition.is_open(), condition.int != 0) {
        (true, _) => Element::OPEN,
        (false, true) => yes,
        (false, false) => no,
    }
}

fn cast(from: DType, to: DType, x: Element) -> Element {
    if x.is_open() {
        return Element::OPEN;
    }
    let of_float = !(from.is_integer() || from == DType::Bool);
    if to == DType::Bool {
        let is_sure = x.is_exact() || x.value.abs() > x.error;
        return if is_sure {
            Element::of_bool(x.value != 0.0)
        } else {
            Element::OPEN
        };
    }
    if to.is_integer() {
        if !of_float {
            return Element::of_int(wrapped(to, x.int));
        }
        let [low, high] = x.range().map(|end| saturated(to, end));
        return if low == high {
            Element::of_int(low)
        } else {
            Element::OPEN
        };
    }
    let value = if of_float {
        x.value
    } else {
        int_to_float(to, x.int)
    };
    if x.is_exact() {
        return Element::exact(nearest(to, value));
    }
    if !x.value.is_finite() {
        return Element::exact(nearest(to, x.value));
    }
    rounded(to, value, x.error, 1.0)
}

/// Rounded once: i64 has more bits than an f64, so an f32 is made from it directly.
#[expect(clippy::cast_precision_loss, reason = "the rounding that is meant")]
fn int_to_float(to: DType, int: i64) -> f64 {
    match to {
        DType::F64 => int as f64,
        // What is beyond 2^53 is beyond the others' last bit by far: a bit that says "not quite"
        // keeps ties apart.
        _ => {
            let magnitude = int.unsigned_abs();
            let shift = 10;
            let sticky = u64::from(magnitude & ((1 << shift) - 1) != 0);
            let odd = if magnitude >> 53 == 0 {
                magnitude
            } else {
                ((magnitude >> shift) | sticky) << shift
            };
            let value = odd as f64;
            if int < 0 { -value } else { value }
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "`as` saturates and makes NaN 0, as the cast does"
)]
fn saturated(to: DType, value: f64) -> i64 {
    match to {
        DType::I32 => i64::from(value as i32),
        DType::U8 => i64::from(value as u8),
        _ => value as i64,
    }
}

fn unary(op: &Op, dtype: DType, x: Element) -> Element {
    if x.is_open() {
        return Element::OPEN;
    }
    let function = function(op);
    let value = function(x.value);
    if x.value == f64::NEG_INFINITY && matches!(op, Op::Silu | Op::GeluErf | Op::GeluTanh) {
        return Element::OPEN;
    }
    let size = x.value.abs();
    let error = if x.is_exact() {
        0.0
    } else {
        let ends = x.range().map(|end| (function(end) - value).abs());
        // Between its ends a function that is not monotone is steeper by no more than this.
        ends[0].max(ends[1])
            + if is_monotone(op) {
                0.0
            } else {
                STEEPEST * x.error
            }
    };
    match op {
        Op::Sqrt => rounded(dtype, value, error, 1.0),
        // A difference of nearly equal numbers, so the error is of the operand's size.
        Op::GeluErf | Op::GeluTanh => {
            let error =
                error + APPROXIMATE_UNITS * unit(dtype) * if size.is_finite() { size } else { 0.0 };
            rounded(dtype, value, error, APPROXIMATE_UNITS)
        }
        Op::Exp | Op::Sigmoid | Op::Silu => rounded(dtype, value, error, approximate(x.value)),
        Op::Log => {
            // Near 1 an approximation is as good as the number 1 is.
            rounded(dtype, value, error + unit(dtype), APPROXIMATE_UNITS)
        }
        _ => rounded(dtype, value, error, APPROXIMATE_UNITS),
    }
}

fn is_monotone(op: &Op) -> bool {
    !matches!(op, Op::Silu | Op::GeluErf | Op::GeluTanh)
}

fn function(op: &Op) -> fn(f64) -> f64 {
    match op {
        Op::Exp => libm::exp,
        Op::Log => libm::log,
        Op::Sqrt => f64::sqrt,
        Op::Rsqrt => |x| 1.0 / x.sqrt(),
        Op::Tanh => libm::tanh,
        Op::Sigmoid => sigmoid,
        Op::Silu => |x| x * sigmoid(x),
        Op::GeluErf => |x| 0.5 * x * (1.0 + libm::erf(x * std::f64::consts::FRAC_1_SQRT_2)),
        _ => |x| {
            let inner = (std::f64::consts::FRAC_2_PI).sqrt() * (x + 0.044_715 * x * x * x);
            0.5 * x * (1.0 + libm::tanh(inner))
        },
    }
}

fn sigmoid(x: f64) -> f64 {
    if x >= 0.0 {
        return 1.0 / (1.0 + libm::exp(-x));
    }
    let power = libm::exp(x);
    power / (1.0 + power)
}

/// Units that approximated functions may be off, as docs/abi.md says.
pub(super) const APPROXIMATE_UNITS: f64 = 16.0;
/// More than the greatest slope of silu and gelu, 1.13.
const STEEPEST: f64 = 1.2;
