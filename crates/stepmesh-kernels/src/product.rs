//! Matrix products: blocks of the result, each made by one thread and handed on to the operations
//! that were fused behind it while it is in the cache. The inner loops are the `gemm` crate's.
#![forbid(unsafe_code)]

use stepmesh_fusion::Class;
use stepmesh_graph::DType;

use crate::kernel::{Kernel, Lent};
use crate::memory::{Element, Matrix, Multiply, Region, multiply};
use crate::number::{bf16_to_f32, f16_to_f32};
use crate::tile::{Frame, Kept, Registers, TILE, run};

/// A batch of products.
#[derive(Clone, Debug)]
pub(crate) struct Product {
    pub(crate) dtype: DType,
    pub(crate) batch: Vec<BatchDim>,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) depth: usize,
    pub(crate) left: Operand,
    pub(crate) right: Operand,
    pub(crate) then: Then,
}

/// A batch dimension, and how far its elements lie apart in the operands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchDim {
    pub(crate) extent: usize,
    pub(crate) left_stride: usize,
    pub(crate) right_stride: usize,
}

/// A batch of matrices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand {
    pub(crate) buffer: usize,
    pub(crate) start: usize,
    pub(crate) row_stride: usize,
    pub(crate) column_stride: usize,
}

/// What becomes of a product.
#[derive(Clone, Debug)]
pub(crate) enum Then {
    /// It is written to a buffer as it is.
    Store { buffer: usize },
    /// A program takes it from the first row that is kept.
    Run(Box<Kernel>),
}

/// A block of the result.
#[derive(Clone, Copy)]
struct Block {
    /// Which product of the batch.
    batch: usize,
    row: usize,
    column: usize,
    rows: usize,
    columns: usize,
    left_start: usize,
    right_start: usize,
}

impl Product {
    /// Rows that threads keep: the block, and what operands are converted to.
    pub(crate) fn kept(dtype: DType) -> Vec<(Class, usize)> {
        let block = (Class::of(dtype), ROWS_MAX * COLUMNS_MAX);
        match dtype {
            DType::F32 | DType::F64 => vec![block],
            DType::F16 | DType::BF16 => vec![
                block,
                (Class::F32, ROWS_MAX * DEPTH_MAX),
                (Class::F32, COLUMNS_MAX * DEPTH_MAX),
            ],
            _ => vec![
                block,
                (Class::of(dtype), DEPTH_MAX),
                (Class::of(dtype), COLUMNS_MAX),
            ],
        }
    }

    pub(crate) fn run(&self, lent: Lent<'_>) {
        let batch: usize = self.batch.iter().map(|dim| dim.extent).product();
        let down = self.rows.div_ceil(ROWS_MAX);
        let across = self.columns.div_ceil(COLUMNS_MAX);
        let direct = Kernel::default();
        let program = match &self.then {
            Then::Store { .. } => &direct,
            Then::Run(program) => program,
        };
        let work = self
            .rows
            .saturating_mul(self.columns)
            .saturating_mul(self.depth);
        let is_small = work.saturating_mul(batch) < SMALL_WORK;
        lent.pool.run(
            batch * down * across,
            if is_small { 1 } else { lent.threads_max },
            || program.prepared(lent),
            |registers, task| {
                let block = self.block(task / (down * across), task % (down * across), across);
                self.run_block(lent, block, registers);
            },
        );
    }

    fn block(&self, batch: usize, within: usize, across: usize) -> Block {
        let (row, column) = (within / across * ROWS_MAX, within % across * COLUMNS_MAX);
        let (mut rest, mut left_start, mut right_start) =
            (batch, self.left.start, self.right.start);
        for dim in self.batch.iter().rev() {
            left_start += rest % dim.extent * dim.left_stride;
            right_start += rest % dim.extent * dim.right_stride;
            rest /= dim.extent;
        }
        Block {
            batch,
            row,
            column,
            rows: ROWS_MAX.min(self.rows - row),
            columns: COLUMNS_MAX.min(self.columns - column),
            left_start: left_start + row * self.left.row_stride,
            right_start: right_start + column * self.right.column_stride,
        }
    }

    fn run_block(&self, lent: Lent<'_>, block: Block, registers: &mut Registers) {
        let first = (block.batch * self.rows + block.row) * self.columns + block.column;
        match &self.then {
            Then::Store { buffer } => {
                let to = Matrix {
                    region: lent.regions[*buffer],
                    start: first,
                    row_stride: self.columns,
                    column_stride: 1,
                };
                match self.dtype {
                    DType::F64 => self.multiply_block::<f64>(lent, block, to),
                    _ => self.multiply_block::<f32>(lent, block, to),
                }
            }
            Then::Run(program) => {
                self.multiply_kept(lent, block, registers);
                self.run_program(lent, program, (block, first), registers);
            }
        }
    }

    fn multiply_block<T: Multiply>(&self, lent: Lent<'_>, block: Block, to: Matrix) {
        let (left, right) = (
            self.matrix(lent, true, block),
            self.matrix(lent, false, block),
        );
        multiply::<T>(
            to,
            false,
            left,
            right,
            (block.rows, block.columns, self.depth),
        );
    }

    fn matrix(&self, lent: Lent<'_>, is_left: bool, block: Block) -> Matrix {
        let (operand, start) = if is_left {
            (&self.left, block.left_start)
        } else {
            (&self.right, block.right_start)
        };
        Matrix {
            region: lent.regions[operand.buffer],
            start,
            row_stride: operand.row_stride,
            column_stride: operand.column_stride,
        }
    }

    /// Makes a block in the first row that is kept.
    fn multiply_kept(&self, lent: Lent<'_>, block: Block, registers: &mut Registers) {
        let (left, right) = (
            self.matrix(lent, true, block),
            self.matrix(lent, false, block),
        );
        match (self.dtype, &mut registers.kept[..]) {
            (DType::F32, [Kept::F32(kept), ..]) => {
                self.multiply_block::<f32>(lent, block, dense(kept, block.columns));
            }
            (DType::F64, [Kept::F64(kept), ..]) => {
                self.multiply_block::<f64>(lent, block, dense(kept, block.columns));
            }
            (DType::F16, [Kept::F32(kept), Kept::F32(a), Kept::F32(b), ..]) => {
                self.multiply_halves(block, (left, right), (kept, a, b), f16_to_f32);
            }
            (DType::BF16, [Kept::F32(kept), Kept::F32(a), Kept::F32(b), ..]) => {
                self.multiply_halves(block, (left, right), (kept, a, b), bf16_to_f32);
            }
            (_, [Kept::I32(kept), Kept::I32(a), Kept::I32(b), ..]) => {
                let step = |sum: i32, x, y| i32::wrapping_mul(x, y).wrapping_add(sum);
                self.multiply_ints(block, (left, right), (kept, a, b), step);
            }
            (_, [Kept::I64(kept), Kept::I64(a), Kept::I64(b), ..]) => {
                let step = |sum: i64, x, y| i64::wrapping_mul(x, y).wrapping_add(sum);
                self.multiply_ints(block, (left, right), (kept, a, b), step);
            }
            (_, [Kept::U8(kept), Kept::U8(a), Kept::U8(b), ..]) => {
                let step = |sum: u8, x, y| u8::wrapping_mul(x, y).wrapping_add(sum);
                self.multiply_ints(block, (left, right), (kept, a, b), step);
            }
            _ => debug_assert!(false, "the plan keeps what a product needs"),
        }
    }

    fn multiply_halves(
        &self,
        block: Block,
        (left, right): (Matrix, Matrix),
        (kept, a, b): (&mut [f32], &mut [f32], &mut [f32]),
        widen: fn(u16) -> f32,
    ) {
        let to = dense(kept, block.columns);
        let mut depth = 0;
        // Once even without depth: then the block is zero.
        loop {
            let len = DEPTH_MAX.min(self.depth - depth);
            let left = widened(left.at(0, depth), (block.rows, len), a, widen);
            let right = widened(right.at(depth, 0), (len, block.columns), b, widen);
            multiply::<f32>(
                to,
                depth != 0,
                left,
                right,
                (block.rows, block.columns, len),
            );
            depth += len;
            if depth >= self.depth {
                return;
            }
        }
    }

    fn multiply_ints<T: Element + Default>(
        &self,
        block: Block,
        (left, right): (Matrix, Matrix),
        (kept, a, b): (&mut [T], &mut [T], &mut [T]),
        step: impl Fn(T, T, T) -> T,
    ) {
        for row in 0..block.rows {
            let sums = &mut kept[row * block.columns..(row + 1) * block.columns];
            sums.fill(T::default());
            let mut depth = 0;
            while depth < self.depth {
                let len = DEPTH_MAX.min(self.depth - depth);
                let from = left.at(row, depth);
                from.region
                    .read(from.start, from.column_stride, &mut a[..len], |x: T| x);
                for (idx, x) in a[..len].iter().enumerate() {
                    let from = right.at(depth + idx, 0);
                    let b = &mut b[..block.columns];
                    from.region
                        .read(from.start, from.column_stride, b, |y: T| y);
                    for (sum, y) in sums.iter_mut().zip(&*b) {
                        *sum = step(*sum, *x, *y);
                    }
                }
                depth += len;
            }
        }
    }

    fn run_program(
        &self,
        lent: Lent<'_>,
        program: &Kernel,
        (block, first): (Block, usize),
        registers: &mut Registers,
    ) {
        for row in 0..block.rows {
            let mut column = 0;
            while column < block.columns {
                let len = TILE.min(block.columns - column);
                let frame = Frame {
                    accesses: &program.accesses,
                    chains: &program.chains,
                    regions: lent.regions,
                    first: first + row * self.columns + column,
                    within: row * block.columns + column,
                    len,
                };
                for stage in &program.stages {
                    run(lent.arch, &stage.full, &frame, registers);
                }
                column += len;
            }
        }
    }
}

impl Matrix {
    fn at(self, row: usize, column: usize) -> Self {
        Self {
            start: self.start + row * self.row_stride + column * self.column_stride,
            ..self
        }
    }
}

fn dense<T: Element>(kept: &mut [T], columns: usize) -> Matrix {
    Matrix {
        region: Region::of(kept),
        start: 0,
        row_stride: columns,
        column_stride: 1,
    }
}

/// A matrix of halves as f32, along whichever side lies one after another.
fn widened(
    from: Matrix,
    (rows, columns): (usize, usize),
    to: &mut [f32],
    widen: fn(u16) -> f32,
) -> Matrix {
    let convert = |x: u16| widen(x);
    if from.row_stride == 1 && from.column_stride != 1 {
        for column in 0..columns {
            let slots = &mut to[column * rows..(column + 1) * rows];
            from.region
                .read(from.at(0, column).start, 1, slots, convert);
        }
        return Matrix {
            region: Region::of(to),
            start: 0,
            row_stride: 1,
            column_stride: rows,
        };
    }
    for row in 0..rows {
        let slots = &mut to[row * columns..(row + 1) * columns];
        from.region
            .read(from.at(row, 0).start, from.column_stride, slots, convert);
    }
    dense(to, columns)
}

/// Rows of a block: enough that packing the right side for each block costs a hundredth of it.
const ROWS_MAX: usize = 256;
/// Columns of a block: with the rows half a megabyte of f32, which the second cache holds.
const COLUMNS_MAX: usize = 512;
/// Depth for which operands are converted at a time.
const DEPTH_MAX: usize = 1024;
/// Products with fewer multiplications are not worth waking a thread for.
const SMALL_WORK: usize = 1 << 18;
