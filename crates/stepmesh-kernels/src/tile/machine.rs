//! Runs programs, and folds tiles into what a reduction has so far.

use pulp::{Arch, NullaryFnOnce, Simd, WithSimd};

use super::arithmetic::{self, Arithmetic};
use super::random::{self, Source};
use super::registers::{Kept, Lane, Registers};
use super::{Access, Chain, Instr, Reg, cast, chain};
use crate::memory::Region;
use stepmesh_fusion::{Class, Fold};

/// Where a program runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) accesses: &'a [Access],
    pub(crate) chains: &'a [Chain],
    pub(crate) regions: &'a [Region],
    /// Index of the first element, as accesses count.
    pub(crate) first: usize,
    /// Index of the first element in the row, for what is kept.
    pub(crate) within: usize,
    /// Elements.
    pub(crate) len: usize,
}

/// A reduction and the registers that hold what it has so far: f64 or i64, and for the place of the
/// greatest another i64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reduced {
    pub(crate) fold: Fold,
    pub(crate) from: Reg,
    pub(crate) value: Reg,
    pub(crate) place: Reg,
}

/// Runs a program on one tile.
pub(crate) fn run(arch: Arch, program: &[Instr], frame: &Frame<'_>, registers: &mut Registers) {
    if frame.len == 0 || program.is_empty() {
        return;
    }
    arch.dispatch(Program {
        program,
        frame,
        registers,
    });
}

struct Program<'a> {
    program: &'a [Instr],
    frame: &'a Frame<'a>,
    registers: &'a mut Registers,
}

impl WithSimd for Program<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        for instr in self.program {
            step(simd, instr, self.frame, self.registers);
        }
    }
}

#[inline(always)]
fn step<S: Simd>(simd: S, instr: &Instr, frame: &Frame<'_>, registers: &mut Registers) {
    let len = frame.len;
    match *instr {
        Instr::Load { access, to } => {
            frame.accesses[access].load(frame.regions, frame.first, len, registers, to);
        }
        Instr::Store { access, from } => {
            frame.accesses[access].store(frame.regions, frame.first, len, registers, from);
        }
        Instr::Constant { value, to } => cast::fill(registers, value, to, super::TILE),
        Instr::Splat { from, to } => splat(registers, from, to, len),
        Instr::Unary { op, from, to } => arithmetic::unary(registers, op, from, to, len),
        Instr::Binary { op, a, b, to } => arithmetic::binary(registers, op, (a, b, to), len),
        Instr::Compare { order, a, b, to } => {
            arithmetic::compare(registers, order, (a, b, to), len);
        }
        Instr::Select {
            condition,
            a,
            b,
            to,
        } => {
            arithmetic::select(registers, condition, (a, b, to), len);
        }
        Instr::Cast { from, to, is_bool } => cast::cast(registers, (from, to), is_bool, len),
        Instr::Round { dtype, from, to } => cast::round(registers, dtype, (from, to), len),
        Instr::Random {
            normal,
            dtype,
            seed,
            offset,
            to,
        } => {
            let source = Source {
                seed: registers.get::<i64>(seed)[0].cast_unsigned(),
                offset: registers.get::<i64>(offset)[0].cast_unsigned(),
                first: frame.first,
            };
            if to.class == Class::F64 {
                registers.write(
                    to,
                    #[inline(always)]
                    |tile, _| random::wide(source, normal, &mut tile[..len]),
                );
            } else {
                registers.write(
                    to,
                    #[inline(always)]
                    |tile, _| {
                        random::narrow(source, normal, dtype, &mut tile[..len]);
                    },
                );
            }
        }
        Instr::Keep { slot, from } => keep(registers, slot, from, frame),
        Instr::Recall { slot, to } => recall(registers, slot, to, frame),
        Instr::Chain { chain } => chain::run(simd, &frame.chains[chain], frame, registers),
    }
}

#[inline(always)]
fn splat(registers: &mut Registers, from: Reg, to: Reg, len: usize) {
    #[inline(always)]
    fn of<T: Lane>(registers: &mut Registers, from: Reg, to: Reg, len: usize) {
        registers.write(
            to,
            #[inline(always)]
            |tile: &mut [T], registers| {
                tile[..len].fill(registers.get::<T>(from)[0]);
            },
        );
    }
    match to.class {
        Class::F32 => of::<f32>(registers, from, to, len),
        Class::F64 => of::<f64>(registers, from, to, len),
        Class::I32 => of::<i32>(registers, from, to, len),
        Class::I64 => of::<i64>(registers, from, to, len),
        Class::U8 => of::<u8>(registers, from, to, len),
    }
}

#[inline(always)]
fn keep(registers: &mut Registers, slot: usize, from: Reg, frame: &Frame<'_>) {
    let (at, len) = (frame.within..frame.within + frame.len, frame.len);
    let Registers {
        f32,
        f64,
        i32,
        i64,
        u8,
        kept,
    } = registers;
    match &mut kept[slot] {
        Kept::F32(row) => row[at].copy_from_slice(&f32[from.idx][..len]),
        Kept::F64(row) => row[at].copy_from_slice(&f64[from.idx][..len]),
        Kept::I32(row) => row[at].copy_from_slice(&i32[from.idx][..len]),
        Kept::I64(row) => row[at].copy_from_slice(&i64[from.idx][..len]),
        Kept::U8(row) => row[at].copy_from_slice(&u8[from.idx][..len]),
    }
}

#[inline(always)]
fn recall(registers: &mut Registers, slot: usize, to: Reg, frame: &Frame<'_>) {
    let (at, len) = (frame.within..frame.within + frame.len, frame.len);
    let Registers {
        f32,
        f64,
        i32,
        i64,
        u8,
        kept,
    } = registers;
    match &kept[slot] {
        Kept::F32(row) => f32[to.idx][..len].copy_from_slice(&row[at]),
        Kept::F64(row) => f64[to.idx][..len].copy_from_slice(&row[at]),
        Kept::I32(row) => i32[to.idx][..len].copy_from_slice(&row[at]),
        Kept::I64(row) => i64[to.idx][..len].copy_from_slice(&row[at]),
        Kept::U8(row) => u8[to.idx][..len].copy_from_slice(&row[at]),
    }
}

/// Folds a tile of a row into the first element of the reduction's registers.
pub(crate) fn accumulate(
    arch: Arch,
    reduced: &Reduced,
    first: usize,
    len: usize,
    registers: &mut Registers,
) {
    arch.dispatch(Accumulate {
        reduced,
        first,
        len,
        registers,
    });
}

struct Accumulate<'a> {
    reduced: &'a Reduced,
    first: usize,
    len: usize,
    registers: &'a mut Registers,
}

impl NullaryFnOnce for Accumulate<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        match self.reduced.from.class {
            Class::F32 => self.floats(|x: f32| f64::from(x)),
            Class::F64 => self.floats(|x: f64| x),
            Class::I32 => self.ints(|x: i32| i64::from(x)),
            Class::I64 => self.ints(|x: i64| x),
            Class::U8 => self.ints(|x: u8| i64::from(x)),
        }
    }
}

impl Accumulate<'_> {
    #[inline(always)]
    fn floats<T: Arithmetic>(self, widen: impl Fn(T) -> f64) {
        let Self {
            reduced,
            first,
            len,
            registers,
        } = self;
        match reduced.fold {
            Fold::Sum => {
                let sum = widen(fold_lanes(&registers.get(reduced.from)[..len], T::plus));
                registers.f64[reduced.value.idx][0] += sum;
            }
            Fold::Max => {
                let max = widen(fold_lanes(&registers.get(reduced.from)[..len], T::larger));
                let value = &mut registers.f64[reduced.value.idx][0];
                *value = value.larger(max);
            }
            Fold::ArgMax => {
                let best = registers.f64[reduced.value.idx][0];
                let place = registers.i64[reduced.place.idx][0];
                let tile = &registers.get::<T>(reduced.from)[..len];
                let values = tile.iter().map(|x| widen(*x));
                let (best, place) = argmax(values, first, (best, place));
                registers.f64[reduced.value.idx][0] = best;
                registers.i64[reduced.place.idx][0] = place;
            }
        }
    }

    #[inline(always)]
    fn ints<T: Arithmetic>(self, widen: impl Fn(T) -> i64) {
        let Self {
            reduced,
            first,
            len,
            registers,
        } = self;
        let tile = registers.get::<T>(reduced.from)[..len].iter();
        let mut values = tile.map(|x| widen(*x));
        let value = registers.i64[reduced.value.idx][0];
        let folded = match reduced.fold {
            Fold::Sum => values.fold(value, i64::wrapping_add),
            Fold::Max => values.fold(value, i64::max),
            Fold::ArgMax => {
                let place = registers.i64[reduced.place.idx][0];
                let (value, place) = argmax(&mut values, first, (value, place));
                registers.i64[reduced.place.idx][0] = place;
                value
            }
        };
        registers.i64[reduced.value.idx][0] = folded;
    }
}

/// Folds in lanes of a fixed number, so that the order does not depend on the processor.
#[inline(always)]
fn fold_lanes<T: Lane>(tile: &[T], fold: impl Fn(T, T) -> T) -> T {
    let (head, rest) = tile.split_at(tile.len() / LANES * LANES);
    let mut folded: Option<T> = None;
    let mut chunks = head.chunks_exact(LANES);
    if let Some(start) = chunks.next() {
        let mut lanes = [T::default(); LANES];
        lanes.copy_from_slice(start);
        for chunk in chunks {
            for (lane, value) in lanes.iter_mut().zip(chunk) {
                *lane = fold(*lane, *value);
            }
        }
        let mut width = LANES / 2;
        while width > 0 {
            for lane in 0..width {
                lanes[lane] = fold(lanes[lane], lanes[lane + width]);
            }
            width /= 2;
        }
        folded = Some(lanes[0]);
    }
    for value in rest {
        folded = Some(folded.map_or(*value, |so_far| fold(so_far, *value)));
    }
    folded.unwrap_or_default()
}

/// The greatest so far and its place, -1 if there is none yet; NaN counts as greatest.
#[inline(always)]
#[expect(clippy::eq_op, reason = "a NaN is what does not equal itself")]
fn argmax<T: PartialOrd + Copy>(
    values: impl Iterator<Item = T>,
    first: usize,
    (mut best, mut place): (T, i64),
) -> (T, i64) {
    for (idx, value) in values.enumerate() {
        if place < 0 || value > best || (value != value && best == best) {
            best = value;
            place = to_place(first + idx);
        }
    }
    (best, place)
}

/// Folds a tile of columns into the reduction's registers, element by element.
pub(crate) fn accumulate_columns(
    arch: Arch,
    reduced: &Reduced,
    first: usize,
    len: usize,
    registers: &mut Registers,
) {
    arch.dispatch(AccumulateColumns(Accumulate {
        reduced,
        first,
        len,
        registers,
    }));
}

struct AccumulateColumns<'a>(Accumulate<'a>);

impl NullaryFnOnce for AccumulateColumns<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        match self.0.reduced.from.class {
            Class::F32 => self.fold(|x: f32| f64::from(x)),
            Class::F64 => self.fold(|x: f64| x),
            Class::I32 => self.fold(|x: i32| i64::from(x)),
            Class::I64 => self.fold(|x: i64| x),
            Class::U8 => self.fold(|x: u8| i64::from(x)),
        }
    }
}

impl AccumulateColumns<'_> {
    #[inline(always)]
    #[expect(clippy::eq_op, reason = "a NaN is what does not equal itself")]
    fn fold<T: Lane, A: Arithmetic>(self, widen: impl Fn(T) -> A) {
        let Accumulate {
            reduced,
            first,
            len,
            registers,
        } = self.0;
        let mut places = std::mem::take(&mut registers.i64[reduced.place.idx]);
        registers.write(
            reduced.value,
            #[inline(always)]
            |values: &mut [A], registers| {
                let tile = &registers.get::<T>(reduced.from)[..len];
                let pairs = values[..len].iter_mut().zip(tile);
                match reduced.fold {
                    Fold::Sum => pairs.for_each(
                        #[inline(always)]
                        |(so_far, x)| *so_far = so_far.plus(widen(*x)),
                    ),
                    Fold::Max => pairs.for_each(
                        #[inline(always)]
                        |(so_far, x)| *so_far = so_far.larger(widen(*x)),
                    ),
                    Fold::ArgMax => {
                        for ((best, x), place) in pairs.zip(&mut places[..]) {
                            let value = widen(*x);
                            if *place < 0 || value > *best || (value != value && *best == *best) {
                                *best = value;
                                *place = to_place(first);
                            }
                        }
                    }
                }
            },
        );
        registers.i64[reduced.place.idx] = places;
    }
}

fn to_place(idx: usize) -> i64 {
    i64::try_from(idx).unwrap_or(i64::MAX)
}

/// Partial sums of a tile: two vectors of the widest processors, so that additions overlap.
const LANES: usize = 32;
