//! What can go wrong when a plan is made.

/// Why a graph cannot be compiled or a plan not be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The threads of a pool cannot be started.
    #[error("cannot start the threads that compute")]
    Threads(#[source] rayon::ThreadPoolBuildError),
    /// A graph asks for what there is not.
    #[error("{0}")]
    Unsupported(String),
    /// A graph is malformed, or too large for this process's addresses.
    #[error("{0}")]
    Invalid(String),
    /// A run got the wrong number of buffers, or one that is too short.
    #[error("{what} {number} has {len_bytes} bytes; the executable needs {needed_bytes}")]
    Buffer {
        /// "argument" or "result".
        what: &'static str,
        /// Its number.
        number: usize,
        /// Its bytes.
        len_bytes: usize,
        /// What it should have.
        needed_bytes: usize,
    },
}
