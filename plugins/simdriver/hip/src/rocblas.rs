//! rocBLAS. `librocblas.so.4` is a link to this library. Statuses are rocBLAS' own, 0 being success.

use stepmesh_simdriver::{
    Answer, Element, Gemm, Matrix, Out, Status, Values, api, has_unit_scalars,
};

use crate::current::current;

api! {
    fn rocblas_create_handle(handle: Out<u64>) {
        let (driver, device) = current().map_err(own)?;
        handle.set(driver.create_library(device).map_err(own)?)
    }

    fn rocblas_destroy_handle(handle: u64) {
        let (driver, _) = current().map_err(own)?;
        driver.destroy_library(handle).map_err(own)
    }

    fn rocblas_set_stream(handle: u64, stream: u64) {
        let (driver, _) = current().map_err(own)?;
        driver.set_library_stream(handle, stream, false).map_err(own)
    }

    fn rocblas_set_workspace(handle: u64, ptr: u64, len: usize) {
        let (driver, _) = current().map_err(own)?;
        driver.set_library_workspace(handle, ptr, len as u64).map_err(own)
    }

    fn rocblas_set_atomics_mode(_handle: u64, mode: u32) {
        if mode > 1 { Err(INVALID_VALUE) } else { Ok(()) }
    }

    fn rocblas_gemm_strided_batched_ex(
        handle: u64, op_a: u32, op_b: u32, m: i32, n: i32, k: i32, alpha: Values<u64>, a: u64,
        type_a: u32, lda: i32, stride_a: i64, b: u64, type_b: u32, ldb: i32, stride_b: i64,
        beta: Values<u64>, c: u64, type_c: u32, ldc: i32, stride_c: i64, d: u64, type_d: u32,
        ldd: i32, stride_d: i64, batch: i32, compute: u32, algorithm: u32, solution: i32,
        flags: u32,
    ) {
        let matrix = |ptr, element, leading, stride, operation| {
            Ok(Matrix {
                ptr,
                element: self::element(element)?,
                leading,
                stride,
                is_transposed: is_transposed(operation)?,
            })
        };
        if (c, type_c, ldc, stride_c) != (d, type_d, ldd, stride_d) {
            return Err(NOT_IMPLEMENTED);
        }
        let is_double = element(compute)? == Element::F64;
        if [algorithm, solution.cast_unsigned(), flags] != [0; 3]
            || !has_unit_scalars(alpha, beta, is_double)?
        {
            return Err(INVALID_VALUE);
        }
        let gemm = Gemm {
            m,
            n,
            k,
            batch,
            a: matrix(a, type_a, lda, stride_a, op_a)?,
            b: matrix(b, type_b, ldb, stride_b, op_b)?,
            c: matrix(c, type_c, ldc, stride_c, OPERATION_NONE)?,
            is_double,
        };
        // What the real one has of mixed types.
        let is_known = matches!(element(compute)?, Element::F32 | Element::F64)
            && gemm.a.element == gemm.b.element
            && (gemm.c.element == gemm.a.element
                || (gemm.c.element == Element::F32 && !is_double));
        if !is_known {
            return Err(NOT_IMPLEMENTED);
        }
        let (driver, _) = current().map_err(own)?;
        driver.multiply(handle, gemm).map_err(own)
    }
}

fn element(data_type: u32) -> Answer<Element> {
    match data_type {
        150 => Ok(Element::F16),
        151 => Ok(Element::F32),
        152 => Ok(Element::F64),
        168 => Ok(Element::Bf16),
        _ => Err(NOT_IMPLEMENTED),
    }
}

fn is_transposed(operation: u32) -> Answer<bool> {
    match operation {
        OPERATION_NONE => Ok(false),
        OPERATION_TRANSPOSE => Ok(true),
        _ => Err(INVALID_VALUE),
    }
}

/// A status of HIP's as rocBLAS tells it.
fn own(status: Status) -> Status {
    match status {
        Status::OUT_OF_MEMORY => MEMORY_ERROR,
        Status::INVALID_HANDLE => INVALID_HANDLE,
        Status::INVALID_VALUE => INVALID_VALUE,
        _ => INTERNAL_ERROR,
    }
}

const OPERATION_NONE: u32 = 111;
const OPERATION_TRANSPOSE: u32 = 112;
/// `rocblas_status_invalid_handle`.
const INVALID_HANDLE: Status = Status(1);
/// `rocblas_status_not_implemented`.
const NOT_IMPLEMENTED: Status = Status(2);
/// `rocblas_status_memory_error`.
const MEMORY_ERROR: Status = Status(5);
/// `rocblas_status_internal_error`.
const INTERNAL_ERROR: Status = Status(6);
/// `rocblas_status_invalid_value`.
const INVALID_VALUE: Status = Status(11);
