//! The types of results, as PyTorch promotes them. Shapes are in `broadcast`.
//!
//! Operands come in three categories: tensors with dimensions, tensors without, and plain numbers.
//! The type of a category counts less than that of the one before it unless it is of a higher kind
//! (bool < integer < float), see "Tensor Attributes, Type promotion" in PyTorch's documentation.

use stepmesh_graph::{DType, DTypeClass};

/// Where an operand's type comes from, strongest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Category {
    /// A tensor with dimensions.
    Dimensioned,
    /// A tensor without dimensions.
    ZeroDim,
    /// A number of the host language.
    Number,
}

/// The smallest type that both promote to; `None` if there is none, which is so for the 8-bit
/// floats, as in PyTorch.
#[must_use]
pub fn promote_types(a: DType, b: DType) -> Option<DType> {
    if a == b {
        return Some(a);
    }
    let (rank_a, rank_b) = (rank(a)?, rank(b)?);
    Some(match (a, b) {
        (DType::F16, DType::BF16) | (DType::BF16, DType::F16) => DType::F32,
        _ if rank_a > rank_b => a,
        _ => b,
    })
}

/// The type of the result of operands of these types and categories, as `torch.result_type`;
/// `None` if there are none or two of them do not promote.
#[must_use]
pub fn result_type(operands: &[(DType, Category)]) -> Option<DType> {
    let of = |category: Category| -> Option<Option<DType>> {
        let mut all = operands.iter().filter(|(_, other)| *other == category);
        let Some((first, _)) = all.next() else {
            return Some(None);
        };
        all.try_fold(*first, |ty, (other, _)| promote_types(ty, *other))
            .map(Some)
    };
    let weaker = combine(of(Category::ZeroDim)?, of(Category::Number)?)?;
    combine(of(Category::Dimensioned)?, weaker)?
}

/// A category's type beside that of the weaker ones. The outer `None` says that they do not promote.
fn combine(stronger: Option<DType>, weaker: Option<DType>) -> Option<Option<DType>> {
    let (Some(stronger), Some(weaker)) = (stronger, weaker) else {
        return Some(stronger.or(weaker));
    };
    let is_higher_kind = kind(weaker)? > kind(stronger)?;
    if is_higher_kind {
        promote_types(stronger, weaker).map(Some)
    } else {
        Some(Some(stronger))
    }
}

/// bool, integer, float; `None` for types that are only stored.
fn kind(dtype: DType) -> Option<u8> {
    match dtype.class() {
        DTypeClass::Bool => Some(0),
        DTypeClass::Integer => Some(1),
        DTypeClass::Float => Some(2),
        DTypeClass::Storage => None,
    }
}

/// Of two types the one with the higher rank takes both; f16 and bf16 do not take each other.
fn rank(dtype: DType) -> Option<u8> {
    Some(match dtype {
        DType::Bool => 0,
        DType::U8 => 1,
        DType::I32 => 2,
        DType::I64 => 3,
        DType::F16 | DType::BF16 => 4,
        DType::F32 => 5,
        DType::F64 => 6,
        DType::F8E4M3 | DType::F8E5M2 => return None,
    })
}

/// The type of numbers with a fraction, and of what integers become where an operation gives
/// fractions: PyTorch's default type.
pub(crate) const DEFAULT_FLOAT: DType = DType::F32;

#[cfg(test)]
mod tests;
