//! What a graph becomes: a source, and the steps that run what a compiler makes of it.

use stepmesh_graph::{CompileOptions, DType, Graph, OpKind};

use crate::compile::compile;

/// A graph as source, and the launches and products that run it, in order: each begins when the one
/// before it is done.
#[derive(Clone, Debug)]
pub struct Program {
    /// One translation unit of C++17 for NVRTC and hipRTC, without includes. Each kernel is
    /// `extern "C"` and takes pointers only.
    pub source: String,
    /// The steps.
    pub steps: Vec<Step>,
    /// Bytes of device memory for values between steps, aligned to [`ALIGN_BYTES`].
    pub scratch_len_bytes: u64,
    pub(crate) text: String,
}

/// One step.
#[derive(Clone, Debug)]
pub enum Step {
    /// A kernel of the source.
    Launch(Launch),
    /// A product of matrices, which a library of the vendor does.
    Product(Product),
}

/// A launch of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Its name in the source, `extern "C"`.
    pub function: String,
    /// Blocks in each direction; none is 0.
    pub grid: [u32; 3],
    /// Threads of a block in each direction.
    pub block: [u32; 3],
    /// Its parameters: pointers, in order.
    pub arguments: Vec<Place>,
}

/// `out = left · right`, row-major, for each matrix of a batch. The result overlaps neither operand.
/// Sizes, leading dimensions and the batch fit an `i32`, as the libraries have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    /// Of the left operand and the result.
    pub rows: u64,
    /// Of the right operand and the result.
    pub columns: u64,
    /// Columns of the left, rows of the right: what is summed over. At least 1.
    pub depth: u64,
    /// How many.
    pub batch: u64,
    /// Type of the elements of all three: f32, f64, f16 or bf16. Sums are in f32, those of f64 in f64.
    pub dtype: DType,
    /// `[rows, depth]`.
    pub left: Matrix,
    /// `[depth, columns]`.
    pub right: Matrix,
    /// `[rows, columns]`, never transposed.
    pub out: Matrix,
}

/// A matrix of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// Its first element.
    pub place: Place,
    /// Elements from one row to the next, as it lies in memory.
    pub leading: u64,
    /// Elements from one matrix of the batch to the next; 0 if it is the same for all.
    pub batch_stride: u64,
    /// What lies in memory is its transpose.
    pub is_transposed: bool,
}

/// An address, known when the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In an argument of the graph.
    Argument {
        /// Its number.
        index: usize,
        /// From its start.
        offset_bytes: u64,
    },
    /// In a result.
    Result {
        /// Its number.
        index: usize,
        /// From its start.
        offset_bytes: u64,
    },
    /// In the memory for values between steps.
    Scratch {
        /// From its start.
        offset_bytes: u64,
    },
}

/// Why there is no program for a graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A value between steps, or all of them, are more bytes than can be addressed.
    #[error("graph `{graph}` needs too much memory: {reason}")]
    TooLarge {
        /// Name of the graph.
        graph: String,
        /// Which value.
        reason: String,
    },
}

impl Program {
    /// Makes the program of a graph. It depends on the graph and on this crate's version alone.
    ///
    /// Results are the same bits each time, whatever the options: how work is cut depends on shapes.
    ///
    /// # Errors
    /// [`Error::TooLarge`].
    pub fn compile(graph: &Graph, _options: &CompileOptions) -> Result<Self, Error> {
        compile(graph)
    }

    /// Whether a graph may have this operation for this type, which is that of the value, or of the
    /// operand of a comparison and an argmax: all for which it is defined.
    #[must_use]
    pub fn supported(op: OpKind, dtype: DType) -> bool {
        op.allows(dtype)
    }

    /// Whether the operation becomes a [`Step::Product`] for this type.
    #[must_use]
    pub fn needs_products(op: OpKind, dtype: DType) -> bool {
        op == OpKind::Matmul && matches!(dtype, DType::F32 | DType::F64 | DType::F16 | DType::BF16)
    }

    /// For people: what each step computes, and of which nodes it is made.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// Alignment of the memory for values between steps, and of each value in it, in bytes: a line of the
/// caches, and what allocations of devices have.
pub const ALIGN_BYTES: u64 = ALIGN_LEN as u64;
pub(crate) const ALIGN_LEN: usize = 256;
