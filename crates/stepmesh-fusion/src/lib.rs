//! Cuts graphs of tensor operations into clusters that one kernel computes each.
//!
//! Choices:
//! - A graph becomes *items*: operations of one kind each, whose operands are views of what others
//!   store. Softmax and norms are taken apart first: fusing knows them no better than what a user
//!   writes out. What only moves elements is a view where steps through memory can say so.
//! - Items are cut into *clusters*, so that a chain of operations, the reductions that end it and what
//!   is done with those is one pass over memory.
//! - Values that go from one cluster to another are *placed* in one workspace, each for as long as it
//!   is needed.
//!
//! What a cluster becomes is its user's: `stepmesh-kernels` makes programs for the host of it,
//! `stepmesh-gpu-source` the source of GPU kernels.
//!
//! # Example
//! ```
//! use stepmesh_fusion::{Limits, cut, lower};
//! use stepmesh_graph::{DType, GraphBuilder, Op, Shape};
//!
//! let mut graph = GraphBuilder::new("sum_of_squares");
//! let x = graph.parameter(DType::F32, Shape::new(&[4, 8])?)?;
//! let squares = graph.node(Op::Mul, &[x, x])?;
//! let sums = graph.node(Op::Sum { dims: vec![1] }, &[squares])?;
//! let (items, results) = lower(&graph.build(&[sums])?);
//!
//! let limits = Limits { members_max: 96, staged_len_max: 1 << 16, joins_products: true };
//! let clusters = cut(&items, &results, limits);
//! // The parameter, and one kernel of both operations.
//! assert_eq!(clusters.list.len(), 2);
//! # Ok::<(), stepmesh_graph::Error>(())
//! ```
//!
//! # Errors
//! A graph was checked when it was built; only [`place`] can fail, for values of more bytes than a
//! process can have.
#![forbid(unsafe_code)]

pub use buffers::{Buffers, Part};
pub use cluster::{Cluster, Clusters, Level, Limits, Member, cut, views};
pub use item::{Item, Items, Kind, Source, Space, View, Walk, dense_dims, element_count, merge};
pub use lower::lower;
pub use ops::{Binary, Class, Fold, Order, Scalar, Unary};
pub use placement::{Copy, Placement, TooLarge, place};
pub use text::{item_name, item_text};

mod buffers;
mod cluster;
mod item;
mod lower;
mod norm;
mod ops;
mod placement;
mod text;
