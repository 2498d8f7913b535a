//! The two operations that make random numbers.

use super::element::{Element, rounded};
use super::elementwise::APPROXIMATE_UNITS;
use super::tensor::Tensor;
use crate::{DType, Op, TensorType, philox};

/// The elements of the value; `None` for another kind of operation.
pub(super) fn apply(op: &Op, ty: TensorType, operands: &[&Tensor]) -> Option<Vec<Element>> {
    if !matches!(op, Op::RngUniform { .. } | Op::RngNormal { .. }) {
        return None;
    }
    let (seed, offset) = (operands[0].elements()[0], operands[1].elements()[0]);
    if seed.is_open() || offset.is_open() {
        return Some(vec![Element::OPEN; ty.shape().element_count()]);
    }
    let (seed, offset) = (seed.int.cast_unsigned(), offset.int.cast_unsigned());
    let is_normal = matches!(op, Op::RngNormal { .. });
    let dtype = ty.dtype();
    let per_block = if dtype == DType::F64 { 2 } else { 4 };
    let one = |idx: usize| {
        let block = offset.wrapping_add((idx / per_block) as u64);
        let (words, place) = (philox::block(seed, block), idx % per_block);
        if is_normal {
            return normal(dtype, words, place);
        }
        Element::exact(uniform(dtype, words, place))
    };
    Some((0..ty.shape().element_count()).map(one).collect())
}

fn uniform(dtype: DType, words: [u32; 4], place: usize) -> f64 {
    match dtype {
        DType::F64 => philox::uniform_f64(words[2 * place], words[2 * place + 1]),
        DType::F16 => philox::uniform(words[place], 11).into(),
        DType::BF16 => philox::uniform(words[place], 8).into(),
        _ => philox::uniform(words[place], 24).into(),
    }
}

fn normal(dtype: DType, words: [u32; 4], place: usize) -> Element {
    let value = match dtype {
        DType::F64 => philox::normal_f64(words)[place],
        _ => {
            let pair = place / 2;
            philox::normal([words[2 * pair], words[2 * pair + 1]])[place % 2].into()
        }
    };
    // The radius is at most 6 in f32 and 9 in f64; sine and cosine near 0 are good to units of 1.
    let radius_max = 9.0;
    let error = APPROXIMATE_UNITS * super::element::unit_of_sums(dtype) * radius_max;
    rounded(dtype, value, error, APPROXIMATE_UNITS)
}
