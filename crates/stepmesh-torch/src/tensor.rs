//! Tensors that torch and the mesh share.
#![expect(unsafe_code, reason = "vouches for the memory of the other side")]

use std::any::Any;
use std::ffi::c_void;
use std::sync::{Arc, Mutex};

use stepmesh::{Shape, Tensor};
use stepmesh_core::Device;

use crate::sys::{self, Owner, Place};
use crate::{Error, device, dtype};

/// A torch tensor as one of the mesh, sharing its memory: what the mesh writes into it, torch sees.
/// The storage stays alive as long as the mesh uses it. `device` is the mesh's device of the tensor.
///
/// # Errors
/// [`Error::WrongDevice`], [`Error::NotContiguous`], [`Error::UnsupportedKind`]; [`Error::Core`] when
/// the backend does not take the memory, such as another device's.
pub fn from_torch(device: &Device, tensor: &tch::Tensor) -> Result<Tensor, Error> {
    let operation = "sharing a torch tensor with the mesh";
    let (facts, dims) = sys::facts(tensor)?;
    let expected = device::torch_device(device)?;
    if device::from_raw(facts.device_type, facts.device_index) != Some(expected) {
        return Err(Error::WrongDevice {
            operation,
            found: sys::device_name(tensor)?,
            expected,
        });
    }
    if facts.is_contiguous == 0 {
        return Err(Error::NotContiguous { operation });
    }
    let dtype = dtype::dtype_of_dlpack(facts.dlpack_code, facts.dlpack_bits).ok_or_else(|| {
        Error::UnsupportedKind {
            operation,
            kind: format!("DLPack {}:{}", facts.dlpack_code, facts.dlpack_bits),
        }
    })?;
    let dims: Vec<u64> = dims.iter().map(|dim| dim.unsigned_abs()).collect();
    // In a lock only because a tensor is not `Sync`; nobody takes it.
    let owner: Arc<dyn Any + Send + Sync> = Arc::new(Mutex::new(tensor.shallow_clone()));
    // SAFETY: libtorch says that this is the tensor's storage, which the clone keeps; dense memory of
    // torch's CPU is ordinary memory, and whoever shares it with a mesh has it written by peers.
    let buffer = unsafe { device.wrap(facts.storage_address, facts.storage_len_bytes, owner) }?;
    let shape = Shape::new(&dims)?;
    Ok(Tensor::at(
        Arc::new(buffer),
        facts.offset_bytes,
        dtype,
        shape,
    )?)
}

/// A tensor of the mesh as one of torch, sharing its memory and keeping it alive: it goes when the
/// last view of it goes, on whichever thread.
///
/// # Errors
/// [`Error::NoTorchDevice`]; [`Error::NoCuda`] for a CUDA device's memory when libtorch has no CUDA
/// devices; [`Error::Torch`] when it does not take the memory.
pub fn to_torch(tensor: &Tensor) -> Result<tch::Tensor, Error> {
    let operation = "sharing a tensor of the mesh with torch";
    let target = device::torch_device(tensor.buffer().device())?;
    if target.is_cuda() {
        device::register_cuda()?;
    }
    let (dtype, shape) = (tensor.dtype(), tensor.shape());
    let scalar_type = dtype::scalar_type_of(dtype);
    let raw = device::raw(target);
    let (Some(scalar_type), Some((device_type, device_index))) = (scalar_type, raw) else {
        return Err(Error::UnsupportedDType { operation, dtype });
    };
    let dims: Result<Vec<i64>, _> = shape.dims().iter().map(|dim| i64::try_from(*dim)).collect();
    let dims = dims.map_err(|_| Error::Torch {
        operation,
        message: format!("{shape} has more elements than torch can count"),
    })?;
    let place = Place {
        address: tensor.device_ptr(),
        dims: &dims,
        scalar_type,
        device_type,
        device_index,
    };
    let owner = Owner {
        context: Box::into_raw(Box::new(Arc::clone(tensor.buffer()))).cast(),
        drop: let_go,
    };
    // SAFETY: a tensor of the mesh lies within its buffer (checked when it was made), which the owner
    // holds until it is let go; `let_go` may run anywhere, for a buffer is `Send`.
    unsafe { sys::tensor_over(place, owner) }
}

/// Drops the reference that a torch tensor held.
unsafe extern "C" fn let_go(context: *mut c_void) {
    // SAFETY: made by `to_torch` from a box of this type, and called once.
    let buffer = unsafe { Box::from_raw(context.cast::<Arc<stepmesh_core::Buffer>>()) };
    drop(buffer);
}
