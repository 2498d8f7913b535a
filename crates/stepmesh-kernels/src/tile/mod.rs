//! A small machine for fused operations: instructions on registers that hold a tile of elements
//! each, so that what a chain of operations makes stays in the nearest cache. Which operations are
//! fused is the plan's choice; who runs which tile is the kernel's.
#![forbid(unsafe_code)]

mod access;
mod arithmetic;
mod cast;
mod chain;
mod machine;
mod random;
mod registers;

use stepmesh_fusion::{Binary, Class, Order, Scalar, Unary};
use stepmesh_graph::DType;

pub(crate) use access::Access;
pub(crate) use chain::{Chain, Link, LinkStep};
pub(crate) use machine::{Frame, Reduced, accumulate, accumulate_columns, run};
pub(crate) use registers::{Kept, RegisterNeeds, Registers};

/// A register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Reg {
    pub(crate) class: Class,
    pub(crate) idx: usize,
}

/// One step of a program. A destination is never an operand of the same instruction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Instr {
    Load {
        access: usize,
        to: Reg,
    },
    Store {
        access: usize,
        from: Reg,
    },
    Constant {
        value: Scalar,
        to: Reg,
    },
    /// The first element of a register in all of another.
    Splat {
        from: Reg,
        to: Reg,
    },
    Unary {
        op: Unary,
        from: Reg,
        to: Reg,
    },
    Binary {
        op: Binary,
        a: Reg,
        b: Reg,
        to: Reg,
    },
    Compare {
        order: Order,
        a: Reg,
        b: Reg,
        to: Reg,
    },
    Select {
        condition: Reg,
        a: Reg,
        b: Reg,
        to: Reg,
    },
    Cast {
        from: Reg,
        to: Reg,
        is_bool: bool,
    },
    /// An f32, or what is read as one, to the numbers that a narrower type has.
    Round {
        dtype: DType,
        from: Reg,
        to: Reg,
    },
    Random {
        normal: bool,
        dtype: DType,
        seed: Reg,
        offset: Reg,
        to: Reg,
    },
    /// Keeps a tile for a later stage of the same row.
    Keep {
        slot: usize,
        from: Reg,
    },
    Recall {
        slot: usize,
        to: Reg,
    },
    /// Several of the above as one, by its place in the kernel's list.
    Chain {
        chain: usize,
    },
}

impl Instr {
    /// The registers that it reads, and the one that it writes.
    fn registers_mut(&mut self) -> ([Option<&mut Reg>; 3], Option<&mut Reg>) {
        match self {
            Self::Load { to, .. } | Self::Constant { to, .. } | Self::Recall { to, .. } => {
                ([None, None, None], Some(to))
            }
            Self::Store { from, .. } | Self::Keep { from, .. } => ([Some(from), None, None], None),
            // Made when registers have been given out, after which no one asks.
            Self::Chain { .. } => ([None, None, None], None),
            Self::Splat { from, to }
            | Self::Unary { from, to, .. }
            | Self::Cast { from, to, .. }
            | Self::Round { from, to, .. } => ([Some(from), None, None], Some(to)),
            Self::Binary { a, b, to, .. } | Self::Compare { a, b, to, .. } => {
                ([Some(a), Some(b), None], Some(to))
            }
            Self::Random {
                seed, offset, to, ..
            } => ([Some(seed), Some(offset), None], Some(to)),
            Self::Select {
                condition,
                a,
                b,
                to,
            } => ([Some(condition), Some(a), Some(b)], Some(to)),
        }
    }

    /// What it reads.
    pub(crate) fn operands(mut self) -> impl Iterator<Item = Reg> {
        let operands = self.registers_mut().0.map(|reg| reg.copied());
        operands.into_iter().flatten()
    }

    /// What it writes.
    pub(crate) fn result(mut self) -> Option<Reg> {
        self.registers_mut().1.copied()
    }

    /// The same on other registers.
    pub(crate) fn renamed(mut self, operand: impl Fn(Reg) -> Reg, result: Option<Reg>) -> Self {
        let (operands, to) = self.registers_mut();
        for reg in operands.into_iter().flatten() {
            *reg = operand(*reg);
        }
        if let (Some(to), Some(result)) = (to, result) {
            *to = result;
        }
        self
    }
}

/// Elements of a register: ten of f32 fill half of a 32 KiB cache, and an instruction's fixed cost is
/// a few per cent of the time that it takes for so many.
pub(crate) const TILE: usize = 512;
