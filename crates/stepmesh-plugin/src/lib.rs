//! The kit for authors of StepMesh accelerator backends.
//!
//! Implement [`Backend`], write [`export_backend!`], build a `cdylib`: the result is a plugin. What
//! the C ABI asks for beyond the work itself is done here, once:
//! - the ELF note and the one exported symbol;
//! - a guard on each slot: a panic becomes `SM_INTERNAL`, poisons that instance only, and is named
//!   by every later call on it;
//! - arguments are checked before a method sees them: device ordinals, null pointers, stream 0,
//!   unknown enum values, struct sizes of an older or newer host;
//! - errors go to the caller's [`SmError`](stepmesh_abi::SmError) within its size, and to the
//!   calling thread's `last_error`;
//! - an instance refuses to work in a forked child, and after `quiesce`.
//!
//! A backend whose hardware has no streams of its own finds them in [`software`]; one that keeps
//! the table of its memory itself finds that in [`Allocations`].
//!
//! A slot for which a backend has no method stays empty ([`Backend::OPTIONAL`]), so that the host
//! can stand in for it.
//!
//! # Example
//! A whole plugin is in `docs/abi.md` and in this crate's tests (`tests/it/fake.rs`); the real one
//! for host memory is `plugins/cpu`.
//!
//! # Threads
//! Methods take `&self` and are called from any thread at once; the trait asks for `Send + Sync`.
//!
//! This crate loads no library, knows no vendor and keeps no state but the host's table and a count of
//! allocations.
#![deny(unsafe_code)]
#![deny(improper_ctypes_definitions)]

pub mod software;

/// `stepmesh.compute.v1`: graphs of tensor operations that a backend compiles and executes. Implement
/// [`Compute`](compute::Compute), and offer it with `Extension::compute`.
///
/// The types of a graph are those of `stepmesh_graph`, which host and kit share.
pub mod compute {
    pub use backend::Compute;
    pub use stepmesh_graph::{
        Alias, CompareDirection, CompileOptions, DType, DTypeClass, F64, Graph, GraphBuilder, Node,
        NodeId, Op, OpKind, RANK_MAX, Shape, TensorType, TextForm, float8, philox,
    };

    mod backend;
    mod blob;
    mod read;
    mod table;
}

pub use allocations::{Allocation, Allocations};
pub use backend::{Backend, Optional};
pub use error::{Error, Result};
pub use graph::{Capture, FlagWait, Graph};
pub use host::{Host, LogLevel};
pub use ipc::{Ipc, IpcExport, IpcImport};
pub use mem_event::MemEvents;
pub use rdma::{DmabufExport, DmabufMapping, FlushScope, Invalidation, Rdma};
pub use request::{
    AllocKind, AllocRequest, CopyRequest, Direction, EventOptions, EventState, Extension,
    FillRequest, Health, HostFunc, Probe, Stream, WaitMode,
};
pub use stepmesh_abi as abi;
pub use table::{note, query, query_exported, table};
pub use text::text_field;

mod allocations;
mod backend;
mod boundary;
mod error;
mod export;
mod fork;
mod graph;
mod host;
mod instance;
mod ipc;
mod mem_event;
mod rdma;
mod request;
mod slots;
mod table;
mod text;

/// The document's plugin is compiled as a test, so that it stays true.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/abi.md")]
struct AbiDocument;
