//! A GPU driver on host memory, for tests. Two libraries stand on it, `libcuda.so.1` and
//! `libamdhip64.so.6`, so that the real plugins run through the real loader on a machine without a
//! GPU. It proves our code, not the hardware: its devices say so in their names, and it is never
//! installed beside the plugins.
//!
//! Choices:
//! - It answers as the vendors' documentation says, with their numbers, which CUDA and HIP share
//!   ([`Status`]). Where a driver may do this or that, it does what is harder on the caller.
//! - The memory of a device is one file, mapped twice: at an address that no one may touch, which is
//!   what allocations give, and at one that the driver works through. Code that forgets that memory is
//!   a device's dies at once.
//! - Handles are numbers, not addresses: one that is wrong or was destroyed is `INVALID_HANDLE`.
//! - Each stream has a thread, started with its first work. The legacy default stream waits for the
//!   blocking streams of its device, and they for it.
//! - Work that touches memory which is gone breaks its device (`ILLEGAL_ADDRESS`), for good.
//! - It runs no machine code. A module is searched for the names of StepMesh's own kernels, and those
//!   are done in Rust; any other kernel is `NOT_FOUND`.
//! - A graph is the captured work in the order in which it was submitted, replayed on one stream.
//! - dma-bufs come from `/dev/udmabuf`. Without it there are none, unless plain memory files are asked
//!   for in their place.
//!
//! # Environment
//! | variable | default | meaning |
//! |---|---|---|
//! | `STEPMESH_SIMDRIVER_DEVICES` | 2 | number of devices, 0 to 64 |
//! | `STEPMESH_SIMDRIVER_MEMORY_BYTES` | 1 GiB | memory of each |
//! | `STEPMESH_SIMDRIVER_DMABUF` | | `memfd`: HIP exports memory files, which are no dma-bufs; CUDA's call cannot say where in one the memory is |
//! | `STEPMESH_SIMDRIVER_FAULTS` | | what goes wrong, see [`Faults`] |
//!
//! The vendors' own `CUDA_VISIBLE_DEVICES` and `HIP_VISIBLE_DEVICES` work too. A library that lacks
//! functions, as that of an old driver, is made from these by renaming the symbols in a copy.
//!
//! # Threads
//! Everything may be called from any thread.
#![deny(unsafe_code)]

pub use boundary::{Out, OutText, Params, Text, Values, call, close};
pub use capture::{Capture, CaptureState, Graph};
pub use driver::{Driver, driver, init, visible};
pub use event::Event;
pub use faults::Faults;
pub use kernel::Kernel;
pub use memory::{BlockFacts, MemoryKind};
pub use options::Options;
pub use status::{Answer, Status};
pub use stream::Stream;
pub use submit::Sides;
pub use work::{CopyWork, FillWork, HostCall, HostFn, PointWork, Work};

mod boundary;
mod capture;
mod device;
mod dmabuf;
mod driver;
mod event;
mod faults;
mod graphs;
mod handles;
mod ipc;
mod kernel;
mod memory;
mod options;
mod ranges;
mod status;
mod stream;
mod submit;
mod work;
