//! What items do element by element, and the numbers that are written into kernels.

use half::{bf16, f16};
use stepmesh_graph::{DType, float8};

/// An operation of one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "each is the operation of its name in `stepmesh_abi::compute`"
)]
pub enum Unary {
    Neg,
    Exp,
    Log,
    Sqrt,
    Rsqrt,
    Tanh,
    Sigmoid,
    Relu,
    Silu,
    GeluErf,
    GeluTanh,
}

/// An operation of two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "each is the operation of its name in `stepmesh_abi::compute`"
)]
pub enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    Pow,
    Max,
    Min,
}

/// A comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "each is the direction of its name in `stepmesh_abi::compute`"
)]
pub enum Order {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

/// A reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fold {
    /// The sum; 0 of nothing.
    Sum,
    /// The greatest, NaN if one is.
    Max,
    /// The greatest and where it is.
    ArgMax,
}

/// What elements of a type are computed as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// f32, and what is narrower: it is widened when it is read.
    F32,
    /// f64.
    F64,
    /// i32.
    I32,
    /// i64.
    I64,
    /// Bytes and booleans.
    U8,
}

impl Class {
    /// The class in which elements of a type are computed.
    #[must_use]
    pub fn of(dtype: DType) -> Self {
        match dtype {
            DType::F32 | DType::F16 | DType::BF16 | DType::F8E4M3 | DType::F8E5M2 => Self::F32,
            DType::F64 => Self::F64,
            DType::I32 => Self::I32,
            DType::I64 => Self::I64,
            DType::U8 | DType::Bool => Self::U8,
        }
    }

    /// Whether it is of floating point.
    #[must_use]
    pub fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64)
    }
}

/// A number of any type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    /// Of a float.
    Float(f64),
    /// Of an integer or a boolean.
    Int(i64),
}

impl Scalar {
    /// The number that an element of a constant is, little-endian.
    #[must_use]
    pub fn of_bytes(dtype: DType, bytes: &[u8]) -> Self {
        let join = |word: u64, byte: &u8| (word << 8) | u64::from(*byte);
        Self::of_bits(dtype, bytes.iter().rev().fold(0, join))
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "an element has no more bits than its type"
    )]
    fn of_bits(dtype: DType, word: u64) -> Self {
        let float = |value: f32| Self::Float(f64::from(value));
        match dtype {
            DType::F32 => float(f32::from_bits(word as u32)),
            DType::F16 => float(f16::from_bits(word as u16).to_f32()),
            DType::BF16 => float(bf16::from_bits(word as u16).to_f32()),
            DType::F64 => Self::Float(f64::from_bits(word)),
            DType::I32 => Self::Int(i64::from((word as u32).cast_signed())),
            DType::I64 => Self::Int(word.cast_signed()),
            DType::U8 | DType::Bool => Self::Int(i64::from(word as u8)),
            DType::F8E4M3 => float(float8::e4m3_to_f32(word as u8)),
            DType::F8E5M2 => float(float8::e5m2_to_f32(word as u8)),
        }
    }
}
