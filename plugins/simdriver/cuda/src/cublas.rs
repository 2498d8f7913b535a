//! cuBLAS. `libcublas.so.12` is a link to this library. Statuses are cuBLAS' own, 0 being success.

use stepmesh_simdriver::{
    Answer, Element, Gemm, Matrix, Out, Status, Values, api, has_unit_scalars,
};

use crate::context::current;

api! {
    fn cublasCreate_v2(handle: Out<u64>) {
        let (driver, device) = current().map_err(|_| NOT_INITIALIZED)?;
        handle.set(driver.create_library(device).map_err(own)?)
    }

    fn cublasDestroy_v2(handle: u64) {
        let (driver, _) = current().map_err(own)?;
        driver.destroy_library(handle).map_err(own)
    }

    fn cublasSetStream_v2(handle: u64, stream: u64) {
        let (driver, _) = current().map_err(own)?;
        driver.set_library_stream(handle, stream, true).map_err(own)
    }

    fn cublasSetWorkspace_v2(handle: u64, ptr: u64, len: usize) {
        let (driver, _) = current().map_err(own)?;
        driver.set_library_workspace(handle, ptr, len as u64).map_err(own)
    }

    fn cublasSetMathMode(_handle: u64, mode: u32) {
        if mode & !DISALLOW_REDUCED_PRECISION == 0 { Ok(()) } else { Err(INVALID_VALUE) }
    }

    fn cublasSetAtomicsMode(_handle: u64, mode: u32) {
        if mode > 1 { Err(INVALID_VALUE) } else { Ok(()) }
    }

    fn cublasGemmStridedBatchedEx(
        handle: u64, op_a: u32, op_b: u32, m: i32, n: i32, k: i32, alpha: Values<u64>, a: u64,
        type_a: u32, lda: i32, stride_a: i64, b: u64, type_b: u32, ldb: i32, stride_b: i64,
        beta: Values<u64>, c: u64, type_c: u32, ldc: i32, stride_c: i64, batch: i32, compute: u32,
        algorithm: i32,
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
        let is_double = match compute {
            COMPUTE_32F | COMPUTE_32F_FAST_TF32 => false,
            COMPUTE_64F => true,
            _ => return Err(NOT_SUPPORTED),
        };
        let gemm = Gemm {
            m,
            n,
            k,
            batch,
            a: matrix(a, type_a, lda, stride_a, op_a)?,
            b: matrix(b, type_b, ldb, stride_b, op_b)?,
            c: matrix(c, type_c, ldc, stride_c, OP_N)?,
            is_double,
        };
        if algorithm != ALGORITHM_DEFAULT || !has_unit_scalars(alpha, beta, is_double)? {
            return Err(INVALID_VALUE);
        }
        // What the real one has of mixed types.
        let is_known = gemm.a.element == gemm.b.element
            && (gemm.c.element == gemm.a.element
                || (gemm.c.element == Element::F32 && !is_double));
        if !is_known || (compute == COMPUTE_32F_FAST_TF32 && gemm.a.element != Element::F32) {
            return Err(NOT_SUPPORTED);
        }
        let (driver, _) = current().map_err(own)?;
        driver.multiply(handle, gemm).map_err(own)
    }
}

fn element(data_type: u32) -> Answer<Element> {
    match data_type {
        0 => Ok(Element::F32),
        1 => Ok(Element::F64),
        2 => Ok(Element::F16),
        14 => Ok(Element::Bf16),
        _ => Err(NOT_SUPPORTED),
    }
}

fn is_transposed(operation: u32) -> Answer<bool> {
    match operation {
        OP_N => Ok(false),
        OP_T => Ok(true),
        _ => Err(INVALID_VALUE),
    }
}

/// A status of the driver's as cuBLAS tells it.
fn own(status: Status) -> Status {
    match status {
        Status::OUT_OF_MEMORY => ALLOC_FAILED,
        Status::INVALID_VALUE | Status::INVALID_HANDLE => INVALID_VALUE,
        Status::CAPTURE_UNSUPPORTED | Status::CAPTURE_INVALIDATED => INTERNAL_ERROR,
        _ => EXECUTION_FAILED,
    }
}

const OP_N: u32 = 0;
const OP_T: u32 = 1;
const COMPUTE_32F: u32 = 68;
const COMPUTE_64F: u32 = 70;
const COMPUTE_32F_FAST_TF32: u32 = 77;
const ALGORITHM_DEFAULT: i32 = -1;
const DISALLOW_REDUCED_PRECISION: u32 = 16;
/// `CUBLAS_STATUS_NOT_INITIALIZED`.
const NOT_INITIALIZED: Status = Status(1);
/// `CUBLAS_STATUS_ALLOC_FAILED`.
const ALLOC_FAILED: Status = Status(3);
/// `CUBLAS_STATUS_INVALID_VALUE`.
const INVALID_VALUE: Status = Status(7);
/// `CUBLAS_STATUS_EXECUTION_FAILED`.
const EXECUTION_FAILED: Status = Status(13);
/// `CUBLAS_STATUS_INTERNAL_ERROR`.
const INTERNAL_ERROR: Status = Status(14);
/// `CUBLAS_STATUS_NOT_SUPPORTED`.
const NOT_SUPPORTED: Status = Status(15);
