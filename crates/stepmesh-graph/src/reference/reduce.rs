//! Sums and what is made of them: reductions, products of matrices, softmax, norms.

use super::arrange::each;
use super::element::{Element, max, rounded, unit_of_sums, wrapped};
use super::elementwise::{APPROXIMATE_UNITS, add, extreme, int, mul, product_error};
use super::tensor::Tensor;
use crate::{DType, Op, Shape, TensorType};

/// The elements of the value; `None` for another kind of operation.
pub(super) fn apply(op: &Op, ty: TensorType, operands: &[&Tensor]) -> Option<Vec<Element>> {
    let x = *operands.first()?;
    let dtype = ty.dtype();
    Some(match op {
        Op::Sum { dims } => grouped(x, dims, ty.shape(), |terms| sum(dtype, terms, 1)),
        Op::Mean { dims } => grouped(x, dims, ty.shape(), |terms| sum(dtype, terms, terms.len())),
        Op::ReduceMax { dims } => grouped(x, dims, ty.shape(), |terms| {
            let start = least(dtype);
            terms
                .iter()
                .fold(start, |max, term| extreme(Op::Max, dtype, max, *term))
        }),
        Op::Argmax { dim } => grouped(x, &[*dim], ty.shape(), |terms| {
            argmax(x.ty().dtype(), terms)
        }),
        Op::Matmul {
            transpose_a,
            transpose_b,
        } => matmul(ty, [x, operands[1]], [*transpose_a, *transpose_b]),
        Op::Softmax { dim } => along(x, *dim..*dim + 1, |row| softmax(dtype, row)),
        Op::LayerNorm { dim, epsilon } => {
            let rest = operands.get(1..).unwrap_or_default();
            let dims = *dim..ty.shape().rank();
            along(x, dims, |row| norm(dtype, row, true, epsilon.value(), rest))
        }
        Op::RmsNorm { dim, epsilon } => {
            let rest = operands.get(1..).unwrap_or_default();
            let dims = *dim..ty.shape().rank();
            along(x, dims, |row| {
                norm(dtype, row, false, epsilon.value(), rest)
            })
        }
        _ => return None,
    })
}

/// Makes each element of the value of those that differ in the reduced dimensions only, in order.
fn grouped(
    x: &Tensor,
    dims: &[usize],
    shape: Shape,
    make: impl Fn(&[Element]) -> Element,
) -> Vec<Element> {
    let from = x.ty().shape();
    let strides = from.strides();
    let extents: Vec<usize> = dims.iter().map(|dim| from.dims()[*dim]).collect();
    // A part of a valid shape is one.
    let inner = Shape::new(&extents).unwrap_or(Shape::SCALAR);
    let kept: Vec<usize> = (0..from.rank()).filter(|dim| !dims.contains(dim)).collect();
    each(shape, |at| {
        let base: usize = kept
            .iter()
            .zip(at)
            .map(|(dim, idx)| strides[*dim] * idx)
            .sum();
        let terms = each(inner, |at| {
            let place = dims.iter().zip(at).map(|(dim, idx)| strides[*dim] * idx);
            x.elements()[base + place.sum::<usize>()]
        });
        make(&terms)
    })
}

/// Makes each row along some dimensions anew.
fn along(
    x: &Tensor,
    dims: std::ops::Range<usize>,
    make: impl Fn(&[Element]) -> Vec<Element>,
) -> Vec<Element> {
    let shape = x.ty().shape();
    let len: usize = shape.dims()[dims.clone()].iter().product();
    let step = shape.strides()[dims.end - 1];
    let mut out = x.elements().to_vec();
    for start in 0..out.len() {
        if !(start / step).is_multiple_of(len.max(1)) {
            continue;
        }
        let row: Vec<Element> = (0..len)
            .map(|idx| x.elements()[start + idx * step])
            .collect();
        for (idx, element) in make(&row).into_iter().enumerate() {
            out[start + idx * step] = element;
        }
    }
    out
}

#[expect(clippy::cast_precision_loss, reason = "counts of terms")]
fn sum(dtype: DType, terms: &[Element], divisor: usize) -> Element {
    if !dtype.is_float() {
        return int(dtype, terms, |n| {
            n.iter().fold(0, |sum, n| sum.wrapping_add(*n))
        });
    }
    let (value, error) = float_sum(dtype, terms);
    rounded(dtype, value / divisor as f64, error / divisor as f64, 1.0)
}

/// A sum, and how far one that is made in the type for sums may be from it.
#[expect(clippy::cast_precision_loss, reason = "counts of terms")]
fn float_sum(dtype: DType, terms: &[Element]) -> (f64, f64) {
    // From 0 on: the sum of nothing is no -0, which `Iterator::sum` would make of it.
    let value = terms.iter().fold(0.0, |sum, term| sum + term.value);
    let size: f64 = terms.iter().map(|term| term.value.abs() + term.error).sum();
    let error: f64 = terms.iter().map(|term| term.error).sum();
    if !value.is_finite() && terms.iter().all(|term| term.error == 0.0) {
        return (value, 0.0);
    }
    let widest = if dtype == DType::F64 {
        f64::MAX
    } else {
        max(DType::F32)
    };
    if size > widest {
        // Some order of the terms would overflow.
        return (value, f64::INFINITY);
    }
    let rounding = if terms.len() < 2 {
        0.0
    } else {
        terms.len() as f64
    };
    (value, error + rounding * unit_of_sums(dtype) * size)
}

fn least(dtype: DType) -> Element {
    match dtype {
        DType::I32 => Element::of_int(i32::MIN.into()),
        DType::I64 => Element::of_int(i64::MIN),
        DType::U8 | DType::Bool => Element::of_int(0),
        _ => Element::exact(f64::NEG_INFINITY),
    }
}

fn argmax(dtype: DType, terms: &[Element]) -> Element {
    if terms.iter().any(Element::is_open) {
        return Element::OPEN;
    }
    let mut best = 0;
    for (idx, term) in terms.iter().enumerate().skip(1) {
        let is_greater = if dtype.is_float() {
            let is_first_nan = term.value.is_nan() && !terms[best].value.is_nan();
            is_first_nan || term.value > terms[best].value
        } else {
            term.int > terms[best].int
        };
        if is_greater {
            best = idx;
        }
    }
    let is_near = |term: &Element| {
        let slack = term.error + terms[best].error;
        slack > 0.0 && (term.value - terms[best].value).abs() <= slack
    };
    let rivals = terms
        .iter()
        .enumerate()
        .filter(|(idx, term)| *idx != best && is_near(term));
    if rivals.count() > 0 {
        return Element::OPEN;
    }
    Element::of_int(i64::try_from(best).unwrap_or(i64::MAX))
}

fn matmul(ty: TensorType, operands: [&Tensor; 2], is_exchanged: [bool; 2]) -> Vec<Element> {
    let dtype = ty.dtype();
    let shape = ty.shape();
    let rank = shape.rank();
    let of_a = operands[0].ty().shape();
    let terms = of_a.dims()[if is_exchanged[0] { rank - 2 } else { rank - 1 }];
    let place = |operand: usize, batch: &[usize], row: usize, column: usize| {
        let strides = operands[operand].ty().shape().strides();
        let (row, column) = if is_exchanged[operand] {
            (column, row)
        } else {
            (row, column)
        };
        let batch: usize = batch
            .iter()
            .zip(strides)
            .map(|(idx, step)| idx * step)
            .sum();
        operands[operand].elements()[batch + row * strides[rank - 2] + column * strides[rank - 1]]
    };
    each(shape, |at| {
        let (batch, matrix) = at.split_at(rank - 2);
        let pairs =
            (0..terms).map(|k| (place(0, batch, matrix[0], k), place(1, batch, k, matrix[1])));
        if !dtype.is_float() {
            let products: Vec<Element> = pairs
                .map(|(a, b)| int(dtype, &[a, b], |n| n[0].wrapping_mul(n[1])))
                .collect();
            return int(dtype, &products, |n| {
                n.iter()
                    .fold(0, |sum, n| wrapped(dtype, sum.wrapping_add(*n)))
            });
        }
        let products: Vec<Element> = pairs
            .map(|(a, b)| Element {
                value: a.value * b.value,
                int: 0,
                error: if a.is_open() || b.is_open() {
                    f64::INFINITY
                } else {
                    product_error(a, b)
                },
            })
            .collect();
        let (value, error) = float_sum(dtype, &products);
        rounded(dtype, value, error, 1.0)
    })
}

#[expect(clippy::cast_precision_loss, reason = "counts of terms")]
fn softmax(dtype: DType, row: &[Element]) -> Vec<Element> {
    let error = row.iter().map(|x| x.error).fold(0.0, f64::max);
    if error == f64::INFINITY {
        return vec![Element::OPEN; row.len()];
    }
    let greatest = row.iter().map(|x| x.value).fold(f64::NEG_INFINITY, |a, b| {
        if a.is_nan() || b.is_nan() {
            f64::NAN
        } else {
            a.max(b)
        }
    });
    let powers: Vec<f64> = row.iter().map(|x| libm::exp(x.value - greatest)).collect();
    let sum: f64 = powers.iter().sum();
    let unit = unit_of_sums(dtype);
    let one = |(x, power): (&Element, &f64)| {
        let value = power / sum;
        let exponent = (x.value - greatest).abs();
        let exponent = if exponent.is_finite() { exponent } else { 0.0 };
        let units = APPROXIMATE_UNITS + row.len() as f64 + exponent;
        // Numerator and denominator each are off by at most this factor.
        let factor = libm::expm1(2.0 * error);
        rounded(dtype, value, value.abs() * (factor + units * unit), 1.0)
    };
    row.iter().zip(&powers).map(one).collect()
}

/// Layer norm (`is_centred`) or RMS norm of a row; then weight and bias, if there are any.
#[expect(clippy::cast_precision_loss, reason = "counts of terms")]
fn norm(
    dtype: DType,
    row: &[Element],
    is_centred: bool,
    epsilon: f64,
    rest: &[&Tensor],
) -> Vec<Element> {
    let (count, unit) = (row.len() as f64, unit_of_sums(dtype));
    let (total, total_error) = float_sum(dtype, row);
    let (mean, mean_error) = if is_centred {
        (total / count, total_error / count)
    } else {
        (0.0, 0.0)
    };
    let centred: Vec<Element> = row
        .iter()
        .map(|x| Element {
            value: x.value - mean,
            int: 0,
            error: if is_centred {
                x.error + mean_error + unit * (x.value.abs() + mean.abs())
            } else {
                x.error
            },
        })
        .collect();
    let squares: Vec<Element> = centred
        .iter()
        .map(|x| Element {
            value: x.value * x.value,
            int: 0,
            error: product_error(*x, *x),
        })
        .collect();
    let (squared, squared_error) = float_sum(dtype, &squares);
    let inside = squared / count + epsilon;
    let inside_error = squared_error / count + 2.0 * unit * inside;
    let scale = 1.0 / inside.sqrt();
    let scale_error = if inside_error < inside {
        1.0 / (inside - inside_error).sqrt() - scale
    } else {
        f64::INFINITY
    };
    let scale = Element {
        value: scale,
        int: 0,
        error: scale_error + APPROXIMATE_UNITS * unit * scale,
    };
    let one = |(idx, x): (usize, &Element)| {
        if x.value.is_nan() || scale.value.is_nan() {
            return Element::exact(f64::NAN);
        }
        // Kept wide until the end; the last operation rounds.
        let wide = if dtype == DType::F64 {
            DType::F64
        } else {
            DType::F32
        };
        let mut element = mul(wide, *x, scale);
        for (number, other) in rest.iter().enumerate() {
            let other = other.elements()[idx];
            element = if number == 0 {
                mul(wide, element, other)
            } else {
                add(wide, element, other)
            };
        }
        rounded(dtype, element.value, element.error, 1.0)
    };
    centred.iter().enumerate().map(one).collect()
}
