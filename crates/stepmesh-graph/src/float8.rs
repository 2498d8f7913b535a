//! The two 8-bit floats: e4m3 (no infinities, `e4m3fn` elsewhere) and e5m2. They are stored and
//! cast, never computed with.

/// The value of an e4m3; exact.
#[must_use]
pub fn e4m3_to_f32(bits: u8) -> f32 {
    let sign = sign_of(bits);
    let (exponent, mantissa) = ((bits >> 3) & 0xf, bits & 7);
    match (exponent, mantissa) {
        (0xf, 7) => f32::NAN,
        (0, _) => sign * f32::from(mantissa) * exp2(-9),
        _ => sign * f32::from(8 + mantissa) * exp2(i32::from(exponent) - 10),
    }
}

/// The value of an e5m2; exact.
#[must_use]
pub fn e5m2_to_f32(bits: u8) -> f32 {
    let sign = sign_of(bits);
    let (exponent, mantissa) = ((bits >> 2) & 0x1f, bits & 3);
    match (exponent, mantissa) {
        (0x1f, 0) => sign * f32::INFINITY,
        (0x1f, _) => f32::NAN,
        (0, _) => sign * f32::from(mantissa) * exp2(-16),
        _ => sign * f32::from(4 + mantissa) * exp2(i32::from(exponent) - 17),
    }
}

/// The nearest e4m3, ties to even; what is too large is NaN. From f64, so that wider types are
/// rounded once.
#[must_use]
pub fn e4m3_from_f64(value: f64) -> u8 {
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    let bits = nearest(value.abs(), 3, -6, 7);
    // 0x7f is NaN, and what would be beyond it.
    sign | bits.map_or(0x7f, |bits| bits.min(0x7f))
}

/// The nearest e5m2, ties to even; what is too large is infinite. From f64, so that wider types are
/// rounded once.
#[must_use]
pub fn e5m2_from_f64(value: f64) -> u8 {
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    let bits = nearest(value.abs(), 2, -14, 15);
    sign | bits.map_or(0x7f, |bits| bits.min(0x7c))
}

/// The bits of the nearest value of a small float, as if exponents went on for ever; `None` for NaN.
fn nearest(value: f64, mantissa_bits: u32, exponent_min: i32, bias: i32) -> Option<u8> {
    if value.is_nan() {
        return None;
    }
    // What is larger than every small float is alike.
    let value = value.min(HUGE);
    let exponent = exponent_of(value).max(exponent_min);
    // In units of the last place: at most 2^(mantissa_bits + 1), exact, and rounded to even.
    let mantissa_bits_signed = i32::try_from(mantissa_bits).ok()?;
    let units = (value * f64::from(exp2(mantissa_bits_signed - exponent))).round_ties_even();
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a whole number of at most 2^(mantissa_bits + 1)"
    )]
    let units = units as i32;
    // Subnormals have the exponent field 0, and the carry of a rounding goes into it by itself.
    let field = exponent - exponent_min;
    let bits = (field << mantissa_bits) + units;
    debug_assert_eq!(bias, 1 - exponent_min);
    u8::try_from(bits.min(0x7f)).ok()
}

/// The exponent of a positive number; of 0 and subnormals one that is small enough.
fn exponent_of(value: f64) -> i32 {
    let field = (value.to_bits() >> 52) & 0x7ff;
    i32::try_from(field).map_or(0, |field| field - 1023)
}

/// 2 to a power for which it is a normal f32.
fn exp2(power: i32) -> f32 {
    f32::from_bits(u32::try_from(power + 127).unwrap_or(0) << 23)
}

fn sign_of(bits: u8) -> f32 {
    if bits & 0x80 == 0 { 1.0 } else { -1.0 }
}

/// Larger than every small float, and small enough for the arithmetic of `nearest`.
const HUGE: f64 = 1_048_576.0;
