//! Why a graph was compiled although others were: what differs from the nearest one.

use std::cmp::Reverse;
use std::fmt;
use std::sync::Arc;

use stepmesh_graph::{Graph, Node};

/// A compilation after the first, and what made it necessary.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Recompilation {
    /// Name of the graph that was compiled.
    pub graph: Arc<str>,
    /// The step in which it was, from 0.
    pub step: u64,
    /// Name of the cached graph that is most like it.
    pub nearest: Arc<str>,
    /// What differs first.
    pub difference: Difference,
}

/// The first difference of two graphs, in the order of their nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Difference {
    /// What kind it is.
    pub kind: DifferenceKind,
    /// Number of the node in the graph.
    pub node: usize,
    /// The node's operation.
    pub op: &'static str,
    /// What it is now.
    pub now: String,
    /// What it was.
    pub before: String,
    /// Where in the user's program the node was traced; empty if that is not known.
    pub location: String,
}

/// In what two graphs differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DifferenceKind {
    /// Another operation.
    Op,
    /// The same operation for another type.
    DType,
    /// The same operation with another extent, or rank.
    Dim(usize),
    /// The same operation with another attribute, be it a number that is part of the graph.
    Attribute,
    /// The same operation on other operands.
    Operands,
    /// More nodes or fewer, after equal ones.
    Length,
    /// The same nodes, of which others are results: other tensors were alive.
    Results,
}

/// The cached graph that agrees with a new one in most places, and where they part first.
pub(crate) fn nearest<'a, T>(
    graph: &Graph,
    cached: impl Iterator<Item = (&'a Graph, T)>,
) -> Option<(T, Difference)> {
    let (best, of) = cached.max_by_key(|(other, _)| {
        let pairs = graph.nodes().iter().zip(other.nodes());
        let agree = pairs.filter(|(a, b)| is_same(a, b)).count();
        let apart = graph.nodes().len().abs_diff(other.nodes().len());
        (agree, Reverse(apart))
    })?;
    Some((of, difference(graph, best)))
}

fn is_same(a: &Node, b: &Node) -> bool {
    a.op() == b.op() && a.operands() == b.operands() && a.ty() == b.ty()
}

fn difference(now: &Graph, before: &Graph) -> Difference {
    let mut pairs = now.nodes().iter().zip(before.nodes()).enumerate();
    if let Some((node, (a, b))) = pairs.find(|(_, (a, b))| !is_same(a, b)) {
        return of_nodes(node, a, b);
    }
    let (nodes, nodes_before) = (now.nodes().len(), before.nodes().len());
    let node = nodes.min(nodes_before);
    let longer = if nodes > nodes_before { now } else { before };
    let only = longer.nodes().get(node);
    let (kind, counts) = if only.is_some() {
        (
            DifferenceKind::Length,
            [nodes, nodes_before].map(|count| format!("{count} nodes")),
        )
    } else {
        let results = [now, before].map(|graph| {
            let ids: Vec<u32> = graph.results().iter().map(|id| id.0).collect();
            format!("results {ids:?}")
        });
        (DifferenceKind::Results, results)
    };
    let [now, before] = counts;
    Difference {
        kind,
        node,
        op: only.map_or("", |node| node.kind().name()),
        now,
        before,
        location: only.map_or_else(String::new, place),
    }
}

fn of_nodes(node: usize, a: &Node, b: &Node) -> Difference {
    let ids = |node: &Node| -> Vec<u32> { node.operands().iter().map(|id| id.0).collect() };
    let (dims, dims_before) = (a.shape(), b.shape());
    let (kind, now, before) = if a.kind() != b.kind() {
        (
            DifferenceKind::Op,
            a.kind().name().into(),
            b.kind().name().into(),
        )
    } else if a.dtype() != b.dtype() {
        (
            DifferenceKind::DType,
            a.ty().to_string(),
            b.ty().to_string(),
        )
    } else if dims != dims_before {
        let pairs = dims.dims().iter().zip(dims_before.dims());
        let dim = pairs.take_while(|(a, b)| a == b).count();
        (
            DifferenceKind::Dim(dim),
            a.ty().to_string(),
            b.ty().to_string(),
        )
    } else if a.operands() != b.operands() {
        let text = |node| format!("of nodes {:?}", ids(node));
        (DifferenceKind::Operands, text(a), text(b))
    } else {
        (DifferenceKind::Attribute, a.to_string(), b.to_string())
    };
    Difference {
        kind,
        node,
        op: a.kind().name(),
        now,
        before,
        location: place(a),
    }
}

fn place(node: &Node) -> String {
    node.location().unwrap_or_default().to_owned()
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            DifferenceKind::Op => "another operation".to_owned(),
            DifferenceKind::DType => "another type".to_owned(),
            DifferenceKind::Dim(dim) => format!("another extent of dimension {dim}"),
            DifferenceKind::Attribute => "another attribute".to_owned(),
            DifferenceKind::Operands => "other operands".to_owned(),
            DifferenceKind::Length => "more nodes or fewer".to_owned(),
            DifferenceKind::Results => "other tensors were alive".to_owned(),
        };
        write!(f, "{what}: {}, it was {}", self.now, self.before)?;
        if self.op.is_empty() {
            return Ok(());
        }
        write!(
            f,
            " (node {}, `{}` at {})",
            self.node, self.op, self.location
        )
    }
}

impl fmt::Display for Recompilation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (graph, step, nearest) = (&self.graph, self.step, &self.nearest);
        let difference = &self.difference;
        write!(
            f,
            "{graph} in step {step}, nearest is {nearest}: {difference}"
        )
    }
}
