//! Bytes of the host to tensors and back, and torch's words for types and shapes. An fp8 tensor is one
//! of bytes here: torch moves those on every device.

use stepmesh_graph::{DType, Shape, TensorType};
use stepmesh_lazy::Error;
use tch::{Device, Kind, Tensor};

use super::evaluate::Fault;

/// A tensor of row-major bytes; or of one element, which all are.
pub(super) fn upload(ty: TensorType, bytes: &[u8], device: Device) -> Result<Tensor, Fault> {
    let size_bytes = ty.dtype().size_bytes();
    let is_one = bytes.len() == size_bytes && ty.shape().element_count() != 1;
    // tch reads as many bytes as the extents say.
    if !is_one && bytes.len() != ty.len_bytes() {
        let fault = format!("{ty} has {} bytes, not {}", ty.len_bytes(), bytes.len());
        let operation = "upload";
        return Err(Error::Elements { operation, fault }.into());
    }
    let (kind, extents) = (kind(ty.dtype()), dims(ty.shape()));
    let own: &[i64] = if is_one { &[] } else { &extents };
    let tensor = Tensor::f_from_data_size(bytes, own, kind)?.f_to(device)?;
    Ok(if is_one {
        tensor.f_expand(extents, false)?
    } else {
        tensor
    })
}

/// The bytes of a tensor, row-major; waits for them.
pub(super) fn download(ty: TensorType, tensor: &Tensor) -> Result<Vec<u8>, Fault> {
    let mut bytes = vec![0; ty.len_bytes()];
    tensor.f_copy_data_u8(&mut bytes, ty.shape().element_count())?;
    Ok(bytes)
}

/// Torch's type for the elements.
pub(super) fn kind(dtype: DType) -> Kind {
    match dtype {
        DType::F32 => Kind::Float,
        DType::F16 => Kind::Half,
        DType::BF16 => Kind::BFloat16,
        DType::F64 => Kind::Double,
        DType::I32 => Kind::Int,
        DType::I64 => Kind::Int64,
        DType::U8 | DType::F8E4M3 | DType::F8E5M2 => Kind::Uint8,
        DType::Bool => Kind::Bool,
    }
}

pub(super) fn dims(shape: Shape) -> Vec<i64> {
    signed(shape.dims())
}

pub(super) fn signed(list: &[usize]) -> Vec<i64> {
    list.iter().map(|number| index(*number)).collect()
}

/// Extents of a valid shape are never that large.
pub(super) fn index(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// In another type, by torch's conversion; itself if it is of that type.
pub(super) fn to(tensor: &Tensor, kind: Kind) -> Result<Tensor, Fault> {
    Ok(tensor.f_to_dtype(kind, false, false)?)
}
