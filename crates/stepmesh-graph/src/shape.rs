//! Shapes, and shapes with a type.

use std::fmt;

use stepmesh_abi::compute::SM_COMPUTE_RANK_MAX;

use crate::{DType, Error};

/// Extents of a value, at most [`RANK_MAX`] of them; row-major. No extents are a scalar, an extent
/// of 0 is an empty value. The number of elements fits in an `isize`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    rank: u8,
    // Beyond the rank zero, so that comparing compares.
    dims: [usize; RANK_MAX],
}

impl Shape {
    /// The shape of a scalar.
    pub const SCALAR: Self = Self {
        rank: 0,
        dims: [0; RANK_MAX],
    };

    /// A shape of these extents.
    ///
    /// # Errors
    /// `Shape` for too many extents, or more elements than an `isize` counts.
    pub fn new(dims: &[usize]) -> Result<Self, Error> {
        let mut own = [0; RANK_MAX];
        let Some(to) = own.get_mut(..dims.len()) else {
            return Err(Error::shape(format!(
                "{} dimensions, at most {RANK_MAX} are possible",
                dims.len()
            )));
        };
        to.copy_from_slice(dims);
        // Extents of 0 left out: the product of the others must not overflow either, so that strides
        // do not.
        let product = dims
            .iter()
            .filter(|dim| **dim != 0)
            .try_fold(1_usize, |product, dim| product.checked_mul(*dim));
        if product.is_none_or(|product| isize::try_from(product).is_err()) {
            return Err(Error::shape(format!("{dims:?} are too many elements")));
        }
        #[expect(clippy::cast_possible_truncation, reason = "at most 8, checked above")]
        let rank = dims.len() as u8;
        Ok(Self { rank, dims: own })
    }

    /// Number of dimensions.
    #[must_use]
    pub fn rank(&self) -> usize {
        usize::from(self.rank)
    }

    /// Extents, outermost first.
    #[must_use]
    pub fn dims(&self) -> &[usize] {
        &self.dims[..self.rank()]
    }

    /// Number of elements; 1 for a scalar.
    #[must_use]
    pub fn element_count(&self) -> usize {
        self.dims().iter().product()
    }

    /// Steps, in elements, from one index of each dimension to the next; beyond the rank 0.
    #[must_use]
    pub fn strides(&self) -> [usize; RANK_MAX] {
        let mut strides = [0; RANK_MAX];
        let mut step = 1;
        for idx in (0..self.rank()).rev() {
            strides[idx] = step;
            step *= self.dims[idx].max(1);
        }
        strides
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// As `[2,3]`.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (idx, dim) in self.dims().iter().enumerate() {
            let comma = if idx == 0 { "" } else { "," };
            write!(f, "{comma}{dim}")?;
        }
        f.write_str("]")
    }
}

/// Type and shape of a value. Its bytes fit in an `isize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorType {
    dtype: DType,
    shape: Shape,
}

impl TensorType {
    /// A type and a shape.
    ///
    /// # Errors
    /// `Shape` if it is more bytes than an `isize` counts.
    pub fn new(dtype: DType, shape: Shape) -> Result<Self, Error> {
        let len = Self { dtype, shape }.checked_len();
        if len.is_none() {
            return Err(Error::shape(format!("{dtype}{shape} is too many bytes")));
        }
        Ok(Self { dtype, shape })
    }

    /// A scalar.
    #[must_use]
    pub const fn scalar(dtype: DType) -> Self {
        let shape = Shape::SCALAR;
        Self { dtype, shape }
    }

    /// Type of the elements.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Shape.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Bytes.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.shape.element_count() * self.dtype.size_bytes()
    }

    fn checked_len(self) -> Option<isize> {
        let len = self
            .shape
            .element_count()
            .checked_mul(self.dtype.size_bytes())?;
        // Half of it, so that sums of two lengths do not overflow.
        isize::try_from(len).ok().filter(|len| *len <= LEN_MAX)
    }
}

/// As `f32[2,3]`.
impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}

/// Most dimensions of a value.
pub const RANK_MAX: usize = SM_COMPUTE_RANK_MAX as usize;
/// Most bytes of a value: the ABI's 2^62.
const LEN_MAX: isize = 1 << 62;
