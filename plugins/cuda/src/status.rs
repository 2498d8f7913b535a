//! What the numbers of CUDA's driver, of its compiler and of cuBLAS mean. The names come from cudarc;
//! numbers of newer drivers than its bindings are told by the driver itself. Those of the two libraries,
//! which are small as the driver's, are made negative, each in a range of its own.
#![forbid(unsafe_code)]

use cudarc::cublas::sys::cublasStatus_t;
use cudarc::driver::sys::CUresult;
use cudarc::nvrtc::sys::nvrtcResult;
use stepmesh_driver::{Answer, Failure, Kind};

/// What a status means.
pub(crate) fn kind(status: i32) -> Kind {
    if status < 0 {
        return foreign_kind(status);
    }
    let of = |kinds: &[CUresult]| kinds.iter().any(|known| number(*known) == status);
    let found = KINDS.iter().find(|(kinds, _)| of(kinds));
    match found {
        Some((_, kind)) => *kind,
        None if NEWER_LOST.contains(&status) => Kind::Lost,
        None => Kind::Other,
    }
}

/// The number of a status that cudarc knows.
pub(crate) fn number(status: CUresult) -> i32 {
    #[expect(clippy::cast_possible_wrap, reason = "below 1000, all of them")]
    let number = status as u32 as i32;
    number
}

/// A failure of the compiler, told apart from the driver's.
pub(crate) fn of_nvrtc(failure: Failure) -> Failure {
    moved(failure, NVRTC_BELOW)
}

/// An answer of cuBLAS, told apart from the driver's.
pub(crate) fn of_cublas<T>(answer: Answer<T>) -> Answer<T> {
    answer.map_err(|failure| moved(failure, CUBLAS_BELOW))
}

fn moved(failure: Failure, below: i32) -> Failure {
    match failure {
        Failure::Status { call, status } => Failure::Status {
            call,
            status: below - status.abs(),
        },
        missing @ Failure::Missing { .. } => missing,
    }
}

/// The name of a status that is not the driver's.
pub(crate) fn foreign_name(status: i32) -> Option<String> {
    match status {
        0.. => None,
        status if status < CUBLAS_BELOW => Some(cublas_name(CUBLAS_BELOW - status)),
        status => Some(nvrtc_name(NVRTC_BELOW - status)),
    }
}

/// The name of a number of the compiler's.
pub(crate) fn nvrtc_name(number: i32) -> String {
    let known = NVRTC
        .iter()
        .find(|known| i64::from(number) == **known as i64);
    known.map_or_else(
        || format!("NVRTC error {number}"),
        |known| format!("{known:?}"),
    )
}

fn cublas_name(number: i32) -> String {
    let known = CUBLAS
        .iter()
        .find(|known| i64::from(number) == **known as i64);
    known.map_or_else(
        || format!("cuBLAS status {number}"),
        |known| format!("{known:?}"),
    )
}

fn foreign_kind(status: i32) -> Kind {
    let is = |known: cublasStatus_t| i64::from(CUBLAS_BELOW - status) == known as i64;
    let is_nvrtc = |known: nvrtcResult| i64::from(NVRTC_BELOW - status) == known as i64;
    if is(cublasStatus_t::CUBLAS_STATUS_ALLOC_FAILED)
        || is_nvrtc(nvrtcResult::NVRTC_ERROR_OUT_OF_MEMORY)
    {
        Kind::OutOfMemory
    } else if is(cublasStatus_t::CUBLAS_STATUS_INVALID_VALUE) {
        Kind::Invalid
    } else if is(cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED)
        || is(cublasStatus_t::CUBLAS_STATUS_ARCH_MISMATCH)
    {
        Kind::NotSupported
    } else {
        Kind::Other
    }
}

/// Text of a library, up to its NUL.
pub(crate) fn text_of(bytes: &[u8]) -> String {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// Numbers of the compiler are below this one.
const NVRTC_BELOW: i32 = 0;
/// Numbers of cuBLAS are below this one, and so below those of the compiler.
const CUBLAS_BELOW: i32 = -1000;

const NVRTC: [nvrtcResult; 8] = [
    nvrtcResult::NVRTC_ERROR_OUT_OF_MEMORY,
    nvrtcResult::NVRTC_ERROR_PROGRAM_CREATION_FAILURE,
    nvrtcResult::NVRTC_ERROR_INVALID_INPUT,
    nvrtcResult::NVRTC_ERROR_INVALID_PROGRAM,
    nvrtcResult::NVRTC_ERROR_INVALID_OPTION,
    nvrtcResult::NVRTC_ERROR_COMPILATION,
    nvrtcResult::NVRTC_ERROR_BUILTIN_OPERATION_FAILURE,
    nvrtcResult::NVRTC_ERROR_INTERNAL_ERROR,
];
const CUBLAS: [cublasStatus_t; 9] = [
    cublasStatus_t::CUBLAS_STATUS_NOT_INITIALIZED,
    cublasStatus_t::CUBLAS_STATUS_ALLOC_FAILED,
    cublasStatus_t::CUBLAS_STATUS_INVALID_VALUE,
    cublasStatus_t::CUBLAS_STATUS_ARCH_MISMATCH,
    cublasStatus_t::CUBLAS_STATUS_MAPPING_ERROR,
    cublasStatus_t::CUBLAS_STATUS_EXECUTION_FAILED,
    cublasStatus_t::CUBLAS_STATUS_INTERNAL_ERROR,
    cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED,
    cublasStatus_t::CUBLAS_STATUS_LICENSE_ERROR,
];

const KINDS: &[(&[CUresult], Kind)] = &[
    (&[CUresult::CUDA_ERROR_OUT_OF_MEMORY], Kind::OutOfMemory),
    (
        &[
            CUresult::CUDA_ERROR_INVALID_VALUE,
            CUresult::CUDA_ERROR_INVALID_DEVICE,
            CUresult::CUDA_ERROR_INVALID_CONTEXT,
            CUresult::CUDA_ERROR_INVALID_HANDLE,
        ],
        Kind::Invalid,
    ),
    (&[CUresult::CUDA_ERROR_NOT_READY], Kind::NotReady),
    (
        &[
            CUresult::CUDA_ERROR_NOT_SUPPORTED,
            CUresult::CUDA_ERROR_NOT_FOUND,
            CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
            CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU,
            CUresult::CUDA_ERROR_JIT_COMPILER_NOT_FOUND,
            CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
            CUresult::CUDA_ERROR_JIT_COMPILATION_DISABLED,
        ],
        Kind::NotSupported,
    ),
    (&[CUresult::CUDA_ERROR_NOT_PERMITTED], Kind::NotPermitted),
    (
        &[CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED],
        Kind::AlreadyRegistered,
    ),
    (
        &[CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED],
        Kind::NotRegistered,
    ),
    (
        &[CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED],
        Kind::AlreadyEnabled,
    ),
    (
        // The errors after which the documentation says that the context can be used no more, and the
        // process must be started anew.
        &[
            CUresult::CUDA_ERROR_ECC_UNCORRECTABLE,
            CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE,
            CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
            CUresult::CUDA_ERROR_LAUNCH_TIMEOUT,
            CUresult::CUDA_ERROR_ASSERT,
            CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR,
            CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION,
            CUresult::CUDA_ERROR_MISALIGNED_ADDRESS,
            CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE,
            CUresult::CUDA_ERROR_INVALID_PC,
            CUresult::CUDA_ERROR_LAUNCH_FAILED,
        ],
        Kind::Lost,
    ),
    (
        &[
            CUresult::CUDA_ERROR_DEINITIALIZED,
            CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED,
        ],
        Kind::Ended,
    ),
    (
        &[
            CUresult::CUDA_ERROR_NO_DEVICE,
            CUresult::CUDA_ERROR_STUB_LIBRARY,
            CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE,
            CUresult::CUDA_ERROR_SYSTEM_NOT_READY,
            CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
            CUresult::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE,
        ],
        Kind::NoDevice,
    ),
    (
        &[CUresult::CUDA_ERROR_NOT_INITIALIZED],
        Kind::NotInitialized,
    ),
    (
        &[
            CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
            CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
            CUresult::CUDA_ERROR_STREAM_CAPTURE_MERGE,
            CUresult::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
            CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
            CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
            CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
            CUresult::CUDA_ERROR_CAPTURED_EVENT,
            CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
        ],
        Kind::Capturing,
    ),
];

/// Errors of the same kind that are younger than the bindings: `CUDA_ERROR_MPS_CLIENT_TERMINATED` (810)
/// and `CUDA_ERROR_CONTAINED` (721).
const NEWER_LOST: &[i32] = &[721, 810];

#[cfg(test)]
mod tests {
    //! Numbers of three libraries are not mixed up.

    use super::{Failure, Kind, foreign_name, kind, of_cublas, of_nvrtc};

    fn status(failure: Failure) -> i32 {
        match failure {
            Failure::Status { status, .. } => status,
            Failure::Missing { call } => panic!("{call} has no status"),
        }
    }

    #[test]
    fn numbers_of_the_libraries_are_not_taken_for_the_drivers() {
        let failed = |number| Failure::Status {
            call: "call",
            status: number,
        };
        let compilation = status(of_nvrtc(failed(6)));
        assert_eq!(kind(compilation), Kind::Other);
        assert_eq!(
            foreign_name(compilation).as_deref(),
            Some("NVRTC_ERROR_COMPILATION")
        );
        assert_eq!(kind(status(of_nvrtc(failed(1)))), Kind::OutOfMemory);
        let product = status(of_cublas::<()>(Err(failed(15))).expect_err("it failed"));
        assert_eq!(kind(product), Kind::NotSupported);
        assert_eq!(
            foreign_name(product).as_deref(),
            Some("CUBLAS_STATUS_NOT_SUPPORTED")
        );
        let newer = status(of_cublas::<()>(Err(failed(99))).expect_err("it failed"));
        assert_eq!(foreign_name(newer).as_deref(), Some("cuBLAS status 99"));
        assert_eq!((kind(2), kind(700)), (Kind::OutOfMemory, Kind::Lost));
        assert_eq!(foreign_name(700), None);
    }
}
