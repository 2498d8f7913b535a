//! Compiles graphs of tensor operations into fused plans, and runs them on host memory.
//!
//! Choices:
//! - A graph becomes *items*, which are cut into *clusters*; each cluster is one kernel, so that a
//!   chain of operations, the reductions that end it and what is done with those is one pass over
//!   memory. Softmax and norms are taken apart first: fusing knows them no better than what a user
//!   writes out.
//! - A kernel is a program on registers that hold a tile of 512 elements each; the loops over a tile
//!   are vectorised by the compiler, for the processor that is found at run time. f16 and bf16 are
//!   widened when a tile is read and rounded when it is written.
//! - Reshapes, transposes, broadcasts and slices are steps through memory, not copies, where that is
//!   possible.
//! - Matrix products are the `gemm` crate's, block by block; what follows a product element by
//!   element is done on each block while it is in the cache.
//! - Results are the same bits each time and with any number of threads: how work is cut depends on
//!   shapes alone.
//! - The workspace is planned when a graph is compiled; after the first runs nothing large is
//!   allocated.
//!
//! # Example
//! ```
//! use stepmesh_graph::{CompileOptions, DType, GraphBuilder, Op, Shape};
//! use stepmesh_kernels::{Executable, Pool, Region};
//!
//! let mut graph = GraphBuilder::new("sum_of_squares");
//! let x = graph.parameter(DType::F32, Shape::new(&[3])?)?;
//! let squares = graph.node(Op::Mul, &[x, x])?;
//! let sum = graph.node(Op::Sum { dims: vec![0] }, &[squares])?;
//! let executable = Executable::compile(&graph.build(&[sum])?, &CompileOptions::default())?;
//!
//! let (mut x, mut sum) = ([1.0_f32, 2.0, 3.0], [0.0_f32]);
//! // SAFETY: both arrays outlive the run, and no one else uses them meanwhile.
//! let arg = unsafe { Region::new(x.as_mut_ptr().expose_provenance(), 12) };
//! // SAFETY: as above.
//! let result = unsafe { Region::new(sum.as_mut_ptr().expose_provenance(), 4) };
//! executable.run(&Pool::new(1)?, &[arg], &[result])?;
//! assert_eq!(sum, [14.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Threads
//! All types may be used from any thread; an executable may run several times at once.
//!
//! # What can fail
//! Compiling, if intermediate values are more than a process can have; running, if a region is too
//! short. Memory that lies about its length is the caller's fault, see [`Region::new`].
//!
//! # What it does not do
//! It knows no streams, devices or plugins: `plugins/cpu` and `plugins/sim` bring those.
#![deny(unsafe_code)]

pub use error::Error;
pub use executable::Executable;
pub use memory::Region;
pub use pool::{LazyPool, Pool};

mod error;
mod executable;
mod indexing;
mod kernel;
mod math;
mod memory;
mod number;
mod plan;
mod pool;
mod product;
mod scratch;
mod tile;
