//! What the numbers of HIP, of its compiler and of HSA mean. HIP's are below 4096 and HSA's from there on;
//! those of the compiler, which are small too, are made negative.
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
    if status < 0 {
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

    use super::{Failure, Kind, foreign_name, kind, of_compiler};

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
}
