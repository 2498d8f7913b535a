//! Products of matrices, as the vendors' libraries of them do: stored by columns, summed in f32 or f64.
#![forbid(unsafe_code)]

use std::ops::{Add, Mul};

use half::{bf16, f16};

use crate::driver::Driver;
use crate::memory::Memory;
use crate::{Answer, Status, Values, Work};

/// A library's handle: what the calls that follow use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Library {
    device: u32,
    stream: u64,
    workspace: Option<(u64, u64)>,
}

/// A batch of products `c = op(a) op(b)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gemm {
    /// Rows of `c`.
    pub m: i32,
    /// Columns of `c`.
    pub n: i32,
    /// What is summed over.
    pub k: i32,
    /// Products.
    pub batch: i32,
    /// The left operand.
    pub a: Matrix,
    /// The right operand.
    pub b: Matrix,
    /// The result.
    pub c: Matrix,
    /// Whether it is summed in f64.
    pub is_double: bool,
}

/// A matrix of each product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// Address of the first.
    pub ptr: u64,
    /// Type of its elements.
    pub element: Element,
    /// Elements from one column to the next.
    pub leading: i32,
    /// Elements from one matrix to the next.
    pub stride: i64,
    /// Whether its transpose is meant.
    pub is_transposed: bool,
}

/// Types of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// IEEE half.
    F16,
    /// bfloat16.
    Bf16,
    /// IEEE single.
    F32,
    /// IEEE double.
    F64,
}

impl Driver {
    /// A handle of the library for a device.
    ///
    /// # Errors
    /// `CAPTURE_UNSUPPORTED` while a capture forbids it, for the real ones allocate; what broke the
    /// device.
    pub fn create_library(&self, device: u32) -> Answer<u64> {
        self.check(device)?;
        self.check_captures()?;
        Ok(self.libraries.insert(Library {
            device,
            stream: 0,
            workspace: None,
        }))
    }

    /// Ends a handle.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn destroy_library(&self, handle: u64) -> Answer<()> {
        self.libraries.remove(handle).map(|_| ())
    }

    /// Sets the stream of a handle, and takes its workspace away if `forgets`, as cuBLAS does.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn set_library_stream(&self, handle: u64, stream: u64, forgets: bool) -> Answer<()> {
        self.libraries.update(handle, |library| {
            library.stream = stream;
            if forgets {
                library.workspace = None;
            }
        })
    }

    /// Sets the workspace of a handle.
    ///
    /// # Errors
    /// `INVALID_HANDLE`; `INVALID_VALUE` for memory that is no device's or is too short.
    pub fn set_library_workspace(&self, handle: u64, ptr: u64, len: u64) -> Answer<()> {
        let place = self.memory.place(ptr, len)?;
        let device = self.libraries.get(handle)?.device;
        if place.device != Some(device) || !ptr.is_multiple_of(WORKSPACE_ALIGN) {
            return Err(Status::INVALID_VALUE);
        }
        let workspace = Some((ptr, len));
        self.libraries
            .update(handle, |library| library.workspace = workspace)
    }

    /// Queues a product.
    ///
    /// # Errors
    /// `INVALID_HANDLE`; `INVALID_VALUE` for sizes that do not fit each other, and without a workspace:
    /// the real ones have one of their own, which they share between streams and graphs.
    pub fn multiply(&self, handle: u64, gemm: Gemm) -> Answer<()> {
        let library = self.libraries.get(handle)?;
        let (workspace, len) = library.workspace.ok_or(Status::INVALID_VALUE)?;
        if !gemm.is_valid() {
            return Err(Status::INVALID_VALUE);
        }
        // What it writes there is of no use to anyone, and shows who else takes the memory for his.
        let scribble = len.min(SCRIBBLE_MAX);
        self.fill(
            library.device,
            library.stream,
            (workspace, 0xa5, 1, scribble),
        )?;
        self.submit(library.device, library.stream, Work::Product(gemm))
    }
}

impl Gemm {
    fn is_valid(&self) -> bool {
        let fits = |matrix: &Matrix, rows: i32, columns: i32| {
            let rows = if matrix.is_transposed { columns } else { rows };
            matrix.leading >= rows.max(1)
        };
        let counts = [self.m, self.n, self.k, self.batch];
        counts.iter().all(|count| *count >= 0)
            && fits(&self.a, self.m, self.k)
            && fits(&self.b, self.k, self.n)
            && fits(&self.c, self.m, self.n)
            && !self.c.is_transposed
            && self.is_double == (self.c.element == Element::F64)
    }

    pub(crate) fn run(&self, memory: &Memory) -> Answer<()> {
        if [self.m, self.n, self.batch].contains(&0) {
            return Ok(());
        }
        for item in 0..self.batch {
            if self.is_double {
                self.multiply::<f64>(memory, item)?;
            } else {
                self.multiply::<f32>(memory, item)?;
            }
        }
        Ok(())
    }

    fn multiply<T: Sum>(&self, memory: &Memory, item: i32) -> Answer<()> {
        let (m, n, k) = (size(self.m), size(self.n), size(self.k));
        // Both by columns of `c`'s order: `a` as k columns of m, `b` as n columns of k.
        let a = self.a.read::<T>(memory, item, (m, k))?;
        let b = self.b.read::<T>(memory, item, (k, n))?;
        let mut c = vec![T::default(); m * n];
        if k > 0 {
            for (column, weights) in c.chunks_exact_mut(m).zip(b.chunks_exact(k)) {
                for (part, weight) in a.chunks_exact(m).zip(weights) {
                    for (sum, value) in column.iter_mut().zip(part) {
                        *sum = *sum + *value * *weight;
                    }
                }
            }
        }
        self.c.write(memory, item, (m, n), &c)
    }
}

impl Matrix {
    /// Where the bytes of one matrix are, and how many elements there are from one column to the next.
    fn extent(
        &self,
        memory: &Memory,
        item: i32,
        (rows, columns): (usize, usize),
    ) -> Answer<(crate::memory::Place, usize, usize)> {
        let leading = size(self.leading);
        let len = (columns - 1) * leading + rows;
        let bytes = len * self.element.size();
        let skip = i64::from(item) * self.stride * i64::try_from(self.element.size()).unwrap_or(1);
        let ptr = self.ptr.wrapping_add_signed(skip);
        let place = memory.place(ptr, bytes as u64);
        let place = place.map_err(|_| Status::ILLEGAL_ADDRESS)?;
        if place.kind.is_none() {
            return Err(Status::ILLEGAL_ADDRESS);
        }
        Ok((place, leading, bytes))
    }

    /// The elements of `op(self)` by columns without gaps.
    fn read<T: Sum>(
        &self,
        memory: &Memory,
        item: i32,
        (rows, columns): (usize, usize),
    ) -> Answer<Vec<T>> {
        if rows == 0 || columns == 0 {
            return Ok(Vec::new());
        }
        let stored = if self.is_transposed {
            (columns, rows)
        } else {
            (rows, columns)
        };
        let (place, leading, bytes) = self.extent(memory, item, stored)?;
        let bytes = place.read(bytes);
        let width = self.element.size();
        let at = |row: usize, column: usize| {
            let (row, column) = if self.is_transposed {
                (column, row)
            } else {
                (row, column)
            };
            let start = (column * leading + row) * width;
            let element = bytes.get(start..start + width).unwrap_or_default();
            self.element.decode(element)
        };
        let all = (0..columns).flat_map(|column| (0..rows).map(move |row| (row, column)));
        Ok(all.map(|(row, column)| at(row, column)).collect())
    }

    fn write<T: Sum>(
        &self,
        memory: &Memory,
        item: i32,
        (rows, columns): (usize, usize),
        values: &[T],
    ) -> Answer<()> {
        let (place, leading, _) = self.extent(memory, item, (rows, columns))?;
        let width = self.element.size();
        for (column, values) in values.chunks_exact(rows).enumerate() {
            let mut bytes = Vec::with_capacity(rows * width);
            for value in values {
                self.element.encode(*value, &mut bytes);
            }
            place.write((column * leading * width) as u64, &bytes);
        }
        Ok(())
    }
}

impl Element {
    fn size(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
            Self::F64 => 8,
        }
    }

    fn decode<T: Sum>(self, bytes: &[u8]) -> T {
        match self {
            Self::F16 => T::of_f32(f16::from_le_bytes(array(bytes)).to_f32()),
            Self::Bf16 => T::of_f32(bf16::from_le_bytes(array(bytes)).to_f32()),
            Self::F32 => T::of_f32(f32::from_le_bytes(array(bytes))),
            Self::F64 => T::of_f64(f64::from_le_bytes(array(bytes))),
        }
    }

    fn encode<T: Sum>(self, value: T, out: &mut Vec<u8>) {
        match self {
            Self::F16 => out.extend(f16::from_f64(value.to_f64()).to_le_bytes()),
            Self::Bf16 => out.extend(bf16::from_f64(value.to_f64()).to_le_bytes()),
            #[expect(clippy::cast_possible_truncation, reason = "rounds, as is meant")]
            Self::F32 => out.extend((value.to_f64() as f32).to_le_bytes()),
            Self::F64 => out.extend(value.to_f64().to_le_bytes()),
        }
    }
}

/// Whether the scalars of a product, f32 or f64, are 1 and 0, which is all that is used.
///
/// # Errors
/// `INVALID_VALUE` for null.
pub fn has_unit_scalars(alpha: Values<u64>, beta: Values<u64>, is_double: bool) -> Answer<bool> {
    if is_double {
        return Ok(alpha.get(0)? == 1.0_f64.to_bits() && beta.get(0)? == 0.0_f64.to_bits());
    }
    let (alpha, beta) = (alpha.cast::<u32>(), beta.cast::<u32>());
    Ok(alpha.get(0)? == 1.0_f32.to_bits() && beta.get(0)? == 0.0_f32.to_bits())
}

/// What is summed in.
trait Sum: Copy + Default + Add<Output = Self> + Mul<Output = Self> {
    fn of_f32(value: f32) -> Self;
    fn of_f64(value: f64) -> Self;
    fn to_f64(self) -> f64;
}

impl Sum for f32 {
    fn of_f32(value: f32) -> Self {
        value
    }

    fn of_f64(value: f64) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "rounds, as is meant")]
        let rounded = value as Self;
        rounded
    }

    fn to_f64(self) -> f64 {
        f64::from(self)
    }
}

impl Sum for f64 {
    fn of_f32(value: f32) -> Self {
        Self::from(value)
    }

    fn of_f64(value: f64) -> Self {
        value
    }

    fn to_f64(self) -> f64 {
        self
    }
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().unwrap_or([0; N])
}

fn size(count: i32) -> usize {
    usize::try_from(count).unwrap_or(0)
}

/// What cuBLAS asks of a workspace.
const WORKSPACE_ALIGN: u64 = 256;
/// A page shows it as well as all of a workspace.
const SCRIBBLE_MAX: u64 = 4096;

#[cfg(test)]
mod tests {
    //! What the libraries refuse.

    use super::{Element, Gemm, Matrix};

    fn gemm(leading: i32, is_transposed: bool) -> Gemm {
        let matrix = |leading, is_transposed| Matrix {
            ptr: 4096,
            element: Element::F32,
            leading,
            stride: 0,
            is_transposed,
        };
        Gemm {
            m: 2,
            n: 3,
            k: 4,
            batch: 1,
            a: matrix(leading, is_transposed),
            b: matrix(4, false),
            c: matrix(2, false),
            is_double: false,
        }
    }

    #[test]
    fn a_column_must_not_be_longer_than_the_way_to_the_next() {
        assert!(gemm(2, false).is_valid());
        assert!(!gemm(1, false).is_valid());
        assert!(gemm(4, true).is_valid());
        assert!(!gemm(2, true).is_valid());
        let wrong = Gemm {
            is_double: true,
            ..gemm(2, false)
        };
        assert!(!wrong.is_valid());
    }
}
