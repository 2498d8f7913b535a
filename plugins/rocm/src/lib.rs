//! The StepMesh backend for AMD GPUs.
//!
//! What a backend does is in `stepmesh-driver`, shared with `cuda`; here are the calls of HIP that serve
//! it, one place for each: the module `driver`.
//!
//! Choices:
//! - The HIP library is opened by name when the backend is probed or opened and is not linked, so the
//!   plugin loads on any machine. Its functions are looked up one by one; versions 5, 6 and 7 are taken.
//! - hip-sys gives types and numbers. Its functions are not called, for they would have to be linked, and
//!   return a Rust enum, which a newer library's number outside of it would make undefined. Structs whose
//!   layout differs between versions are not read.
//! - HIP has a current device for each thread, and a last error. Both are what they were when a call
//!   returns: frameworks look at the last error after each kernel.
//! - dma-bufs come from HSA, the layer below, whose library HIP has loaded already.
//! - Kernels are HIP source (`kernels/`), compiled for the card by HIP's run-time compiler when they are
//!   first used. Without the compiler there is no `stepmesh.graph.v1`.
//! - Code of graphs is made by the same compiler, and products are rocBLAS', of HIP's own major version.
//!
//! # Threads
//! Everything may be called from any thread.
//!
//! # What it does not do
//! Events between processes; flushes of network adapters' writes and synchronous copies for them, for
//! which HIP has no calls. It sets no option of HIP's and reads no variable: what `HIP_VISIBLE_DEVICES`
//! hides is not there.
#![deny(unsafe_code)]

pub use compiler::Hiprtc;
pub use driver::{Previous, Rocm};
pub use rocblas::Rocblas;

use stepmesh_driver::Accelerator;

mod compiler;
mod driver;
mod facts;
mod functions;
mod handles;
mod hsa;
mod kernels;
mod pointer;
mod rocblas;
mod status;
mod toolkit;

/// The backend.
pub type RocmBackend = Accelerator<Rocm>;

stepmesh_plugin::static_backend!(RocmBackend);
#[cfg(feature = "plugin")]
stepmesh_plugin::export_backend!(RocmBackend);
