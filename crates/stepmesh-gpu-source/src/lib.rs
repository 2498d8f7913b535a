//! Makes the source of GPU kernels of graphs of tensor operations: one text that NVRTC and hipRTC
//! compile, and the launches that run it. It knows no driver; `stepmesh-driver` has those.
//!
//! Choices:
//! - What is one kernel is cut by [`stepmesh_fusion`], as it is for the host: a chain of operations,
//!   the reductions that end it and what is done with those go through memory once. Products of float
//!   matrices are a step of their own, for the vendor's library; those of integers are kernels.
//! - Threads go through elements in the order in which they lie. A row that is reduced has a block; what
//!   is reduced across rows has a thread for each column; when there are few rows, each is cut into
//!   parts and joined by a second kernel. f16, bf16 and fp8 are widened to f32 when they are read.
//! - Results are the same bits each time: there are no atomics, and how sums are cut depends on shapes
//!   alone.
//! - There are no includes: the conversions of narrow floats, the random numbers and the rest are in the
//!   source, so that the same text compiles as C++ for the host ([`STAND_IN_HEADER`]) and its
//!   arithmetic is tested without a GPU.
//!
//! # Example
//! ```
//! use stepmesh_graph::{CompileOptions, DType, GraphBuilder, Op, Shape};
//! use stepmesh_gpu_source::{Place, Program, Step};
//!
//! let mut graph = GraphBuilder::new("sum_of_squares");
//! let x = graph.parameter(DType::F32, Shape::new(&[4, 100])?)?;
//! let squares = graph.node(Op::Mul, &[x, x])?;
//! let sums = graph.node(Op::Sum { dims: vec![1] }, &[squares])?;
//! let program = Program::compile(&graph.build(&[sums])?, &CompileOptions::default())?;
//!
//! let [Step::Launch(launch)] = &program.steps[..] else { panic!("one kernel") };
//! assert_eq!(launch.function, "k0_mul_sum");
//! assert_eq!(launch.grid, [4, 1, 1]); // a block for each row
//! assert_eq!(launch.arguments[0], Place::Argument { index: 0, offset_bytes: 0 });
//! assert!(program.source.contains("const float v1 = mul(x0, x0);"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub use program::{ALIGN_BYTES, Error, Launch, Matrix, Place, Product, Program, Step};

/// A header that lets a C++ compiler for the host compile and run the source of a [`Program`] in place
/// of a GPU's; what it defines is written at its top.
pub const STAND_IN_HEADER: &str = include_str!("stand_in.hpp");

mod compile;
mod element;
mod index;
mod indexed;
mod kernel;
mod product;
mod program;
mod source;
