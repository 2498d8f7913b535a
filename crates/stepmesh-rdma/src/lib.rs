//! The verbs fabric of StepMesh: tensors and messages by one-sided writes of an RDMA adapter, straight
//! from and to registered memory. `RdmaFabric` is what the mesh uses; below it are the choice of an
//! adapter ([`select`]) and the verbs themselves.
//!
//! Choices:
//! - `libibverbs.so.1` is opened when a device is first asked for. A program with the feature `rdma`
//!   has no need of it to start, and a machine without it gets one clear sentence. Types and
//!   constants come from rdma-sys; its extern functions are never named, so that the linker finds
//!   nothing to need.
//! - Three rings: `verbs::sys` (the functions as they are), `verbs::result` (a status becomes a
//!   [`VerbsError`], still unsafe), and the safe ring, whose types own what they stand for and hold
//!   on to what it hangs from. Unsafe in the safe ring are only those calls that vouch for memory.
//! - What a device gives is asked and never assumed: inline size, depths and tables.
//! - A number that a newer library may extend (a status, an opcode, an event) has an `Unknown`.
//! - Nothing that is logic needs a device or the feature: errors, selection and plans compile and are
//!   tested without.
//!
//! # Threads
//! The verbs are thread safe; what only one thread may do at a time (polling, posting) takes
//! `&mut self` here, so that no lock of ours is needed.
//!
//! # Cleanup
//! Each object is destroyed when it is dropped, children before parents; a failure to do so is logged
//! and stays in the `verbs::Ledger`, which tests assert to be empty. The objects
//! with a `close` report it instead.
//!
//! # What it does not do
//! No rdma_cm, no unreliable datagrams, no shared receive queues, no reads and atomics: the mesh needs
//! writes over reliable connections only.
#![deny(unsafe_code)]

pub use access::Access;
pub use error::{Error, PostError, VerbsError};
#[cfg(feature = "rdma")]
pub use fabric::RdmaFabric;
pub use fabric::{Counters, RdmaOptions};

mod access;
mod error;
mod fabric;
pub mod registration;
pub mod select;
#[cfg(feature = "rdma")]
pub mod verbs;
