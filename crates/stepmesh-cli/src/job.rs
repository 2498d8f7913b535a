//! What a worker pushes and what must come back. How it travels is in `worker`.

use std::path::Path;

use anyhow::{Result, ensure};
use ndarray::{Array2, ArrayView2, Axis, Slice};
use stepmesh::{DType, Tensor};
use stepmesh_core::Device;

use crate::input::{Input, InputError};

/// Rows to push, and the answer to each.
#[derive(Debug)]
pub(crate) struct Job {
    pushed: Tensor,
    expected: Expected,
}

/// Where a worker's rows lie in its job in one iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rows {
    pub(crate) start: u64,
    pub(crate) count: u64,
}

/// The layer's input and output of a file, before it is known which rows are this worker's.
#[derive(Debug)]
pub(crate) struct Reference {
    x: Array2<f32>,
    y: Array2<f32>,
    path: std::path::PathBuf,
}

#[derive(Debug)]
enum Expected {
    /// The same bytes.
    Echo(Vec<u8>),
    /// These values, nearly.
    Values(Array2<f32>),
}

impl Reference {
    /// Reads `ffn_in` and `ffn_out`.
    pub(crate) fn read(path: &Path) -> Result<Self, InputError> {
        let input = Input::open(path)?;
        let x = input.matrix("ffn_in", None, None)?;
        let y = input.matrix("ffn_out", Some(x.nrows()), Some(x.ncols()))?;
        Ok(Self {
            x,
            y,
            path: input.path().into(),
        })
    }

    /// The job of worker `index` of `count`: a contiguous part, the first workers one row more
    /// where it does not come out even.
    pub(crate) fn share(&self, index: usize, count: usize, device: &Device) -> Result<Job> {
        let rows = self.x.nrows();
        if rows < count {
            return Err(InputError::TooFewRows {
                path: self.path.clone(),
                rows,
                workers: count,
            }
            .into());
        }
        let start = |index: usize| index * (rows / count) + index.min(rows % count);
        let (start, end) = (start(index), start(index + 1));
        let (x, y) = (
            part(&self.x, start, end),
            part(&self.y, start, end).to_owned(),
        );
        let dims = [x.nrows() as u64, x.ncols() as u64];
        let values: Vec<f32> = x.iter().copied().collect();
        Ok(Job {
            pushed: Tensor::from_slice(device, &dims, &values)?,
            expected: Expected::Values(y),
        })
    }
}

impl Job {
    /// Rows of bytes that no other row or worker has, to be echoed.
    pub(crate) fn synthetic(
        rows: u64,
        width: u64,
        dtype: DType,
        seed: u32,
        device: &Device,
    ) -> Result<Self> {
        let pushed = Tensor::empty(device, dtype, &[rows, width])?;
        let words = (0u32..).map(|at| at.wrapping_add(seed.wrapping_mul(SEED_STEP)));
        let bytes = words.flat_map(|word| word.wrapping_mul(MIX).to_le_bytes());
        let bytes: Vec<u8> = bytes.take(usize::try_from(pushed.len_bytes())?).collect();
        pushed.buffer().write_bytes(pushed.offset_bytes(), &bytes)?;
        Ok(Self {
            pushed,
            expected: Expected::Echo(bytes),
        })
    }

    /// Whether what comes back must be what went.
    pub(crate) fn is_exact(&self) -> bool {
        matches!(self.expected, Expected::Echo(_))
    }

    /// All rows that there are to push.
    pub(crate) fn pushed(&self) -> &Tensor {
        &self.pushed
    }

    /// What an iteration pushes: first all rows, which says how many there can be, then now more,
    /// now fewer, sometimes none.
    pub(crate) fn rows(&self, iteration: u64) -> Rows {
        let all = self.pushed.shape().rows();
        if iteration == 0 {
            return Rows {
                start: 0,
                count: all,
            };
        }
        let count = (iteration * ROWS_STEP) % (all + 1);
        let start = (iteration * START_STEP) % (all - count + 1);
        Rows { start, count }
    }

    /// The largest absolute difference between an answer and what it must be; an error when it
    /// must be the same and is not.
    pub(crate) fn check(&self, rows: Rows, answer: &Tensor) -> Result<f32> {
        match &self.expected {
            Expected::Echo(bytes) => {
                let row_len = usize::try_from(self.pushed.row_len_bytes())?;
                let start = usize::try_from(rows.start)? * row_len;
                let mut found = vec![0; usize::try_from(answer.len_bytes())?];
                let expected = &bytes[start..start + found.len()];
                answer
                    .buffer()
                    .read_bytes(answer.offset_bytes(), &mut found)?;
                let wrong = found.iter().zip(expected).position(|(a, b)| a != b);
                if let Some(wrong) = wrong {
                    let row = wrong / row_len.max(1);
                    anyhow::bail!("row {row} of {} came back changed", rows.count);
                }
                Ok(0.0)
            }
            Expected::Values(values) => {
                let start = usize::try_from(rows.start)?;
                let expected = part(values, start, start + usize::try_from(rows.count)?);
                let found = answer.to_vec::<f32>()?;
                ensure!(found.len() == expected.len(), "an answer of another width");
                let errors = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
                // Not a number is as wrong as can be.
                Ok(errors.fold(
                    0.0,
                    |a, b| if b.is_nan() { f32::INFINITY } else { a.max(b) },
                ))
            }
        }
    }
}

fn part(matrix: &Array2<f32>, start: usize, end: usize) -> ArrayView2<'_, f32> {
    matrix.slice_axis(Axis(0), Slice::from(start..end))
}

/// Odd and prime, so that counts and starts go through every value in no plain order.
const ROWS_STEP: u64 = 7919;
const START_STEP: u64 = 104_729;

/// The golden ratio's bits: neighbours become unlike.
const MIX: u32 = 0x9E37_79B1;

/// Between the first words of two workers: further apart than a row is long.
const SEED_STEP: u32 = 0x0100_0003;

#[cfg(test)]
mod tests;
