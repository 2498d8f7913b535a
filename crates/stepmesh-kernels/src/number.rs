//! Numbers of 16 bits, to and from f32, written so that the compiler vectorises them.
#![forbid(unsafe_code)]

/// An IEEE half as f32.
#[inline(always)]
pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    let word = u32::from(bits) << 16;
    let sign = word & 0x8000_0000;
    let twice = word.wrapping_add(word);
    // 2^-112 moves a half's exponent to where it belongs once its bits stand at f32's.
    let normal =
        f32::from_bits((twice >> 4).wrapping_add(0xE0 << 23)) * f32::from_bits(0x0780_0000);
    // Below the smallest normal half: the bits counted up from one half.
    let tiny = f32::from_bits((twice >> 17) | (126 << 23)) - 0.5;
    let magnitude = if twice < (1 << 27) { tiny } else { normal };
    f32::from_bits(sign | magnitude.to_bits())
}

/// The nearest IEEE half, ties to even.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the upper bits are zero")]
pub(crate) fn f32_to_f16(value: f32) -> u16 {
    // 2^112 overflows what a half cannot hold; 2^-110 brings the rest back.
    let base = (value.abs() * f32::from_bits(0x7780_0000)) * f32::from_bits(0x0880_0000);
    let word = value.to_bits();
    let twice = word.wrapping_add(word);
    let sign = (word & 0x8000_0000) >> 16;
    let bias = (twice & 0xFF00_0000).max(0x7100_0000);
    // Adding the bias rounds at the last bit of a half.
    let rounded = (f32::from_bits((bias >> 1).wrapping_add(0x0780_0000)) + base).to_bits();
    let magnitude = ((rounded >> 13) & 0x7C00).wrapping_add(rounded & 0x0FFF);
    let magnitude = if twice > 0xFF00_0000 {
        0x7E00
    } else {
        magnitude
    };
    (sign | magnitude) as u16
}

/// A bfloat16 as f32.
#[inline(always)]
pub(crate) fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The nearest bfloat16, ties to even.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the upper bits are zero")]
pub(crate) fn f32_to_bf16(value: f32) -> u16 {
    let word = value.to_bits();
    let rounded = word.wrapping_add(0x7FFF + ((word >> 16) & 1)) >> 16;
    let quiet = (word >> 16) | 0x40;
    let bits = if value.is_nan() { quiet } else { rounded };
    bits as u16
}

#[cfg(test)]
mod tests;
