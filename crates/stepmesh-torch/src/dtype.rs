//! Element types: the mesh's, tch's, c10's numbers and DLPack's codes.
#![forbid(unsafe_code)]

use stepmesh::DType;
use tch::Kind;

use crate::Error;

/// The mesh's type for a `tch` kind.
///
/// # Errors
/// [`Error::UnsupportedKind`] for complex and quantised kinds.
pub fn dtype_of(kind: Kind) -> Result<DType, Error> {
    let row = TYPES.iter().find(|row| row.kind == Some(kind));
    row.map(|row| row.dtype)
        .ok_or_else(|| Error::kind("naming an element type", kind))
}

/// The `tch` kind for a type of the mesh.
///
/// # Errors
/// [`Error::UnsupportedDType`] for the wide unsigned integers, which torch has and tch cannot name.
pub fn kind_of(dtype: DType) -> Result<Kind, Error> {
    let row = TYPES.iter().find(|row| row.dtype == dtype);
    row.and_then(|row| row.kind).ok_or(Error::UnsupportedDType {
        operation: "naming an element type",
        dtype,
    })
}

/// `c10::ScalarType` for a type of the mesh.
pub(crate) fn scalar_type_of(dtype: DType) -> Option<i32> {
    let row = TYPES.iter().find(|row| row.dtype == dtype)?;
    Some(row.scalar_type)
}

/// The mesh's type for DLPack's code and bits.
pub(crate) fn dtype_of_dlpack(code: i32, bits: i32) -> Option<DType> {
    let row = TYPES.iter().find(|row| row.dlpack == (code, bits))?;
    Some(row.dtype)
}

/// DLPack's code and bits for a type of the mesh.
pub(crate) fn dlpack_of(dtype: DType) -> Option<(i32, i32)> {
    let row = TYPES.iter().find(|row| row.dtype == dtype)?;
    Some(row.dlpack)
}

/// One type in all tongues.
struct Row {
    dtype: DType,
    kind: Option<Kind>,
    /// Number in c10/core/ScalarType.h.
    scalar_type: i32,
    /// `DLDataTypeCode` of dlpack.h 1.1, and bits.
    dlpack: (i32, i32),
}

const fn row(dtype: DType, kind: Option<Kind>, scalar_type: i32, dlpack: (i32, i32)) -> Row {
    Row {
        dtype,
        kind,
        scalar_type,
        dlpack,
    }
}

const TYPES: [Row; 15] = [
    row(DType::Bool, Some(Kind::Bool), 11, (6, 8)),
    row(DType::U8, Some(Kind::Uint8), 0, (1, 8)),
    row(DType::I8, Some(Kind::Int8), 1, (0, 8)),
    row(DType::U16, None, 27, (1, 16)),
    row(DType::I16, Some(Kind::Int16), 2, (0, 16)),
    row(DType::U32, None, 28, (1, 32)),
    row(DType::I32, Some(Kind::Int), 3, (0, 32)),
    row(DType::U64, None, 29, (1, 64)),
    row(DType::I64, Some(Kind::Int64), 4, (0, 64)),
    row(DType::F16, Some(Kind::Half), 5, (2, 16)),
    row(DType::BF16, Some(Kind::BFloat16), 15, (4, 16)),
    row(DType::F32, Some(Kind::Float), 6, (2, 32)),
    row(DType::F64, Some(Kind::Double), 7, (2, 64)),
    row(DType::F8E4M3, Some(Kind::Float8e4m3fn), 24, (10, 8)),
    row(DType::F8E5M2, Some(Kind::Float8e5m2), 23, (12, 8)),
];
