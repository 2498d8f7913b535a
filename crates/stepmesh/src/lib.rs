//! Push and pull tensors between accelerators: scheduler, workers and servers.
//!
//! Attention-FFN disaggregation splits each layer of a language model: workers hold the attention
//! and push hidden states to servers, which hold the experts, compute, and write the results
//! straight into the workers' memory. This crate is the mesh between them.
//!
//! # Design choices
//! - *Any accelerator.* Memory comes from a backend of [`stepmesh_core`]; a tensor is a typed view
//!   of it. Memory that a fabric cannot reach is staged through pinned host memory, and
//!   [`Trace::staged`] says so.
//! - *One copy, or none.* A push is a one-sided write from the worker's tensor into the server's
//!   slot, an answer one from the server's tensor into the worker's. The server sees views of its
//!   slots; nothing is copied out of them.
//! - *Whoever waits drives.* [`Handle::wait`] and [`Server::get_batch`] poll the fabrics
//!   themselves; no thread stands between a message and the one who wants it. A background thread
//!   drives while nobody waits, keeps heartbeats, and wakes futures.
//! - *Credits.* A slot is written again only after its batch was answered or dropped; both sides
//!   count.
//! - *Matched, not ordered.* Batches of several workers are brought together by [`Tag`] (layer,
//!   stage), not by arrival.
//! - *Bounded.* Every wait ends, in a result or in a typed [`Error`] that names the peer and what
//!   helps. The death of a peer fails its requests and nobody else's.
//!
//! # Example
//! A scheduler, a server that doubles what it gets, and a worker; here as threads, usually as
//! processes on several hosts.
//!
//! ```
//! use std::time::Duration;
//! use stepmesh::{Keyed, Scheduler, Server, Tensor, Worker};
//! use stepmesh_core::{Backend, config::Config};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut config = Config::default();
//! config.backend = "cpu".into();
//! let device = Backend::open(&config)?.device(0)?;
//!
//! let mut scheduler = Scheduler::start(&config)?;
//! config.mesh.scheduler_port = scheduler.address().port();
//! let scheduler = std::thread::spawn(move || scheduler.run());
//!
//! let (server_config, server_device) = (config.clone(), device.clone());
//! let server = std::thread::spawn(move || -> Result<(), stepmesh::Error> {
//!     let server = Server::start(&server_config, &server_device)?;
//!     for mut batch in server.get_batch(Duration::from_secs(10))? {
//!         let doubled: Vec<f32> =
//!             batch.tensors()[0].to_vec::<f32>()?.iter().map(|value| 2.0 * value).collect();
//!         let answer = Tensor::from_slice(&server_device, &[3], &doubled)?;
//!         batch.respond(&[answer])?.wait(Duration::from_secs(10))?;
//!     }
//!     Ok(())
//! });
//!
//! let worker = Worker::start(&config)?;
//! let push = Tensor::from_slice(&device, &[3], &[1.0f32, 2.0, 3.0])?;
//! let pull = Tensor::from_slice(&device, &[3], &[0.0f32; 3])?;
//! let handle = worker.push_pull(&[Keyed::new(1, &push)], &[Keyed::new(2, &pull)])?;
//! handle.wait(Duration::from_secs(10))?;
//! assert_eq!(pull.to_vec::<f32>()?, [2.0, 4.0, 6.0]);
//! # drop(handle);
//! # server.join().map_err(|_| "the server panicked")??;
//! # drop(worker);
//! # scheduler.join().map_err(|_| "the scheduler panicked")??;
//! # Ok(())
//! # }
//! ```
//!
//! # Thread safety
//! [`Worker`], [`Server`] and everything they hand out may be used from any thread. Several
//! threads may wait at once; each drives, and each is woken by what another one's poll brought.
//!
//! # Resources
//! Dropping a [`Worker`] or [`Server`] says goodbye to its peers and ends its thread, within
//! `timeouts.close_ms`. Tensors and the memory behind them live as long as anything refers to
//! them, a posted write included.
//!
//! # What it does not do
//! It does not compute, encrypt, or route: members of a rail talk directly, in a network that is
//! trusted; the mesh's token keeps strangers and mix-ups out, not eavesdroppers. The fabrics
//! themselves are in [`stepmesh_transport`].

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

/// Compiles the README's example.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
