//! Conversions against those of the `half` crate.

use half::{bf16, f16};

use super::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};

#[test]
fn every_number_of_16_bits_is_what_it_should_be() {
    for bits in 0..=u16::MAX {
        let (found, wanted) = (f16_to_f32(bits), f16::from_bits(bits).to_f32());
        let is_same = found.to_bits() == wanted.to_bits() || (found.is_nan() && wanted.is_nan());
        assert!(is_same, "f16 {bits:#x}: {found}, not {wanted}");
        let (found, wanted) = (bf16_to_f32(bits), bf16::from_bits(bits).to_f32());
        let is_same = found.to_bits() == wanted.to_bits() || (found.is_nan() && wanted.is_nan());
        assert!(is_same, "bf16 {bits:#x}: {found}, not {wanted}");
    }
}

#[test]
fn rounding_is_to_nearest_even() {
    let sample = (0..u32::MAX).step_by(9973).map(f32::from_bits);
    // Halfway between neighbours, and a bit to either side.
    let ties = (0..u16::MAX).step_by(7).flat_map(|bits| {
        let middle = (u32::from(bits) << 13) + 0x1000;
        let wide = (u32::from(bits) << 16) + 0x8000;
        [middle - 1, middle, middle + 1, wide - 1, wide, wide + 1].map(f32::from_bits)
    });
    for x in sample.chain(ties) {
        let (found, wanted) = (f32_to_f16(x), f16::from_f32(x).to_bits());
        assert!(
            found == wanted || x.is_nan(),
            "f16 of {x:?}: {found:#x}, not {wanted:#x}"
        );
        let (found, wanted) = (f32_to_bf16(x), bf16::from_f32(x).to_bits());
        assert!(
            found == wanted || x.is_nan(),
            "bf16 of {x:?}: {found:#x}, not {wanted:#x}"
        );
        if x.is_nan() {
            assert!(f16::from_bits(f32_to_f16(x)).is_nan());
            assert!(bf16::from_bits(f32_to_bf16(x)).is_nan());
        }
    }
}
