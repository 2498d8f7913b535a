//! PyTorch beside the mesh: a backend's devices as torch devices, and tensors shared by both without
//! a copy, by way of libtorch (C++) and the crate `tch`.
//!
//! Nothing of it exists without the feature `torch`, which needs libtorch 2.11: `cargo xtask
//! torch-test` fetches one for the CPU and runs the tests; docs/torch.md tells how to use your own.
//!
//! # Design choices
//! - *The plugin's facts decide.* Which torch device a backend's device is, is what its plugin says
//!   (`torch_device_type`, `torch_index`); a type that `tch` cannot name is an error, never another
//!   device.
//! - *Whole storages.* A torch tensor enters the mesh as its whole storage with the tensor as a view
//!   of it, so that views of one storage share one registration, and a storage is alive as long as
//!   the mesh uses any of it.
//! - *Owners, not borrows.* A tensor made over mesh memory holds that memory through its own
//!   reference count; no view of it can outlive the memory, on whichever thread it ends.
//! - *Nothing crosses the boundary.* C++ exceptions become errors; panics do not reach C++.
//!
//! # Threads
//! `tch::Tensor` is `Send`; everything made here may be used and dropped on any thread.
//!
//! # What it does not do
//! It never copies: what cannot be shared is an error that says so. It does not build or find
//! libtorch; torch-sys does, from `LIBTORCH`.
#![deny(unsafe_code)]

#[cfg(feature = "lazy")]
mod backend;
#[cfg(feature = "torch")]
mod device;
#[cfg(feature = "torch")]
mod dlpack;
#[cfg(feature = "torch")]
mod dtype;
#[cfg(feature = "torch")]
mod error;
#[cfg(feature = "lazy")]
pub mod lazy;
#[cfg(feature = "torch")]
mod request;
#[cfg(feature = "torch")]
mod stream;
#[cfg(feature = "torch")]
mod sys;
#[cfg(feature = "torch")]
mod tensor;

#[cfg(feature = "lazy")]
pub use backend::TorchBackend;
#[cfg(feature = "torch")]
pub use device::{register_cuda, torch_device};
#[cfg(feature = "torch")]
pub use dlpack::{DlDataType, DlDevice, DlTensor, ManagedTensor, RawManagedTensor};
#[cfg(feature = "torch")]
pub use dtype::{dtype_of, kind_of};
#[cfg(feature = "torch")]
pub use error::Error;
#[cfg(feature = "torch")]
pub use request::{Keyed, push_pull};
#[cfg(feature = "torch")]
pub use stream::follow_torch_streams;
#[cfg(feature = "torch")]
pub use tensor::{from_torch, to_torch};

/// Compiles the examples of the page about PyTorch.
#[cfg(all(doctest, feature = "lazy"))]
#[doc = include_str!("../../../docs/torch.md")]
struct TorchDocument;
