//! Verbs in three rings; see the crate's documentation. Which device, port and GID to use is told in
//! `select`, how memory of a backend is registered in `registration`.
//!
//! ```no_run
//! use std::sync::Arc;
//! use stepmesh_rdma::verbs::{Context, CompletionQueue, ProtectionDomain, QpOptions, QueuePair};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = stepmesh_rdma::verbs::devices()?.into_iter().next().ok_or("no device")?;
//! let context = Context::open(&device)?;
//! let domain = ProtectionDomain::new(&context)?;
//! let completions = CompletionQueue::new(&context, 128, None)?;
//! let queue_pair = QueuePair::new(&domain, &completions, &completions, &QpOptions::default())?;
//! println!("{} gave {:?}", device.name(), queue_pair.caps());
//! # Ok(())
//! # }
//! ```

pub use completion::{CompletionChannel, CompletionQueue, Opcode, WorkCompletion, WorkStatus};
pub use context::{Context, DeviceAttributes, LinkLayer, Mtu, PortAttributes, PortState};
pub use device::{DeviceHandle, devices};
pub use event::AsyncEvent;
pub use ledger::Ledger;
pub use memory_region::MemoryRegion;
pub use path::{Endpoint, PathOptions};
pub use protection_domain::{DmabufSlice, ProtectionDomain};
pub use queue_pair::{QpCaps, QpOptions, QueuePair};
pub use send_list::{SendList, Write};
pub use sys::{ForkSupport, fork_support};

mod completion;
mod context;
mod device;
mod event;
pub mod ledger;
mod memory_region;
mod path;
mod protection_domain;
mod queue_pair;
mod result;
mod send_list;
mod sys;
