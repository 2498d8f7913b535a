//! The StepMesh host: finds, loads and drives accelerator backends.
#![deny(unsafe_code)]

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
mod host;
mod instance;
mod loader;
mod names;
mod probe;
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
pub use loader::StaticPlugin;
pub use registry::{Candidate, Probe, Registry, State};
pub use status::ErrorFlags;
pub use stepmesh_abi as abi;
pub use stream::Stream;

#[cfg(test)]
mod tests;
