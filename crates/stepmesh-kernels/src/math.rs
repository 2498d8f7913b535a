//! Functions of f32 without branches or calls, so that loops over them vectorise; and their f64
//! counterparts, which call the C library's. No multiply-add is contracted, so every processor gives
//! the same bits.
#![forbid(unsafe_code)]
#![expect(
    clippy::excessive_precision,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "coefficients as published; bits of floats are taken apart"
)]

/// `e^x`, to within 2 units in the last place.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Comparisons and not `clamp`, which vectorises worse; a NaN passes both.
    let bounded = if x > 89.0 { 89.0 } else { x };
    let bounded = if bounded < -104.0 { -104.0 } else { bounded };
    let shifted = bounded * std::f32::consts::LOG2_E + ROUND_MAGIC;
    let power = shifted - ROUND_MAGIC;
    let rest = bounded - power * 0.693_359_375 - power * -2.121_944_40e-4;
    let mut sum = 1.987_569_150_0e-4;
    sum = sum * rest + 1.398_199_950_7e-3;
    sum = sum * rest + 8.333_451_907_3e-3;
    sum = sum * rest + 4.166_579_589_4e-2;
    sum = sum * rest + 1.666_666_545_9e-1;
    sum = sum * rest + 5.000_000_120_1e-1;
    let mantissa = sum * rest * rest + rest + 1.0;
    let power = (shifted.to_bits() as i32).wrapping_sub(ROUND_MAGIC.to_bits() as i32);
    // In two steps, because the power of two of a subnormal result is none itself.
    let half = power >> 1;
    mantissa * power_of_two(half) * power_of_two(power.wrapping_sub(half))
}

#[inline(always)]
fn power_of_two(power: i32) -> f32 {
    f32::from_bits((power.wrapping_add(127) as u32) << 23)
}

/// The natural logarithm, to within 2 units in the last place.
#[inline(always)]
pub(crate) fn log(x: f32) -> f32 {
    let is_tiny = x < f32::MIN_POSITIVE;
    let scaled = if is_tiny { x * 8_388_608.0 } else { x };
    let bits = scaled.to_bits().wrapping_sub(SQRT_HALF_BITS);
    let power = (bits as i32) >> 23;
    let power = if is_tiny { power - 23 } else { power } as f32;
    let mantissa = f32::from_bits((bits & 0x007F_FFFF).wrapping_add(SQRT_HALF_BITS));
    let f = mantissa - 1.0;
    let s = f / (2.0 + f);
    let z = s * s;
    let w = z * z;
    let even = w * (0.400_009_721_52 + w * 0.242_790_788_41);
    let odd = z * (0.666_666_626_93 + w * 0.284_987_866_88);
    let half_square = 0.5 * f * f;
    let tail = s * (half_square + even + odd) + power * 9.058_000_614_5e-6;
    let normal = tail - half_square + f + power * 6.931_381_225_6e-1;
    let result = if x == 0.0 { f32::NEG_INFINITY } else { normal };
    let result = if x < 0.0 { f32::NAN } else { result };
    let is_finite = x.to_bits() & 0x7F80_0000 != 0x7F80_0000;
    if is_finite || x < 0.0 { result } else { x }
}

/// The hyperbolic tangent, to within 4 units in the last place.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let bounded = if x > TANH_ONE { TANH_ONE } else { x };
    let bounded = if bounded < -TANH_ONE {
        -TANH_ONE
    } else {
        bounded
    };
    let square = bounded * bounded;
    let mut above = -2.760_768_477_423_55e-16;
    above = above * square + 2.000_187_904_824_77e-13;
    above = above * square + -8.604_671_522_137_35e-11;
    above = above * square + 5.122_297_090_371_14e-8;
    above = above * square + 1.485_722_357_179_79e-5;
    above = above * square + 6.372_619_288_754_36e-4;
    above = above * square + 4.893_524_558_917_86e-3;
    let mut below = 1.198_258_394_667_02e-6;
    below = below * square + 1.185_347_056_866_54e-4;
    below = below * square + 2.268_434_632_439_00e-3;
    below = below * square + 4.893_525_185_543_85e-3;
    let ratio = bounded * above / below;
    let ratio = if x > TANH_ONE { 1.0 } else { ratio };
    let ratio = if x < -TANH_ONE { -1.0 } else { ratio };
    // Where it is its argument; the sign of zero too.
    if x.abs() < 4e-4 { x } else { ratio }
}

/// The error function, to within 4 units in the last place or 1e-7.
#[inline(always)]
pub(crate) fn erf(x: f32) -> f32 {
    let bounded = if x > ERF_ONE { ERF_ONE } else { x };
    let bounded = if bounded < -ERF_ONE {
        -ERF_ONE
    } else {
        bounded
    };
    let square = bounded * bounded;
    let mut above = 0.000_229_050_658_613_506_46;
    above = above * square + 0.003_408_291_010_710_950_6;
    above = above * square + 0.050_955_695_062_380_861;
    above = above * square + 0.185_208_322_399_761_45;
    above = above * square + 1.128_379_143_519_084;
    let mut below = -1.179_160_295_436_169_7e-7;
    below = below * square + 0.000_023_547_966_471_313_185;
    below = below * square + 0.001_017_962_527_891_488_5;
    below = below * square + 0.014_070_470_171_167_667;
    below = below * square + 0.110_985_051_782_853_62;
    below = below * square + 0.497_469_251_100_675_38;
    below = below * square + 1.0;
    let ratio = bounded * above / below;
    let ratio = if ratio > 1.0 { 1.0 } else { ratio };
    if ratio < -1.0 { -1.0 } else { ratio }
}

macro_rules! float_functions {
    ($number:ident, $exp:expr, $log:expr, $tanh:expr, $erf:expr) => {
        pub(crate) mod $number {
            //! The functions that graphs have.

            type N = core::primitive::$number;

            #[inline(always)]
            pub(crate) fn exp(x: N) -> N {
                $exp(x)
            }
            #[inline(always)]
            pub(crate) fn log(x: N) -> N {
                $log(x)
            }
            #[inline(always)]
            pub(crate) fn tanh(x: N) -> N {
                $tanh(x)
            }
            #[inline(always)]
            pub(crate) fn sigmoid(x: N) -> N {
                1.0 / (1.0 + exp(-x))
            }
            #[inline(always)]
            pub(crate) fn silu(x: N) -> N {
                x / (1.0 + exp(-x))
            }
            #[inline(always)]
            pub(crate) fn gelu_erf(x: N) -> N {
                let erf: N = $erf(x * std::$number::consts::FRAC_1_SQRT_2);
                x * 0.5 * (1.0 + erf)
            }
            #[inline(always)]
            pub(crate) fn gelu_tanh(x: N) -> N {
                // sqrt(2 / pi)
                let scale =
                    std::$number::consts::FRAC_2_SQRT_PI * std::$number::consts::FRAC_1_SQRT_2;
                x * 0.5 * (1.0 + tanh(scale * (x + 0.044_715 * x * x * x)))
            }
        }
    };
}

float_functions!(f32, super::exp, super::log, super::tanh, super::erf);
float_functions!(f64, N::exp, N::ln, N::tanh, libm::erf);

/// 1.5 * 2^23: adding it rounds to a whole number, which stands in the low bits.
const ROUND_MAGIC: f32 = 12_582_912.0;
/// Bits of the square root of one half: mantissas are taken around 1.
const SQRT_HALF_BITS: u32 = 0x3F35_04F3;
/// From here the hyperbolic tangent is 1 in f32, to less than half a unit.
const TANH_ONE: f32 = 7.998_811_7;
/// From here the error function is 1 in f32.
const ERF_ONE: f32 = 3.832_506_856_900_711;

#[cfg(test)]
mod tests;
