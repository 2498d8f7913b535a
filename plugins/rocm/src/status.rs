//! What the numbers of HIP, of its compiler, of HSA and of rocBLAS mean. HIP's are below 4096 and HSA's
//! from there on; those of the compiler and of rocBLAS, which are small too, are made negative, each in a
//! range of its own.
#![forbid(unsafe_code)]

use hip_sys::hiprt::hipError_t;
use stepmesh_driver::{Answer, Failure, Kind};

/// What a status means.
pub(crate) fn kind(status: i32) -> Kind {
    let of = |kinds: &[hipError_t]| kinds.iter().any(|known| number(*known) == status);
    let found = KINDS.iter().find(|(kinds, _)| of(kinds));
    match found {
        Some((_, kind)) => *kind,
        None if status == HSA_INVALID_ARGUMENT => Kind::Invalid,
        None if status == HSA_OUT_OF_RESOURCES => Kind::OutOfMemory,
        None if status < ROCBLAS_BELOW => rocblas_kind(ROCBLAS_BELOW - status),
        // What the compiler does not do, the device has not.
        None if status < 0 => Kind::NotSupported,
        None => Kind::Other,
    }
}

/// The number of a status that hip-sys knows.
pub(crate) fn number(status: hipError_t) -> i32 {
    #[expect(clippy::cast_possible_wrap, reason = "below 2000, all of them")]
    let number = status as u32 as i32;
    number
}

/// The name of a status that is not HIP's.
pub(crate) fn foreign_name(status: i32) -> Option<String> {
    if status < ROCBLAS_BELOW {
        let number = ROCBLAS_BELOW - status;
        let known = ROCBLAS.iter().find(|(known, _)| *known == number);
        Some(known.map_or_else(
            || format!("rocBLAS status {number}"),
            |(_, name)| (*name).to_owned(),
        ))
    } else if status < 0 {
        Some(format!("HIPRTC status {}", status.unsigned_abs()))
    } else if status >= HSA_FIRST {
        Some(format!("HSA status {status:#x}"))
    } else {
        None
    }
}

/// An answer of the compiler, told apart from HIP's.
pub(crate) fn of_compiler<T>(answer: Answer<T>) -> Answer<T> {
    answer.map_err(|failure| match failure {
        Failure::Status { call, status } => Failure::Status {
            call,
            status: -status.abs(),
        },
        missing @ Failure::Missing { .. } => missing,
    })
}

/// An answer of rocBLAS, told apart from HIP's and from the compiler's.
pub(crate) fn of_rocblas<T>(answer: Answer<T>) -> Answer<T> {
    answer.map_err(|failure| match failure {
        Failure::Status { call, status } => Failure::Status {
            call,
            status: ROCBLAS_BELOW - status.abs(),
        },
        missing @ Failure::Missing { .. } => missing,
    })
}

fn rocblas_kind(number: i32) -> Kind {
    match number {
        2 | 14 | 15 => Kind::NotSupported,
        1 | 3 | 4 | 11 => Kind::Invalid,
        5 => Kind::OutOfMemory,
        _ => Kind::Other,
    }
}

/// Numbers of rocBLAS are below this one, and so below those of the compiler.
const ROCBLAS_BELOW: i32 = -1000;
/// Those that it may answer to what is asked of it here.
const ROCBLAS: [(i32, &str); 9] = [
    (1, "rocblas_status_invalid_handle"),
    (2, "rocblas_status_not_implemented"),
    (3, "rocblas_status_invalid_pointer"),
    (4, "rocblas_status_invalid_size"),
    (5, "rocblas_status_memory_error"),
    (6, "rocblas_status_internal_error"),
    (11, "rocblas_status_invalid_value"),
    (14, "rocblas_status_excluded_from_build"),
    (15, "rocblas_status_arch_mismatch"),
];

const KINDS: &[(&[hipError_t], Kind)] = &[
    (&[hipError_t::hipErrorOutOfMemory], Kind::OutOfMemory),
    (
        &[
            hipError_t::hipErrorInvalidValue,
            hipError_t::hipErrorInvalidDevice,
            hipError_t::hipErrorInvalidContext,
            hipError_t::hipErrorInvalidHandle,
            hipError_t::hipErrorInvalidDevicePointer,
            hipError_t::hipErrorInvalidMemcpyDirection,
        ],
        Kind::Invalid,
    ),
    (&[hipError_t::hipErrorNotReady], Kind::NotReady),
    (
        &[
            hipError_t::hipErrorNotSupported,
            hipError_t::hipErrorNotFound,
            hipError_t::hipErrorPeerAccessUnsupported,
            hipError_t::hipErrorNoBinaryForGpu,
            hipError_t::hipErrorInvalidImage,
            hipError_t::hipErrorInvalidKernelFile,
        ],
        Kind::NotSupported,
    ),
    (
        &[hipError_t::hipErrorHostMemoryAlreadyRegistered],
        Kind::AlreadyRegistered,
    ),
    (
        &[hipError_t::hipErrorHostMemoryNotRegistered],
        Kind::NotRegistered,
    ),
    (
        &[hipError_t::hipErrorPeerAccessAlreadyEnabled],
        Kind::AlreadyEnabled,
    ),
    (
        // After these the documentation has the process started anew.
        &[
            hipError_t::hipErrorECCNotCorrectable,
            hipError_t::hipErrorIllegalAddress,
            hipError_t::hipErrorLaunchTimeOut,
            hipError_t::hipErrorAssert,
            hipError_t::hipErrorLaunchFailure,
        ],
        Kind::Lost,
    ),
    (
        &[
            hipError_t::hipErrorDeinitialized,
            hipError_t::hipErrorContextIsDestroyed,
        ],
        Kind::Ended,
    ),
    (
        &[
            hipError_t::hipErrorNoDevice,
            hipError_t::hipErrorInsufficientDriver,
        ],
        Kind::NoDevice,
    ),
    (&[hipError_t::hipErrorNotInitialized], Kind::NotInitialized),
    (
        &[
            hipError_t::hipErrorStreamCaptureUnsupported,
            hipError_t::hipErrorStreamCaptureInvalidated,
            hipError_t::hipErrorStreamCaptureMerge,
            hipError_t::hipErrorStreamCaptureUnmatched,
            hipError_t::hipErrorStreamCaptureUnjoined,
            hipError_t::hipErrorStreamCaptureIsolation,
            hipError_t::hipErrorStreamCaptureImplicit,
            hipError_t::hipErrorCapturedEvent,
            hipError_t::hipErrorStreamCaptureWrongThread,
        ],
        Kind::Capturing,
    ),
];

/// `HSA_STATUS_ERROR`, the first of HSA's that is none of success.
const HSA_FIRST: i32 = 0x1000;
/// `HSA_STATUS_ERROR_INVALID_ARGUMENT`.
const HSA_INVALID_ARGUMENT: i32 = 0x1001;
/// `HSA_STATUS_ERROR_OUT_OF_RESOURCES`.
const HSA_OUT_OF_RESOURCES: i32 = 0x1008;

#[cfg(test)]
mod tests {
    //! Numbers of three libraries are not mixed up.

    use super::{Failure, Kind, foreign_name, kind, of_compiler, of_rocblas};

    #[test]
    fn statuses_mean_what_their_own_library_says() {
        assert_eq!(kind(2), Kind::OutOfMemory);
        assert_eq!(kind(700), Kind::Lost);
        assert_eq!(kind(100), Kind::NoDevice);
        assert_eq!(kind(0x1001), Kind::Invalid);
        assert_eq!(kind(77_777), Kind::Other);
    }

    #[test]
    fn the_compilers_numbers_are_not_taken_for_hips() {
        let answer = of_compiler::<()>(Err(Failure::Status {
            call: "hiprtcCompileProgram",
            status: 6,
        }));
        let Err(Failure::Status { status, .. }) = answer else {
            panic!("no status: {answer:?}");
        };
        assert_eq!(kind(status), Kind::NotSupported);
        assert_eq!(foreign_name(status).as_deref(), Some("HIPRTC status 6"));
        assert_eq!(foreign_name(0x1001).as_deref(), Some("HSA status 0x1001"));
        assert_eq!(foreign_name(101), None);
    }
    #[test]
    fn the_numbers_of_rocblas_are_not_taken_for_the_compilers() {
        let answer = of_rocblas::<()>(Err(Failure::Status {
            call: "rocblas_set_workspace",
            status: 5,
        }));
        let Err(Failure::Status { status, .. }) = answer else {
            panic!("no status: {answer:?}");
        };
        assert_eq!(kind(status), Kind::OutOfMemory);
        assert_eq!(
            foreign_name(status).as_deref(),
            Some("rocblas_status_memory_error")
        );
    }
}
