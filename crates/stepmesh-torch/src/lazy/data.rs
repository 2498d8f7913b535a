//! Values on a device, as the lazy core holds them.
#![forbid(unsafe_code)]

use stepmesh_graph::{DType, Shape, TensorType};
use stepmesh_lazy::BackendDataPtr;

use super::hooks::RawType;

/// A value, and the device that it lies on.
#[derive(Clone, Debug)]
pub(super) struct Data {
    pub(super) device: usize,
    pub(super) value: BackendDataPtr,
}

/// The type of `c10::ScalarType`'s number, if we have it.
pub(super) fn dtype_of(scalar_type: i32) -> Option<DType> {
    Some(match scalar_type {
        0 => DType::U8,
        3 => DType::I32,
        4 => DType::I64,
        5 => DType::F16,
        6 => DType::F32,
        7 => DType::F64,
        11 => DType::Bool,
        15 => DType::BF16,
        23 => DType::F8E5M2,
        24 => DType::F8E4M3,
        _ => return None,
    })
}

/// The type of a value as C++ tells it; `None` inside where it does not know.
pub(super) fn type_of(raw: &RawType) -> Result<Option<TensorType>, String> {
    if raw.rank < 0 {
        return Ok(None);
    }
    let dtype = dtype_of(raw.dtype);
    let dtype = dtype.ok_or_else(|| format!("c10::ScalarType {} is not supported", raw.dtype))?;
    let rank = usize::try_from(raw.rank).ok();
    let dims = rank.and_then(|rank| raw.dims.get(..rank));
    let dims = dims.ok_or_else(|| format!("a rank of {}", raw.rank))?;
    let extents: Result<Vec<usize>, _> = dims.iter().map(|dim| usize::try_from(*dim)).collect();
    let extents = extents.map_err(|_| format!("{dims:?} is no shape"))?;
    let shape = Shape::new(&extents).map_err(|error| error.to_string())?;
    let ty = TensorType::new(dtype, shape).map_err(|error| error.to_string())?;
    Ok(Some(ty))
}
