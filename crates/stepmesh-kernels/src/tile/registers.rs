//! The registers of a thread. Each is a vector that is taken out while it is written, so that
//! operands can be read meanwhile.

use std::ops::{Deref, DerefMut};

use stepmesh_fusion::Class;

use super::{Reg, TILE};

/// Registers of every class, and rows that are kept between the stages of a kernel.
#[derive(Debug, Default)]
pub(crate) struct Registers {
    pub(crate) f32: Vec<Tile<f32>>,
    pub(crate) f64: Vec<Tile<f64>>,
    pub(crate) i32: Vec<Tile<i32>>,
    pub(crate) i64: Vec<Tile<i64>>,
    pub(crate) u8: Vec<Tile<u8>>,
    pub(crate) kept: Vec<Kept>,
}

/// The elements of a register, where cache lines begin. Empty while it is taken out.
#[derive(Debug, Default)]
pub(crate) struct Tile<T>(Option<Box<Lines<T>>>);

/// A row that is kept.
#[derive(Debug)]
pub(crate) enum Kept {
    F32(Vec<f32>),
    F64(Vec<f64>),
    I32(Vec<i32>),
    I64(Vec<i64>),
    U8(Vec<u8>),
}

/// What a program needs of registers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RegisterNeeds {
    counts: [usize; 5],
    /// Rows that are kept, and their elements.
    pub(crate) kept: Vec<(Class, usize)>,
}

/// Elements of registers, by type.
pub(crate) trait Lane: Copy + Default {
    fn file(registers: &Registers) -> &Vec<Tile<Self>>;
    fn file_mut(registers: &mut Registers) -> &mut Vec<Tile<Self>>;
}

macro_rules! lanes {
    ($($number:ident),*) => {$(
        impl Lane for $number {
            #[inline(always)]
            fn file(registers: &Registers) -> &Vec<Tile<Self>> {
                &registers.$number
            }
            #[inline(always)]
            fn file_mut(registers: &mut Registers) -> &mut Vec<Tile<Self>> {
                &mut registers.$number
            }
        }
    )*};
}

lanes!(f32, f64, i32, i64, u8);

impl RegisterNeeds {
    /// A register more of a class.
    pub(crate) fn add(&mut self, class: Class) -> Reg {
        let count = &mut self.counts[position(class)];
        *count += 1;
        Reg {
            class,
            idx: *count - 1,
        }
    }
}

fn position(class: Class) -> usize {
    match class {
        Class::F32 => 0,
        Class::F64 => 1,
        Class::I32 => 2,
        Class::I64 => 3,
        Class::U8 => 4,
    }
}

impl Registers {
    /// Makes room for a program; allocates only where an earlier one needed less.
    pub(crate) fn fit(&mut self, needs: &RegisterNeeds) {
        let [f32, f64, i32, i64, u8] = needs.counts;
        grow(&mut self.f32, f32);
        grow(&mut self.f64, f64);
        grow(&mut self.i32, i32);
        grow(&mut self.i64, i64);
        grow(&mut self.u8, u8);
        for (idx, (class, len)) in needs.kept.iter().enumerate() {
            let fits = self
                .kept
                .get(idx)
                .is_some_and(|kept| kept.class() == *class);
            if !fits {
                self.kept.truncate(idx);
                self.kept.push(Kept::new(*class));
            }
            self.kept[idx].fit(*len);
        }
    }

    #[inline(always)]
    pub(crate) fn get<T: Lane>(&self, reg: Reg) -> &[T] {
        &T::file(self)[reg.idx]
    }

    /// Writes a register while others can be read.
    #[inline(always)]
    pub(crate) fn write<T: Lane>(&mut self, reg: Reg, write: impl FnOnce(&mut [T], &Self)) {
        let mut tile = std::mem::take(&mut T::file_mut(self)[reg.idx]);
        write(&mut tile, self);
        T::file_mut(self)[reg.idx] = tile;
    }
}

#[derive(Debug)]
#[repr(align(64))]
struct Lines<T>([T; TILE]);

fn grow<T: Copy + Default>(file: &mut Vec<Tile<T>>, count: usize) {
    while file.len() < count {
        file.push(Tile(Some(Box::new(Lines([T::default(); TILE])))));
    }
}

impl<T> Deref for Tile<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        self.0.as_ref().map_or(&[], |lines| &lines.0)
    }
}

impl<T> DerefMut for Tile<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        self.0.as_mut().map_or(&mut [], |lines| &mut lines.0)
    }
}

impl Kept {
    fn new(class: Class) -> Self {
        match class {
            Class::F32 => Self::F32(Vec::new()),
            Class::F64 => Self::F64(Vec::new()),
            Class::I32 => Self::I32(Vec::new()),
            Class::I64 => Self::I64(Vec::new()),
            Class::U8 => Self::U8(Vec::new()),
        }
    }

    fn class(&self) -> Class {
        match self {
            Self::F32(_) => Class::F32,
            Self::F64(_) => Class::F64,
            Self::I32(_) => Class::I32,
            Self::I64(_) => Class::I64,
            Self::U8(_) => Class::U8,
        }
    }

    fn fit(&mut self, len: usize) {
        match self {
            Self::F32(row) => row.resize(row.len().max(len), 0.0),
            Self::F64(row) => row.resize(row.len().max(len), 0.0),
            Self::I32(row) => row.resize(row.len().max(len), 0),
            Self::I64(row) => row.resize(row.len().max(len), 0),
            Self::U8(row) => row.resize(row.len().max(len), 0),
        }
    }
}
