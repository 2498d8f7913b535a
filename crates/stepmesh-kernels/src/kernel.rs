//! A fused kernel: which tiles a thread runs its programs on, in which order. What the programs do is
//! the plan's.
//!
//! A kernel goes through `outer` × `inner` × `columns` elements in the order in which values lie.
//! Reductions are over `inner`. Where there is one column, a row of `inner` elements is gone through
//! tile by tile; where there are several, tiles are of columns. Each stage goes through all of it: a
//! later one uses what reductions of earlier ones gave.
#![forbid(unsafe_code)]

use pulp::Arch;
use stepmesh_fusion::{Class, Fold};

use crate::memory::Region;
use crate::pool::Pool;
use crate::scratch::Scratch;
use crate::tile::{
    Access, Chain, Frame, Instr, Reduced, Reg, RegisterNeeds, Registers, TILE, accumulate,
    accumulate_columns, run,
};

/// A kernel.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kernel {
    pub(crate) outer: usize,
    pub(crate) inner: usize,
    pub(crate) columns: usize,
    pub(crate) accesses: Vec<Access>,
    pub(crate) chains: Vec<Chain>,
    /// Run once by each thread.
    pub(crate) constants: Vec<Instr>,
    pub(crate) stages: Vec<Stage>,
    pub(crate) needs: RegisterNeeds,
    /// Parts into which `inner` is cut, so that several threads reduce it; 1 for none. Where the
    /// parts' results lie, if there are several.
    pub(crate) parts: usize,
    pub(crate) partials: usize,
}

/// What is done in one walk.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stage {
    /// On every tile.
    pub(crate) full: Vec<Instr>,
    pub(crate) reduced: Vec<Reduced>,
    /// On what the reductions gave: one element of a row, or a tile of columns.
    pub(crate) row: Vec<Instr>,
    /// From one element of a row to a tile, for later stages.
    pub(crate) spread: Vec<Instr>,
}

/// What a run lends to a kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lent<'a> {
    pub(crate) arch: Arch,
    pub(crate) pool: &'a Pool,
    pub(crate) threads_max: usize,
    pub(crate) scratch: &'a Scratch,
    pub(crate) regions: &'a [Region],
}

/// What one task goes through.
#[derive(Clone, Copy)]
struct Span {
    /// Rows, or tiles of columns counted through all of `outer`.
    first: usize,
    end: usize,
    /// Part of `inner`.
    inner_first: usize,
    inner_end: usize,
}

impl Kernel {
    /// Rows, or tiles of columns.
    fn units(&self) -> usize {
        self.outer * self.columns.div_ceil(TILE)
    }

    /// Units of a task: so many that it is worth giving to a thread.
    fn units_per_task(&self) -> usize {
        let unit = self.inner.saturating_mul(self.columns.min(TILE)).max(1);
        (TASK_LEN / unit).max(1)
    }

    /// Into how many parts reductions are cut when there are few rows: a matter of the shape alone.
    pub(crate) fn choose_parts(&mut self) {
        let tile = self.columns.min(TILE);
        let is_single = self.stages.len() == 1 && !self.stages[0].reduced.is_empty();
        let len = self.inner.saturating_mul(tile);
        self.parts = 1;
        if is_single && self.units() < FEW_UNITS && len > 2 * TASK_LEN {
            self.parts = (len / TASK_LEN).min(PARTS_MAX).min(self.inner);
        }
    }

    /// Bytes of what the parts' reductions give.
    pub(crate) fn partials_len_bytes(&self) -> usize {
        if self.parts <= 1 {
            return 0;
        }
        let reductions = self.stages[0].reduced.len();
        self.parts * reductions * 2 * self.outer * self.columns * size_of::<i64>()
    }

    /// Runs it. Nothing of it is left running.
    pub(crate) fn run(&self, lent: Lent<'_>) {
        let units = self.units();
        if self.parts > 1 {
            return self.run_parts(lent, units);
        }
        let per_task = self.units_per_task();
        let tasks = units.div_ceil(per_task);
        lent.pool.run(
            tasks,
            lent.threads_max,
            || self.prepared(lent),
            |registers, task| {
                let span = Span {
                    first: task * per_task,
                    end: ((task + 1) * per_task).min(units),
                    inner_first: 0,
                    inner_end: self.inner,
                };
                self.run_span(lent, span, registers);
            },
        );
    }

    pub(crate) fn prepared<'a>(&self, lent: Lent<'a>) -> crate::scratch::Lease<'a> {
        let mut registers = lent.scratch.registers(&self.needs);
        let frame = Frame {
            accesses: &self.accesses,
            chains: &self.chains,
            regions: lent.regions,
            first: 0,
            within: 0,
            // What they read is one element throughout.
            len: TILE,
        };
        run(lent.arch, &self.constants, &frame, &mut registers);
        registers
    }

    fn run_span(&self, lent: Lent<'_>, span: Span, registers: &mut Registers) {
        for unit in span.first..span.end {
            for stage in &self.stages {
                self.walk(lent, stage, unit, span, registers);
                self.finish(lent, stage, unit, registers);
            }
        }
    }

    /// Goes through a row, or through a tile of columns.
    fn walk(
        &self,
        lent: Lent<'_>,
        stage: &Stage,
        unit: usize,
        span: Span,
        registers: &mut Registers,
    ) {
        if stage.full.is_empty() && stage.reduced.is_empty() {
            return;
        }
        let tile = self.tile(unit);
        for reduced in &stage.reduced {
            begin(reduced, tile.len, registers);
        }
        let frame = |first, within, len| Frame {
            accesses: &self.accesses,
            chains: &self.chains,
            regions: lent.regions,
            first,
            within,
            len,
        };
        if self.columns == 1 {
            let mut within = span.inner_first;
            while within < span.inner_end {
                let len = TILE.min(span.inner_end - within);
                let frame = frame(unit * self.inner + within, within, len);
                run(lent.arch, &stage.full, &frame, registers);
                for reduced in &stage.reduced {
                    accumulate(lent.arch, reduced, within, len, registers);
                }
                within += len;
            }
            return;
        }
        for inner in span.inner_first..span.inner_end {
            let first = (tile.outer * self.inner + inner) * self.columns + tile.column;
            run(
                lent.arch,
                &stage.full,
                &frame(first, 0, tile.len),
                registers,
            );
            for reduced in &stage.reduced {
                accumulate_columns(lent.arch, reduced, inner, tile.len, registers);
            }
        }
    }

    /// Goes on with what a walk's reductions gave.
    fn finish(&self, lent: Lent<'_>, stage: &Stage, unit: usize, registers: &mut Registers) {
        let tile = self.tile(unit);
        let mut frame = Frame {
            accesses: &self.accesses,
            chains: &self.chains,
            regions: lent.regions,
            first: tile.outer * self.columns + tile.column,
            within: 0,
            len: tile.len,
        };
        run(lent.arch, &stage.row, &frame, registers);
        frame.len = self.inner.min(TILE);
        run(lent.arch, &stage.spread, &frame, registers);
    }

    fn tile(&self, unit: usize) -> Tile {
        let tiles = self.columns.div_ceil(TILE);
        let column = unit % tiles * TILE;
        Tile {
            outer: unit / tiles,
            column,
            len: TILE.min(self.columns - column),
        }
    }

    fn run_parts(&self, lent: Lent<'_>, units: usize) {
        let part_len = self.inner.div_ceil(self.parts);
        let stage = &self.stages[0];
        lent.pool.run(
            units * self.parts,
            lent.threads_max,
            || self.prepared(lent),
            |registers, task| {
                let (part, unit) = (task / units, task % units);
                let span = Span {
                    first: unit,
                    end: unit + 1,
                    inner_first: (part * part_len).min(self.inner),
                    inner_end: ((part + 1) * part_len).min(self.inner),
                };
                self.walk(lent, stage, unit, span, registers);
                for (idx, reduced) in stage.reduced.iter().enumerate() {
                    self.put_partial(lent, (part, idx, unit), reduced, registers);
                }
            },
        );
        lent.pool.run(
            units,
            1,
            || self.prepared(lent),
            |registers, unit| {
                let len = self.tile(unit).len;
                for (idx, reduced) in stage.reduced.iter().enumerate() {
                    begin(reduced, len, registers);
                    for part in 0..self.parts {
                        self.add_partial(lent, (part, idx, unit), reduced, registers);
                    }
                }
                self.finish(lent, stage, unit, registers);
            },
        );
    }

    /// Where the value of a part's reduction lies; the places lie behind the values.
    fn partial(&self, (part, idx, unit): (usize, usize, usize)) -> (usize, usize) {
        let tile = self.tile(unit);
        let kept = self.outer * self.columns;
        let reductions = self.stages[0].reduced.len();
        let value = (part * reductions + idx) * kept + tile.outer * self.columns + tile.column;
        (value, value + self.parts * reductions * kept)
    }

    fn put_partial(
        &self,
        lent: Lent<'_>,
        which: (usize, usize, usize),
        reduced: &Reduced,
        registers: &Registers,
    ) {
        let region = &lent.regions[self.partials];
        let (value, place) = self.partial(which);
        let len = self.tile(which.2).len;
        if reduced.value.class == Class::F64 {
            region.write(value, 1, &registers.get(reduced.value)[..len], |x: f64| x);
        } else {
            region.write(value, 1, &registers.get(reduced.value)[..len], |x: i64| x);
        }
        region.write(place, 1, &registers.get(reduced.place)[..len], |x: i64| x);
    }

    fn add_partial(
        &self,
        lent: Lent<'_>,
        which: (usize, usize, usize),
        reduced: &Reduced,
        registers: &mut Registers,
    ) {
        let region = &lent.regions[self.partials];
        let (value, place) = self.partial(which);
        for idx in 0..self.tile(which.2).len {
            let mut places = [0];
            region.read(place + idx, 1, &mut places, |x: i64| x);
            let so_far = registers.i64[reduced.place.idx][idx];
            let place = if reduced.value.class == Class::F64 {
                let mut values = [0.0];
                region.read(value + idx, 1, &mut values, |x: f64| x);
                let slot = &mut registers.f64[reduced.value.idx][idx];
                let (next, place) =
                    join_floats(reduced.fold, (*slot, so_far), (values[0], places[0]));
                *slot = next;
                place
            } else {
                let mut values = [0];
                region.read(value + idx, 1, &mut values, |x: i64| x);
                let slot = &mut registers.i64[reduced.value.idx][idx];
                let (next, place) =
                    join_ints(reduced.fold, (*slot, so_far), (values[0], places[0]));
                *slot = next;
                place
            };
            registers.i64[reduced.place.idx][idx] = place;
        }
    }
}

#[derive(Clone, Copy)]
struct Tile {
    outer: usize,
    column: usize,
    len: usize,
}

/// Sets a reduction's registers to what it gives of no elements.
fn begin(reduced: &Reduced, len: usize, registers: &mut Registers) {
    let Reg { class, idx } = reduced.value;
    let is_sum = reduced.fold == Fold::Sum;
    if class == Class::F64 {
        let start = if is_sum { 0.0 } else { f64::NEG_INFINITY };
        registers.f64[idx][..len].fill(start);
    } else {
        let least = match reduced.from.class {
            Class::I32 => i64::from(i32::MIN),
            Class::U8 => 0,
            _ => i64::MIN,
        };
        registers.i64[idx][..len].fill(if is_sum { 0 } else { least });
    }
    registers.i64[reduced.place.idx][..len].fill(-1);
}

/// Joins what two parts gave; the second comes later in the row.
fn join_floats(fold: Fold, (a, a_place): (f64, i64), (b, b_place): (f64, i64)) -> (f64, i64) {
    match fold {
        Fold::Sum => (a + b, a_place),
        Fold::Max if a > b || a.is_nan() => (a, a_place),
        Fold::Max => (b, b_place),
        Fold::ArgMax => {
            let takes_second =
                b_place >= 0 && (a_place < 0 || b > a || (b.is_nan() && !a.is_nan()));
            if takes_second {
                (b, b_place)
            } else {
                (a, a_place)
            }
        }
    }
}

fn join_ints(fold: Fold, (a, a_place): (i64, i64), (b, b_place): (i64, i64)) -> (i64, i64) {
    match fold {
        Fold::Sum => (a.wrapping_add(b), a_place),
        Fold::Max => (a.max(b), a_place),
        Fold::ArgMax if b_place >= 0 && (a_place < 0 || b > a) => (b, b_place),
        Fold::ArgMax => (a, a_place),
    }
}

/// Elements of a task: some microseconds of work, a hundred times what it costs to hand it out.
pub(crate) const TASK_LEN: usize = 32 * TILE;
/// With fewer rows than this, a long row is cut, so that threads have something to do.
const FEW_UNITS: usize = 16;
/// Parts of a row at most: they are joined by one thread.
const PARTS_MAX: usize = 64;
