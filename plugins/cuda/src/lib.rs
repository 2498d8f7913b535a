//! The StepMesh backend for NVIDIA GPUs.
//!
//! What a backend does is in `stepmesh-driver`, shared with `rocm`; here are the calls of CUDA's driver
//! API that serve it, one place for each: the module `driver`.
//!
//! Choices:
//! - The driver library is opened by name when the backend is probed or opened and is not linked, so the
//!   plugin loads on any machine. Its functions are looked up one by one.
//! - cudarc gives types and numbers, at the oldest version that has what is used (CUDA 11.7). Its own
//!   functions are not called: they panic where a library or a symbol is missing, and return a Rust enum,
//!   which a newer driver's number outside of it would make undefined.
//! - Work is done in the device's primary context, which frameworks use too, and the context that the
//!   caller has current is current again when a call returns.
//! - Kernels are PTX for the oldest architecture that has what they use (`kernels/`), compiled for the
//!   card by the driver.
//! - Code of graphs is made by NVRTC and products are cuBLAS', of a major version that the driver takes.
//!   Both are opened when a graph is first asked about, and are not linked either.
//!
//! # Threads
//! Everything may be called from any thread.
//!
//! # What it does not do
//! Events between processes. It sets no option of the driver's and reads no variable: what
//! `CUDA_VISIBLE_DEVICES` hides is not there.
#![deny(unsafe_code)]

pub use cublas::Cublas;
pub use driver::{Cuda, Previous, Primary};
pub use nvrtc::Nvrtc;

use stepmesh_driver::Accelerator;

mod cublas;
mod driver;
mod facts;
mod functions;
mod kernels;
mod nvrtc;
mod pointer;
mod status;
mod toolkit;

/// The backend.
pub type CudaBackend = Accelerator<Cuda>;

stepmesh_plugin::static_backend!(CudaBackend);
#[cfg(feature = "plugin")]
stepmesh_plugin::export_backend!(CudaBackend);
