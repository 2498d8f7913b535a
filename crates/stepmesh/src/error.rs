//! What can go wrong in the mesh. Backends' and fabrics' own errors are carried inside.

use std::fmt;
use std::sync::Arc;

use crate::role::Member;

/// A failure of the mesh. Each names the operation, the peer or memory, and what helps.
///
/// Cloning is cheap: one failure of a peer is handed to each request that it ends.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The backend refused something.
    #[error("{operation} failed")]
    Backend {
        /// What the mesh was doing.
        operation: &'static str,
        /// What the backend said.
        source: Arc<stepmesh_core::Error>,
    },
    /// The fabric refused something.
    #[error("{operation} failed")]
    Fabric {
        /// What the mesh was doing.
        operation: &'static str,
        /// What the fabric said.
        source: Arc<stepmesh_transport::error::Error>,
    },
    /// The caller passed something that cannot be meant.
    #[error("{operation}: {reason}")]
    InvalidArgument {
        /// The call.
        operation: &'static str,
        /// What is wrong, and what would be right.
        reason: Arc<str>,
    },
    /// It was not done in time. The operation goes on and can be waited for again.
    #[error("{operation}: not done after {waited_ms} ms; still missing: {missing}")]
    Timeout {
        /// The call.
        operation: &'static str,
        /// How long it was waited for, in milliseconds.
        waited_ms: u64,
        /// Who or what had not answered.
        missing: Arc<str>,
    },
    /// A peer is gone, and what was outstanding with it has failed.
    #[error("{peer} is lost: {reason}")]
    PeerLost {
        /// Who.
        peer: Member,
        /// How it was noticed.
        reason: Arc<str>,
    },
    /// A peer refused a request.
    #[error("{peer} refused: {reason}")]
    Refused {
        /// Who.
        peer: Member,
        /// Why.
        reason: Arc<str>,
    },
    /// The server let go of the batch without answering it.
    #[error("{peer} released the batch without an answer")]
    Released {
        /// Who.
        peer: Member,
    },
    /// Every worker has left the mesh on purpose: there is nothing more to serve.
    #[error("every worker has left the mesh")]
    WorkersLeft,
    /// The mesh could not be formed.
    #[error("joining the mesh: {reason}")]
    Rendezvous {
        /// Why not, and what helps.
        reason: Arc<str>,
    },
    /// Not everybody came to the barrier.
    #[error("barrier: {reason}")]
    Barrier {
        /// Who is missing or lost.
        reason: Arc<str>,
    },
    /// The scheduler is gone; tensors still flow, barriers and joining do not.
    #[error("{operation}: the scheduler at {address} is lost: {reason}")]
    SchedulerLost {
        /// The call.
        operation: &'static str,
        /// Where it was.
        address: Arc<str>,
        /// How it was noticed.
        reason: Arc<str>,
    },
    /// A table would grow beyond its bound.
    #[error("{operation}: more than {limit} {what}; raise {remedy}")]
    Limit {
        /// The call.
        operation: &'static str,
        /// What there would be too many of.
        what: &'static str,
        /// The bound.
        limit: u64,
        /// The configuration key that raises it.
        remedy: &'static str,
    },
    /// The system refused what the mesh needs.
    #[error("the system refused {what}")]
    System {
        /// What was asked for.
        what: &'static str,
        /// What the system said.
        source: Arc<std::io::Error>,
    },
    /// This end of the mesh was closed.
    #[error("{operation}: this {what} is closed")]
    Closed {
        /// The call.
        operation: &'static str,
        /// The worker, server or scheduler.
        what: &'static str,
    },
}

impl Error {
    /// An [`Error::InvalidArgument`].
    pub(crate) fn invalid(operation: &'static str, reason: impl Into<Arc<str>>) -> Self {
        Self::InvalidArgument {
            operation,
            reason: reason.into(),
        }
    }

    /// Wraps a system error.
    pub(crate) fn system(what: &'static str, source: std::io::Error) -> Self {
        Self::System {
            what,
            source: Arc::new(source),
        }
    }

    /// Wraps a backend's error.
    pub(crate) fn backend(operation: &'static str) -> impl FnOnce(stepmesh_core::Error) -> Self {
        move |source| Self::Backend {
            operation,
            source: Arc::new(source),
        }
    }

    /// Wraps a fabric's error.
    pub(crate) fn fabric(
        operation: &'static str,
    ) -> impl FnOnce(stepmesh_transport::error::Error) -> Self {
        move |source| Self::Fabric {
            operation,
            source: Arc::new(source),
        }
    }
}

/// Joins names for the `missing` field of a timeout.
pub(crate) fn list<T: fmt::Display>(items: impl IntoIterator<Item = T>) -> Arc<str> {
    let names: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    if names.is_empty() {
        return "nothing".into();
    }
    names.join(", ").into()
}
