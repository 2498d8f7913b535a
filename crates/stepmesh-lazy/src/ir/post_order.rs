//! The order in which nodes are lowered: operands before those who use them.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::{Node, NodePtr};

/// How far a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum EmitStatus {
    /// Not met yet.
    #[default]
    NotEmitted,
    /// Its operands come first.
    Emitting,
    /// It is in the order, at this place.
    Emitted(u32),
}

/// The status of nodes, by their identity. It holds no nodes: whoever keeps one keeps the order too.
#[derive(Clone, Debug, Default)]
pub struct EmissionMap {
    status: FxHashMap<usize, EmitStatus>,
}

impl EmissionMap {
    /// The status of a node.
    #[must_use]
    pub fn status(&self, node: &NodePtr) -> EmitStatus {
        self.status.get(&key(node)).copied().unwrap_or_default()
    }

    /// Sets the status of a node.
    pub fn set(&mut self, node: &NodePtr, status: EmitStatus) {
        self.status.insert(key(node), status);
    }

    /// The place of a node in the order, if it is in it.
    #[must_use]
    pub fn place(&self, node: &NodePtr) -> Option<u32> {
        match self.status(node) {
            EmitStatus::Emitted(place) => Some(place),
            EmitStatus::NotEmitted | EmitStatus::Emitting => None,
        }
    }
}

/// All nodes that the roots need and that `emission` does not have yet, operands first, each once.
/// Roots are visited in their order, operands in theirs, so that equal programs give equal orders.
#[must_use]
pub fn post_order(roots: &[NodePtr], emission: &mut EmissionMap) -> Vec<NodePtr> {
    let mut order: Vec<NodePtr> = Vec::new();
    let mut next = u32::try_from(emission.status.len()).unwrap_or(u32::MAX);
    // A node on its way, and how many of its operands were looked at. No recursion: programs may be
    // chains of any length.
    let mut path: Vec<(&NodePtr, usize)> = Vec::new();
    for root in roots {
        if emission.status(root) != EmitStatus::NotEmitted {
            continue;
        }
        emission.set(root, EmitStatus::Emitting);
        path.push((root, 0));
        while let Some((node, looked_at)) = path.last_mut() {
            if let Some(operand) = node.operands().get(*looked_at) {
                *looked_at += 1;
                // One that is `Emitting` would be a cycle; nodes are immutable, so there is none.
                if emission.status(operand) == EmitStatus::NotEmitted {
                    emission.set(operand, EmitStatus::Emitting);
                    path.push((operand, 0));
                }
                continue;
            }
            emission.set(node, EmitStatus::Emitted(next));
            next = next.saturating_add(1);
            order.push(Arc::clone(node));
            path.pop();
        }
    }
    order
}

fn key(node: &NodePtr) -> usize {
    Arc::as_ptr(node).cast::<Node>().addr()
}
