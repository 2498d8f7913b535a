//! One element with its bound, and how a result is rounded to its type.

use half::{bf16, f16};

use crate::{DType, float8};

/// An element of a value: a number, and how far a correct plugin's may be from it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Element {
    /// The number; of an integer or a bool the nearest f64.
    pub value: f64,
    /// The number of an integer or a bool (0 or 1), exactly; 0 for floats.
    pub int: i64,
    /// Bound of the distance; infinite where anything is right.
    pub error: f64,
}

impl Element {
    /// Anything is right.
    pub(super) const OPEN: Self = Self {
        value: 0.0,
        int: 0,
        error: f64::INFINITY,
    };

    pub(super) const fn exact(value: f64) -> Self {
        Self {
            value,
            int: 0,
            error: 0.0,
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "`int` has the exact number")]
    pub(super) const fn of_int(int: i64) -> Self {
        Self {
            value: int as f64,
            int,
            error: 0.0,
        }
    }

    pub(super) const fn of_bool(value: bool) -> Self {
        Self::of_int(value as i64)
    }

    /// Whether anything is right.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.error == f64::INFINITY
    }

    pub(super) fn is_exact(&self) -> bool {
        self.error == 0.0
    }

    /// The least and the greatest that it may be.
    pub(super) fn range(&self) -> [f64; 2] {
        [self.value - self.error, self.value + self.error]
    }
}

/// A result of a float type: `value` was computed exactly but for `error`, and a plugin rounds it to
/// the type with a further error of so many units of its size.
pub(super) fn rounded(dtype: DType, value: f64, error: f64, units: f64) -> Element {
    if error.is_nan() || error == f64::INFINITY {
        return Element::OPEN;
    }
    if !value.is_finite() {
        return Element::exact(value);
    }
    let size = value.abs();
    let error = error + units * unit(dtype) * size;
    let max = max(dtype);
    if size - error > max * (1.0 + unit(dtype)) {
        return Element::exact(nearest(dtype, value));
    }
    if size + error > max {
        return Element::OPEN;
    }
    let min_normal = min_normal(dtype);
    let may_vanish = size - error < min_normal && (value != 0.0 || error != 0.0);
    let lost = if may_vanish { min_normal } else { 0.0 };
    Element {
        value,
        int: 0,
        error: error + lost,
    }
}

/// A result of one addition, subtraction or multiplication: where the type has the exact number, a
/// plugin gives just that.
pub(super) fn rounded_basic(dtype: DType, value: f64, error: f64) -> Element {
    let may_vanish = value != 0.0 && value.abs() < min_normal(dtype);
    if error == 0.0 && nearest(dtype, value) == value && !may_vanish {
        return Element::exact(value);
    }
    rounded(dtype, value, error, 1.0)
}

/// The nearest number of a float type, ties to even; an infinity or NaN beyond its greatest.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the rounding that is meant"
)]
pub(super) fn nearest(dtype: DType, value: f64) -> f64 {
    match dtype {
        DType::F32 => f64::from(value as f32),
        DType::F16 => f16::from_f64(value).to_f64(),
        DType::BF16 => bf16::from_f64(value).to_f64(),
        DType::F8E4M3 => f64::from(float8::e4m3_to_f32(float8::e4m3_from_f64(value))),
        DType::F8E5M2 => f64::from(float8::e5m2_to_f32(float8::e5m2_from_f64(value))),
        _ => value,
    }
}

/// An integer as wide as a type.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the wrapping that is meant"
)]
pub(super) fn wrapped(dtype: DType, int: i64) -> i64 {
    match dtype {
        DType::I32 => i64::from(int as i32),
        DType::U8 => i64::from(int as u8),
        DType::Bool => i64::from(int != 0),
        _ => int,
    }
}

/// A unit of a type: the distance from 1 to the next number.
pub(super) fn unit(dtype: DType) -> f64 {
    exp2(match dtype {
        DType::F64 => -52,
        DType::F16 => -10,
        DType::BF16 => -7,
        DType::F8E4M3 => -3,
        DType::F8E5M2 => -2,
        _ => -23,
    })
}

/// A unit of the type in which sums of a type are made.
pub(super) fn unit_of_sums(dtype: DType) -> f64 {
    unit(if dtype == DType::F64 {
        DType::F64
    } else {
        DType::F32
    })
}

/// The greatest finite number of a float type.
#[must_use]
pub fn max(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::MAX,
        DType::F16 => 65504.0,
        DType::BF16 => bf16::MAX.to_f64(),
        DType::F8E4M3 => 448.0,
        DType::F8E5M2 => 57344.0,
        _ => f64::from(f32::MAX),
    }
}

fn min_normal(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::MIN_POSITIVE,
        DType::F16 => exp2(-14),
        DType::F8E4M3 => exp2(-6),
        DType::F8E5M2 => exp2(-14),
        _ => exp2(-126),
    }
}

fn exp2(power: i32) -> f64 {
    libm::exp2(f64::from(power))
}
