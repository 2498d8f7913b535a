//! The rules of types and shapes: what an operation gives, or what is wrong with its operands.

use stepmesh_abi::compute::{SM_COMPUTE_CONSTANT_MAX, SM_COMPUTE_OPERANDS_MAX};

use crate::{DType, Error, Op, OpKind, Shape, TensorType};

/// Type and shape of the value of an operation on operands of these types and shapes.
///
/// # Errors
/// `Operation` if attributes and operands do not fit together.
pub fn infer(op: &Op, operands: &[TensorType]) -> Result<TensorType, Error> {
    let rule = Rule {
        kind: op.kind(),
        operands,
    };
    let ty = rule.value_of(op)?;
    let subject = match op {
        Op::Compare(_) | Op::Argmax { .. } => operands[0].dtype(),
        _ => ty.dtype(),
    };
    if !rule.kind.allows(subject) {
        return Err(rule.fault(format!("is not defined for {subject}")));
    }
    Ok(ty)
}

/// An operation and the operands that it is to fit.
#[derive(Clone, Copy)]
struct Rule<'a> {
    kind: OpKind,
    operands: &'a [TensorType],
}

impl Rule<'_> {
    fn value_of(self, op: &Op) -> Result<TensorType, Error> {
        match op {
            Op::Parameter { ty, .. } => self.leaf(*ty),
            Op::Constant { ty, data } => self.constant(*ty, data),
            Op::Cast { dtype } => TensorType::new(*dtype, self.one()?.shape()),
            Op::Add | Op::Sub | Op::Mul | Op::Div | Op::Pow | Op::Max | Op::Min => self.alike(2),
            Op::Clamp => self.alike(3),
            Op::Neg
            | Op::Exp
            | Op::Log
            | Op::Sqrt
            | Op::Rsqrt
            | Op::Tanh
            | Op::Sigmoid
            | Op::Relu
            | Op::Silu
            | Op::GeluErf
            | Op::GeluTanh => self.one(),
            Op::Compare(_) => TensorType::new(DType::Bool, self.alike(2)?.shape()),
            Op::Select => self.select(),
            Op::Sum { dims } | Op::Mean { dims } | Op::ReduceMax { dims } => self.reduced(dims),
            Op::Argmax { dim } => self.argmax(*dim),
            Op::Matmul {
                transpose_a,
                transpose_b,
            } => self.matmul(*transpose_a, *transpose_b),
            Op::Softmax { dim } => {
                let ty = self.one()?;
                self.dim_of(ty.shape(), *dim)?;
                Ok(ty)
            }
            Op::LayerNorm { dim, epsilon } => self.norm(*dim, epsilon.value(), 3),
            Op::RmsNorm { dim, epsilon } => self.norm(*dim, epsilon.value(), 2),
            Op::Reshape { shape } => self.reshape(*shape),
            Op::Transpose { dims } => self.transpose(dims),
            Op::Broadcast { shape, dims } => self.broadcast(*shape, dims),
            Op::Slice {
                starts,
                limits,
                strides,
            } => self.slice(starts, limits, strides),
            Op::Concat { dim } => self.concat(*dim),
            Op::Gather { dim } => self.gather(*dim),
            Op::IndexAdd { dim } => self.index_add(*dim),
            Op::RngUniform { ty } | Op::RngNormal { ty } => self.rng(*ty),
        }
    }

    fn fault(self, fault: impl Into<String>) -> Error {
        Error::Operation {
            op: self.kind.name(),
            fault: fault.into(),
        }
    }

    fn count(self, wanted: usize) -> Result<(), Error> {
        if self.operands.len() == wanted {
            return Ok(());
        }
        Err(self.fault(format!(
            "takes {wanted} operand(s), not {}",
            self.operands.len()
        )))
    }

    fn leaf(self, ty: TensorType) -> Result<TensorType, Error> {
        self.count(0)?;
        Ok(ty)
    }

    fn one(self) -> Result<TensorType, Error> {
        self.count(1)?;
        Ok(self.operands[0])
    }

    fn alike(self, count: usize) -> Result<TensorType, Error> {
        self.count(count)?;
        let first = self.operands[0];
        match self.operands.iter().find(|other| **other != first) {
            None => Ok(first),
            Some(other) => Err(self.fault(format!(
                "operands {first} and {other} differ; cast and broadcast them first"
            ))),
        }
    }

    fn constant(self, ty: TensorType, data: &[u8]) -> Result<TensorType, Error> {
        self.count(0)?;
        let (whole, one) = (ty.len_bytes(), ty.dtype().size_bytes());
        if data.len() != whole && data.len() != one {
            return Err(self.fault(format!(
                "{ty} has {} bytes of data, not {whole}, nor the {one} of one element",
                data.len()
            )));
        }
        if data.len() as u64 > SM_COMPUTE_CONSTANT_MAX {
            return Err(self.fault(format!(
                "{} bytes of data, at most {SM_COMPUTE_CONSTANT_MAX}; make it a parameter",
                data.len()
            )));
        }
        if ty.dtype() == DType::Bool && data.iter().any(|byte| *byte > 1) {
            return Err(self.fault("a bool that is neither 0 nor 1"));
        }
        Ok(ty)
    }

    fn select(self) -> Result<TensorType, Error> {
        self.count(3)?;
        let [condition, yes, no] = [self.operands[0], self.operands[1], self.operands[2]];
        if condition.dtype() != DType::Bool || condition.shape() != yes.shape() || yes != no {
            return Err(self.fault(format!(
                "takes a bool and two alike, all of one shape, not {condition}, {yes} and {no}"
            )));
        }
        Ok(yes)
    }

    fn dim_of(self, shape: Shape, dim: usize) -> Result<usize, Error> {
        let extent = shape.dims().get(dim).copied();
        extent.ok_or_else(|| self.fault(format!("{shape} has no dimension {dim}")))
    }

    fn ascending(self, dims: &[usize], rank: usize) -> Result<(), Error> {
        let is_ascending = dims.windows(2).all(|pair| pair[0] < pair[1]);
        if is_ascending && dims.last().is_none_or(|last| *last < rank) {
            return Ok(());
        }
        Err(self.fault(format!(
            "{dims:?} are not ascending dimensions below {rank}"
        )))
    }

    fn reduced(self, dims: &[usize]) -> Result<TensorType, Error> {
        let ty = self.one()?;
        self.ascending(dims, ty.shape().rank())?;
        self.without(ty, dims, ty.dtype())
    }

    fn without(self, ty: TensorType, dims: &[usize], dtype: DType) -> Result<TensorType, Error> {
        let shape = ty.shape();
        let left = shape.dims().iter().enumerate();
        let left: Vec<usize> = left
            .filter(|(idx, _)| !dims.contains(idx))
            .map(|(_, extent)| *extent)
            .collect();
        self.typed(dtype, &left)
    }

    fn argmax(self, dim: usize) -> Result<TensorType, Error> {
        let ty = self.one()?;
        if self.dim_of(ty.shape(), dim)? == 0 {
            return Err(self.fault(format!("dimension {dim} of {ty} has no elements")));
        }
        self.without(ty, &[dim], DType::I64)
    }

    fn matmul(self, transpose_a: bool, transpose_b: bool) -> Result<TensorType, Error> {
        self.count(2)?;
        let (a, b) = (self.operands[0], self.operands[1]);
        let (shape_a, shape_b) = (a.shape(), b.shape());
        let wrong = || self.fault(format!("{a} and {b} cannot be multiplied"));
        let rank = shape_a.rank();
        if a.dtype() != b.dtype() || rank != shape_b.rank() || rank < 2 {
            return Err(wrong());
        }
        let (batch_a, matrix_a) = shape_a.dims().split_at(rank - 2);
        let (batch_b, matrix_b) = shape_b.dims().split_at(rank - 2);
        let [m, k] = exchanged(matrix_a, transpose_a);
        let [k_of_b, n] = exchanged(matrix_b, transpose_b);
        if batch_a != batch_b || k != k_of_b {
            return Err(wrong());
        }
        self.typed(a.dtype(), &[batch_a, &[m, n]].concat())
    }

    fn norm(self, dim: usize, epsilon: f64, operands_max: usize) -> Result<TensorType, Error> {
        let count = self.operands.len();
        if count == 0 || count > operands_max {
            return Err(self.fault(format!("takes 1 to {operands_max} operands, not {count}")));
        }
        let ty = self.operands[0];
        self.dim_of(ty.shape(), dim)?;
        if !epsilon.is_finite() || epsilon < 0.0 {
            return Err(self.fault(format!("epsilon {epsilon} is not a number from 0 on")));
        }
        let part = self.typed(ty.dtype(), &ty.shape().dims()[dim..])?;
        match self.operands[1..].iter().find(|other| **other != part) {
            None => Ok(ty),
            Some(other) => Err(self.fault(format!("weight and bias must be {part}, not {other}"))),
        }
    }

    fn reshape(self, shape: Shape) -> Result<TensorType, Error> {
        let ty = self.one()?;
        if ty.shape().element_count() != shape.element_count() {
            return Err(self.fault(format!("{ty} has not as many elements as {shape}")));
        }
        TensorType::new(ty.dtype(), shape)
    }

    fn transpose(self, dims: &[usize]) -> Result<TensorType, Error> {
        let ty = self.one()?;
        let shape = ty.shape();
        let mut is_used = [false; crate::RANK_MAX];
        let is_permutation = dims.len() == shape.rank()
            && dims
                .iter()
                .all(|dim| *dim < shape.rank() && !std::mem::replace(&mut is_used[*dim], true));
        if !is_permutation {
            return Err(self.fault(format!("{dims:?} is no order of the dimensions of {ty}")));
        }
        let extents: Vec<usize> = dims.iter().map(|dim| shape.dims()[*dim]).collect();
        self.typed(ty.dtype(), &extents)
    }

    fn broadcast(self, shape: Shape, dims: &[usize]) -> Result<TensorType, Error> {
        let ty = self.one()?;
        self.ascending(dims, shape.rank())?;
        let from = ty.shape();
        let fits = dims.len() == from.rank()
            && dims
                .iter()
                .zip(from.dims())
                .all(|(dim, extent)| *extent == 1 || *extent == shape.dims()[*dim]);
        if !fits {
            return Err(self.fault(format!("{ty} does not repeat to {shape} by {dims:?}")));
        }
        TensorType::new(ty.dtype(), shape)
    }

    fn slice(
        self,
        starts: &[usize],
        limits: &[usize],
        strides: &[usize],
    ) -> Result<TensorType, Error> {
        let ty = self.one()?;
        let shape = ty.shape();
        if [starts, limits, strides]
            .iter()
            .any(|list| list.len() != shape.rank())
        {
            return Err(self.fault(format!(
                "{ty} takes {} starts, limits and strides, not {}, {} and {}",
                shape.rank(),
                starts.len(),
                limits.len(),
                strides.len()
            )));
        }
        let mut extents = Vec::with_capacity(shape.rank());
        for (idx, extent) in shape.dims().iter().enumerate() {
            let (start, limit, stride) = (starts[idx], limits[idx], strides[idx]);
            if start > limit || limit > *extent || stride == 0 {
                return Err(self.fault(format!(
                    "{start}..{limit} by {stride} is not within dimension {idx} of {ty}"
                )));
            }
            extents.push((limit - start).div_ceil(stride));
        }
        self.typed(ty.dtype(), &extents)
    }

    fn concat(self, dim: usize) -> Result<TensorType, Error> {
        let Some((first, others)) = self.operands.split_first() else {
            return Err(self.fault("takes one operand or more"));
        };
        if self.operands.len() > SM_COMPUTE_OPERANDS_MAX as usize {
            return Err(self.fault(format!("takes at most {SM_COMPUTE_OPERANDS_MAX} operands")));
        }
        let mut extent = self.dim_of(first.shape(), dim)?;
        for other in others {
            let shape = other.shape();
            let with_extent_of_first = replaced(shape, dim, first.shape().dims().get(dim..=dim));
            if other.dtype() != first.dtype() || with_extent_of_first != first.shape().dims() {
                return Err(self.fault(format!(
                    "{first} and {other} differ in more than dimension {dim}"
                )));
            }
            extent = extent.saturating_add(shape.dims()[dim]);
        }
        self.typed(
            first.dtype(),
            &replaced(first.shape(), dim, Some(&[extent])),
        )
    }

    fn indices(self, ty: TensorType) -> Result<Shape, Error> {
        if matches!(ty.dtype(), DType::I32 | DType::I64) {
            return Ok(ty.shape());
        }
        Err(self.fault(format!("indices are i32 or i64, not {ty}")))
    }

    fn gather(self, dim: usize) -> Result<TensorType, Error> {
        self.count(2)?;
        let (data, indices) = (self.operands[0], self.indices(self.operands[1])?);
        if self.dim_of(data.shape(), dim)? == 0 && indices.element_count() > 0 {
            return Err(self.fault(format!("dimension {dim} of {data} has no elements")));
        }
        self.typed(
            data.dtype(),
            &replaced(data.shape(), dim, Some(indices.dims())),
        )
    }

    fn index_add(self, dim: usize) -> Result<TensorType, Error> {
        self.count(3)?;
        let (data, updates) = (self.operands[0], self.operands[2]);
        let indices = self.indices(self.operands[1])?;
        self.dim_of(data.shape(), dim)?;
        let wanted = replaced(data.shape(), dim, Some(indices.dims()));
        if indices.rank() != 1
            || updates.dtype() != data.dtype()
            || updates.shape().dims() != wanted
        {
            return Err(self.fault(format!(
                "{updates} cannot be added to {data} by {indices} along dimension {dim}"
            )));
        }
        Ok(data)
    }

    fn rng(self, ty: TensorType) -> Result<TensorType, Error> {
        self.count(2)?;
        let is_number = |ty: &TensorType| ty.dtype() == DType::I64 && ty.shape() == Shape::SCALAR;
        if !self.operands.iter().all(is_number) {
            return Err(self.fault("seed and offset are i64 of rank 0"));
        }
        Ok(ty)
    }

    fn typed(self, dtype: DType, dims: &[usize]) -> Result<TensorType, Error> {
        let ty = Shape::new(dims).and_then(|shape| TensorType::new(dtype, shape));
        ty.map_err(|error| self.fault(error.to_string()))
    }
}

/// Extents of a matrix as the product takes them.
fn exchanged(matrix: &[usize], is_exchanged: bool) -> [usize; 2] {
    match (matrix, is_exchanged) {
        ([rows, columns], false) => [*rows, *columns],
        ([rows, columns], true) => [*columns, *rows],
        // Callers split off two.
        _ => [0, 0],
    }
}

/// Extents with one of them replaced by others; unchanged if there is no such one.
fn replaced(shape: Shape, dim: usize, by: Option<&[usize]>) -> Vec<usize> {
    let dims = shape.dims();
    match (dims.get(..dim), by, dims.get(dim + 1..)) {
        (Some(before), Some(by), Some(after)) => [before, by, after].concat(),
        _ => dims.to_vec(),
    }
}
