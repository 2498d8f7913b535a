//! The operations with their attributes.

use std::sync::Arc;

use stepmesh_abi::compute::{
    SM_COMPARE_EQ, SM_COMPARE_GE, SM_COMPARE_GT, SM_COMPARE_LE, SM_COMPARE_LT, SM_COMPARE_NE,
};

use crate::{DType, OpKind, Shape, TensorType};

/// An operation with its attributes. What cannot be derived from operands, the type of a parameter
/// or the shape of a reshape, is an attribute too, so that [`crate::infer`] needs nothing else.
///
/// What each means, and for which types it is, is written at its number in
/// [`stepmesh_abi::compute`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// An argument of the graph.
    Parameter {
        /// Its number, from 0 without gaps.
        number: u32,
        /// Its type and shape.
        ty: TensorType,
    },
    /// Elements that are known.
    Constant {
        /// Type and shape.
        ty: TensorType,
        /// All elements, row-major, little-endian; or one, which all are.
        data: Arc<[u8]>,
    },
    /// Another type.
    Cast {
        /// That type.
        dtype: DType,
    },
    /// a + b.
    Add,
    /// a - b.
    Sub,
    /// a * b.
    Mul,
    /// a / b.
    Div,
    /// a to the power of b.
    Pow,
    /// The greater of two.
    Max,
    /// The lesser of two.
    Min,
    /// -x.
    Neg,
    /// e^x.
    Exp,
    /// Natural logarithm.
    Log,
    /// Square root.
    Sqrt,
    /// 1 / sqrt(x).
    Rsqrt,
    /// Hyperbolic tangent.
    Tanh,
    /// 1 / (1 + e^-x).
    Sigmoid,
    /// max(x, 0).
    Relu,
    /// x * sigmoid(x).
    Silu,
    /// GELU by the error function.
    GeluErf,
    /// GELU by tanh.
    GeluTanh,
    /// Compares two, giving bool.
    Compare(CompareDirection),
    /// Condition, value where it is true, value where it is false.
    Select,
    /// x, low, high.
    Clamp,
    /// Sum over dimensions.
    Sum {
        /// Which, ascending.
        dims: Vec<usize>,
    },
    /// Mean over dimensions.
    Mean {
        /// Which, ascending.
        dims: Vec<usize>,
    },
    /// Greatest over dimensions.
    ReduceMax {
        /// Which, ascending.
        dims: Vec<usize>,
    },
    /// First index of the greatest along a dimension, i64.
    Argmax {
        /// Which.
        dim: usize,
    },
    /// Product of matrices.
    Matmul {
        /// The last two dimensions of the first operand are exchanged.
        transpose_a: bool,
        /// The last two dimensions of the second operand are exchanged.
        transpose_b: bool,
    },
    /// Softmax along a dimension.
    Softmax {
        /// Which.
        dim: usize,
    },
    /// x, optionally weight, optionally bias.
    LayerNorm {
        /// First of the normalised dimensions.
        dim: usize,
        /// What is added to the variance.
        epsilon: F64,
    },
    /// x, optionally weight.
    RmsNorm {
        /// First of the normalised dimensions.
        dim: usize,
        /// What is added to the mean of squares.
        epsilon: F64,
    },
    /// Another shape of as many elements.
    Reshape {
        /// That shape.
        shape: Shape,
    },
    /// Other order of dimensions.
    Transpose {
        /// Which dimension of the operand each of the value's is.
        dims: Vec<usize>,
    },
    /// Repeats along dimensions.
    Broadcast {
        /// Shape of the value.
        shape: Shape,
        /// Which dimension of the value each of the operand's is, ascending.
        dims: Vec<usize>,
    },
    /// Part of each dimension.
    Slice {
        /// First index of each.
        starts: Vec<usize>,
        /// The index after the last of each.
        limits: Vec<usize>,
        /// Step of each.
        strides: Vec<usize>,
    },
    /// One after another.
    Concat {
        /// Along which dimension.
        dim: usize,
    },
    /// data, indices.
    Gather {
        /// Dimension of data that the indices are of.
        dim: usize,
    },
    /// data, indices, updates.
    IndexAdd {
        /// Dimension of data that the indices are of.
        dim: usize,
    },
    /// seed, offset: uniform in [0, 1).
    RngUniform {
        /// Type and shape.
        ty: TensorType,
    },
    /// seed, offset: normal of mean 0 and deviation 1.
    RngNormal {
        /// Type and shape.
        ty: TensorType,
    },
}

/// How [`Op::Compare`] compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CompareDirection {
    /// Equal.
    Eq,
    /// Not equal.
    Ne,
    /// Less.
    Lt,
    /// Less or equal.
    Le,
    /// Greater.
    Gt,
    /// Greater or equal.
    Ge,
}

/// An `f64` attribute, equal where its bits are equal, so that operations can be compared and hashed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct F64(u64);

impl Op {
    /// Product of matrices, none exchanged.
    pub const MATMUL: Self = Self::Matmul {
        transpose_a: false,
        transpose_b: false,
    };

    /// The operation without its attributes.
    #[must_use]
    pub const fn kind(&self) -> OpKind {
        match self {
            Self::Parameter { .. } => OpKind::Parameter,
            Self::Constant { .. } => OpKind::Constant,
            Self::Cast { .. } => OpKind::Cast,
            Self::Add => OpKind::Add,
            Self::Sub => OpKind::Sub,
            Self::Mul => OpKind::Mul,
            Self::Div => OpKind::Div,
            Self::Pow => OpKind::Pow,
            Self::Max => OpKind::Max,
            Self::Min => OpKind::Min,
            Self::Neg => OpKind::Neg,
            Self::Exp => OpKind::Exp,
            Self::Log => OpKind::Log,
            Self::Sqrt => OpKind::Sqrt,
            Self::Rsqrt => OpKind::Rsqrt,
            Self::Tanh => OpKind::Tanh,
            Self::Sigmoid => OpKind::Sigmoid,
            Self::Relu => OpKind::Relu,
            Self::Silu => OpKind::Silu,
            Self::GeluErf => OpKind::GeluErf,
            Self::GeluTanh => OpKind::GeluTanh,
            Self::Compare(_) => OpKind::Compare,
            Self::Select => OpKind::Select,
            Self::Clamp => OpKind::Clamp,
            Self::Sum { .. } => OpKind::Sum,
            Self::Mean { .. } => OpKind::Mean,
            Self::ReduceMax { .. } => OpKind::ReduceMax,
            Self::Argmax { .. } => OpKind::Argmax,
            Self::Matmul { .. } => OpKind::Matmul,
            Self::Softmax { .. } => OpKind::Softmax,
            Self::LayerNorm { .. } => OpKind::LayerNorm,
            Self::RmsNorm { .. } => OpKind::RmsNorm,
            Self::Reshape { .. } => OpKind::Reshape,
            Self::Transpose { .. } => OpKind::Transpose,
            Self::Broadcast { .. } => OpKind::Broadcast,
            Self::Slice { .. } => OpKind::Slice,
            Self::Concat { .. } => OpKind::Concat,
            Self::Gather { .. } => OpKind::Gather,
            Self::IndexAdd { .. } => OpKind::IndexAdd,
            Self::RngUniform { .. } => OpKind::RngUniform,
            Self::RngNormal { .. } => OpKind::RngNormal,
        }
    }
}

impl CompareDirection {
    /// Every direction.
    pub const ALL: [Self; 6] = [Self::Eq, Self::Ne, Self::Lt, Self::Le, Self::Gt, Self::Ge];

    /// Its number in the ABI, `SM_COMPARE_*`.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::Eq => SM_COMPARE_EQ,
            Self::Ne => SM_COMPARE_NE,
            Self::Lt => SM_COMPARE_LT,
            Self::Le => SM_COMPARE_LE,
            Self::Gt => SM_COMPARE_GT,
            Self::Ge => SM_COMPARE_GE,
        }
    }

    /// The direction of a number, if there is one.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|direction| direction.number() == number)
    }

    /// Its name in dumps: `lt` and so on.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Eq => "eq",
            Self::Ne => "ne",
            Self::Lt => "lt",
            Self::Le => "le",
            Self::Gt => "gt",
            Self::Ge => "ge",
        }
    }

    /// Whether `a` and `b` compare so; for NaN only [`CompareDirection::Ne`] does.
    #[must_use]
    pub fn holds<T: PartialOrd>(self, a: &T, b: &T) -> bool {
        match self {
            Self::Eq => a == b,
            Self::Ne => a != b,
            Self::Lt => a < b,
            Self::Le => a <= b,
            Self::Gt => a > b,
            Self::Ge => a >= b,
        }
    }
}

impl F64 {
    /// An attribute of this value.
    #[must_use]
    pub const fn new(value: f64) -> Self {
        Self(value.to_bits())
    }

    /// The value.
    #[must_use]
    pub const fn value(self) -> f64 {
        f64::from_bits(self.0)
    }
}

impl From<f64> for F64 {
    fn from(value: f64) -> Self {
        Self::new(value)
    }
}

impl std::fmt::Debug for F64 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.value())
    }
}
