//! How a kernel's elements, counted in the order in which it goes through them, lie in a buffer.

use stepmesh_fusion::{Walk, merge};
use stepmesh_graph::{DType, float8};

use super::registers::Registers;
use super::{Reg, TILE};
use crate::memory::{Element, Region};
use crate::number::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};

/// A view of a buffer in a kernel's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    /// Which of the plan's buffers.
    pub(crate) buffer: usize,
    pub(crate) dtype: DType,
    /// Element at index 0.
    pub(crate) start: usize,
    /// Outermost first; merged where that changes nothing, and none for a single element.
    pub(crate) dims: Vec<Walk>,
}

/// Elements that lie evenly.
#[derive(Clone, Copy)]
struct Run {
    /// Where in the tile.
    at: usize,
    start: usize,
    stride: usize,
    len: usize,
}

impl Access {
    /// Merges dimensions that are one walk through memory.
    pub(crate) fn new(
        buffer: usize,
        dtype: DType,
        start: usize,
        dims: impl IntoIterator<Item = Walk>,
    ) -> Self {
        Self {
            buffer,
            dtype,
            start,
            dims: merge(dims),
        }
    }

    /// Whether its elements lie one after another, as they are computed with.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self.dims[..], [dim] if dim.stride == 1)
            && matches!(self.dtype, DType::F32 | DType::F64)
    }

    /// Whether it is one element throughout.
    pub(crate) fn is_uniform(&self) -> bool {
        self.dims.iter().all(|dim| dim.stride == 0)
    }

    #[inline(always)]
    fn runs(&self, first: usize, len: usize, mut each: impl FnMut(Run)) {
        let (outer, inner) = match &self.dims[..] {
            [] => {
                let (start, stride) = (self.start, 0);
                return each(Run {
                    at: 0,
                    start,
                    stride,
                    len,
                });
            }
            [dim] => {
                let start = self.start + first * dim.stride;
                let stride = dim.stride;
                return each(Run {
                    at: 0,
                    start,
                    stride,
                    len,
                });
            }
            [outer @ .., inner] => (outer, inner),
        };
        let mut coordinates = [0; RANK_MAX];
        let (mut rest, mut within) = (first / inner.extent, first % inner.extent);
        let mut start = self.start;
        for (slot, dim) in coordinates[..outer.len()].iter_mut().zip(outer).rev() {
            *slot = rest % dim.extent;
            rest /= dim.extent;
            start += *slot * dim.stride;
        }
        let mut at = 0;
        while at < len {
            let count = (inner.extent - within).min(len - at);
            each(Run {
                at,
                start: start + within * inner.stride,
                stride: inner.stride,
                len: count,
            });
            at += count;
            within = 0;
            for (slot, dim) in coordinates[..outer.len()].iter_mut().zip(outer).rev() {
                *slot += 1;
                start += dim.stride;
                if *slot < dim.extent {
                    break;
                }
                *slot = 0;
                start -= dim.extent * dim.stride;
            }
        }
    }

    /// Reads elements from the `first` on.
    #[inline(always)]
    pub(crate) fn load(
        &self,
        regions: &[Region],
        first: usize,
        len: usize,
        registers: &mut Registers,
        to: Reg,
    ) {
        let region = &regions[self.buffer];
        match self.dtype {
            DType::F32 => registers.write(
                to,
                #[inline(always)]
                |tile: &mut [f32], _| {
                    self.read(region, first, &mut tile[..len], |x: f32| x);
                },
            ),
            DType::F16 => registers.write(
                to,
                #[inline(always)]
                |tile: &mut [f32], _| {
                    self.read(region, first, &mut tile[..len], f16_to_f32);
                },
            ),
            DType::BF16 => registers.write(
                to,
                #[inline(always)]
                |tile: &mut [f32], _| {
                    self.read(region, first, &mut tile[..len], bf16_to_f32);
                },
            ),
            DType::F8E4M3 => registers.write(
                to,
                #[inline(always)]
                |tile: &mut [f32], _| {
                    self.read(region, first, &mut tile[..len], float8::e4m3_to_f32);
                },
            ),
            DType::F8E5M2 => registers.write(
                to,
                #[inline(always)]
                |tile: &mut [f32], _| {
                    self.read(region, first, &mut tile[..len], float8::e5m2_to_f32);
                },
            ),
            DType::F64 => registers.write(
                to,
                #[inline(always)]
                |tile: &mut [f64], _| {
                    self.read(region, first, &mut tile[..len], |x: f64| x);
                },
            ),
            DType::I32 => registers.write(
                to,
                #[inline(always)]
                |tile: &mut [i32], _| {
                    self.read(region, first, &mut tile[..len], |x: i32| x);
                },
            ),
            DType::I64 => registers.write(
                to,
                #[inline(always)]
                |tile: &mut [i64], _| {
                    self.read(region, first, &mut tile[..len], |x: i64| x);
                },
            ),
            DType::U8 | DType::Bool => registers.write(
                to,
                #[inline(always)]
                |tile: &mut [u8], _| {
                    self.read(region, first, &mut tile[..len], |x: u8| x);
                },
            ),
        }
    }

    /// Writes elements from the `first` on.
    #[inline(always)]
    pub(crate) fn store(
        &self,
        regions: &[Region],
        first: usize,
        len: usize,
        registers: &Registers,
        from: Reg,
    ) {
        debug_assert!(len <= TILE, "a tile");
        let region = &regions[self.buffer];
        match self.dtype {
            DType::F32 => self.write(region, first, &registers.get(from)[..len], |x: f32| x),
            DType::F16 => self.write(region, first, &registers.get(from)[..len], f32_to_f16),
            DType::BF16 => self.write(region, first, &registers.get(from)[..len], f32_to_bf16),
            DType::F8E4M3 => {
                self.write(region, first, &registers.get(from)[..len], |x: f32| {
                    float8::e4m3_from_f64(f64::from(x))
                });
            }
            DType::F8E5M2 => {
                self.write(region, first, &registers.get(from)[..len], |x: f32| {
                    float8::e5m2_from_f64(f64::from(x))
                });
            }
            DType::F64 => self.write(region, first, &registers.get(from)[..len], |x: f64| x),
            DType::I32 => self.write(region, first, &registers.get(from)[..len], |x: i32| x),
            DType::I64 => self.write(region, first, &registers.get(from)[..len], |x: i64| x),
            DType::U8 | DType::Bool => {
                self.write(region, first, &registers.get(from)[..len], |x: u8| x);
            }
        }
    }

    #[inline(always)]
    fn read<T: Element, U: Copy>(
        &self,
        region: &Region,
        first: usize,
        tile: &mut [U],
        convert: impl Fn(T) -> U + Copy,
    ) {
        self.runs(
            first,
            tile.len(),
            #[inline(always)]
            |run| {
                let part = &mut tile[run.at..run.at + run.len];
                if run.stride != 0 {
                    return region.read(run.start, run.stride, part, convert);
                }
                let (head, tail) = part.split_at_mut(1);
                region.read(run.start, 1, head, convert);
                tail.fill(head[0]);
            },
        );
    }

    #[inline(always)]
    fn write<T: Element, U: Copy>(
        &self,
        region: &Region,
        first: usize,
        tile: &[U],
        convert: impl Fn(U) -> T + Copy,
    ) {
        self.runs(
            first,
            tile.len(),
            #[inline(always)]
            |run| {
                let part = &tile[run.at..run.at + run.len];
                region.write(run.start, run.stride, part, convert);
            },
        );
    }
}

/// Most dimensions of a view: those of a value.
const RANK_MAX: usize = 8;
