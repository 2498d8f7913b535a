//! What can go wrong between torch and the mesh.
#![forbid(unsafe_code)]

use tch::{Device, Kind};

/// A failure of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The backend's device is of a type that torch, or `tch`, has no name for.
    #[error(
        "{backend}:{ordinal} is of torch device type {device_type:?}, which tch cannot name; use a \
         backend whose devices are `cpu` or `cuda` (ROCm's are `cuda` too)"
    )]
    NoTorchDevice {
        /// Name of the backend.
        backend: &'static str,
        /// Index of the device.
        ordinal: u32,
        /// The type that the plugin says.
        device_type: String,
    },
    /// The tensor lies on another device than the mesh's.
    #[error("{operation}: the tensor is on {found}, the mesh's device is {expected:?}; move it")]
    WrongDevice {
        /// What was tried.
        operation: &'static str,
        /// Where the tensor is, in torch's words, such as `lazy:0`.
        found: String,
        /// Where it must be.
        expected: Device,
    },
    /// The other side has no such element type.
    #[error("{operation}: there is no element type for {kind} there; convert the tensor")]
    UnsupportedKind {
        /// What was tried.
        operation: &'static str,
        /// Torch's type, or DLPack's.
        kind: String,
    },
    /// tch has no such element type.
    #[error("{operation}: tch has no element type for {dtype}")]
    UnsupportedDType {
        /// What was tried.
        operation: &'static str,
        /// The mesh's type.
        dtype: stepmesh::DType,
    },
    /// Only whole, row-major memory is pushed and pulled.
    #[error("{operation}: the tensor is not contiguous; call contiguous() first")]
    NotContiguous {
        /// What was tried.
        operation: &'static str,
    },
    /// A DLPack tensor that cannot be right.
    #[error("{operation}: {fault}")]
    InvalidDlpack {
        /// What was tried.
        operation: &'static str,
        /// What is wrong with it.
        fault: String,
    },
    /// A device that cannot serve PyTorch's lazy core.
    #[error("serving PyTorch's lazy core: {fault}")]
    Lazy {
        /// What is wrong.
        fault: String,
    },
    /// A device of torch that [`TorchBackend`](crate::TorchBackend) does not serve.
    #[cfg(feature = "lazy")]
    #[error("a lazy backend on {device:?}: only the CPU and CUDA devices (ROCm's too) are served")]
    UnservedDevice {
        /// The device.
        device: Device,
    },
    /// This libtorch has no CUDA devices.
    #[error(
        "torch's CUDA half cannot be loaded ({reason}); put the `lib` folder of a PyTorch for CUDA, of \
         the version that this was built with, on LD_LIBRARY_PATH, or use backend `cpu`"
    )]
    NoCuda {
        /// What the loader said of each library that was tried.
        reason: String,
    },
    /// libtorch threw.
    #[error("{operation}: {message}")]
    Torch {
        /// What was tried.
        operation: &'static str,
        /// What libtorch said.
        message: String,
    },
    /// The mesh refused.
    #[error(transparent)]
    Mesh(#[from] stepmesh::Error),
    /// The backend refused.
    #[error(transparent)]
    Core(#[from] stepmesh_core::Error),
}

impl Error {
    pub(crate) fn kind(operation: &'static str, kind: Kind) -> Self {
        let kind = format!("{kind:?}");
        Self::UnsupportedKind { operation, kind }
    }
}
