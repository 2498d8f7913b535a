//! Each operation in StableHLO's, one or several.

use super::random;
use super::write::{Value, Writer, like, scalar, type_of, with_dtype};
use crate::{CompareDirection, DType, Op, Shape, TensorType};

/// Writes a node and gives the name of its value.
pub(super) fn node(w: &mut Writer, op: &Op, ty: TensorType, operands: &[Value]) -> String {
    value(w, op, ty, operands).0
}

fn value(w: &mut Writer, op: &Op, ty: TensorType, operands: &[Value]) -> Value {
    let all: Vec<&Value> = operands.iter().collect();
    match op {
        Op::Parameter { number, .. } => (format!("%arg{number}"), ty),
        Op::Constant { data, .. } => w.elements(ty, data),
        Op::Cast { dtype } => cast(w, all[0], *dtype),
        Op::Add => w.alike("add", &all),
        Op::Sub => w.alike("subtract", &all),
        Op::Mul => w.alike("multiply", &all),
        Op::Div => w.alike("divide", &all),
        Op::Pow if ty.dtype().is_integer() => power(w, all[0], all[1]),
        Op::Pow => w.alike("power", &all),
        Op::Max => w.alike("maximum", &all),
        Op::Min => w.alike("minimum", &all),
        Op::Neg => w.alike("negate", &all),
        Op::Exp => w.alike("exponential", &all),
        Op::Log => w.alike("log", &all),
        Op::Sqrt => w.alike("sqrt", &all),
        Op::Rsqrt => w.alike("rsqrt", &all),
        Op::Tanh => w.alike("tanh", &all),
        Op::Sigmoid => w.alike("logistic", &all),
        Op::Relu => {
            let zero = w.number(ty, 0.0);
            w.alike("maximum", &[all[0], &zero])
        }
        Op::Silu | Op::GeluErf | Op::GeluTanh => wide(w, all[0], |w, x| activation(w, op, x)),
        Op::Compare(direction) => w.compare(name_of(*direction), all[0], all[1]),
        Op::Select => w.select(all[0], all[1], all[2]),
        Op::Clamp => {
            let low = w.alike("maximum", &[all[0], all[1]]);
            w.alike("minimum", &[&low, all[2]])
        }
        Op::Sum { dims } => wide(w, all[0], |w, x| sum(w, x, dims)),
        Op::Mean { dims } => wide(w, all[0], |w, x| mean(w, x, dims)),
        Op::ReduceMax { dims } => greatest(w, all[0], dims),
        Op::Argmax { dim } => argmax(w, all[0], *dim),
        Op::Matmul {
            transpose_a,
            transpose_b,
        } => matmul(w, [all[0], all[1]], [*transpose_a, *transpose_b], ty),
        Op::Softmax { dim } => wide(w, all[0], |w, x| softmax(w, x, *dim)),
        Op::LayerNorm { dim, epsilon } => norm(w, &all, *dim, epsilon.value(), true),
        Op::RmsNorm { dim, epsilon } => norm(w, &all, *dim, epsilon.value(), false),
        Op::Reshape { .. } => w.to("reshape", all[0], "", ty),
        Op::Transpose { dims } => w.to("transpose", all[0], &format!(", dims = {dims:?}"), ty),
        Op::Broadcast { dims, .. } => w.spread(all[0], dims, ty),
        Op::Slice {
            starts,
            limits,
            strides,
        } => {
            let parts = starts.iter().zip(limits).zip(strides);
            let parts = parts.map(|((start, limit), stride)| format!("{start}:{limit}:{stride}"));
            let list = format!(" [{}]", parts.collect::<Vec<_>>().join(", "));
            w.to("slice", all[0], &list, ty)
        }
        Op::Concat { dim } => concat(w, &all, *dim, ty),
        Op::Gather { dim } => gather(w, all[0], all[1], *dim, ty),
        Op::IndexAdd { dim } => index_add(w, [all[0], all[1], all[2]], *dim),
        Op::RngUniform { .. } => random::uniform(w, ty, all[0], all[1]),
        Op::RngNormal { .. } => random::normal(w, ty, all[0], all[1]),
    }
}

/// What is made of several operations is computed in f32 at least.
fn wide(w: &mut Writer, x: &Value, make: impl FnOnce(&mut Writer, &Value) -> Value) -> Value {
    let dtype = x.1.dtype();
    let up = w.convert(x, wide_type(dtype));
    let value = make(w, &up);
    w.convert(&value, dtype)
}

fn wide_type(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        other => other,
    }
}

/// Truth is what is not zero; what a conversion between floats and integers does at their ends is
/// left open by StableHLO, so it is written out.
fn cast(w: &mut Writer, x: &Value, to: DType) -> Value {
    let from = x.1.dtype();
    if to == DType::Bool && from != DType::Bool {
        let wide = w.convert(x, if from.is_integer() { from } else { DType::F64 });
        let zero = w.number(wide.1, 0.0);
        return w.compare("NE", &wide, &zero);
    }
    let is_float = !from.is_integer() && from != DType::Bool;
    if is_float && to.is_integer() {
        return saturate(w, x, to);
    }
    w.convert(x, to)
}

fn saturate(w: &mut Writer, x: &Value, to: DType) -> Value {
    let x = w.convert(x, DType::F64);
    // The greatest f64 below each bound's successor.
    let (low, high) = match to {
        DType::I32 => (f64::from(i32::MIN), f64::from(i32::MAX)),
        DType::U8 => (0.0, 255.0),
        _ => (I64_MIN, I64_MAX_BELOW),
    };
    let (least, most) = (w.number(x.1, low), w.number(x.1, high));
    let zero = w.number(x.1, 0.0);
    let is_number = w.compare("EQ", &x, &x);
    let number = w.select(&is_number, &x, &zero);
    let clamped = w.alike("maximum", &[&number, &least]);
    let clamped = w.alike("minimum", &[&clamped, &most]);
    let cut = w.to("convert", &clamped, "", with_dtype(x.1, to));
    if to != DType::I64 {
        return cut;
    }
    let is_beyond = w.compare("GT", &x, &most);
    let bytes = i64::MAX.to_le_bytes();
    let max = w.elements(scalar(to), &bytes);
    let max = w.spread(&max, &[], cut.1);
    w.select(&is_beyond, &max, &cut)
}

fn activation(w: &mut Writer, op: &Op, x: &Value) -> Value {
    let ty = x.1;
    if *op == Op::Silu {
        let share = w.alike("logistic", &[x]);
        return w.alike("multiply", &[x, &share]);
    }
    let inner = if *op == Op::GeluErf {
        let factor = w.number(ty, std::f64::consts::FRAC_1_SQRT_2);
        let scaled = w.alike("multiply", &[x, &factor]);
        let own = type_of(ty);
        w.line(ty, &format!("chlo.erf {} : {own} -> {own}", scaled.0))
    } else {
        let square = w.alike("multiply", &[x, x]);
        let cube = w.alike("multiply", &[&square, x]);
        let small = w.number(ty, 0.044_715);
        let cube = w.alike("multiply", &[&cube, &small]);
        let sum = w.alike("add", &[x, &cube]);
        let root = w.number(ty, std::f64::consts::FRAC_2_PI.sqrt());
        let scaled = w.alike("multiply", &[&sum, &root]);
        w.alike("tanh", &[&scaled])
    };
    let one = w.number(ty, 1.0);
    let sum = w.alike("add", &[&inner, &one]);
    let half = w.number(ty, 0.5);
    let halved = w.alike("multiply", &[x, &half]);
    w.alike("multiply", &[&halved, &sum])
}

/// Integer powers by squaring, written out: what XLA's own make of exponents from 64 on is not a
/// wrapped product.
fn power(w: &mut Writer, base: &Value, exponent: &Value) -> Value {
    let ty = base.1;
    let (zero, one) = (w.number(ty, 0.0), w.number(ty, 1.0));
    let (mut result, mut square) = (one.clone(), base.clone());
    for bit in 0..8 * ty.dtype().size_bytes() {
        #[expect(clippy::cast_precision_loss, reason = "below 64")]
        let by = w.number(ty, bit as f64);
        let shifted = w.alike("shift_right_logical", &[exponent, &by]);
        let lowest = w.alike("and", &[&shifted, &one]);
        let is_set = w.compare("NE", &lowest, &zero);
        let product = w.alike("multiply", &[&result, &square]);
        result = w.select(&is_set, &product, &result);
        square = w.alike("multiply", &[&square, &square]);
    }
    if ty.dtype() == DType::U8 {
        return result;
    }
    // A negative exponent leaves only 1 and -1, whose squares are right already.
    let is_negative = w.compare("LT", exponent, &zero);
    let minus = w.alike("negate", &[&one]);
    let is_one = w.compare("EQ", base, &one);
    let is_minus = w.compare("EQ", base, &minus);
    let is_unit = w.alike("or", &[&is_one, &is_minus]);
    let kept = w.select(&is_unit, &result, &zero);
    w.select(&is_negative, &kept, &result)
}

fn name_of(direction: CompareDirection) -> &'static str {
    match direction {
        CompareDirection::Eq => "EQ",
        CompareDirection::Ne => "NE",
        CompareDirection::Lt => "LT",
        CompareDirection::Le => "LE",
        CompareDirection::Gt => "GT",
        CompareDirection::Ge => "GE",
    }
}

fn sum(w: &mut Writer, x: &Value, dims: &[usize]) -> Value {
    let zero = w.number(scalar(x.1.dtype()), 0.0);
    w.reduce("add", x, &zero, dims)
}

#[expect(clippy::cast_precision_loss, reason = "a count of elements")]
fn mean(w: &mut Writer, x: &Value, dims: &[usize]) -> Value {
    let count: usize = dims.iter().map(|dim| x.1.shape().dims()[*dim]).product();
    let sum = sum(w, x, dims);
    let count = w.number(sum.1, count as f64);
    w.alike("divide", &[&sum, &count])
}

fn greatest(w: &mut Writer, x: &Value, dims: &[usize]) -> Value {
    let dtype = x.1.dtype();
    let least = scalar(dtype);
    let start = match dtype {
        DType::I32 => w.elements(least, &i32::MIN.to_le_bytes()),
        DType::I64 => w.elements(least, &i64::MIN.to_le_bytes()),
        DType::U8 | DType::Bool => w.elements(least, &[0]),
        _ => w.number(least, f64::NEG_INFINITY),
    };
    w.reduce("maximum", x, &start, dims)
}

/// The least index of those that are the greatest, or NaN.
fn argmax(w: &mut Writer, x: &Value, dim: usize) -> Value {
    let most = greatest(w, x, &[dim]);
    let others: Vec<usize> = (0..x.1.shape().rank())
        .filter(|other| *other != dim)
        .collect();
    let most = w.spread(&most, &others, x.1);
    let is_most = w.compare("EQ", x, &most);
    let is_nan = w.compare("NE", x, x);
    let is_it = w.alike("or", &[&is_most, &is_nan]);
    let ty = with_dtype(x.1, DType::I64);
    let text = format!("stablehlo.iota dim = {dim} : {}", type_of(ty));
    let index = w.line(ty, &text);
    let beyond = w.elements(scalar(DType::I64), &i64::MAX.to_le_bytes());
    let far = w.spread(&beyond, &[], ty);
    let index = w.select(&is_it, &index, &far);
    w.reduce("minimum", &index, &beyond, &[dim])
}

fn matmul(w: &mut Writer, ab: [&Value; 2], is_exchanged: [bool; 2], ty: TensorType) -> Value {
    let dtype = ty.dtype();
    let [a, b] = ab.map(|x| w.convert(x, wide_type(dtype)));
    let rank = ty.shape().rank();
    let batch: Vec<usize> = (0..rank - 2).collect();
    let summed_a = if is_exchanged[0] { rank - 2 } else { rank - 1 };
    let summed_b = if is_exchanged[1] { rank - 1 } else { rank - 2 };
    let batch = if batch.is_empty() {
        String::new()
    } else {
        format!("batching_dims = {batch:?} x {batch:?}, ")
    };
    let to = with_dtype(ty, wide_type(dtype));
    let text = format!(
        "stablehlo.dot_general {}, {}, {batch}contracting_dims = [{summed_a}] x [{summed_b}], \
         precision = [HIGHEST, HIGHEST] : ({}, {}) -> {}",
        a.0,
        b.0,
        type_of(a.1),
        type_of(b.1),
        type_of(to)
    );
    let product = w.line(to, &text);
    w.convert(&product, dtype)
}

fn softmax(w: &mut Writer, x: &Value, dim: usize) -> Value {
    let others: Vec<usize> = (0..x.1.shape().rank())
        .filter(|other| *other != dim)
        .collect();
    let most = greatest(w, x, &[dim]);
    let most = w.spread(&most, &others, x.1);
    let below = w.alike("subtract", &[x, &most]);
    let power = w.alike("exponential", &[&below]);
    let total = sum(w, &power, &[dim]);
    let total = w.spread(&total, &others, x.1);
    w.alike("divide", &[&power, &total])
}

fn norm(w: &mut Writer, all: &[&Value], dim: usize, epsilon: f64, is_centred: bool) -> Value {
    let dtype = all[0].1.dtype();
    let mut x = w.convert(all[0], wide_type(dtype));
    let ty = x.1;
    let rank = ty.shape().rank();
    let (kept, inner): (Vec<usize>, Vec<usize>) = ((0..dim).collect(), (dim..rank).collect());
    if is_centred {
        let average = mean(w, &x, &inner);
        let average = w.spread(&average, &kept, ty);
        x = w.alike("subtract", &[&x, &average]);
    }
    let square = w.alike("multiply", &[&x, &x]);
    let average = mean(w, &square, &inner);
    let small = w.number(average.1, epsilon);
    let inside = w.alike("add", &[&average, &small]);
    let root = w.alike("sqrt", &[&inside]);
    let root = w.spread(&root, &kept, ty);
    let mut result = w.alike("divide", &[&x, &root]);
    for (op, other) in ["multiply", "add"].iter().zip(&all[1..]) {
        let other = w.convert(other, wide_type(dtype));
        let other = w.spread(&other, &inner, ty);
        result = w.alike(op, &[&result, &other]);
    }
    w.convert(&result, dtype)
}

fn concat(w: &mut Writer, all: &[&Value], dim: usize, ty: TensorType) -> Value {
    let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
    let types: Vec<String> = all.iter().map(|(_, ty)| type_of(*ty)).collect();
    let text = format!(
        "stablehlo.concatenate {}, dim = {dim} : ({}) -> {}",
        names.join(", "),
        types.join(", "),
        type_of(ty)
    );
    w.line(ty, &text)
}

fn gather(w: &mut Writer, data: &Value, indices: &Value, dim: usize, ty: TensorType) -> Value {
    let (own, named) = (data.1.shape(), indices.1.shape().rank());
    if ty.shape().element_count() == 0 {
        // A slice of one of nothing is not allowed there, but there is nothing to slice.
        return w.elements(ty, &[]);
    }
    let rank = ty.shape().rank();
    let offsets: Vec<usize> = (0..rank)
        .filter(|at| *at < dim || *at >= dim + named)
        .collect();
    let mut sizes: Vec<usize> = own.dims().to_vec();
    sizes[dim] = 1;
    let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
    let text = format!(
        "\"stablehlo.gather\"({}, {}) <{{dimension_numbers = #stablehlo.gather<offset_dims = \
         {offsets:?}, collapsed_slice_dims = [{dim}], start_index_map = [{dim}], index_vector_dim = \
         {named}>, indices_are_sorted = false, slice_sizes = array<i64: {}>}}> : ({}, {}) -> {}",
        data.0,
        indices.0,
        sizes.join(", "),
        type_of(data.1),
        type_of(indices.1),
        type_of(ty)
    );
    w.line(ty, &text)
}

fn index_add(w: &mut Writer, [data, indices, updates]: [&Value; 3], dim: usize) -> Value {
    let ty = data.1;
    let windows: Vec<usize> = (0..ty.shape().rank())
        .filter(|other| *other != dim)
        .collect();
    let one = type_of(scalar(ty.dtype()));
    let text = format!(
        "\"stablehlo.scatter\"({}, {}, {}) <{{indices_are_sorted = false, \
         scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = {windows:?}, \
         inserted_window_dims = [{dim}], scatter_dims_to_operand_dims = [{dim}], index_vector_dim = \
         1>, unique_indices = false}}> ({{\n    ^bb0(%old: {one}, %more: {one}):\n      %sum = \
         stablehlo.add %old, %more : {one}\n      stablehlo.return %sum : {one}\n    }}) : ({}, {}, \
         {}) -> {}",
        data.0,
        indices.0,
        updates.0,
        type_of(ty),
        type_of(indices.1),
        type_of(updates.1),
        type_of(ty)
    );
    w.line(ty, &text)
}

/// A flat value in the shape that is wanted.
pub(super) fn shaped(w: &mut Writer, flat: &Value, shape: Shape) -> Value {
    let ty = like(flat.1, shape.dims());
    w.to("reshape", flat, "", ty)
}

/// -2^63.
const I64_MIN: f64 = -9_223_372_036_854_775_808.0;
/// The greatest f64 below 2^63.
const I64_MAX_BELOW: f64 = 9_223_372_036_854_774_784.0;
