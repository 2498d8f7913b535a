//! DLPack (dlpack.h 1.1, the unversioned `DLManagedTensor`): tensors handed from one framework to
//! another, with the function that gives them back.
#![expect(unsafe_code, reason = "foreign structs and their deleters")]

use std::any::Any;
use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use stepmesh::{RANK_MAX, Shape, Tensor};
use stepmesh_core::Device;

use crate::{Error, dtype, sys};

/// `DLDevice`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DlDevice {
    /// `DLDeviceType`: 1 CPU, 2 CUDA, 10 ROCm.
    pub device_type: i32,
    /// Index.
    pub device_id: i32,
}

/// `DLDataType`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DlDataType {
    /// `DLDataTypeCode`.
    pub code: u8,
    /// Bits of a lane.
    pub bits: u8,
    /// Lanes; 1 for what is no vector.
    pub lanes: u16,
}

/// `DLTensor`.
#[repr(C)]
#[derive(Debug)]
pub struct DlTensor {
    /// First byte of the allocation's part.
    pub data: *mut c_void,
    /// Where it is.
    pub device: DlDevice,
    /// Number of dimensions.
    pub ndim: i32,
    /// Type of an element.
    pub dtype: DlDataType,
    /// `ndim` dimensions.
    pub shape: *mut i64,
    /// `ndim` strides in elements; null for row-major.
    pub strides: *mut i64,
    /// Where in `data` the tensor starts, in bytes.
    pub byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
#[derive(Debug)]
pub struct RawManagedTensor {
    /// The tensor.
    pub dl_tensor: DlTensor,
    /// Of the producer.
    pub manager_ctx: *mut c_void,
    /// Gives all of it back; called once.
    pub deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

/// A DLPack tensor that this process was given. Dropping it calls its deleter, once, on whichever
/// thread drops it.
#[derive(Debug)]
pub struct ManagedTensor(NonNull<RawManagedTensor>);

// SAFETY: DLPack lets a consumer call the deleter on any thread; the struct is only read.
unsafe impl Send for ManagedTensor {}
// SAFETY: as for `Send`; shared references only read.
unsafe impl Sync for ManagedTensor {}

impl ManagedTensor {
    /// Takes a tensor from a producer.
    ///
    /// # Safety
    /// - `raw` is a valid `DLManagedTensor` that the caller owns, and gives away here.
    ///
    /// # Errors
    /// [`Error::InvalidDlpack`] for null.
    pub unsafe fn from_raw(raw: *mut RawManagedTensor) -> Result<Self, Error> {
        NonNull::new(raw)
            .map(Self)
            .ok_or_else(|| Error::InvalidDlpack {
                operation: "taking a DLPack tensor",
                fault: "it is null".into(),
            })
    }

    /// Gives the tensor away; the taker calls its deleter.
    #[must_use]
    pub fn into_raw(self) -> *mut RawManagedTensor {
        let raw = self.0.as_ptr();
        std::mem::forget(self);
        raw
    }

    /// A torch tensor, which stays alive until this is dropped.
    ///
    /// # Errors
    /// [`Error::Torch`] for what DLPack cannot say, such as tensors that require grad.
    pub fn from_torch(tensor: &tch::Tensor) -> Result<Self, Error> {
        let raw = sys::to_dlpack(tensor)?;
        // SAFETY: libtorch made it for us.
        unsafe { Self::from_raw(raw) }
    }

    /// The torch tensor over the same memory; its last view calls the deleter.
    ///
    /// # Errors
    /// [`Error::Torch`] when libtorch does not take it, such as another vendor's device.
    pub fn into_torch(self) -> Result<tch::Tensor, Error> {
        // SAFETY: valid and owned by the contract of `from_raw`.
        let tensor = unsafe { sys::from_dlpack(self.0.as_ptr()) }?;
        // Only now it is libtorch's.
        std::mem::forget(self);
        Ok(tensor)
    }

    /// A tensor of the mesh; its buffer stays alive until the deleter is called.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`], and [`Error::InvalidDlpack`] for more elements than DLPack can
    /// count.
    pub fn from_mesh(tensor: &Tensor) -> Result<Self, Error> {
        let operation = "exporting a tensor of the mesh as DLPack";
        let dtype = tensor.dtype();
        let unsupported = || Error::UnsupportedDType { operation, dtype };
        let (code, bits) = dtype::dlpack_of(dtype).ok_or_else(unsupported)?;
        let dims: Result<Vec<i64>, _> = tensor
            .shape()
            .dims()
            .iter()
            .map(|dim| i64::try_from(*dim))
            .collect();
        let dims = dims.map_err(|_| Error::InvalidDlpack {
            operation,
            fault: format!("{} is too large", tensor.shape()),
        })?;
        let (device_type, device_id) = tensor.buffer().device().info().dlpack;
        let export = Box::new(Export {
            raw: RawManagedTensor {
                dl_tensor: DlTensor {
                    data: ptr::with_exposed_provenance_mut(address(tensor.device_ptr())),
                    device: DlDevice {
                        device_type,
                        device_id,
                    },
                    ndim: i32::try_from(dims.len()).map_err(|_| unsupported())?,
                    dtype: DlDataType {
                        code: u8::try_from(code).map_err(|_| unsupported())?,
                        bits: u8::try_from(bits).map_err(|_| unsupported())?,
                        lanes: 1,
                    },
                    shape: ptr::null_mut(),
                    strides: ptr::null_mut(),
                    byte_offset: 0,
                },
                manager_ctx: ptr::null_mut(),
                deleter: Some(delete_export),
            },
            dims,
            _tensor: tensor.clone(),
        });
        let export = Box::into_raw(export);
        // SAFETY: just made; nobody else has it.
        let whole = unsafe { &mut *export };
        whole.raw.manager_ctx = export.cast();
        whole.raw.dl_tensor.shape = whole.dims.as_mut_ptr();
        Ok(Self(NonNull::from(&mut whole.raw)))
    }

    /// The tensor of the mesh over the same memory, which calls the deleter when the mesh has done
    /// with it. `device` is the mesh's device of that memory.
    ///
    /// # Errors
    /// [`Error::InvalidDlpack`] for another device than `device`, strides that are not row-major,
    /// vectors, and shapes that cannot be; [`Error::UnsupportedKind`]; [`Error::Core`].
    pub fn into_mesh(self, device: &Device) -> Result<Tensor, Error> {
        let operation = "importing a DLPack tensor into the mesh";
        let invalid = |fault: String| Error::InvalidDlpack { operation, fault };
        let tensor = self.tensor();
        let (device_type, device_id) = device.info().dlpack;
        let here = DlDevice {
            device_type,
            device_id,
        };
        if tensor.device != here {
            let found = tensor.device;
            return Err(invalid(format!(
                "it is on {found:?}, the mesh's device is {here:?}"
            )));
        }
        let dims = self.dims().map_err(invalid)?;
        if !self.is_row_major(&dims) {
            return Err(Error::NotContiguous { operation });
        }
        let DlDataType { code, bits, lanes } = tensor.dtype;
        let dtype = dtype::dtype_of_dlpack(code.into(), bits.into()).filter(|_| lanes == 1);
        let dtype = dtype.ok_or_else(|| Error::UnsupportedKind {
            operation,
            kind: format!("DLPack {code}:{bits}x{lanes}"),
        })?;
        let shape = Shape::new(&dims)?;
        let len_bytes = shape
            .len_bytes(dtype)
            .ok_or_else(|| invalid(format!("{shape} is larger than any memory")))?;
        let data = tensor.data.expose_provenance() as u64;
        let start = data.checked_add(tensor.byte_offset).filter(|_| data != 0);
        let start = match (start, len_bytes) {
            (_, 0) => 0,
            (Some(start), _) => start,
            (None, _) => return Err(invalid(format!("its data is at {data:#x}"))),
        };
        let owner: Arc<dyn Any + Send + Sync> = Arc::new(self);
        // SAFETY: by DLPack the tensor's memory, which is dense (checked above), stays until its
        // deleter is called, which is when the owner goes; a producer that exports it shares it.
        let buffer = unsafe { device.wrap(start, len_bytes, owner) }?;
        Ok(Tensor::at(Arc::new(buffer), 0, dtype, shape)?)
    }

    /// The tensor as its producer describes it.
    #[must_use]
    pub fn tensor(&self) -> &DlTensor {
        // SAFETY: valid until the deleter is called, by the contract of `from_raw`.
        unsafe { &self.0.as_ref().dl_tensor }
    }

    /// The dimensions, checked.
    fn dims(&self) -> Result<Vec<u64>, String> {
        let tensor = self.tensor();
        let rank = usize::try_from(tensor.ndim)
            .ok()
            .filter(|rank| *rank <= RANK_MAX);
        let Some(rank) = rank.filter(|rank| *rank == 0 || !tensor.shape.is_null()) else {
            return Err(format!("{} dimensions", tensor.ndim));
        };
        if rank == 0 {
            return Ok(Vec::new());
        }
        // SAFETY: by DLPack `shape` has `ndim` numbers, and is not null (checked above).
        let dims = unsafe { slice::from_raw_parts(tensor.shape, rank) };
        let checked = |dim: &i64| u64::try_from(*dim).map_err(|_| format!("a dimension of {dim}"));
        dims.iter().map(checked).collect()
    }

    fn is_row_major(&self, dims: &[u64]) -> bool {
        let strides = self.tensor().strides;
        if strides.is_null() || dims.contains(&0) {
            return true;
        }
        // SAFETY: by DLPack strides that are not null have `ndim` numbers, as many as `dims`.
        let strides = unsafe { slice::from_raw_parts(strides, dims.len()) };
        let mut expected = 1_u64;
        dims.iter().zip(strides).rev().all(|(dim, stride)| {
            let is_next = *dim == 1 || u64::try_from(*stride) == Ok(expected);
            expected = expected.saturating_mul(*dim);
            is_next
        })
    }
}

impl Drop for ManagedTensor {
    fn drop(&mut self) {
        // SAFETY: valid until here, by the contract of `from_raw`.
        if let Some(deleter) = unsafe { self.0.as_ref() }.deleter {
            // SAFETY: called once, for this is the only owner.
            unsafe { deleter(self.0.as_ptr()) };
        }
    }
}

/// What is behind an exported tensor of the mesh.
struct Export {
    raw: RawManagedTensor,
    dims: Vec<i64>,
    _tensor: Tensor,
}

unsafe extern "C" fn delete_export(raw: *mut RawManagedTensor) {
    // SAFETY: only set by `from_mesh`, and called with that struct by DLPack's contract.
    let context = unsafe { (*raw).manager_ctx };
    // SAFETY: the context of `from_mesh` is the box, and the deleter is called once.
    let export = unsafe { Box::from_raw(context.cast::<Export>()) };
    drop(export);
}

fn address(at: u64) -> usize {
    usize::try_from(at).expect("invariant: addresses of this process have its width")
}
