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
//!
//! # What the compiler refuses
//! This is how things are used:
//! ```
//! # use std::{any::Any, sync::Arc};
//! # use stepmesh_rdma::{Access, verbs::*};
//! fn post(queue_pair: &mut QueuePair, list: &mut SendList, write: &Write) {
//!     // SAFETY: the memory stays registered until the write completed.
//!     let _ = unsafe { list.push_write(write) };
//!     let _ = queue_pair.post(list);
//! }
//! fn register(domain: &Arc<ProtectionDomain>, memory: Arc<dyn Any + Send + Sync>) {
//!     // SAFETY: the range lies in `memory`.
//!     let region = unsafe { domain.register(0x1000, 4096, Access::LOCAL, memory) };
//!     let Ok(region) = region else { return };
//!     println!("{:#x}", region.lkey());
//!     let _ = region.close();
//! }
//! fn poll(queue: &mut CompletionQueue, one: &mut [WorkCompletion]) {
//!     let _ = queue.poll(one);
//! }
//! fn watch(context: Arc<Context>) {
//!     println!("{:?}", context.async_fd());
//!     drop(context);
//! }
//! ```
//! Only one thread posts to a queue pair at a time:
//! ```compile_fail,E0596
//! # use stepmesh_rdma::verbs::*;
//! fn post(queue_pair: &QueuePair, list: &mut SendList) {
//!     let _ = queue_pair.post(list);
//! }
//! ```
//! Only one polls a completion queue at a time:
//! ```compile_fail,E0596
//! # use stepmesh_rdma::verbs::*;
//! fn poll(queue: &CompletionQueue, one: &mut [WorkCompletion]) {
//!     let _ = queue.poll(one);
//! }
//! ```
//! A write names memory by address, which somebody must vouch for:
//! ```compile_fail,E0133
//! # use stepmesh_rdma::verbs::*;
//! fn push(list: &mut SendList, write: &Write) {
//!     let _ = list.push_write(write);
//! }
//! ```
//! So does a registration:
//! ```compile_fail,E0133
//! # use std::{any::Any, sync::Arc};
//! # use stepmesh_rdma::{Access, verbs::*};
//! fn register(domain: &Arc<ProtectionDomain>, memory: Arc<dyn Any + Send + Sync>) {
//!     let _ = domain.register(0x1000, 4096, Access::LOCAL, memory);
//! }
//! ```
//! The keys of a region are gone with it:
//! ```compile_fail,E0382
//! # use stepmesh_rdma::verbs::*;
//! fn close(region: MemoryRegion) {
//!     let _ = region.close();
//!     println!("{:#x}", region.lkey());
//! }
//! ```
//! A descriptor is not used after its device was closed:
//! ```compile_fail,E0505
//! # use std::sync::Arc;
//! # use stepmesh_rdma::verbs::*;
//! fn watch(context: Arc<Context>) {
//!     let fd = context.async_fd();
//!     drop(context);
//!     println!("{fd:?}");
//! }
//! ```
//! A queue pair cannot outlive what it hangs from, for it holds on to it: there is nothing to refuse.

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
