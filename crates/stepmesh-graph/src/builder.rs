//! The builder of a graph.

use std::sync::Arc;

use crate::graph::{Alias, Graph, NodeId};
use crate::{DType, Error, Op, Shape, TensorType};

/// Builds a graph node by node, each checked when it is added.
#[derive(Debug)]
pub struct GraphBuilder {
    graph: Graph,
    params: u32,
    location: Option<Arc<str>>,
    aliases: Vec<Alias>,
}

impl GraphBuilder {
    /// A graph without nodes. The name is for messages and dumps.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            graph: Graph::empty(name.into()),
            params: 0,
            location: None,
            aliases: Vec::new(),
        }
    }

    /// Where in the user's program the nodes added from here on come from.
    pub fn set_location(&mut self, location: Option<Arc<str>>) {
        self.location = location;
    }

    /// Adds the next parameter.
    ///
    /// # Errors
    /// `Node` if the graph is full, `Shape` if the value has too many bytes.
    pub fn parameter(&mut self, dtype: DType, shape: Shape) -> Result<NodeId, Error> {
        let op = Op::Parameter {
            number: self.params,
            ty: TensorType::new(dtype, shape)?,
        };
        let id = self.node(op, &[])?;
        self.params += 1;
        Ok(id)
    }

    /// Adds a constant of which all elements are alike; `element` is one, little-endian.
    ///
    /// # Errors
    /// As for [`GraphBuilder::node`].
    pub fn splat(&mut self, ty: TensorType, element: &[u8]) -> Result<NodeId, Error> {
        let data = element.into();
        self.node(Op::Constant { ty, data }, &[])
    }

    /// Adds a node. Parameters are numbered by [`GraphBuilder::parameter`]; one that is added here
    /// has the number that its author gave it.
    ///
    /// # Errors
    /// `Node` if an operand is no node, if operands and attributes do not fit together, or if the
    /// graph is full.
    pub fn node(&mut self, op: Op, operands: &[NodeId]) -> Result<NodeId, Error> {
        self.graph
            .push(op, operands.to_vec(), self.location.clone())
    }

    /// Type and shape of a node; `None` if there is none.
    #[must_use]
    pub fn ty(&self, id: NodeId) -> Option<TensorType> {
        self.graph.nodes().get(id.index()).map(|node| node.ty)
    }

    /// Lets the caller give the memory of a parameter's argument to a result.
    pub fn donate(&mut self, param: u32, result: u32) {
        self.aliases.push(Alias { param, result });
    }

    /// The graph with these results.
    ///
    /// # Errors
    /// `Graph` if there is no result, parameters have gaps, or a donation does not fit.
    pub fn build(self, results: &[NodeId]) -> Result<Graph, Error> {
        self.graph.finish(results.to_vec(), self.aliases)
    }
}
