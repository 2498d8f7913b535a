//! The numbers of CUDA and HIP, as far as they are used here. Both vendors give these the same value.
#![forbid(unsafe_code)]

/// A status other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub i32);

/// What a call answers.
pub type Answer<T> = Result<T, Status>;

macro_rules! statuses {
    ($($name:ident = $number:literal, $cuda:literal, $hip:literal;)*) => {
        impl Status {
            $(
                #[doc = concat!("`", $cuda, "`, `", $hip, "`.")]
                pub const $name: Self = Self($number);
            )*

            /// The name in `cuda.h`, if it is one of these.
            #[must_use]
            pub fn cuda_name(self) -> Option<&'static str> {
                match self.0 {
                    0 => Some("CUDA_SUCCESS\0"),
                    $($number => Some(concat!($cuda, "\0")),)*
                    _ => None,
                }
            }

            /// The name in `hip_runtime_api.h`, if it is one of these.
            #[must_use]
            pub fn hip_name(self) -> Option<&'static str> {
                match self.0 {
                    0 => Some("hipSuccess\0"),
                    $($number => Some(concat!($hip, "\0")),)*
                    _ => None,
                }
            }
        }
    };
}

statuses! {
    INVALID_VALUE = 1, "CUDA_ERROR_INVALID_VALUE", "hipErrorInvalidValue";
    OUT_OF_MEMORY = 2, "CUDA_ERROR_OUT_OF_MEMORY", "hipErrorOutOfMemory";
    NOT_INITIALIZED = 3, "CUDA_ERROR_NOT_INITIALIZED", "hipErrorNotInitialized";
    DEINITIALIZED = 4, "CUDA_ERROR_DEINITIALIZED", "hipErrorDeinitialized";
    NO_DEVICE = 100, "CUDA_ERROR_NO_DEVICE", "hipErrorNoDevice";
    INVALID_DEVICE = 101, "CUDA_ERROR_INVALID_DEVICE", "hipErrorInvalidDevice";
    INVALID_IMAGE = 200, "CUDA_ERROR_INVALID_IMAGE", "hipErrorInvalidImage";
    INVALID_CONTEXT = 201, "CUDA_ERROR_INVALID_CONTEXT", "hipErrorInvalidContext";
    ECC_UNCORRECTABLE = 214, "CUDA_ERROR_ECC_UNCORRECTABLE", "hipErrorECCNotCorrectable";
    INVALID_HANDLE = 400, "CUDA_ERROR_INVALID_HANDLE", "hipErrorInvalidHandle";
    NOT_FOUND = 500, "CUDA_ERROR_NOT_FOUND", "hipErrorNotFound";
    NOT_READY = 600, "CUDA_ERROR_NOT_READY", "hipErrorNotReady";
    ILLEGAL_ADDRESS = 700, "CUDA_ERROR_ILLEGAL_ADDRESS", "hipErrorIllegalAddress";
    PEER_ACCESS_ALREADY_ENABLED = 704,
        "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "hipErrorPeerAccessAlreadyEnabled";
    PEER_ACCESS_NOT_ENABLED = 705,
        "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "hipErrorPeerAccessNotEnabled";
    ALREADY_REGISTERED = 712,
        "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "hipErrorHostMemoryAlreadyRegistered";
    NOT_REGISTERED = 713,
        "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "hipErrorHostMemoryNotRegistered";
    LAUNCH_FAILED = 719, "CUDA_ERROR_LAUNCH_FAILED", "hipErrorLaunchFailure";
    NOT_SUPPORTED = 801, "CUDA_ERROR_NOT_SUPPORTED", "hipErrorNotSupported";
    CAPTURE_UNSUPPORTED = 900,
        "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "hipErrorStreamCaptureUnsupported";
    CAPTURE_INVALIDATED = 901,
        "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "hipErrorStreamCaptureInvalidated";
    CAPTURE_MERGE = 902, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "hipErrorStreamCaptureMerge";
    CAPTURE_UNMATCHED = 903,
        "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "hipErrorStreamCaptureUnmatched";
    CAPTURE_ISOLATION = 905,
        "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "hipErrorStreamCaptureIsolation";
    CAPTURE_IMPLICIT = 906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "hipErrorStreamCaptureImplicit";
    CAPTURED_EVENT = 907, "CUDA_ERROR_CAPTURED_EVENT", "hipErrorCapturedEvent";
    UNKNOWN = 999, "CUDA_ERROR_UNKNOWN", "hipErrorUnknown";
}
