//! Joins what follows each other in a program, element by element, into chains.
#![forbid(unsafe_code)]

use std::collections::HashSet;

use stepmesh_fusion::{Binary, Class, Unary};

use crate::kernel::{Kernel, Stage};
use crate::tile::{Access, Chain, Instr, Link, LinkStep, Reg};

/// Joins what can be in every walk. Registers must have been given out.
pub(super) fn join(kernel: &mut Kernel) {
    for stage in &mut kernel.stages {
        join_walk(stage, &kernel.accesses, &mut kernel.chains);
    }
}

fn join_walk(stage: &mut Stage, accesses: &[Access], chains: &mut Vec<Chain>) {
    // Last first, so that it is known of each result whether it is read once the chain is left.
    let mut live: HashSet<Reg> = stage.reduced.iter().map(|reduced| reduced.from).collect();
    let mut joined = Vec::with_capacity(stage.full.len());
    let mut program = &stage.full[..];
    while let [before @ .., last] = program {
        let class = class(last, accesses);
        let is_other = |instr: &Instr| class.is_none() || self::class(instr, accesses) != class;
        let start = program.iter().rposition(is_other).map_or(0, |idx| idx + 1);
        match class {
            Some(class) if program.len() - start > 1 => {
                let chain = chains.len();
                joined.push(Instr::Chain { chain });
                let links = links(&program[start..], &mut live);
                chains.push(Chain { class, links });
                program = &program[..start];
            }
            _ => {
                if let Some(to) = last.result() {
                    live.remove(&to);
                }
                live.extend(last.operands());
                joined.push(*last);
                program = before;
            }
        }
    }
    joined.reverse();
    stage.full = joined;
}

/// The links of a run of instructions, the registers being `live` that are read after it.
fn links(run: &[Instr], live: &mut HashSet<Reg>) -> Vec<Link> {
    // Last first.
    let mut links = Vec::with_capacity(run.len() + 2);
    let mut link = |step, idx| links.push(Link { step, idx });
    for (idx, instr) in run.iter().enumerate().rev() {
        if let Some(to) = instr.result()
            && live.remove(&to)
        {
            link(LinkStep::Put, to.idx);
        }
        // What the accumulator holds.
        let held = match idx.checked_sub(1).map(|before| run[before]) {
            Some(Instr::Store { from, .. }) => Some(from),
            before => before.and_then(Instr::result),
        };
        let first = match *instr {
            Instr::Load { access, .. } => {
                link(LinkStep::Load, access);
                continue;
            }
            Instr::Store { access, from } => {
                link(LinkStep::Store, access);
                from
            }
            Instr::Unary { op, from, .. } => {
                let Some(step) = unary(op) else { continue };
                link(step, 0);
                from
            }
            Instr::Binary { op, a, b, .. } => {
                let Some((step, reversed)) = binary(op) else {
                    continue;
                };
                let (step, first, other) = if held == Some(b) && a != b {
                    (reversed, b, a)
                } else {
                    (step, a, b)
                };
                link(step, other.idx);
                live.insert(other);
                first
            }
            _ => continue,
        };
        if held != Some(first) {
            link(LinkStep::Take, first.idx);
            live.insert(first);
        }
    }
    links.reverse();
    links
}

/// The class of a chain that an instruction can be in.
fn class(instr: &Instr, accesses: &[Access]) -> Option<Class> {
    let (can_be, reg) = match *instr {
        Instr::Load { access, to } => (accesses[access].is_plain(), to),
        Instr::Store { access, from } => (accesses[access].is_plain(), from),
        Instr::Unary { op, to, .. } => (unary(op).is_some(), to),
        Instr::Binary { op, to, .. } => (binary(op).is_some(), to),
        _ => return None,
    };
    (can_be && reg.class.is_float()).then_some(reg.class)
}

fn unary(op: Unary) -> Option<LinkStep> {
    match op {
        Unary::Neg => Some(LinkStep::Neg),
        Unary::Relu => Some(LinkStep::Relu),
        Unary::Sqrt => Some(LinkStep::Sqrt),
        Unary::Rsqrt => Some(LinkStep::Rsqrt),
        _ => None,
    }
}

/// What an operation does to its first operand, and to its second.
fn binary(op: Binary) -> Option<(LinkStep, LinkStep)> {
    match op {
        Binary::Add => Some((LinkStep::Add, LinkStep::Add)),
        Binary::Sub => Some((LinkStep::Sub, LinkStep::SubFrom)),
        Binary::Mul => Some((LinkStep::Mul, LinkStep::Mul)),
        Binary::Div => Some((LinkStep::Div, LinkStep::DivInto)),
        Binary::Max => Some((LinkStep::Max, LinkStep::MaxOf)),
        Binary::Min => Some((LinkStep::Min, LinkStep::MinOf)),
        Binary::Pow => None,
    }
}
