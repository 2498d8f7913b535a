//! The StepMesh backend for host memory.
//!
//! One device for each NUMA node that has memory, one at least. It is a whole backend and not a
//! stub: streams run work in order on threads of their own, events can be waited for with a bound,
//! and a test that passes here says something about the host's side of a GPU.
//!
//! Choices:
//! - Device and pinned memory are files in memory (memfd, sealed against a change of size), so
//!   another process can map them and a transfer is one copy. They are allocated when they are made:
//!   a lack of memory is an error of `alloc`, never a SIGBUS later.
//! - With the configuration key `shm.dir` the files lie in that directory, unlinked.
//! - Small allocations share a file; one made with `SM_ALLOC_SHAREABLE` has its own, so that its
//!   descriptor gives away nothing else.
//! - A network adapter registers this memory by its address, as any of the host's, so there is no
//!   dma-buf to export; nothing need be flushed.
//! - Graphs are compiled into fused kernels by `stepmesh-kernels` and run by the stream's thread and
//!   helpers; the option `cpu.threads` bounds them (default: what the process may run on).
//! - Streams and events are those of the kit's `software` module: threads, one a stream.
//!
//! # Threads
//! Everything may be called from any thread. A stream starts its thread with its first work.
//!
//! # What it does not do
//! Managed memory, and stream-ordered allocation (the host stands in for that). It pins no thread to
//! a node.
#![deny(unsafe_code)]

mod backend;
mod buffer;
mod compute;
mod device;
mod engine;
mod sys;

pub use backend::Cpu;

stepmesh_plugin::static_backend!(Cpu);
#[cfg(feature = "plugin")]
stepmesh_plugin::export_backend!(Cpu);
