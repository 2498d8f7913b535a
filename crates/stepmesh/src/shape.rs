//! Shapes of tensors: up to eight dimensions, the first of which counts rows.

use std::fmt;

use crate::dtype::DType;
use crate::error::Error;

/// The dimensions of a tensor. Small enough to copy; never allocates.
///
/// The first dimension counts *rows*: it is what may vary from one push to the next.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    dims: [u64; RANK_MAX],
    rank: u8,
}

impl Shape {
    /// A shape of these dimensions; none at all is a scalar.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for more than [`RANK_MAX`] dimensions.
    pub fn new(dims: &[u64]) -> Result<Self, Error> {
        let mut all = [0; RANK_MAX];
        let rank = u8::try_from(dims.len()).ok();
        match (rank, all.get_mut(..dims.len())) {
            (Some(rank), Some(head)) => {
                head.copy_from_slice(dims);
                Ok(Self { dims: all, rank })
            }
            _ => Err(Error::invalid(
                "shape",
                format!(
                    "{} dimensions; at most {RANK_MAX} are supported",
                    dims.len()
                ),
            )),
        }
    }

    /// The dimensions.
    pub fn dims(&self) -> &[u64] {
        &self.dims[..usize::from(self.rank)]
    }

    /// The first dimension; 1 for a scalar.
    pub fn rows(&self) -> u64 {
        self.dims().first().copied().unwrap_or(1)
    }

    /// The same shape with another number of rows. A scalar stays a scalar.
    #[must_use]
    pub fn with_rows(mut self, rows: u64) -> Self {
        if self.rank > 0 {
            self.dims[0] = rows;
        }
        self
    }

    /// How many elements there are, or `None` on overflow.
    pub fn elements(&self) -> Option<u64> {
        self.dims()
            .iter()
            .try_fold(1u64, |n, dim| n.checked_mul(*dim))
    }

    /// How many bytes elements of `dtype` take in this shape, or `None` on overflow.
    pub fn len_bytes(&self, dtype: DType) -> Option<u64> {
        self.elements()?.checked_mul(dtype.size_bytes())
    }

    /// How many bytes one row takes, or `None` on overflow.
    pub fn row_len_bytes(&self, dtype: DType) -> Option<u64> {
        let tail = self.dims().get(1..).unwrap_or_default();
        tail.iter()
            .try_fold(dtype.size_bytes(), |n, dim| n.checked_mul(*dim))
    }

    /// Whether both differ in nothing but the number of rows.
    pub fn same_rows_shape(&self, other: &Self) -> bool {
        self.rank == other.rank && self.dims().get(1..) == other.dims().get(1..)
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.dims(), f)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.dims(), f)
    }
}

/// Most dimensions of a tensor: what the original's messages carry, and more than any layer needs.
pub const RANK_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::Shape;
    use crate::dtype::DType;

    #[test]
    fn sizes_are_checked_products() {
        let shape = Shape::new(&[64, 7168]).unwrap();
        assert_eq!(shape.rows(), 64);
        assert_eq!(shape.len_bytes(DType::BF16), Some(917_504));
        assert_eq!(shape.row_len_bytes(DType::BF16), Some(14_336));
        assert_eq!(shape.with_rows(0).len_bytes(DType::F32), Some(0));
        let scalar = Shape::new(&[]).unwrap();
        assert_eq!((scalar.rows(), scalar.elements()), (1, Some(1)));
        assert_eq!(scalar.with_rows(7).rows(), 1);
        let huge = Shape::new(&[u64::MAX, 2]).unwrap();
        assert_eq!(huge.elements(), None);
        assert_eq!(huge.len_bytes(DType::U8), None);
    }

    #[test]
    fn nine_dimensions_are_refused() {
        let error = Shape::new(&[1; 9]).unwrap_err().to_string();
        assert!(error.contains("9 dimensions"), "{error}");
    }

    #[test]
    fn only_rows_may_differ() {
        let a = Shape::new(&[3, 4]).unwrap();
        assert!(a.same_rows_shape(&Shape::new(&[9, 4]).unwrap()));
        assert!(!a.same_rows_shape(&Shape::new(&[3, 5]).unwrap()));
        assert!(!a.same_rows_shape(&Shape::new(&[12]).unwrap()));
    }
}
