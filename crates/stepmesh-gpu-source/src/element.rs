//! How types are written: what lies in memory, what is computed with, and numbers.

use stepmesh_fusion::Scalar;
use stepmesh_graph::DType;

/// What an element is computed as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    F32,
    F64,
    I32,
    I64,
    /// Bytes and booleans.
    U8,
}

impl Class {
    pub(crate) fn of(dtype: DType) -> Self {
        match dtype {
            DType::F32 | DType::F16 | DType::BF16 | DType::F8E4M3 | DType::F8E5M2 => Self::F32,
            DType::F64 => Self::F64,
            DType::I32 => Self::I32,
            DType::I64 => Self::I64,
            DType::U8 | DType::Bool => Self::U8,
        }
    }

    /// Its type in C++.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::F32 => "float",
            Self::F64 => "double",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::U8 => "u8",
        }
    }

    /// In the names of casts: `to_f32`.
    pub(crate) fn short(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            other => other.name(),
        }
    }
}

/// Type of an element in memory.
pub(crate) fn stored(dtype: DType) -> &'static str {
    match dtype {
        DType::F16 | DType::BF16 => "u16",
        DType::F8E4M3 | DType::F8E5M2 => "u8",
        other => Class::of(other).name(),
    }
}

/// An element that was read, as what is computed with.
pub(crate) fn widened(dtype: DType, element: &str) -> String {
    match narrow(dtype) {
        Some(name) => format!("{name}_to_f32({element})"),
        None => element.to_owned(),
    }
}

/// A computed value as an element to be written.
pub(crate) fn narrowed(dtype: DType, value: &str) -> String {
    match narrow(dtype) {
        Some(name) => format!("f32_to_{name}({value})"),
        None => value.to_owned(),
    }
}

/// The name of a type that is computed with as f32 and is none, in the functions of the source.
pub(crate) fn narrow(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::F16 => Some("f16"),
        DType::BF16 => Some("bf16"),
        DType::F8E4M3 => Some("f8e4m3"),
        DType::F8E5M2 => Some("f8e5m2"),
        _ => None,
    }
}

/// A number of a class.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "`as` is the conversion that a number written into a kernel is to have"
)]
pub(crate) fn literal(class: Class, value: Scalar) -> String {
    let (float, int) = match value {
        Scalar::Float(float) => (float, float as i64),
        Scalar::Int(int) => (int as f64, int),
    };
    match class {
        // The shortest text that is read as the same number.
        Class::F32 if (float as f32).is_finite() => format!("{:?}f", float as f32),
        Class::F64 if float.is_finite() => format!("{float:?}"),
        Class::F32 | Class::F64 => {
            let sign = if float < 0.0 { "-" } else { "" };
            let name = if float.is_nan() { "nan" } else { "inf" };
            let bits = if class == Class::F32 { 32 } else { 64 };
            format!("{sign}{name}{bits}()")
        }
        // The least number has no literal of its own.
        Class::I64 if int == i64::MIN => "(-9223372036854775807ll - 1)".to_owned(),
        Class::I64 => format!("{int}ll"),
        Class::I32 if int as i32 == i32::MIN => "(-2147483647 - 1)".to_owned(),
        Class::I32 => format!("{}", int as i32),
        Class::U8 => format!("(u8){}", int as u8),
    }
}

#[cfg(test)]
mod tests {
    //! Numbers that are awkward to write.

    use stepmesh_fusion::Scalar;

    use super::{Class, literal};

    #[test]
    fn numbers_are_written_as_what_they_are() {
        let float = |value| literal(Class::F32, Scalar::Float(value));
        assert_eq!(float(0.1_f32.into()), "0.1f");
        assert_eq!(float(-0.0), "-0.0f");
        assert_eq!(float(1e30_f32.into()), "1e30f");
        assert_eq!(float(f64::NEG_INFINITY), "-inf32()");
        assert_eq!(float(1e300), "inf32()");
        assert_eq!(literal(Class::F64, Scalar::Float(f64::NAN)), "nan64()");
        assert_eq!(literal(Class::F64, Scalar::Float(0.1)), "0.1");
        let least = Scalar::Int(i64::MIN);
        assert_eq!(literal(Class::I64, least), "(-9223372036854775807ll - 1)");
        let least = Scalar::Int(i32::MIN.into());
        assert_eq!(literal(Class::I32, least), "(-2147483647 - 1)");
        assert_eq!(literal(Class::U8, Scalar::Int(255)), "(u8)255");
    }
}
