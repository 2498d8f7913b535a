//! What a graph's values are: an interpreter that computes in f64, node by node, and carries with each
//! element a bound of how far a correct plugin may be from it. Plugins and engines are judged by it;
//! it is simple and slow, and nothing executes with it.
//!
//! The bound starts at 0 and grows with each operation by what docs/abi.md allows it. Where the bound
//! leaves a decision open (a comparison of two nearly equal values, an index, a cast to integer), so
//! is all that depends on it: [`Tensor::mismatch`] then accepts anything there.
//!
//! # Example
//! ```
//! use stepmesh_graph::reference::{Tensor, evaluate};
//! use stepmesh_graph::{DType, GraphBuilder, Op, Shape, TensorType};
//!
//! let ty = TensorType::new(DType::F32, Shape::new(&[2])?)?;
//! let mut graph = GraphBuilder::new("square");
//! let x = graph.parameter(ty.dtype(), ty.shape())?;
//! let square = graph.node(Op::Mul, &[x, x])?;
//! let graph = graph.build(&[square])?;
//!
//! let results = evaluate(&graph, &[Tensor::from_f64(ty, &[1.5, -2.0])])?;
//! let answer: Vec<u8> = [2.25_f32, 4.0].into_iter().flat_map(f32::to_le_bytes).collect();
//! assert_eq!(results[0].mismatch(&answer), None);
//! # Ok::<(), stepmesh_graph::Error>(())
//! ```

use super::tensor::Tensor;
use super::{arrange, elementwise, random, reduce};
use crate::{Error, Graph, Op};

/// Values of a graph's results for arguments by number.
///
/// # Errors
/// `Graph` if the arguments are not of the parameters' types.
pub fn evaluate(graph: &Graph, args: &[Tensor]) -> Result<Vec<Tensor>, Error> {
    if !graph.param_types().eq(args.iter().map(Tensor::ty)) {
        return Err(Error::Graph {
            name: graph.name().into(),
            fault: "the arguments are not of the parameters' types".into(),
        });
    }
    let mut values: Vec<Tensor> = Vec::with_capacity(graph.nodes().len());
    for node in graph.nodes() {
        let operands: Vec<&Tensor> = node
            .operands()
            .iter()
            .map(|id| &values[id.index()])
            .collect();
        let elements = match node.op() {
            Op::Parameter { number, .. } => args[*number as usize].elements().to_vec(),
            Op::Constant { ty, data } => Tensor::from_bytes(*ty, data).elements().to_vec(),
            op => elementwise::apply(op, node.ty(), &operands)
                .or_else(|| arrange::apply(op, node.ty(), &operands))
                .or_else(|| reduce::apply(op, node.ty(), &operands))
                .or_else(|| random::apply(op, node.ty(), &operands))
                // Every operation is in one of the four; the test over all of them sees it.
                .unwrap_or_default(),
        };
        values.push(Tensor::new(node.ty(), elements));
    }
    let result = |id: &crate::NodeId| values[id.index()].clone();
    Ok(graph.results().iter().map(result).collect())
}
