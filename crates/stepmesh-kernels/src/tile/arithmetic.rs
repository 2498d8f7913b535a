//! Instructions that compute, on whole tiles.

use stepmesh_fusion::{Binary, Class, Order, Unary};

use super::Reg;
use super::registers::{Lane, Registers};
use crate::math;

/// Numbers with the operations of two operands, as the ABI defines them.
pub(crate) trait Arithmetic: Lane + PartialOrd {
    fn plus(self, b: Self) -> Self;
    fn minus(self, b: Self) -> Self;
    fn times(self, b: Self) -> Self;
    fn over(self, b: Self) -> Self;
    fn power(self, b: Self) -> Self;
    /// NaN if one is.
    fn larger(self, b: Self) -> Self;
    /// NaN if one is.
    fn smaller(self, b: Self) -> Self;
    fn opposite(self) -> Self;
    fn rectified(self) -> Self;
}

macro_rules! float_arithmetic {
    ($number:ident) => {
        #[expect(clippy::float_cmp, reason = "a NaN is what does not equal itself")]
        impl Arithmetic for $number {
            #[inline(always)]
            fn plus(self, b: Self) -> Self {
                self + b
            }
            #[inline(always)]
            fn minus(self, b: Self) -> Self {
                self - b
            }
            #[inline(always)]
            fn times(self, b: Self) -> Self {
                self * b
            }
            #[inline(always)]
            fn over(self, b: Self) -> Self {
                self / b
            }
            #[inline(always)]
            fn power(self, b: Self) -> Self {
                self.powf(b)
            }
            #[inline(always)]
            fn larger(self, b: Self) -> Self {
                if self > b || self != self { self } else { b }
            }
            #[inline(always)]
            fn smaller(self, b: Self) -> Self {
                if self < b || self != self { self } else { b }
            }
            #[inline(always)]
            fn opposite(self) -> Self {
                -self
            }
            #[inline(always)]
            fn rectified(self) -> Self {
                if self < 0.0 { 0.0 } else { self }
            }
        }
    };
}

float_arithmetic!(f32);
float_arithmetic!(f64);

macro_rules! int_arithmetic {
    ($number:ident, $is_negative:expr, $all_ones:expr) => {
        impl Arithmetic for $number {
            #[inline(always)]
            fn plus(self, b: Self) -> Self {
                self.wrapping_add(b)
            }
            #[inline(always)]
            fn minus(self, b: Self) -> Self {
                self.wrapping_sub(b)
            }
            #[inline(always)]
            fn times(self, b: Self) -> Self {
                self.wrapping_mul(b)
            }
            #[inline(always)]
            fn over(self, b: Self) -> Self {
                if b == 0 {
                    $all_ones
                } else {
                    self.wrapping_div(b)
                }
            }
            #[inline(always)]
            fn power(self, b: Self) -> Self {
                if $is_negative(b) {
                    return match self {
                        1 => 1,
                        other if other == $all_ones => {
                            if b & 1 == 0 {
                                1
                            } else {
                                other
                            }
                        }
                        _ => 0,
                    };
                }
                let (mut base, mut exponent, mut power) = (self, b, 1);
                while exponent != 0 {
                    if exponent & 1 == 1 {
                        power = Self::wrapping_mul(power, base);
                    }
                    base = base.wrapping_mul(base);
                    exponent >>= 1;
                }
                power
            }
            #[inline(always)]
            fn larger(self, b: Self) -> Self {
                self.max(b)
            }
            #[inline(always)]
            fn smaller(self, b: Self) -> Self {
                self.min(b)
            }
            #[inline(always)]
            fn opposite(self) -> Self {
                self.wrapping_neg()
            }
            #[inline(always)]
            fn rectified(self) -> Self {
                self.max(0)
            }
        }
    };
}

int_arithmetic!(i32, |b: i32| b < 0, -1);
int_arithmetic!(i64, |b: i64| b < 0, -1);
int_arithmetic!(u8, |_| false, u8::MAX);

#[inline(always)]
fn map<T: Lane>(registers: &mut Registers, (from, to): (Reg, Reg), len: usize, f: impl Fn(T) -> T) {
    registers.write(
        to,
        #[inline(always)]
        |tile: &mut [T], registers| {
            for (slot, value) in tile[..len].iter_mut().zip(&registers.get::<T>(from)[..len]) {
                *slot = f(*value);
            }
        },
    );
}

#[inline(always)]
fn zip<T: Lane, U: Lane>(
    registers: &mut Registers,
    (a, b, to): (Reg, Reg, Reg),
    len: usize,
    f: impl Fn(T, T) -> U,
) {
    registers.write(
        to,
        #[inline(always)]
        |tile: &mut [U], registers| {
            let (a, b) = (&registers.get::<T>(a)[..len], &registers.get::<T>(b)[..len]);
            for ((slot, a), b) in tile[..len].iter_mut().zip(a).zip(b) {
                *slot = f(*a, *b);
            }
        },
    );
}

macro_rules! float_unary {
    ($registers:ident, $op:ident, $at:ident, $len:ident, $number:ident) => {
        match $op {
            Unary::Neg => map($registers, $at, $len, |x: $number| -x),
            Unary::Exp => map($registers, $at, $len, math::$number::exp),
            Unary::Log => map($registers, $at, $len, math::$number::log),
            Unary::Sqrt => map($registers, $at, $len, $number::sqrt),
            Unary::Rsqrt => map($registers, $at, $len, |x: $number| 1.0 / x.sqrt()),
            Unary::Tanh => map($registers, $at, $len, math::$number::tanh),
            Unary::Sigmoid => map($registers, $at, $len, math::$number::sigmoid),
            Unary::Relu => map($registers, $at, $len, <$number>::rectified),
            Unary::Silu => map($registers, $at, $len, math::$number::silu),
            Unary::GeluErf => map($registers, $at, $len, math::$number::gelu_erf),
            Unary::GeluTanh => map($registers, $at, $len, math::$number::gelu_tanh),
        }
    };
}

#[inline(always)]
fn int_unary<T: Arithmetic>(registers: &mut Registers, op: Unary, at: (Reg, Reg), len: usize) {
    match op {
        Unary::Neg => map(registers, at, len, T::opposite),
        Unary::Relu => map(registers, at, len, T::rectified),
        // Not for integers: the kit refuses such a graph.
        _ => {}
    }
}

#[inline(always)]
pub(super) fn unary(registers: &mut Registers, op: Unary, from: Reg, to: Reg, len: usize) {
    let at = (from, to);
    match to.class {
        Class::F32 => float_unary!(registers, op, at, len, f32),
        Class::F64 => float_unary!(registers, op, at, len, f64),
        Class::I32 => int_unary::<i32>(registers, op, at, len),
        Class::I64 => int_unary::<i64>(registers, op, at, len),
        Class::U8 => int_unary::<u8>(registers, op, at, len),
    }
}

#[inline(always)]
fn binary_of<T: Arithmetic>(
    registers: &mut Registers,
    op: Binary,
    at: (Reg, Reg, Reg),
    len: usize,
) {
    match op {
        Binary::Add => zip(registers, at, len, T::plus),
        Binary::Sub => zip(registers, at, len, T::minus),
        Binary::Mul => zip(registers, at, len, T::times),
        Binary::Div => zip(registers, at, len, T::over),
        Binary::Pow => zip(registers, at, len, T::power),
        Binary::Max => zip(registers, at, len, T::larger),
        Binary::Min => zip(registers, at, len, T::smaller),
    }
}

#[inline(always)]
pub(super) fn binary(registers: &mut Registers, op: Binary, at: (Reg, Reg, Reg), len: usize) {
    match at.2.class {
        Class::F32 => binary_of::<f32>(registers, op, at, len),
        Class::F64 => binary_of::<f64>(registers, op, at, len),
        Class::I32 => binary_of::<i32>(registers, op, at, len),
        Class::I64 => binary_of::<i64>(registers, op, at, len),
        Class::U8 => binary_of::<u8>(registers, op, at, len),
    }
}

#[inline(always)]
fn compare_of<T: Arithmetic>(
    registers: &mut Registers,
    order: Order,
    at: (Reg, Reg, Reg),
    len: usize,
) {
    match order {
        Order::Eq => zip(registers, at, len, |a: T, b: T| u8::from(a == b)),
        Order::Ne => zip(registers, at, len, |a: T, b: T| u8::from(a != b)),
        Order::Lt => zip(registers, at, len, |a: T, b: T| u8::from(a < b)),
        Order::Le => zip(registers, at, len, |a: T, b: T| u8::from(a <= b)),
        Order::Gt => zip(registers, at, len, |a: T, b: T| u8::from(a > b)),
        Order::Ge => zip(registers, at, len, |a: T, b: T| u8::from(a >= b)),
    }
}

#[inline(always)]
pub(super) fn compare(registers: &mut Registers, order: Order, at: (Reg, Reg, Reg), len: usize) {
    match at.0.class {
        Class::F32 => compare_of::<f32>(registers, order, at, len),
        Class::F64 => compare_of::<f64>(registers, order, at, len),
        Class::I32 => compare_of::<i32>(registers, order, at, len),
        Class::I64 => compare_of::<i64>(registers, order, at, len),
        Class::U8 => compare_of::<u8>(registers, order, at, len),
    }
}

#[inline(always)]
fn select_of<T: Lane>(
    registers: &mut Registers,
    condition: Reg,
    (a, b, to): (Reg, Reg, Reg),
    len: usize,
) {
    registers.write(
        to,
        #[inline(always)]
        |tile: &mut [T], registers| {
            let (a, b) = (&registers.get::<T>(a)[..len], &registers.get::<T>(b)[..len]);
            let conditions = &registers.get::<u8>(condition)[..len];
            for (((slot, a), b), condition) in tile[..len].iter_mut().zip(a).zip(b).zip(conditions)
            {
                *slot = if *condition == 0 { *b } else { *a };
            }
        },
    );
}

#[inline(always)]
pub(super) fn select(registers: &mut Registers, condition: Reg, at: (Reg, Reg, Reg), len: usize) {
    match at.2.class {
        Class::F32 => select_of::<f32>(registers, condition, at, len),
        Class::F64 => select_of::<f64>(registers, condition, at, len),
        Class::I32 => select_of::<i32>(registers, condition, at, len),
        Class::I64 => select_of::<i64>(registers, condition, at, len),
        Class::U8 => select_of::<u8>(registers, condition, at, len),
    }
}
