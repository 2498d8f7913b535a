//! How types are written: what lies in memory, what is computed with, and numbers.

use stepmesh_fusion::{Class, Scalar};
use stepmesh_graph::DType;

/// The type in C++ of what is computed.
pub(crate) fn computed(class: Class) -> &'static str {
    match class {
        Class::F32 => "float",
        Class::F64 => "double",
        Class::I32 => "i32",
        Class::I64 => "i64",
        Class::U8 => "u8",
    }
}

/// The cast to it, in the source.
pub(crate) fn cast(class: Class) -> &'static str {
    match class {
        Class::F32 => "to_f32",
        Class::F64 => "to_f64",
        Class::I32 => "to_i32",
        Class::I64 => "to_i64",
        Class::U8 => "to_u8",
    }
}

/// Type of an element in memory.
pub(crate) fn stored(dtype: DType) -> &'static str {
    match dtype {
        DType::F16 | DType::BF16 => "u16",
        DType::F8E4M3 | DType::F8E5M2 => "u8",
        other => computed(Class::of(other)),
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

    use stepmesh_fusion::{Class, Scalar};

    use super::literal;

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
