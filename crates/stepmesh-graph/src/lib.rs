//! Graphs of tensor operations, as `stepmesh.compute.v1` carries them from a host to a plugin.
//!
//! Host, kit, tensor engine and conformance checks all speak of the same graphs; this crate is what
//! they share, so that the rules are written once:
//! - [`DType`], [`Shape`], [`TensorType`]: what a value is;
//! - [`OpKind`] and [`Op`]: the operations, without and with their attributes. What each means is
//!   written at its number in [`stepmesh_abi::compute`];
//! - [`infer`]: the type and shape that an operation gives, or what is wrong with its operands;
//! - [`Graph`], made by a [`GraphBuilder`] or from [`Parts`] of someone who is not trusted: whoever
//!   holds one holds a valid one;
//! - [`RawGraph`]: a graph as the ABI carries it, not checked yet; [`Lowered`]: its structs; [`Graph::encode`] and
//!   [`Graph::decode`] for files;
//! - [`CompileOptions`] and [`TextForm`]: what host and plugin say about a graph beside itself;
//! - [`stablehlo()`]: a graph in the words of other compilers;
//! - [`mod@reference`]: an interpreter by which plugins are judged;
//! - [`mod@samples`]: small cases of each operation, for those who judge;
//! - [`float8`] and [`philox`]: the two arithmetics that no crate we use has.
//!
//! A graph is data: nothing here compiles, executes on a device, or loads a plugin.
//!
//! # Example
//! ```
//! use stepmesh_graph::{DType, GraphBuilder, Op, Shape};
//!
//! let mut graph = GraphBuilder::new("relu_of_product");
//! let x = graph.parameter(DType::F32, Shape::new(&[2, 3])?)?;
//! let w = graph.parameter(DType::F32, Shape::new(&[3, 4])?)?;
//! let product = graph.node(Op::MATMUL, &[x, w])?;
//! let result = graph.node(Op::Relu, &[product])?;
//! let graph = graph.build(&[result])?;
//! assert_eq!(graph.node(result).shape().dims(), [2, 4]);
//! # Ok::<(), stepmesh_graph::Error>(())
//! ```
//!
//! # Threads
//! All types are plain data, `Send` and `Sync`.
#![forbid(unsafe_code)]

pub mod float8;
pub mod philox;
/// What a graph's values are, by an interpreter whose results carry bounds: see
/// [`reference::evaluate`].
pub mod reference {
    pub use element::{Element, max as greatest};
    pub use evaluate::evaluate;
    pub use tensor::Tensor;

    mod arrange;
    mod element;
    mod elementwise;
    mod evaluate;
    mod random;
    mod reduce;
    mod tensor;
}
/// Small cases of each operation, and of many together, with arguments: see [`samples::samples`] and
/// [`samples::composed`].
pub mod samples {
    pub use composed::composed;
    pub use of::samples;
    pub use sample::Sample;

    mod composed;
    mod of;
    mod sample;
}

pub use builder::GraphBuilder;
pub use dtype::{DType, DTypeClass};
pub use error::Error;
pub use graph::{Alias, Graph, Node, NodeId, Parts};
pub use lowered::Lowered;
pub use op::{CompareDirection, F64, Op};
pub use op_kind::OpKind;
pub use options::{CompileOptions, TextForm};
pub use raw::{Attribute, RawGraph, RawNode, RawValue};
pub use rules::infer;
pub use shape::{RANK_MAX, Shape, TensorType};
pub use stablehlo::stablehlo;

mod builder;
mod codec;
mod dtype;
mod error;
mod graph;
mod lowered;
mod op;
mod op_kind;
mod options;
mod raw;
mod rules;
mod shape;
mod stablehlo;
mod text;

#[cfg(test)]
mod tests;
