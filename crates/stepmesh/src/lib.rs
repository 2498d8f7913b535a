//! Push and pull tensors between accelerators: scheduler, workers and servers.

#![deny(unsafe_code)]

mod clock;
mod control;
mod dtype;
mod engine;
mod error;
#[expect(
    unsafe_code,
    reason = "describes backend memory to a fabric; see the module"
)]
mod memory;
mod protocol;
mod role;
mod scheduler;
mod server;
mod shape;
mod start;
mod tensor;
mod trace;
mod worker;

pub use dtype::{DType, Element};
pub use error::Error;
pub use protocol::server::PullInfo;
pub use protocol::wire::Tag;
pub use role::{Member, Role, Roles};
pub use scheduler::Scheduler;
pub use server::{Answer, Batch, Batches, Gather, Server};
pub use shape::{RANK_MAX, Shape};
pub use tensor::Tensor;
pub use trace::{Staged, Trace};
pub use worker::{Closer, Handle, Keyed, RequestOptions, Worker};
