//! Element types of tensors, with their numbers on the wire.

use std::fmt;

/// The type of a tensor's elements, in PyTorch's and safetensors' short names.
///
/// The numbers travel between processes and are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum DType {
    /// Boolean, one byte.
    Bool = 0,
    /// Unsigned 8-bit integer.
    U8 = 1,
    /// Signed 8-bit integer.
    I8 = 2,
    /// Unsigned 16-bit integer.
    U16 = 3,
    /// Signed 16-bit integer.
    I16 = 4,
    /// Unsigned 32-bit integer.
    U32 = 5,
    /// Signed 32-bit integer.
    I32 = 6,
    /// Unsigned 64-bit integer.
    U64 = 7,
    /// Signed 64-bit integer.
    I64 = 8,
    /// IEEE 754 half precision.
    F16 = 9,
    /// Brain floating point, 16 bits.
    BF16 = 10,
    /// IEEE 754 single precision.
    F32 = 11,
    /// IEEE 754 double precision.
    F64 = 12,
    /// 8-bit float, 4 exponent and 3 mantissa bits, no infinities (OCP FP8 E4M3).
    F8E4M3 = 13,
    /// 8-bit float, 5 exponent and 2 mantissa bits (OCP FP8 E5M2).
    F8E5M2 = 14,
}

impl DType {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 15] = [
        Self::Bool,
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::U64,
        Self::I64,
        Self::F16,
        Self::BF16,
        Self::F32,
        Self::F64,
        Self::F8E4M3,
        Self::F8E5M2,
    ];

    /// The size of one element in bytes.
    pub const fn size_bytes(self) -> u64 {
        match self {
            Self::Bool | Self::U8 | Self::I8 | Self::F8E4M3 | Self::F8E5M2 => 1,
            Self::U16 | Self::I16 | Self::F16 | Self::BF16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// The number that travels.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The type with this number, if there is one.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bool => "bool",
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::F8E4M3 => "f8_e4m3",
            Self::F8E5M2 => "f8_e5m2",
        })
    }
}

/// A Rust type whose values are a tensor's elements.
pub trait Element: bytemuck::Pod {
    /// The tensor element type that it stands for.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($ty:ty => $dtype:ident),* $(,)?) => {
        $(impl Element for $ty { const DTYPE: DType = DType::$dtype; })*
    };
}

elements! {
    u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, u64 => U64, i64 => I64,
    half::f16 => F16, half::bf16 => BF16, f32 => F32, f64 => F64,
}

#[cfg(test)]
mod tests {
    use super::DType;

    #[test]
    fn codes_are_their_positions() {
        for (position, dtype) in DType::ALL.iter().enumerate() {
            assert_eq!(usize::from(dtype.code()), position);
            assert_eq!(DType::from_code(dtype.code()), Some(*dtype));
        }
        assert_eq!(DType::from_code(15), None);
        assert_eq!(DType::from_code(255), None);
    }
}
