//! The shape that backends see: type, sizes, and which of the sizes are only bounds.

use std::fmt;
use std::hash::{Hash, Hasher};

use rustc_hash::FxHasher;
use stepmesh_graph::{DType, TensorType};

/// Type and sizes of a value, `torch::lazy::Shape`. A size may be symbolic: then it is an upper
/// bound of what executions bring. The engine itself traces sizes that are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    ty: TensorType,
    /// One bit for each dimension.
    symbolic: u8,
}

impl Shape {
    /// A shape whose sizes are all known.
    #[must_use]
    pub fn new(ty: TensorType) -> Self {
        Self { ty, symbolic: 0 }
    }

    /// The same with the size of dimension `dim` as an upper bound; unchanged if there is no such.
    #[must_use]
    pub fn with_symbolic(mut self, dim: usize) -> Self {
        if dim < self.sizes().len() {
            self.symbolic |= 1 << dim;
        }
        self
    }

    /// Type and sizes.
    #[must_use]
    pub fn ty(&self) -> TensorType {
        self.ty
    }

    /// Type of the elements.
    #[must_use]
    pub fn scalar_type(&self) -> DType {
        self.ty.dtype()
    }

    /// The sizes, bounds where they are symbolic.
    #[must_use]
    pub fn sizes(&self) -> Vec<usize> {
        self.ty.shape().dims().to_vec()
    }

    /// Number of dimensions.
    #[must_use]
    pub fn dim(&self) -> usize {
        self.ty.shape().rank()
    }

    /// Number of elements, at most.
    #[must_use]
    pub fn numel(&self) -> usize {
        self.ty.shape().element_count()
    }

    /// Whether the size of a dimension is an upper bound only.
    #[must_use]
    pub fn is_symbolic(&self, dim: usize) -> bool {
        dim < self.dim() && self.symbolic & (1 << dim) != 0
    }

    /// A hash; without the sizes where `bake_in_sizes` is false, for graphs that serve all sizes.
    #[must_use]
    pub fn hash(&self, bake_in_sizes: bool) -> u64 {
        let mut hasher = FxHasher::default();
        self.ty.dtype().hash(&mut hasher);
        self.dim().hash(&mut hasher);
        self.symbolic.hash(&mut hasher);
        if bake_in_sizes {
            self.ty.shape().hash(&mut hasher);
        }
        hasher.finish()
    }
}

impl From<TensorType> for Shape {
    fn from(ty: TensorType) -> Self {
        Self::new(ty)
    }
}

/// As PyTorch writes it, `Float[2,3]`; a bound as `<=3`.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.symbolic == 0 {
            return f.write_str(&crate::ir::type_text(self.ty));
        }
        write!(f, "{}[", self.ty.dtype())?;
        for (dim, size) in self.ty.shape().dims().iter().enumerate() {
            let comma = if dim == 0 { "" } else { "," };
            let bound = if self.is_symbolic(dim) { "<=" } else { "" };
            write!(f, "{comma}{bound}{size}")?;
        }
        f.write_str("]")
    }
}
