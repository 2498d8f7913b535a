//! The one error type of this crate: what is wrong with a graph, and where.

/// Why a graph, a node or a shape is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(
    clippy::error_impl_error,
    reason = "each crate of the workspace has one `Error`"
)]
pub enum Error {
    /// A shape that cannot be.
    #[error("{fault}")]
    Shape {
        /// What is wrong.
        fault: String,
    },
    /// An operation and its operands do not fit together.
    #[error("{op}: {fault}")]
    Operation {
        /// Name of the operation.
        op: &'static str,
        /// What is wrong.
        fault: String,
    },
    /// A node of a graph is not valid.
    #[error("node {node}{}: {fault}", at(location.as_deref()))]
    Node {
        /// Index of the node.
        node: usize,
        /// Where in the user's program it comes from.
        location: Option<String>,
        /// What is wrong.
        fault: String,
    },
    /// A graph is not valid as a whole.
    #[error("graph `{name}`: {fault}")]
    Graph {
        /// Name of the graph.
        name: String,
        /// What is wrong.
        fault: String,
    },
    /// An operation that nobody here knows.
    #[error("op {number} is unknown; this build knows those of StepMesh {version}", version = env!("CARGO_PKG_VERSION"))]
    UnknownOp {
        /// Its number.
        number: u32,
    },
    /// An attribute that the operation does not have, or has already.
    #[error("{op} has no attribute {key}, or has it already")]
    UnknownAttribute {
        /// Name of the operation.
        op: &'static str,
        /// Key of the attribute.
        key: u32,
    },
    /// Bytes that are no graph.
    #[error(
        "byte {offset} of a serialised graph: {fault}; it was cut, changed or is of another version"
    )]
    Encoding {
        /// Where reading stopped.
        offset: usize,
        /// What was wrong there.
        fault: &'static str,
    },
    /// A type that nobody here knows.
    #[error("dtype {number} is unknown; this build knows those of StepMesh {version}", version = env!("CARGO_PKG_VERSION"))]
    UnknownDType {
        /// Its number.
        number: u32,
    },
}

impl Error {
    /// Whether a later version might know what is asked for: then the answer of a plugin is
    /// `SM_UNIMPLEMENTED` rather than `SM_INVALID_ARGUMENT`.
    #[must_use]
    pub const fn is_unknown(&self) -> bool {
        matches!(
            self,
            Self::UnknownOp { .. } | Self::UnknownDType { .. } | Self::UnknownAttribute { .. }
        )
    }

    pub(crate) fn shape(fault: impl Into<String>) -> Self {
        Self::Shape {
            fault: fault.into(),
        }
    }
}

fn at(location: Option<&str>) -> String {
    location.map_or_else(String::new, |location| format!(" ({location})"))
}
