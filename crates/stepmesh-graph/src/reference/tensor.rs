//! Values as elements, from bytes, to bytes, and compared with what a plugin gave.

use half::{bf16, f16};

use super::element::{Element, nearest};
use crate::{DType, TensorType, float8};

/// A value of a graph, element by element in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    ty: TensorType,
    elements: Vec<Element>,
}

impl Tensor {
    pub(super) fn new(ty: TensorType, elements: Vec<Element>) -> Self {
        debug_assert_eq!(ty.shape().element_count(), elements.len());
        Self { ty, elements }
    }

    /// Floats, rounded to the type; integers cut, bools by whether they are not 0. Elements that
    /// `values` lacks are 0.
    #[must_use]
    pub fn from_f64(ty: TensorType, values: &[f64]) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "integers are cut, as is said"
        )]
        let element = |value: f64| match ty.dtype() {
            DType::Bool => Element::of_bool(value != 0.0),
            dtype if dtype.is_integer() => {
                Element::of_int(super::element::wrapped(dtype, value as i64))
            }
            dtype => Element::exact(nearest(dtype, value)),
        };
        let count = ty.shape().element_count();
        let values = values.iter().copied().chain(std::iter::repeat(0.0));
        Self::new(ty, values.take(count).map(element).collect())
    }

    /// The elements of bytes, row-major and little-endian; or one element, which all are. Bytes that
    /// are missing are 0.
    #[must_use]
    pub fn from_bytes(ty: TensorType, bytes: &[u8]) -> Self {
        let (size, count) = (ty.dtype().size_bytes(), ty.shape().element_count());
        let all: Vec<Element> = bytes
            .chunks_exact(size)
            .map(|element| element_of(ty.dtype(), element))
            .collect();
        let elements = match all.as_slice() {
            [one] => vec![*one; count],
            _ => all,
        };
        let mut tensor = Self { ty, elements };
        tensor.elements.resize(count, Element::exact(0.0));
        tensor
    }

    /// The elements rounded to the type, as bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let dtype = self.ty.dtype();
        let elements = self.elements.iter();
        elements
            .flat_map(|element| bytes_of(dtype, element))
            .collect()
    }

    /// Type and shape.
    #[must_use]
    pub fn ty(&self) -> TensorType {
        self.ty
    }

    /// The elements.
    #[must_use]
    pub fn elements(&self) -> &[Element] {
        &self.elements
    }

    /// The first element of a plugin's bytes that is not within the bounds, in words.
    #[must_use]
    pub fn mismatch(&self, bytes: &[u8]) -> Option<String> {
        if bytes.len() != self.ty.len_bytes() {
            return Some(format!("{} bytes for {}", bytes.len(), self.ty));
        }
        let dtype = self.ty.dtype();
        let found = bytes.chunks_exact(dtype.size_bytes());
        for (idx, (wanted, found)) in self.elements.iter().zip(found).enumerate() {
            if dtype == DType::Bool && found[0] > 1 {
                return Some(format!("element {idx} is a bool of {}", found[0]));
            }
            let found = element_of(dtype, found);
            if !fits(dtype, wanted, &found) {
                let (value, error) = (wanted.value, wanted.error);
                return Some(format!(
                    "element {idx} of {} is {}, not {value} within {error:e}",
                    self.ty, found.value
                ));
            }
        }
        None
    }
}

fn fits(dtype: DType, wanted: &Element, found: &Element) -> bool {
    if wanted.is_open() {
        return true;
    }
    if dtype.is_integer() || dtype == DType::Bool {
        return wanted.int == found.int;
    }
    if wanted.value.is_nan() || found.value.is_nan() {
        return wanted.value.is_nan() && found.value.is_nan();
    }
    // What is exact may still be one that the type rounds.
    wanted.value == found.value
        || nearest(dtype, wanted.value) == found.value
        || (found.value - wanted.value).abs() <= wanted.error
}

fn element_of(dtype: DType, bytes: &[u8]) -> Element {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    let word = u64::from_le_bytes(word);
    #[expect(clippy::cast_possible_truncation, reason = "the bytes of the element")]
    let (byte, short, half_word) = (word as u8, word as u16, word as u32);
    match dtype {
        DType::F64 => Element::exact(f64::from_bits(word)),
        DType::F32 => Element::exact(f64::from(f32::from_bits(half_word))),
        DType::F16 => Element::exact(f16::from_bits(short).to_f64()),
        DType::BF16 => Element::exact(bf16::from_bits(short).to_f64()),
        DType::F8E4M3 => Element::exact(f64::from(float8::e4m3_to_f32(byte))),
        DType::F8E5M2 => Element::exact(f64::from(float8::e5m2_to_f32(byte))),
        DType::I64 => Element::of_int(word.cast_signed()),
        DType::I32 => Element::of_int(half_word.cast_signed().into()),
        DType::U8 => Element::of_int(byte.into()),
        DType::Bool => Element::of_bool(byte != 0),
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the number is one of the type"
)]
fn bytes_of(dtype: DType, element: &Element) -> Vec<u8> {
    let (value, int) = (element.value, element.int);
    match dtype {
        DType::F64 => value.to_le_bytes().to_vec(),
        DType::F32 => (value as f32).to_le_bytes().to_vec(),
        DType::F16 => f16::from_f64(value).to_le_bytes().to_vec(),
        DType::BF16 => bf16::from_f64(value).to_le_bytes().to_vec(),
        DType::F8E4M3 => vec![float8::e4m3_from_f64(value)],
        DType::F8E5M2 => vec![float8::e5m2_from_f64(value)],
        DType::I64 => int.to_le_bytes().to_vec(),
        DType::I32 => (int as i32).to_le_bytes().to_vec(),
        DType::U8 | DType::Bool => vec![int as u8],
    }
}
