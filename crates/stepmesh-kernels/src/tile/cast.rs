//! Conversions between registers of different classes, and rounding to narrower types.
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_lossless,
    trivial_numeric_casts,
    reason = "`as` has the meaning that the ABI gives a cast: it saturates from floats, takes the low \
              bits of integers and rounds to nearest"
)]

use stepmesh_fusion::{Class, Scalar};
use stepmesh_graph::{DType, float8};

use super::Reg;
use super::registers::{Lane, Registers};
use crate::number::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};

#[inline(always)]
fn map<T: Lane, U: Lane>(
    registers: &mut Registers,
    (from, to): (Reg, Reg),
    len: usize,
    f: impl Fn(T) -> U,
) {
    registers.write(
        to,
        #[inline(always)]
        |tile: &mut [U], registers| {
            for (slot, value) in tile[..len].iter_mut().zip(&registers.get::<T>(from)[..len]) {
                *slot = f(*value);
            }
        },
    );
}

macro_rules! cast_from {
    ($registers:ident, $at:ident, $is_bool:ident, $len:ident, $from:ident, $zero:expr) => {
        match $at.1.class {
            Class::F32 => map($registers, $at, $len, |x: $from| x as f32),
            Class::F64 => map($registers, $at, $len, |x: $from| x as f64),
            Class::I32 => map($registers, $at, $len, |x: $from| x as i32),
            Class::I64 => map($registers, $at, $len, |x: $from| x as i64),
            Class::U8 if $is_bool => map($registers, $at, $len, |x: $from| u8::from(x != $zero)),
            Class::U8 => map($registers, $at, $len, |x: $from| x as u8),
        }
    };
}

#[inline(always)]
pub(super) fn cast(registers: &mut Registers, at: (Reg, Reg), is_bool: bool, len: usize) {
    match at.0.class {
        Class::F32 => cast_from!(registers, at, is_bool, len, f32, 0.0),
        Class::F64 => cast_from!(registers, at, is_bool, len, f64, 0.0),
        Class::I32 => cast_from!(registers, at, is_bool, len, i32, 0),
        Class::I64 => cast_from!(registers, at, is_bool, len, i64, 0),
        Class::U8 => cast_from!(registers, at, is_bool, len, u8, 0),
    }
}

/// To the numbers that a narrower type has, as f32, rounded once.
#[inline(always)]
pub(super) fn round(registers: &mut Registers, dtype: DType, at: (Reg, Reg), len: usize) {
    match at.0.class {
        Class::F32 => round_from(registers, dtype, at, len, |x: f32| x),
        Class::F64 => round_from(registers, dtype, at, len, to_odd),
        Class::I32 => round_from(registers, dtype, at, len, |x: i32| to_odd(x as f64)),
        Class::I64 => round_from(registers, dtype, at, len, |x: i64| to_odd(whole_to_odd(x))),
        Class::U8 => round_from(registers, dtype, at, len, |x: u8| x as f32),
    }
}

#[inline(always)]
fn round_from<T: Lane>(
    registers: &mut Registers,
    dtype: DType,
    at: (Reg, Reg),
    len: usize,
    widen: impl Fn(T) -> f32,
) {
    match dtype {
        DType::F16 => map(
            registers,
            at,
            len,
            #[inline(always)]
            |x| f16_to_f32(f32_to_f16(widen(x))),
        ),
        DType::BF16 => map(
            registers,
            at,
            len,
            #[inline(always)]
            |x| bf16_to_f32(f32_to_bf16(widen(x))),
        ),
        DType::F8E4M3 => map(
            registers,
            at,
            len,
            #[inline(always)]
            |x| e4m3(widen(x)),
        ),
        DType::F8E5M2 => map(
            registers,
            at,
            len,
            #[inline(always)]
            |x| e5m2(widen(x)),
        ),
        _ => map(registers, at, len, widen),
    }
}

fn e4m3(x: f32) -> f32 {
    float8::e4m3_to_f32(float8::e4m3_from_f64(f64::from(x)))
}

fn e5m2(x: f32) -> f32 {
    float8::e5m2_to_f32(float8::e5m2_from_f64(f64::from(x)))
}

/// An f64 as f32, the last bit set if anything was lost: rounding that once more, to fewer bits,
/// gives what rounding the f64 would.
#[inline(always)]
fn to_odd(x: f64) -> f32 {
    let near = x as f32;
    let back = f64::from(near);
    let below = near.to_bits().wrapping_sub(u32::from(back.abs() > x.abs()));
    if back == x || x.is_nan() {
        near
    } else {
        f32::from_bits(below | 1)
    }
}

/// A whole number as f64, in the same way.
#[inline(always)]
fn whole_to_odd(x: i64) -> f64 {
    let magnitude = x.unsigned_abs();
    if magnitude < 1 << 53 {
        return x as f64;
    }
    let lost = u64::from(magnitude & 0x7FF != 0);
    let kept = (((magnitude >> 11) | lost) << 11) as f64;
    if x < 0 { -kept } else { kept }
}

/// All elements of a register to one value.
#[inline(always)]
pub(super) fn fill(registers: &mut Registers, value: Scalar, to: Reg, len: usize) {
    let (float, int) = match value {
        Scalar::Float(float) => (float, float as i64),
        Scalar::Int(int) => (int as f64, int),
    };
    match to.class {
        Class::F32 => registers.write(
            to,
            #[inline(always)]
            |tile: &mut [f32], _| tile[..len].fill(float as f32),
        ),
        Class::F64 => registers.write(
            to,
            #[inline(always)]
            |tile: &mut [f64], _| tile[..len].fill(float),
        ),
        Class::I32 => registers.write(
            to,
            #[inline(always)]
            |tile: &mut [i32], _| tile[..len].fill(int as i32),
        ),
        Class::I64 => registers.write(
            to,
            #[inline(always)]
            |tile: &mut [i64], _| tile[..len].fill(int),
        ),
        Class::U8 => registers.write(
            to,
            #[inline(always)]
            |tile: &mut [u8], _| tile[..len].fill(int as u8),
        ),
    }
}
