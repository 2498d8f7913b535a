//! Chains: operations that follow each other element by element. What one makes is the next one's
//! operand and stays in the processor's own registers: a part of the tile goes through all of the
//! chain before the next part does. Which operations make a chain is the plan's choice.

use pulp::Simd;
use pulp::bytemuck::{Pod, Zeroable, cast_slice, cast_slice_mut};
use stepmesh_fusion::Class;

use super::machine::Frame;
use super::registers::{Lane, Registers};
use crate::memory::{Element, Region};

/// A program for one accumulator, which is as many elements as a few of the processor's registers
/// hold.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Chain {
    /// Of the accumulator and of all registers.
    pub(crate) class: Class,
    pub(crate) links: Vec<Link>,
}

/// What becomes of the accumulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) step: LinkStep,
    /// The register or the access that the step reads or writes; 0 for those that do neither.
    pub(crate) idx: usize,
}

/// The step of a link, `a` being the accumulator and `b` the register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkStep {
    /// `b` becomes the accumulator.
    Take,
    /// The accumulator is written to the register.
    Put,
    /// What an access has becomes the accumulator.
    Load,
    /// The accumulator is written where an access says.
    Store,
    Add,
    /// `a - b`
    Sub,
    /// `b - a`
    SubFrom,
    Mul,
    /// `a / b`
    Div,
    /// `b / a`
    DivInto,
    /// Of the two, `a` if both are zeros; and so on below.
    Max,
    MaxOf,
    Min,
    MinOf,
    Neg,
    Relu,
    Sqrt,
    Rsqrt,
}

/// What an accumulator of so many vectors holds.
type Part<S, T, const LEN: usize> = [<T as Vectors>::Vector<S>; LEN];

/// Numbers that the processor computes with several at a time.
trait Vectors: Lane + Element + Pod {
    /// So many.
    type Vector<S: Simd>: Pod;

    fn vectors<S: Simd>(tile: &mut [Self]) -> &mut [Self::Vector<S>];
    fn zero<S: Simd>(simd: S) -> Self::Vector<S>;
    fn add<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    fn sub<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    fn mul<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    fn div<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    /// As `Arithmetic::larger`, bit for bit.
    fn larger<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    fn smaller<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    fn neg<S: Simd>(simd: S, a: Self::Vector<S>) -> Self::Vector<S>;
    fn rectified<S: Simd>(simd: S, a: Self::Vector<S>) -> Self::Vector<S>;
    fn sqrt<S: Simd>(simd: S, a: Self::Vector<S>) -> Self::Vector<S>;
    fn rsqrt<S: Simd>(simd: S, a: Self::Vector<S>) -> Self::Vector<S>;
}

macro_rules! vectors {
    ($number:ident, $vector:ident, $split:ident, $splat:ident, $add:ident, $sub:ident, $mul:ident,
     $div:ident, $greater:ident, $less:ident, $max:ident, $min:ident, $equal:ident, $select:ident, $neg:ident,
     $sqrt:ident) => {
        impl Vectors for $number {
            type Vector<S: Simd> = S::$vector;

            #[inline(always)]
            fn vectors<S: Simd>(tile: &mut [Self]) -> &mut [S::$vector] {
                S::$split(tile).0
            }
            #[inline(always)]
            fn zero<S: Simd>(simd: S) -> S::$vector {
                simd.$splat(0.0)
            }
            #[inline(always)]
            fn add<S: Simd>(simd: S, a: S::$vector, b: S::$vector) -> S::$vector {
                simd.$add(a, b)
            }
            #[inline(always)]
            fn sub<S: Simd>(simd: S, a: S::$vector, b: S::$vector) -> S::$vector {
                simd.$sub(a, b)
            }
            #[inline(always)]
            fn mul<S: Simd>(simd: S, a: S::$vector, b: S::$vector) -> S::$vector {
                simd.$mul(a, b)
            }
            #[inline(always)]
            fn div<S: Simd>(simd: S, a: S::$vector, b: S::$vector) -> S::$vector {
                simd.$div(a, b)
            }
            #[inline(always)]
            fn larger<S: Simd>(simd: S, a: S::$vector, b: S::$vector) -> S::$vector {
                let kept = if S::IS_SCALAR || cfg!(not(target_arch = "x86_64")) {
                    simd.$select(simd.$greater(a, b), a, b)
                } else {
                    simd.$max(a, b)
                };
                simd.$select(simd.$equal(a, a), kept, a)
            }
            #[inline(always)]
            fn smaller<S: Simd>(simd: S, a: S::$vector, b: S::$vector) -> S::$vector {
                let kept = if S::IS_SCALAR || cfg!(not(target_arch = "x86_64")) {
                    simd.$select(simd.$less(a, b), a, b)
                } else {
                    simd.$min(a, b)
                };
                simd.$select(simd.$equal(a, a), kept, a)
            }
            #[inline(always)]
            fn neg<S: Simd>(simd: S, a: S::$vector) -> S::$vector {
                simd.$neg(a)
            }
            #[inline(always)]
            fn rectified<S: Simd>(simd: S, a: S::$vector) -> S::$vector {
                let zero = simd.$splat(0.0);
                simd.$select(simd.$less(a, zero), zero, a)
            }
            #[inline(always)]
            fn sqrt<S: Simd>(simd: S, a: S::$vector) -> S::$vector {
                simd.$sqrt(a)
            }
            #[inline(always)]
            fn rsqrt<S: Simd>(simd: S, a: S::$vector) -> S::$vector {
                simd.$div(simd.$splat(1.0), simd.$sqrt(a))
            }
        }
    };
}

vectors!(
    f32,
    f32s,
    as_mut_simd_f32s,
    splat_f32s,
    add_f32s,
    sub_f32s,
    mul_f32s,
    div_f32s,
    greater_than_f32s,
    less_than_f32s,
    max_f32s,
    min_f32s,
    equal_f32s,
    select_f32s,
    neg_f32s,
    sqrt_f32s
);
vectors!(
    f64,
    f64s,
    as_mut_simd_f64s,
    splat_f64s,
    add_f64s,
    sub_f64s,
    mul_f64s,
    div_f64s,
    greater_than_f64s,
    less_than_f64s,
    max_f64s,
    min_f64s,
    equal_f64s,
    select_f64s,
    neg_f64s,
    sqrt_f64s
);

/// Runs a chain on a tile, and on some elements behind it, which no one reads.
#[inline(always)]
pub(super) fn run<S: Simd>(simd: S, chain: &Chain, frame: &Frame<'_>, registers: &mut Registers) {
    let links = &chain.links;
    match chain.class {
        Class::F64 if S::REGISTER_COUNT >= 32 => {
            walk::<S, f64, LEN_OF_32>(simd, links, frame, registers);
        }
        Class::F64 => walk::<S, f64, LEN_OF_16>(simd, links, frame, registers),
        _ if S::REGISTER_COUNT >= 32 => {
            walk::<S, f32, LEN_OF_32>(simd, links, frame, registers);
        }
        _ => walk::<S, f32, LEN_OF_16>(simd, links, frame, registers),
    }
}

#[inline(always)]
fn walk<S: Simd, T: Vectors, const LEN: usize>(
    simd: S,
    links: &[Link],
    frame: &Frame<'_>,
    registers: &mut Registers,
) where
    Part<S, T, LEN>: Pod,
{
    let file = T::file_mut(registers);
    let part_len = size_of::<Part<S, T, LEN>>() / size_of::<T>();
    for part in 0..frame.len.div_ceil(part_len) {
        let mut a: Part<S, T, LEN> = [T::zero(simd); LEN];
        for link in links {
            match link.step {
                LinkStep::Load => a = load::<S, T, LEN>(frame, link.idx, part * part_len),
                LinkStep::Store => store::<S, T, LEN>(frame, link.idx, part * part_len, a),
                LinkStep::Neg => map(&mut a, |a| T::neg(simd, a)),
                LinkStep::Relu => map(&mut a, |a| T::rectified(simd, a)),
                LinkStep::Sqrt => map(&mut a, |a| T::sqrt(simd, a)),
                LinkStep::Rsqrt => map(&mut a, |a| T::rsqrt(simd, a)),
                step => {
                    let (parts, _) = T::vectors::<S>(&mut file[link.idx]).as_chunks_mut();
                    with_register::<S, T, LEN>(simd, step, &mut a, &mut parts[part]);
                }
            }
        }
    }
}

#[inline(always)]
fn with_register<S: Simd, T: Vectors, const LEN: usize>(
    simd: S,
    step: LinkStep,
    a: &mut Part<S, T, LEN>,
    b: &mut Part<S, T, LEN>,
) {
    match step {
        LinkStep::Put => *b = *a,
        LinkStep::Add => zip(a, b, |a, b| T::add(simd, a, b)),
        LinkStep::Sub => zip(a, b, |a, b| T::sub(simd, a, b)),
        LinkStep::SubFrom => zip(a, b, |a, b| T::sub(simd, b, a)),
        LinkStep::Mul => zip(a, b, |a, b| T::mul(simd, a, b)),
        LinkStep::Div => zip(a, b, |a, b| T::div(simd, a, b)),
        LinkStep::DivInto => zip(a, b, |a, b| T::div(simd, b, a)),
        LinkStep::Max => zip(a, b, |a, b| T::larger(simd, a, b)),
        LinkStep::MaxOf => zip(a, b, |a, b| T::larger(simd, b, a)),
        LinkStep::Min => zip(a, b, |a, b| T::smaller(simd, a, b)),
        LinkStep::MinOf => zip(a, b, |a, b| T::smaller(simd, b, a)),
        // The rest do nothing to a register.
        _ => *a = *b,
    }
}

#[inline(always)]
fn load<S: Simd, T: Vectors, const LEN: usize>(
    frame: &Frame<'_>,
    access: usize,
    at: usize,
) -> Part<S, T, LEN>
where
    Part<S, T, LEN>: Pod,
{
    let (region, start) = memory(frame, access, at);
    let part_len = size_of::<Part<S, T, LEN>>() / size_of::<T>();
    if at + part_len <= frame.len {
        region.prefetch::<T>(start + PARTS_AHEAD * part_len, part_len);
        return region.read_block::<T, _>(start);
    }
    let mut rest = Part::<S, T, LEN>::zeroed();
    let elements = cast_slice_mut(&mut rest);
    region.read(start, 1, &mut elements[..frame.len - at], |x: T| x);
    rest
}

#[inline(always)]
fn store<S: Simd, T: Vectors, const LEN: usize>(
    frame: &Frame<'_>,
    access: usize,
    at: usize,
    a: Part<S, T, LEN>,
) where
    Part<S, T, LEN>: Pod,
{
    let (region, start) = memory(frame, access, at);
    let part_len = size_of::<Part<S, T, LEN>>() / size_of::<T>();
    if at + part_len <= frame.len {
        region.prefetch::<T>(start + PARTS_AHEAD * part_len, part_len);
        return region.write_block::<T, _>(start, a);
    }
    let rest = a;
    let elements = cast_slice(&rest);
    region.write(start, 1, &elements[..frame.len - at], |x: T| x);
}

/// Where a part of a tile lies.
#[inline(always)]
fn memory<'a>(frame: &Frame<'a>, access: usize, at: usize) -> (&'a Region, usize) {
    let access = &frame.accesses[access];
    (
        &frame.regions[access.buffer],
        access.start + frame.first + at,
    )
}

#[inline(always)]
fn map<V: Copy, const LEN: usize>(a: &mut [V; LEN], f: impl Fn(V) -> V) {
    for slot in a {
        *slot = f(*slot);
    }
}

#[inline(always)]
fn zip<V: Copy, const LEN: usize>(a: &mut [V; LEN], b: &[V; LEN], f: impl Fn(V, V) -> V) {
    for (slot, b) in a.iter_mut().zip(b) {
        *slot = f(*slot, *b);
    }
}

/// Vectors of the accumulator: half of the processor's registers, so that what a step needs beside them
/// fits too, and enough that additions overlap and finding the step costs little.
const LEN_OF_16: usize = 8;
/// The same for processors with 32.
const LEN_OF_32: usize = 16;
/// How far ahead memory is fetched, where a part begins: no further than the nearest cache bears. All
/// operations go over a part before the next one is touched, so the processor does not see by itself
/// what it could fetch meanwhile. One part ahead is too late, and whole tiles at once are more lines
/// than it can wait for.
const PARTS_AHEAD: usize = 4;
