//! Operations over dimensions: sums and their like, matrix products, softmax and norms.

use std::panic::Location;
use std::sync::Arc;

use stepmesh_graph::{DType, Op, Shape};

use super::LazyTensor;
use crate::Error;
use crate::broadcast::broadcast_shapes;
use crate::ir::NodePtr;

impl LazyTensor {
    /// The sum over dimensions, which go unless they are kept with extent 1; over all if none are
    /// named. Integers and bools become i64.
    ///
    /// # Errors
    /// `Operation` if there is no such dimension or one is named twice, `FallbackDenied`.
    #[track_caller]
    pub fn sum(&self, dims: &[isize], keep_dims: bool) -> Result<Self, Error> {
        let location = Location::caller();
        let node = self.node(location)?;
        let node = if self.dtype().is_integer() || self.dtype() == DType::Bool {
            self.converted(&node, DType::I64, location)?
        } else {
            node
        };
        self.reduced(
            "sum",
            &node,
            dims,
            keep_dims,
            |dims| Op::Sum { dims },
            location,
        )
    }

    /// The mean over dimensions, as [`LazyTensor::sum`] takes them.
    ///
    /// # Errors
    /// As for [`LazyTensor::sum`]; `Operation` for types other than floats.
    #[track_caller]
    pub fn mean(&self, dims: &[isize], keep_dims: bool) -> Result<Self, Error> {
        let location = Location::caller();
        let node = self.node(location)?;
        self.reduced(
            "mean",
            &node,
            dims,
            keep_dims,
            |dims| Op::Mean { dims },
            location,
        )
    }

    /// The greatest over dimensions, as [`LazyTensor::sum`] takes them.
    ///
    /// # Errors
    /// As for [`LazyTensor::sum`].
    #[track_caller]
    pub fn amax(&self, dims: &[isize], keep_dims: bool) -> Result<Self, Error> {
        let location = Location::caller();
        let node = self.node(location)?;
        let op = |dims| Op::ReduceMax { dims };
        self.reduced("reduce_max", &node, dims, keep_dims, op, location)
    }

    /// The first index of the greatest along a dimension, i64.
    ///
    /// # Errors
    /// `Operation` if there is no such dimension or it is empty, `FallbackDenied`.
    #[track_caller]
    pub fn argmax(&self, dim: isize, keep_dim: bool) -> Result<Self, Error> {
        let location = Location::caller();
        let dim = self.dim_of("argmax", dim, self.rank(), location)?;
        let node = self.node(location)?;
        let result = self.context().emit(Op::Argmax { dim }, &[node], location)?;
        if keep_dim {
            return result.reshape(&kept(self.ty().shape(), &[dim]));
        }
        Ok(result)
    }

    /// The product of matrices, as `torch.matmul` has it: leading dimensions are a batch and
    /// broadcast; a vector on the left is a row, on the right a column, and its dimension goes.
    ///
    /// # Errors
    /// `Operation` if types differ or shapes do not fit, `ForeignValue`, `FallbackDenied`.
    #[track_caller]
    pub fn matmul(&self, other: &Self) -> Result<Self, Error> {
        let location = Location::caller();
        self.check_device("matmul", other)?;
        match (self.rank(), other.rank()) {
            (0, _) | (_, 0) => {
                let fault = format!("{} and {}: a scalar is no matrix", self.ty(), other.ty());
                Err(self.fault("matmul", location, fault))
            }
            (1, 1) => {
                let product = self.unsqueeze(0)?.product(&other.unsqueeze(1)?, location)?;
                product.reshape(&[])
            }
            (1, _) => {
                let product = self.unsqueeze(0)?.product(other, location)?;
                product.squeeze(-2)
            }
            (_, 1) => {
                let product = self.product(&other.unsqueeze(1)?, location)?;
                product.squeeze(-1)
            }
            _ => self.product(other, location),
        }
    }

    /// A linear layer: x·weightᵀ + bias.
    ///
    /// # Errors
    /// As for [`LazyTensor::matmul`] and [`LazyTensor::add`].
    #[track_caller]
    pub fn linear(&self, weight: &Self, bias: Option<&Self>) -> Result<Self, Error> {
        let product = self.matmul(&weight.t()?)?;
        match bias {
            Some(bias) => product.add(bias),
            None => Ok(product),
        }
    }

    /// Softmax along a dimension.
    ///
    /// # Errors
    /// `Operation` if there is no such dimension or for types other than floats, `FallbackDenied`.
    #[track_caller]
    pub fn softmax(&self, dim: isize) -> Result<Self, Error> {
        let location = Location::caller();
        let dim = self.dim_of("softmax", dim, self.rank(), location)?;
        let node = self.node(location)?;
        self.context().emit(Op::Softmax { dim }, &[node], location)
    }

    /// Layer normalisation over the dimensions from `dim` on, with a weight and a bias of their
    /// shape.
    ///
    /// # Errors
    /// `Operation` if shapes or types do not fit, or for a bias without a weight; `ForeignValue`,
    /// `FallbackDenied`.
    #[track_caller]
    pub fn layer_norm(
        &self,
        dim: isize,
        weight: Option<&Self>,
        bias: Option<&Self>,
        epsilon: f64,
    ) -> Result<Self, Error> {
        let location = Location::caller();
        if weight.is_none() && bias.is_some() {
            let fault = "a bias needs a weight; give ones";
            return Err(self.fault("layer_norm", location, fault));
        }
        let dim = self.dim_of("layer_norm", dim, self.rank(), location)?;
        let epsilon = epsilon.into();
        let op = Op::LayerNorm { dim, epsilon };
        self.norm("layer_norm", op, &[weight, bias], location)
    }

    /// Normalisation by the root of the mean square over the dimensions from `dim` on, with a weight
    /// of their shape.
    ///
    /// # Errors
    /// As for [`LazyTensor::layer_norm`].
    #[track_caller]
    pub fn rms_norm(&self, dim: isize, weight: Option<&Self>, epsilon: f64) -> Result<Self, Error> {
        let location = Location::caller();
        let dim = self.dim_of("rms_norm", dim, self.rank(), location)?;
        let epsilon = epsilon.into();
        self.norm(
            "rms_norm",
            Op::RmsNorm { dim, epsilon },
            &[weight],
            location,
        )
    }

    fn norm(
        &self,
        name: &'static str,
        op: Op,
        others: &[Option<&Self>],
        location: &'static Location<'static>,
    ) -> Result<Self, Error> {
        let mut operands = vec![self.node(location)?];
        for other in others.iter().flatten() {
            self.check_device(name, other)?;
            operands.push(other.node(location)?);
        }
        self.context().emit(op, &operands, location)
    }

    fn reduced(
        &self,
        name: &'static str,
        node: &NodePtr,
        dims: &[isize],
        keep_dims: bool,
        op: impl Fn(Vec<usize>) -> Op,
        location: &'static Location<'static>,
    ) -> Result<Self, Error> {
        let mut over = Vec::with_capacity(dims.len());
        for dim in dims {
            let dim = self.dim_of(name, *dim, self.rank(), location)?;
            if over.contains(&dim) {
                let fault = format!("dimension {dim} is named twice");
                return Err(self.fault(name, location, fault));
            }
            over.push(dim);
        }
        if over.is_empty() {
            over.extend(0..self.rank());
        }
        over.sort_unstable();
        let operands = std::slice::from_ref(node);
        let result = self.context().emit(op(over.clone()), operands, location)?;
        if keep_dims {
            return result.reshape(&kept(self.ty().shape(), &over));
        }
        Ok(result)
    }

    fn product(&self, other: &Self, location: &'static Location<'static>) -> Result<Self, Error> {
        let (a, b) = (self.ty().shape(), other.ty().shape());
        let wrong = || {
            let fault = format!("{} and {} cannot be multiplied", self.ty(), other.ty());
            self.fault("matmul", location, fault)
        };
        let split = |shape: &Shape| {
            let at = shape.rank().saturating_sub(2);
            let (batch, matrix) = shape.dims().split_at(at);
            (Shape::new(batch), matrix.to_vec())
        };
        let ((batch_a, matrix_a), (batch_b, matrix_b)) = (split(&a), split(&b));
        let batch = broadcast_shapes(batch_a?, batch_b?).ok_or_else(wrong)?;
        if self.dtype() != other.dtype() || matrix_a.last() != matrix_b.first() {
            return Err(wrong());
        }
        let whole = |matrix: &[usize]| Shape::new(&[batch.dims(), matrix].concat());
        let a = self.expanded(&self.node(location)?, whole(&matrix_a)?, location)?;
        let b = self.expanded(&other.node(location)?, whole(&matrix_b)?, location)?;
        let ((a, transpose_a), (b, transpose_b)) = (untransposed(&a), untransposed(&b));
        let op = Op::Matmul {
            transpose_a,
            transpose_b,
        };
        self.context().emit(op, &[a, b], location)
    }
}

/// A matrix without the exchange of its last two dimensions, which the product does by itself.
fn untransposed(node: &NodePtr) -> (NodePtr, bool) {
    if let (Some(Op::Transpose { dims }), [of]) = (node.op(), node.operands())
        && let [batch @ .., a, b] = dims.as_slice()
        && *a == b + 1
        && *b == batch.len()
        && batch.iter().copied().eq(0..batch.len())
    {
        return (Arc::clone(of), true);
    }
    (Arc::clone(node), false)
}

/// Extents with those of some dimensions 1.
fn kept(shape: Shape, dims: &[usize]) -> Vec<usize> {
    let mut extents = shape.dims().to_vec();
    for dim in dims {
        extents[*dim] = 1;
    }
    extents
}
