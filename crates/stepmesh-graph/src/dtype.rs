//! Types of elements. What they hold is written in `stepmesh_abi::compute`.

use std::fmt;

use stepmesh_abi::compute::{
    SM_DTYPE_BF16, SM_DTYPE_BOOL, SM_DTYPE_F8_E4M3, SM_DTYPE_F8_E5M2, SM_DTYPE_F16, SM_DTYPE_F32,
    SM_DTYPE_F64, SM_DTYPE_I32, SM_DTYPE_I64, SM_DTYPE_U8,
};

/// Type of the elements of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// 32-bit float.
    F32,
    /// IEEE 16-bit float.
    F16,
    /// The upper half of an f32.
    BF16,
    /// 64-bit float.
    F64,
    /// Signed, 32 bits.
    I32,
    /// Signed, 64 bits.
    I64,
    /// Unsigned, 8 bits.
    U8,
    /// One byte, 0 or 1.
    Bool,
    /// 8-bit float, see [`crate::float8`].
    F8E4M3,
    /// 8-bit float, see [`crate::float8`].
    F8E5M2,
}

/// What can be done with elements of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DTypeClass {
    /// Floats that are computed with.
    Float,
    /// Integers.
    Integer,
    /// Truth values.
    Bool,
    /// Floats that are stored, moved and cast only.
    Storage,
}

impl DType {
    /// Every type.
    pub const ALL: [Self; 10] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::F64,
        Self::I32,
        Self::I64,
        Self::U8,
        Self::Bool,
        Self::F8E4M3,
        Self::F8E5M2,
    ];

    /// The type's number in the ABI, `SM_DTYPE_*`.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::F32 => SM_DTYPE_F32,
            Self::F16 => SM_DTYPE_F16,
            Self::BF16 => SM_DTYPE_BF16,
            Self::F64 => SM_DTYPE_F64,
            Self::I32 => SM_DTYPE_I32,
            Self::I64 => SM_DTYPE_I64,
            Self::U8 => SM_DTYPE_U8,
            Self::Bool => SM_DTYPE_BOOL,
            Self::F8E4M3 => SM_DTYPE_F8_E4M3,
            Self::F8E5M2 => SM_DTYPE_F8_E5M2,
        }
    }

    /// The type of a number, if there is one.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|ty| ty.number() == number)
    }

    /// Bytes of an element.
    #[must_use]
    pub const fn size_bytes(self) -> usize {
        match self {
            Self::F64 | Self::I64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::U8 | Self::Bool | Self::F8E4M3 | Self::F8E5M2 => 1,
        }
    }

    /// What can be done with it.
    #[must_use]
    pub const fn class(self) -> DTypeClass {
        match self {
            Self::F32 | Self::F16 | Self::BF16 | Self::F64 => DTypeClass::Float,
            Self::I32 | Self::I64 | Self::U8 => DTypeClass::Integer,
            Self::Bool => DTypeClass::Bool,
            Self::F8E4M3 | Self::F8E5M2 => DTypeClass::Storage,
        }
    }

    /// A float that is computed with.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(self.class(), DTypeClass::Float)
    }

    /// An integer.
    #[must_use]
    pub const fn is_integer(self) -> bool {
        matches!(self.class(), DTypeClass::Integer)
    }

    /// Its name in dumps and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::F64 => "f64",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::U8 => "u8",
            Self::Bool => "bool",
            Self::F8E4M3 => "f8e4m3",
            Self::F8E5M2 => "f8e5m2",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
