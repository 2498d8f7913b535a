//! The one error type of this crate. What went wrong, with which object, and what to do about it.

use std::panic::Location;
use std::sync::Arc;

use stepmesh_graph::{DType, TensorType};

/// Everything that can fail in `stepmesh-lazy`.
///
/// It is cloned where one failure has several readers: a failed execution is told to whoever waits
/// for it and to whoever uses one of its values later.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(
    clippy::error_impl_error,
    reason = "each crate of the workspace has one `Error`"
)]
pub enum Error {
    /// Shapes, types or attributes that do not fit an operation; found while tracing.
    #[error("{op} at {location}: {fault}")]
    Operation {
        /// Name of the operation.
        op: &'static str,
        /// Where it was called.
        location: &'static Location<'static>,
        /// What does not fit.
        fault: String,
    },
    /// A graph or a shape that the rules of graphs refuse.
    #[error(transparent)]
    Graph(#[from] stepmesh_graph::Error),
    /// The backend refused a call.
    #[error("{operation} failed; see the cause")]
    Backend {
        /// What was tried.
        operation: &'static str,
        /// What the backend said.
        #[source]
        source: Arc<stepmesh_core::Error>,
    },
    /// A library that a backend outside of this crate is made of refused a call.
    #[error("{operation} failed in the backend's own library; see the cause")]
    Library {
        /// What was tried.
        operation: &'static str,
        /// What the library said.
        #[source]
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// Work that had been launched failed; told to those who wait and to those who use its values.
    #[error("the execution of graph `{graph}` failed; values that it was to make are lost")]
    Execution {
        /// Name of the graph.
        graph: Arc<str>,
        /// What the backend said.
        #[source]
        source: Arc<stepmesh_core::Error>,
    },
    /// A graph that was not executed, because it uses a value that another failed to make, or because
    /// it was in flight behind that one.
    #[error("graph `{graph}` was not executed: work before it had failed; see the cause")]
    Poisoned {
        /// Name of the graph.
        graph: Arc<str>,
        /// How that failed.
        #[source]
        source: Arc<Self>,
    },
    /// Work was not done in time.
    #[error("the device is not done after {waited_ms} ms; raise `Options::timeout` or look at it")]
    Timeout {
        /// The bound, in milliseconds.
        waited_ms: u64,
    },
    /// A buffer that was given to a result of another graph.
    #[error("the data of {ty} was donated to the result of a later step; keep a copy instead")]
    Donated {
        /// What it was.
        ty: TensorType,
    },
    /// A placeholder that was never filled.
    #[error("the value of {ty} was never computed: its graph failed to compile or to launch")]
    NoValue {
        /// What it is to be.
        ty: TensorType,
    },
    /// Values of two devices, or of a backend that the device does not know.
    #[error("{operation}: the value is of {found}, the operation runs on {expected}")]
    ForeignValue {
        /// What was tried.
        operation: &'static str,
        /// Where the value lies.
        found: String,
        /// Where it should lie.
        expected: String,
    },
    /// Elements of one type were given or asked for as another, or too many, or too few.
    #[error("{operation}: {fault}")]
    Elements {
        /// What was tried.
        operation: &'static str,
        /// What does not fit.
        fault: String,
    },
    /// The backend lacks an operation and the policy says to fail.
    #[error(
        "{device} does not do `{op}` for {dtype} (at {location}); allow its fallback in \
         `Options::fallback`, or choose another type or backend"
    )]
    FallbackDenied {
        /// Name of the operation.
        op: &'static str,
        /// Type it was wanted for.
        dtype: DType,
        /// The device.
        device: String,
        /// Where it was called.
        location: &'static Location<'static>,
    },
    /// More graphs were compiled than the options allow.
    #[error("graph `{graph}` would be compilation {compiles}, the limit is {limit}: {explanation}")]
    TooManyCompiles {
        /// Name of the graph.
        graph: Arc<str>,
        /// Which compilation it would be, from 1.
        compiles: u64,
        /// The limit that it exceeds: `Options::max_compiles`, or 0 after
        /// `Options::no_recompile_after` steps.
        limit: u64,
        /// What differs from the nearest graph that is cached.
        explanation: String,
    },
    /// A second backend was to be registered.
    #[error(
        "{registered} is registered already; drop its registrar before {refused} is registered"
    )]
    AlreadyRegistered {
        /// The one that is there.
        registered: String,
        /// The one that was refused.
        refused: String,
    },
    /// No backend is registered.
    #[error("no lazy backend is registered; make a `BackendRegistrar` first, and keep it")]
    NotRegistered,
    /// A device that the backend does not have.
    #[error("the backend {backend} has no device {device}; it has {count}")]
    UnknownDevice {
        /// Name of the backend.
        backend: String,
        /// What was asked for.
        device: String,
        /// How many devices it has.
        count: usize,
    },
    /// A computation or data of another implementation of the backend trait.
    #[error("{operation}: this object was made by another implementation of the backend trait")]
    ForeignObject {
        /// What was tried.
        operation: &'static str,
    },
    /// A result that a graph was said to have, and has not.
    #[error("{operation}: {fault}")]
    Lowering {
        /// What was tried.
        operation: &'static str,
        /// What is wrong.
        fault: String,
    },
    /// A form of text that the backend does not have.
    #[error("computation_text: there is no format `{format}`; there are {}", known.join(", "))]
    UnknownFormat {
        /// What was asked for.
        format: String,
        /// What there is.
        known: &'static [&'static str],
    },
    /// The backend was told to prepare for the exit.
    #[error("{operation}: the backend was told to prepare for the exit")]
    Exiting {
        /// What was tried.
        operation: &'static str,
    },
}

impl Error {
    pub(crate) fn backend(operation: &'static str) -> impl Fn(stepmesh_core::Error) -> Self {
        move |source| Self::Backend {
            operation,
            source: Arc::new(source),
        }
    }

    pub(crate) fn elements(operation: &'static str, fault: String) -> Self {
        Self::Elements { operation, fault }
    }

    pub(crate) fn lowering(operation: &'static str, fault: impl Into<String>) -> Self {
        Self::Lowering {
            operation,
            fault: fault.into(),
        }
    }
}
