//! Graphs: whoever holds a [`Graph`] holds a valid one.

use std::sync::Arc;

use stepmesh_abi::compute::{SM_COMPUTE_NODES_MAX, SM_COMPUTE_OPERANDS_MAX};

use crate::{DType, Error, Op, OpKind, Shape, TensorType, infer};

/// A node of a graph, or of a graph that is being built: its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

impl NodeId {
    /// The index, for a slice of one entry for each node.
    #[must_use]
    pub fn index(self) -> usize {
        // No target of ours has a smaller `usize`.
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

/// An operation on values of earlier nodes; its type and shape are those that [`infer`] gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub(crate) op: Op,
    pub(crate) operands: Vec<NodeId>,
    pub(crate) ty: TensorType,
    pub(crate) location: Option<Arc<str>>,
}

impl Node {
    /// The operation.
    #[must_use]
    pub fn op(&self) -> &Op {
        &self.op
    }

    /// The operation without its attributes.
    #[must_use]
    pub fn kind(&self) -> OpKind {
        self.op.kind()
    }

    /// The operands, all of them earlier nodes.
    #[must_use]
    pub fn operands(&self) -> &[NodeId] {
        &self.operands
    }

    /// Type and shape of the value.
    #[must_use]
    pub fn ty(&self) -> TensorType {
        self.ty
    }

    /// Type of the value's elements.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.ty.dtype()
    }

    /// Shape of the value.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.ty.shape()
    }

    /// Where in the user's program it comes from.
    #[must_use]
    pub fn location(&self) -> Option<&str> {
        self.location.as_deref()
    }
}

/// The caller may give a result the memory of a parameter's argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Alias {
    /// Number of the parameter.
    pub param: u32,
    /// Number of the result.
    pub result: u32,
}

/// A valid graph: nodes in topological order, types and shapes as the rules say, parameters numbered
/// without gaps, at least one result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Graph {
    name: String,
    nodes: Vec<Node>,
    params: Vec<NodeId>,
    results: Vec<NodeId>,
    aliases: Vec<Alias>,
}

/// What a graph is made of, not checked yet.
#[derive(Clone, Debug, Default)]
pub struct Parts {
    /// For messages and dumps; may be empty.
    pub name: String,
    /// Operation, operands and location of each node.
    pub nodes: Vec<(Op, Vec<NodeId>, Option<Arc<str>>)>,
    /// The results by their number.
    pub results: Vec<NodeId>,
    /// The donations.
    pub aliases: Vec<Alias>,
}

impl Graph {
    /// Checks the parts of a graph, which nobody need trust.
    ///
    /// # Errors
    /// `Node` or `Graph`, saying what is wrong where.
    pub fn from_parts(parts: Parts) -> Result<Self, Error> {
        let mut graph = Self {
            name: parts.name,
            nodes: Vec::with_capacity(parts.nodes.len().min(SM_COMPUTE_NODES_MAX as usize)),
            params: Vec::new(),
            results: Vec::new(),
            aliases: Vec::new(),
        };
        for (op, operands, location) in parts.nodes {
            graph.push(op, operands, location)?;
        }
        graph.finish(parts.results, parts.aliases)
    }

    pub(crate) fn empty(name: String) -> Self {
        Self {
            name,
            nodes: Vec::new(),
            params: Vec::new(),
            results: Vec::new(),
            aliases: Vec::new(),
        }
    }

    /// Appends a node. Parameters get their places in `finish`.
    pub(crate) fn push(
        &mut self,
        op: Op,
        operands: Vec<NodeId>,
        location: Option<Arc<str>>,
    ) -> Result<NodeId, Error> {
        let node = self.nodes.len();
        let ty = match self.checked(&op, &operands) {
            Ok(ty) => ty,
            Err(fault) => {
                return Err(Error::Node {
                    node,
                    location: location.map(|location| location.to_string()),
                    fault,
                });
            }
        };
        self.nodes.push(Node {
            op,
            operands,
            ty,
            location,
        });
        #[expect(
            clippy::cast_possible_truncation,
            reason = "`checked` bounds the count"
        )]
        let id = NodeId(node as u32);
        Ok(id)
    }

    fn checked(&self, op: &Op, operands: &[NodeId]) -> Result<TensorType, String> {
        if self.nodes.len() >= SM_COMPUTE_NODES_MAX as usize {
            return Err(format!("a graph has at most {SM_COMPUTE_NODES_MAX} nodes"));
        }
        if operands.len() > SM_COMPUTE_OPERANDS_MAX as usize {
            return Err(format!(
                "{} operands, at most {SM_COMPUTE_OPERANDS_MAX}",
                operands.len()
            ));
        }
        let types: Result<Vec<TensorType>, String> = operands
            .iter()
            .map(|operand| match self.nodes.get(operand.index()) {
                Some(node) => Ok(node.ty),
                None => Err(format!("operand {} is no earlier node", operand.0)),
            })
            .collect();
        infer(op, &types?).map_err(|error| error.to_string())
    }

    pub(crate) fn finish(
        mut self,
        results: Vec<NodeId>,
        aliases: Vec<Alias>,
    ) -> Result<Self, Error> {
        match self.complete(results, aliases) {
            Ok(()) => Ok(self),
            Err(fault) => Err(Error::Graph {
                name: self.name,
                fault,
            }),
        }
    }

    fn complete(&mut self, results: Vec<NodeId>, aliases: Vec<Alias>) -> Result<(), String> {
        self.params = self.numbered_params()?;
        let most = SM_COMPUTE_OPERANDS_MAX as usize;
        for (what, count) in [
            ("parameters", self.params.len()),
            ("results", results.len()),
            ("donations", aliases.len()),
        ] {
            if count > most {
                return Err(format!("{count} {what}, at most {most}"));
            }
        }
        if results.is_empty() {
            return Err("there is no result".into());
        }
        if let Some(id) = results.iter().find(|id| id.index() >= self.nodes.len()) {
            return Err(format!("the result {} is no node", id.0));
        }
        self.results = results;
        self.check_aliases(&aliases)?;
        self.aliases = aliases;
        Ok(())
    }

    fn numbered_params(&self) -> Result<Vec<NodeId>, String> {
        let mut found: Vec<(u32, NodeId)> = Vec::new();
        for (id, node) in (0..).map(NodeId).zip(&self.nodes) {
            if let Op::Parameter { number, .. } = node.op {
                found.push((number, id));
            }
        }
        found.sort_unstable();
        for (wanted, (number, _)) in (0..).zip(&found) {
            if *number != wanted {
                return Err(format!(
                    "parameters are numbered from 0 without gaps, but {number} is where {wanted} \
                     should be"
                ));
            }
        }
        Ok(found.into_iter().map(|(_, id)| id).collect())
    }

    fn check_aliases(&self, aliases: &[Alias]) -> Result<(), String> {
        let mut used = [
            vec![false; self.params.len()],
            vec![false; self.results.len()],
        ];
        for Alias { param, result } in aliases {
            let (param_idx, result_idx) = (NodeId(*param).index(), NodeId(*result).index());
            let (Some(from), Some(to)) = (self.params.get(param_idx), self.results.get(result_idx))
            else {
                return Err(format!(
                    "parameter {param} cannot be donated to result {result}: there is no such one"
                ));
            };
            let (from, to) = (self.node(*from).ty, self.node(*to).ty);
            if from != to {
                return Err(format!(
                    "parameter {param} ({from}) cannot be donated to result {result} ({to})"
                ));
            }
            for (used, idx) in used.iter_mut().zip([param_idx, result_idx]) {
                if std::mem::replace(&mut used[idx], true) {
                    return Err(format!(
                        "parameter {param} or result {result} is in two donations"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Its name, for messages and dumps; may be empty.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The nodes in topological order.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// A node.
    ///
    /// # Panics
    /// If the id is that of another graph and beyond this one.
    #[must_use]
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// The parameters' nodes by their number.
    #[must_use]
    pub fn params(&self) -> &[NodeId] {
        &self.params
    }

    /// The results' nodes by their number; one may be in it twice, and may be a parameter.
    #[must_use]
    pub fn results(&self) -> &[NodeId] {
        &self.results
    }

    /// The donations.
    #[must_use]
    pub fn aliases(&self) -> &[Alias] {
        &self.aliases
    }

    /// The first node that a device does not do, with the type that it does it not for. What
    /// `is_supported` is asked is what the slot `supported_ops` is: the type of the value, but of the
    /// operand for `compare` and `argmax`, and both types of a cast.
    pub fn first_unsupported(
        &self,
        is_supported: impl Fn(OpKind, DType) -> bool,
    ) -> Option<(NodeId, DType)> {
        for (id, node) in (0..).map(NodeId).zip(&self.nodes) {
            let of_operand = node.operands.first().map(|first| self.node(*first).dtype());
            let asked = match (&node.op, of_operand) {
                (Op::Compare(_) | Op::Argmax { .. }, Some(dtype)) => [dtype, dtype],
                (Op::Cast { dtype }, Some(from)) => [from, *dtype],
                _ => [node.dtype(), node.dtype()],
            };
            let lacking = |dtype: &DType| !is_supported(node.kind(), *dtype);
            if let Some(dtype) = asked.into_iter().find(lacking) {
                return Some((id, dtype));
            }
        }
        None
    }

    /// Types and shapes of the parameters by their number.
    pub fn param_types(&self) -> impl ExactSizeIterator<Item = TensorType> + '_ {
        self.params.iter().map(|id| self.node(*id).ty)
    }

    /// Types and shapes of the results by their number.
    pub fn result_types(&self) -> impl ExactSizeIterator<Item = TensorType> + '_ {
        self.results.iter().map(|id| self.node(*id).ty)
    }
}
