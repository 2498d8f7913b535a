//! The StepMesh host: finds, loads and drives accelerator backends.
//!
//! A backend is a plugin: a shared library with the C ABI of [`abi`]. [`Backend::open`] finds the
//! plugins, takes the one the configuration names, and gives it out as handles: [`Backend`],
//! [`Device`], [`Buffer`], [`Stream`], [`Event`].
//!
//! Choices that hold for the whole crate:
//! - A plugin is judged by its ELF note, owner and mode before any of its code runs. A bad one is a
//!   [`Candidate`] with a [`Reason`]; it never stops the others.
//! - A backend that was named and cannot be used is an error that lists every candidate. There is no
//!   silent fallback.
//! - What is loaded stays loaded. What is opened is closed when its last handle goes.
//! - The host's copy of a plugin's table has no holes: optional functions that are missing are
//!   emulated, or answer [`Error::Unsupported`]. Answers of a plugin are checked before use.
//! - The `cpu` backend is linked in (feature `static-cpu`, on by default), so that a program works
//!   without any plugin file; a file of the same name wins.
//!
//! # Example
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//! use stepmesh_core::{Backend, config::{Config, Sources}};
//!
//! # fn main() -> Result<(), stepmesh_core::Error> {
//! let sources = Sources::from_env([("STEPMESH_BACKEND", "cpu")]);
//! let backend = Backend::open(&Config::load(&sources)?.config)?;
//! let device = backend.device(0)?;
//!
//! let (from, to) = (Arc::new(device.alloc(4096)?), Arc::new(device.alloc(4096)?));
//! from.write_bytes(0, b"hidden states")?;
//! let stream = device.create_stream()?;
//! stream.copy(&to, 0, &from, 0, 4096)?;
//! stream.synchronize(Duration::from_secs(1))?;
//!
//! let mut out = [0; 13];
//! to.read_bytes(0, &mut out)?;
//! assert_eq!(&out, b"hidden states");
//! # Ok(())
//! # }
//! ```
//! A program passes `Sources::from_process()`, which also reads `config/stepmesh.toml` and the whole
//! environment.
//!
//! # Threads
//! Every type is `Send` and `Sync`; handles may be used and dropped in any thread.
//!
//! # Cleaning up
//! Dropping a handle gives it back. A destructor neither panics nor hides a failure: it logs it and
//! counts it in [`cleanup_failures`]; `release` returns it instead. Statics are never dropped, so
//! no plugin is closed while the process exits.
//!
//! # What can fail
//! Everything that talks to a plugin: see [`Error`]. Waits have a bound that the caller names.
//!
//! # What it does not do
//! It knows no network and no tensor, starts no thread of its own except to stand in for a
//! plugin's missing `launch_host_func`, and installs no log subscriber.
#![deny(unsafe_code)]

/// `stepmesh.compute.v1`: graphs of tensor operations that a device compiles and executes. Start with
/// [`Device::compute`].
///
/// The types of a graph are those of `stepmesh_graph`, which host and plugins share.
pub mod compute {
    pub use executable::{Argument, Executable, ExecutableInfo};
    pub use host::Compute;
    pub use stepmesh_graph::{
        Alias, Attribute, CompareDirection, CompileOptions, DType, DTypeClass, Error as GraphError,
        F64, Graph, GraphBuilder, Node, NodeId, Op, OpKind, Parts, RANK_MAX, RawGraph, RawNode,
        RawValue, Shape, TensorType, TextForm, float8, infer, philox, stablehlo,
    };

    pub(crate) use host::Functions;

    mod executable;
    mod host;
    #[cfg(test)]
    #[expect(unsafe_code, reason = "plays a plugin")]
    mod tests;
}
pub mod config;
pub mod original;

mod backend;
mod buffer;
mod cleanup;
mod device;
mod discovery;
mod error;
mod event;
#[cfg(test)]
mod fake;
mod flags;
mod framework;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod host;
mod instance;
mod loader;
mod mem_event;
mod names;
mod probe;
mod rdma;
mod registry;
mod secure;
mod status;
mod stream;
mod table;

pub use backend::{Backend, RawBackend};
pub use buffer::{AllocFlags, AllocOptions, Buffer, ExportedFd};
pub use cleanup::cleanup_failures;
pub use device::{
    Capabilities, Device, DeviceInfo, Health, MemoryInfo, MemoryKind, PointerAttributes,
};
pub use discovery::{Note, Reason};
pub use error::{Error, Unavailable};
pub use event::{Event, EventOptions, WaitMode};
pub use flags::{CaptureState, FlagOutcome, Flags, Word};
pub use framework::set_current_stream_source;
pub use loader::StaticPlugin;
pub use mem_event::MemEvent;
pub use rdma::{Dmabuf, DmabufMapping, FlushScope, MemoryWatcher, Rdma, RdmaCapabilities};
pub use registry::{Candidate, Probe, Registry, State};
pub use status::ErrorFlags;
pub use stepmesh_abi as abi;
pub use stream::Stream;

#[cfg(test)]
mod tests;
