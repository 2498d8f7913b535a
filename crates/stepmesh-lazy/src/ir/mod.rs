//! The traced program: nodes, their order, their canonical form, their text. What happens to them
//! is in `engine`.

mod canonical;
mod dump;
mod node;
mod post_order;

pub(crate) use dump::type_text;
pub use dump::{ir_dot, ir_text};
pub use node::{Node, NodeKind, NodePtr, Operands};
pub use post_order::{EmissionMap, EmitStatus, post_order};

pub(crate) use canonical::{Canonical, canonical};
pub(crate) use node::LiveNodes;

#[cfg(test)]
mod tests;
