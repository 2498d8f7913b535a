//! Operations that move elements and compute nothing: shapes, parts, indices.

use std::ops::Range;
use std::panic::Location;

use stepmesh_graph::{Op, Shape};

use super::LazyTensor;
use crate::Error;
use crate::promote::promote_types;

impl LazyTensor {
    /// The same elements in another shape.
    ///
    /// # Errors
    /// `Operation` unless there are as many, `FallbackDenied`.
    #[track_caller]
    pub fn reshape(&self, dims: &[usize]) -> Result<Self, Error> {
        let location = Location::caller();
        let shape = Shape::new(dims)?;
        if shape == self.ty().shape() {
            return Ok(self.clone());
        }
        let node = self.node(location)?;
        self.context()
            .emit(Op::Reshape { shape }, &[node], location)
    }

    /// The same elements in one dimension.
    ///
    /// # Errors
    /// As for [`LazyTensor::reshape`].
    #[track_caller]
    pub fn flatten(&self) -> Result<Self, Error> {
        self.reshape(&[self.element_count()])
    }

    /// A dimension of extent 1 more, before `dim`; -1 is after the last.
    ///
    /// # Errors
    /// `Operation` if there is no such place.
    #[track_caller]
    pub fn unsqueeze(&self, dim: isize) -> Result<Self, Error> {
        let location = Location::caller();
        let dim = self.dim_of("unsqueeze", dim, self.rank() + 1, location)?;
        let mut dims = self.dims();
        dims.insert(dim, 1);
        self.reshape(&dims)
    }

    /// Without a dimension of extent 1; unchanged if it has another extent.
    ///
    /// # Errors
    /// `Operation` if there is no such dimension.
    #[track_caller]
    pub fn squeeze(&self, dim: isize) -> Result<Self, Error> {
        let location = Location::caller();
        let dim = self.dim_of("squeeze", dim, self.rank(), location)?;
        let mut dims = self.dims();
        if dims[dim] == 1 {
            dims.remove(dim);
        }
        self.reshape(&dims)
    }

    /// With two dimensions exchanged; negative ones count from the end.
    ///
    /// # Errors
    /// `Operation` if there is no such dimension, `FallbackDenied`.
    #[track_caller]
    pub fn transpose(&self, dim0: isize, dim1: isize) -> Result<Self, Error> {
        let location = Location::caller();
        let [dim0, dim1] = [
            self.dim_of("transpose", dim0, self.rank(), location)?,
            self.dim_of("transpose", dim1, self.rank(), location)?,
        ];
        let mut dims: Vec<usize> = (0..self.rank()).collect();
        dims.swap(dim0, dim1);
        self.permuted(dims, location)
    }

    /// With the last two dimensions exchanged. In front of a matrix product it costs nothing.
    ///
    /// # Errors
    /// As for [`LazyTensor::transpose`].
    #[track_caller]
    pub fn t(&self) -> Result<Self, Error> {
        self.transpose(-2, -1)
    }

    /// With dimensions in another order: dimension i of the result is dimension `dims[i]`.
    ///
    /// # Errors
    /// `Operation` unless each is there once, `FallbackDenied`.
    #[track_caller]
    pub fn permute(&self, dims: &[isize]) -> Result<Self, Error> {
        let location = Location::caller();
        let dims: Result<Vec<usize>, Error> = dims
            .iter()
            .map(|dim| self.dim_of("transpose", *dim, self.rank(), location))
            .collect();
        self.permuted(dims?, location)
    }

    /// Repeated to a shape, as the operands of an addition are.
    ///
    /// # Errors
    /// `Operation` if it does not repeat to that, `FallbackDenied`.
    #[track_caller]
    pub fn broadcast_to(&self, dims: &[usize]) -> Result<Self, Error> {
        let location = Location::caller();
        let shape = Shape::new(dims)?;
        if self.rank() > shape.rank() {
            let fault = format!("{} does not repeat to {shape}", self.ty());
            return Err(self.fault("broadcast", location, fault));
        }
        let node = self.expanded(&self.node(location)?, shape, location)?;
        self.context().tensor(node)
    }

    /// The elements of a dimension from `range.start` to before `range.end`.
    ///
    /// # Errors
    /// `Operation` unless they are there, `FallbackDenied`.
    #[track_caller]
    pub fn narrow(&self, dim: isize, range: Range<usize>) -> Result<Self, Error> {
        self.slice_at(dim, range, 1, Location::caller())
    }

    /// Every `step`-th element of a dimension from `range.start` to before `range.end`.
    ///
    /// # Errors
    /// `Operation` unless they are there or if the step is 0, `FallbackDenied`.
    #[track_caller]
    pub fn slice(&self, dim: isize, range: Range<usize>, step: usize) -> Result<Self, Error> {
        self.slice_at(dim, range, step, Location::caller())
    }

    /// Tensors one after another along a dimension; types promote.
    ///
    /// # Errors
    /// `Operation` if there are none, or they differ in another dimension; `ForeignValue`,
    /// `FallbackDenied`.
    #[track_caller]
    pub fn concat(tensors: &[&Self], dim: isize) -> Result<Self, Error> {
        let location = Location::caller();
        let Some((first, others)) = tensors.split_first() else {
            let fault = "of no tensors".to_owned();
            return Err(Error::Operation {
                op: "concat",
                location,
                fault,
            });
        };
        let dim = first.dim_of("concat", dim, first.rank(), location)?;
        let mut dtype = first.dtype();
        for other in others {
            first.check_device("concat", other)?;
            dtype = promote_types(dtype, other.dtype()).ok_or_else(|| {
                let fault = format!("{dtype} and {} do not promote", other.dtype());
                first.fault("concat", location, fault)
            })?;
        }
        let mut nodes = Vec::with_capacity(tensors.len());
        for tensor in tensors {
            nodes.push(first.converted(&tensor.node(location)?, dtype, location)?);
        }
        let context = first.context();
        let list = context.builder().make_tensor_list(&nodes);
        context.emit(Op::Concat { dim }, list.as_slice(), location)
    }

    /// The slices of a dimension that indices (i32 or i64) name, in their order; the dimension is
    /// replaced by those of the indices. Indices out of range are taken to the nearest bound.
    ///
    /// # Errors
    /// `Operation` if the indices are of another type, `ForeignValue`, `FallbackDenied`.
    #[track_caller]
    pub fn gather(&self, dim: isize, indices: &Self) -> Result<Self, Error> {
        let location = Location::caller();
        self.check_device("gather", indices)?;
        let dim = self.dim_of("gather", dim, self.rank(), location)?;
        let operands = [self.node(location)?, indices.node(location)?];
        self.context().emit(Op::Gather { dim }, &operands, location)
    }

    /// The rows of this table that indices name: an embedding.
    ///
    /// # Errors
    /// As for [`LazyTensor::gather`].
    #[track_caller]
    pub fn embedding(&self, indices: &Self) -> Result<Self, Error> {
        self.gather(0, indices)
    }

    /// This tensor with each slice of `updates` added to the slice of `dim` that its index (i32 or
    /// i64, one dimension) names. Indices out of range are left out.
    ///
    /// # Errors
    /// `Operation` if shapes or types do not fit, `ForeignValue`, `FallbackDenied`.
    #[track_caller]
    pub fn index_add(&self, dim: isize, indices: &Self, updates: &Self) -> Result<Self, Error> {
        let location = Location::caller();
        self.check_device("index_add", indices)?;
        self.check_device("index_add", updates)?;
        let dim = self.dim_of("index_add", dim, self.rank(), location)?;
        let operands = [
            self.node(location)?,
            indices.node(location)?,
            updates.node(location)?,
        ];
        self.context()
            .emit(Op::IndexAdd { dim }, &operands, location)
    }

    /// A dimension of `rank`, from the end where it is negative.
    pub(super) fn dim_of(
        &self,
        op: &'static str,
        dim: isize,
        rank: usize,
        location: &'static Location<'static>,
    ) -> Result<usize, Error> {
        let found = if dim < 0 {
            rank.checked_sub(dim.unsigned_abs())
        } else {
            Some(dim.unsigned_abs()).filter(|dim| *dim < rank)
        };
        found.ok_or_else(|| {
            let fault = format!("{} has no dimension {dim}", self.ty());
            self.fault(op, location, fault)
        })
    }

    pub(super) fn permuted(
        &self,
        dims: Vec<usize>,
        location: &'static Location<'static>,
    ) -> Result<Self, Error> {
        let node = self.node(location)?;
        self.context()
            .emit(Op::Transpose { dims }, &[node], location)
    }

    fn slice_at(
        &self,
        dim: isize,
        range: Range<usize>,
        step: usize,
        location: &'static Location<'static>,
    ) -> Result<Self, Error> {
        let dim = self.dim_of("slice", dim, self.rank(), location)?;
        let mut starts = vec![0; self.rank()];
        let mut limits = self.dims();
        let mut strides = vec![1; self.rank()];
        starts[dim] = range.start;
        limits[dim] = range.end;
        strides[dim] = step;
        let op = Op::Slice {
            starts,
            limits,
            strides,
        };
        let node = self.node(location)?;
        self.context().emit(op, &[node], location)
    }
}
