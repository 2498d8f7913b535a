//! From a plugin's status to this crate's `Error`. Shared by everything that calls a plugin.
#![expect(
    unsafe_code,
    reason = "an error struct may come from a plugin's memory"
)]

use stepmesh_abi::error::{
    SM_ERROR_DEVICE_LOST, SM_ERROR_OOM, SM_ERROR_PEER_FATAL, SM_ERROR_RETRYABLE, SM_ERROR_STICKY,
};
use stepmesh_abi::{Code, SmError};

/// What a plugin said of a failure, copied out of its hands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    pub(crate) native_code: i64,
    pub(crate) flags: ErrorFlags,
    pub(crate) message: String,
}

/// What a plugin says of a failure besides its code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ErrorFlags(u32);

impl Failure {
    /// A failure that a slot returned, with the error struct that this host handed in.
    pub(crate) fn new(status: i32, error: &SmError) -> Self {
        let bytes = error.message_bytes();
        let message = String::from_utf8_lossy(&bytes[..error.message_len()]).into_owned();
        Self {
            code: Code::from_raw(status),
            native_code: error.native_code,
            flags: ErrorFlags(error.flags),
            message: if message.is_empty() {
                "the backend gave no reason".into()
            } else {
                message
            },
        }
    }

    /// A failure in memory of the plugin's, which may be null or of an older, shorter version.
    ///
    /// # Safety
    /// - `error` is null or valid for reading the `struct_size` bytes that it starts with saying.
    pub(crate) unsafe fn from_foreign(error: *const SmError) -> Self {
        let mut copy = SmError::new();
        if !error.is_null() {
            // SAFETY: not null, so it starts with its size by this function's contract.
            let len = unsafe { error.cast::<u32>().read_unaligned() };
            let len = usize::try_from(len).unwrap_or(0).min(size_of::<SmError>());
            let to = std::ptr::from_mut(&mut copy).cast::<u8>();
            // SAFETY: `len` bytes are readable by this function's contract and writable because `copy` is at least
            // as long; any bytes are a valid `SmError`, and the two cannot overlap.
            unsafe { std::ptr::copy_nonoverlapping(error.cast::<u8>(), to, len) };
        }
        Self::new(copy.code, &copy)
    }
}

impl ErrorFlags {
    /// For what the host itself finds out about a device.
    pub(crate) const DEVICE_LOST: Self = Self(SM_ERROR_DEVICE_LOST);

    /// The same call may succeed if it is made again.
    #[must_use]
    pub fn is_retryable(self) -> bool {
        self.0 & SM_ERROR_RETRYABLE != 0
    }

    /// The device is gone; every later call on it fails.
    #[must_use]
    pub fn is_device_lost(self) -> bool {
        self.0 & SM_ERROR_DEVICE_LOST != 0
    }

    /// The error stays until the backend is closed.
    #[must_use]
    pub fn is_sticky(self) -> bool {
        self.0 & SM_ERROR_STICKY != 0
    }

    /// Memory ran out.
    #[must_use]
    pub fn is_out_of_memory(self) -> bool {
        self.0 & SM_ERROR_OOM != 0
    }

    /// Peers that rely on the device must be told.
    #[must_use]
    pub fn is_peer_fatal(self) -> bool {
        self.0 & SM_ERROR_PEER_FATAL != 0
    }

    /// The bits as they crossed the boundary.
    #[must_use]
    pub fn bits(self) -> u32 {
        self.0
    }
}
