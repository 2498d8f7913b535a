//! A backend of PyTorch's own lazy core (torch/csrc/lazy), served by a StepMesh backend: tensors on
//! torch's `lazy` device are traced by PyTorch, and compiled and executed by the plugin that the
//! process uses, on its memory and streams.
//!
//! The C++ side (cpp/lazy.cc) implements `torch::lazy::BackendImplInterface` and hands graphs over
//! node by node; here they become [`stepmesh_graph`]s. cpp/kernels.cc makes operations that the core has
//! no node for of those that it has. What is left keeps to the core's own rule: it runs eagerly on the
//! CPU, and is counted as `aten::<op>`.
//!
//! The core has one backend in a process; [`register`] makes it ours.

mod aten;
mod backend;
mod data;
mod error;
mod hooks;
mod lowering;
mod program;

pub(crate) use hooks::Hooks;

use std::sync::Arc;

use stepmesh_core::Device;
use tch::Tensor;

use crate::{Error, dtype, sys};

/// Makes these devices those of PyTorch's lazy core: torch's `lazy:0` is the first of them, and so
/// on. Once in a process, before the first lazy tensor.
///
/// # Errors
/// [`Error::Lazy`] when it was done before, when there is no device, or one without
/// `stepmesh.compute.v1`; [`Error::Core`]; [`Error::Torch`].
pub fn register(devices: &[Device]) -> Result<(), Error> {
    hooks::register(Arc::new(backend::LazyBackend::new(devices)?))
}

/// The tensor on lazy device `ordinal`. Everything computed from it is lazy too, until a value is
/// asked for or [`mark_step`]. It is copied when it is first used.
///
/// # Errors
/// [`Error::Lazy`] when there is no such device; [`Error::UnsupportedKind`] for an element type that
/// graphs have not, such as complex numbers and 16-bit integers; [`Error::Torch`].
pub fn to_lazy(tensor: &Tensor, ordinal: u32) -> Result<Tensor, Error> {
    let operation = "moving a tensor to a lazy device";
    hooks::check_device(ordinal)?;
    let kind = tensor.f_kind().map_err(|error| Error::Torch {
        operation,
        message: error.to_string(),
    })?;
    let scalar_type = dtype::dtype_of(kind).ok().and_then(dtype::scalar_type_of);
    if scalar_type.and_then(data::dtype_of).is_none() {
        return Err(Error::kind(operation, kind));
    }
    sys::lazy_to_device(tensor, ordinal)
}

/// Ends a step of a device: every live tensor of it is computed, by one graph that is compiled if it
/// is new. With `waits` it is done when this returns; otherwise failures come with the next use.
/// After a failure, drop the tensors of the step that failed: they have no value, and the next step
/// would be asked for them again. One thread at a time uses a device.
///
/// # Errors
/// [`Error::Lazy`] when there is no such device; [`Error::Torch`], also for what went wrong earlier
/// on that device.
pub fn mark_step(ordinal: u32, waits: bool) -> Result<(), Error> {
    hooks::check_device(ordinal)?;
    sys::lazy_mark_step(ordinal, waits)
}

/// A counter of the core, such as `CachedCompile`, `UncachedCompile`, `MarkStep`, `lazy::mm`, or
/// `aten::nonzero` for an operation that ran eagerly; 0 for one that never counted.
///
/// # Errors
/// [`Error::Torch`] for a name with a NUL.
pub fn counter(name: &str) -> Result<i64, Error> {
    sys::lazy_counter(name)
}

/// The core's report of metrics and counters.
///
/// # Errors
/// [`Error::Lazy`] before [`register`]; [`Error::Torch`].
pub fn metrics_report() -> Result<String, Error> {
    hooks::check_registered()?;
    sys::lazy_metrics_report()
}

/// Sets the core's counters and metrics to nothing.
///
/// # Errors
/// [`Error::Torch`].
pub fn reset_metrics() -> Result<(), Error> {
    sys::lazy_reset_metrics()
}

/// Whose backend serves the core from here on: ours, or PyTorch's reference on TorchScript, to compare
/// with. No lazy tensor may be alive, for its value belongs to the other backend.
///
/// # Errors
/// [`Error::Lazy`] before [`register`]; [`Error::Torch`].
pub fn use_reference(is_reference: bool) -> Result<(), Error> {
    hooks::check_registered()?;
    sys::lazy_use_reference(is_reference)
}
