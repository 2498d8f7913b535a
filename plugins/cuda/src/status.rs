//! What the numbers of CUDA's driver mean. The names come from cudarc; numbers of newer drivers than its
//! bindings are told by the driver itself.
#![forbid(unsafe_code)]

use cudarc::driver::sys::CUresult;
use stepmesh_driver::Kind;

/// What a status means.
pub(crate) fn kind(status: i32) -> Kind {
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
