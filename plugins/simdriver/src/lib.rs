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
//! - It runs no machine code of a GPU. The vendors' run-time compilers compile source as C++ for the
//!   host, with a header that stands in for the grid ([`Programs`]); such a module is loaded as a
//!   library and run over the touchable addresses. A module with the names of StepMesh's own flag
//!   kernels in it is that text, and those are done in Rust.
//! - Products of matrices are a plain loop. They need a workspace that was given to them, and write to it.
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
//! | `STEPMESH_SIMDRIVER_CXX` | `c++` | the compiler for the host |
//! | `STEPMESH_SIMDRIVER_KEEP` | | set: sources that do not compile are left in the folder `compiled` beside the library |
//!
//! The vendors' own `CUDA_VISIBLE_DEVICES` and `HIP_VISIBLE_DEVICES` work too. A library that lacks
//! functions, as that of an old driver, is made from these by renaming the symbols in a copy.
//!
//! # Threads
//! Everything may be called from any thread.
#![deny(unsafe_code)]

pub use boundary::{ImageAt, Out, OutText, Params, Text, Values, call, close};
pub use capture::{Capture, CaptureState, Graph};
pub use code::{Entry, Function, Launch};
pub use driver::{Driver, driver, init, visible};
pub use event::Event;
pub use faults::Faults;
pub use kernel::Kernel;
pub use memory::{BlockFacts, MemoryKind};
pub use options::Options;
pub use product::{Element, Gemm, Matrix, has_unit_scalars};
pub use status::{Answer, Status};
pub use stream::Stream;
pub use submit::Sides;
pub use toolchain::Programs;
pub use work::{CopyWork, FillWork, HostCall, HostFn, PointWork, Work};

mod boundary;
mod capture;
mod code;
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
mod product;
mod ranges;
mod status;
mod stream;
mod submit;
mod toolchain;
mod work;
