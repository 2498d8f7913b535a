//! Which torch device a backend's device is: the original's `GetDevice`; and the loading of torch's
//! CUDA half, without which there are no such devices.
#![expect(unsafe_code, reason = "loads a library, which runs its constructors")]

use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use tch::Device as TorchDevice;

use crate::Error;

/// The torch device of a backend's device, from the facts that its plugin tells.
///
/// # Errors
/// [`Error::NoTorchDevice`] when the plugin names a type that is neither `cpu` nor `cuda`, or an
/// index below 0 for `cuda`.
pub fn torch_device(device: &stepmesh_core::Device) -> Result<TorchDevice, Error> {
    let info = device.info();
    let index = usize::try_from(info.torch_index);
    match (&*info.torch_device_type, index) {
        ("cpu", _) => Ok(TorchDevice::Cpu),
        ("cuda", Ok(index)) => {
            // Before the first tensor of it: torch asks once whether CUDA is there.
            if let Err(error) = register_cuda() {
                tracing::debug!(%error, "torch has no CUDA devices");
            }
            Ok(TorchDevice::Cuda(index))
        }
        (device_type, _) => Err(Error::NoTorchDevice {
            backend: device.backend().name(),
            ordinal: device.ordinal(),
            device_type: format!("{device_type}:{}", info.torch_index),
        }),
    }
}

/// Loads `libtorch_cuda.so` (or ROCm's `libtorch_hip.so`) from beside libtorch, once, so that torch
/// has its CUDA devices: programs that were linked against the CPU half do not load it themselves.
/// Call it before torch is first asked for CUDA; [`torch_device`] does.
///
/// # Errors
/// [`Error::NoCuda`] when there is none, as in a build for the CPU.
pub fn register_cuda() -> Result<(), Error> {
    let loaded = LOADED.get_or_init(|| {
        let mut reasons = Vec::new();
        for name in CUDA_LIBRARIES {
            // SAFETY: torch's own library, whose constructors register its devices with the libtorch
            // that is loaded already; it is never unloaded.
            match unsafe { Library::open(Some(name), RTLD_NOW | RTLD_GLOBAL) } {
                Ok(library) => {
                    std::mem::forget(library);
                    return Ok(());
                }
                Err(error) => reasons.push(format!("{name}: {error}")),
            }
        }
        Err(reasons.join("; "))
    });
    let loaded = loaded.clone();
    loaded.map_err(|reason| Error::NoCuda { reason })
}

/// `c10::DeviceType` and index.
pub(crate) fn raw(device: TorchDevice) -> Option<(i32, i32)> {
    match device {
        TorchDevice::Cpu => Some((CPU, -1)),
        TorchDevice::Cuda(index) => Some((CUDA, i32::try_from(index).ok()?)),
        _ => None,
    }
}

/// The device of these numbers, if tch can name it.
pub(crate) fn from_raw(device_type: i32, index: i32) -> Option<TorchDevice> {
    match device_type {
        CPU => Some(TorchDevice::Cpu),
        CUDA => Some(TorchDevice::Cuda(usize::try_from(index).ok()?)),
        _ => None,
    }
}

/// Of c10/core/DeviceType.h; ROCm builds of torch use CUDA's.
const CPU: i32 = 0;
/// Of c10/core/DeviceType.h.
pub(crate) const CUDA: i32 = 1;

static LOADED: OnceLock<Result<(), String>> = OnceLock::new();

/// By the makers' names, in the order in which they are looked for.
const CUDA_LIBRARIES: [&str; 2] = ["libtorch_cuda.so", "libtorch_hip.so"];
