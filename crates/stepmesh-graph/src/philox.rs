//! Philox 4x32-10, the counter-based generator of `rng_uniform` and `rng_normal` (Salmon et al.,
//! "Parallel random numbers: as easy as 1, 2, 3", 2011), and how words become numbers.

/// Block `block` of the stream of a seed: four words.
#[must_use]
pub fn block(seed: u64, block: u64) -> [u32; 4] {
    let [mut k0, mut k1] = halves(seed);
    let [low, high] = halves(block);
    let mut counter = [low, high, 0, 0];
    for round in 0..ROUNDS {
        if round > 0 {
            k0 = k0.wrapping_add(WEYL[0]);
            k1 = k1.wrapping_add(WEYL[1]);
        }
        let [low0, high0] = halves(u64::from(MULTIPLIERS[0]) * u64::from(counter[0]));
        let [low1, high1] = halves(u64::from(MULTIPLIERS[1]) * u64::from(counter[2]));
        counter = [high1 ^ counter[1] ^ k0, low1, high0 ^ counter[3] ^ k1, low0];
    }
    counter
}

/// Uniform in [0, 1) by the upper `bits` bits of a word: 24 for f32, 11 for f16, 8 for bf16.
#[must_use]
pub fn uniform(word: u32, bits: u32) -> f32 {
    #[expect(clippy::cast_precision_loss, reason = "24 bits at most")]
    let whole = (word >> (32 - bits)) as f32;
    let scale = f32::from_bits((127 - bits) << 23);
    whole * scale
}

/// Uniform in [0, 1) by two words, the lower half first.
#[must_use]
pub fn uniform_f64(low: u32, high: u32) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "53 bits")]
    let whole = (joined(low, high) >> 11) as f64;
    whole * UNIT_F64
}

/// Two normal numbers of two words, for f32.
#[must_use]
pub fn normal(words: [u32; 2]) -> [f32; 2] {
    #[expect(clippy::cast_precision_loss, reason = "at most 2^24")]
    let u = ((words[0] >> 8) + 1) as f32 * UNIT_F32;
    let v = uniform(words[1], 24);
    // In f64 and rounded at the end: plugins differ in their last bits here.
    let [cos, sin] = box_muller(f64::from(u), f64::from(v));
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the rounding that is meant"
    )]
    let pair = [cos as f32, sin as f32];
    pair
}

/// Two normal numbers of the four words of a block, for f64.
#[must_use]
pub fn normal_f64(words: [u32; 4]) -> [f64; 2] {
    #[expect(clippy::cast_precision_loss, reason = "at most 2^53")]
    let u = ((joined(words[0], words[1]) >> 11) + 1) as f64 * UNIT_F64;
    let v = uniform_f64(words[2], words[3]);
    box_muller(u, v)
}

fn box_muller(u: f64, v: f64) -> [f64; 2] {
    let radius = (-2.0 * libm::log(u)).sqrt();
    let (sin, cos) = libm::sincos(std::f64::consts::TAU * v);
    [radius * cos, radius * sin]
}

fn joined(low: u32, high: u32) -> u64 {
    u64::from(low) | (u64::from(high) << 32)
}

#[expect(clippy::cast_possible_truncation, reason = "the halves are meant")]
fn halves(of: u64) -> [u32; 2] {
    [of as u32, (of >> 32) as u32]
}

/// Rounds of the variant that its authors recommend.
const ROUNDS: u32 = 10;
/// The published multipliers.
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
/// The published steps of the key.
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
/// 2^-24.
const UNIT_F32: f32 = 1.0 / 16_777_216.0;
/// 2^-53.
const UNIT_F64: f64 = 1.0 / 9_007_199_254_740_992.0;
