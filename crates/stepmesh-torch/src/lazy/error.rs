//! Why a graph of PyTorch's could not be taken.

/// An operation that could not be translated into our graphs.
#[derive(Debug, thiserror::Error)]
#[error("{op}: {fault}")]
pub(super) struct LoweringError {
    /// By its schema, with its overload.
    pub(super) op: String,
    /// What is wrong.
    pub(super) fault: String,
}
