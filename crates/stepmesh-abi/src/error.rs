//! Status codes and the error struct that a caller hands in. How an error becomes a Rust `Result`
//! lives in the crates on either side.

use core::ffi::c_char;
use core::fmt;

/// Where a slot writes why it failed. Owned by the caller, who may pass null; nothing in it is
/// freed, so it outlives the plugin.
///
/// A slot that succeeds leaves it alone. One that fails writes no byte at or beyond `struct_size`,
/// which the caller sets. The message is UTF-8, cut at a character boundary when it does not fit
/// ([`SM_ERROR_TRUNCATED`]), and has no NUL at its end.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SmError {
    /// Bytes of this struct, set by the caller.
    pub struct_size: u32,
    /// One of the `SM_*` status codes; equal to what the slot returned.
    pub code: i32,
    /// The vendor's number (`cudaError_t`, `hipError_t`, `errno`), 0 if there is none.
    pub native_code: i64,
    /// `SM_ERROR_*` bits.
    pub flags: u32,
    /// Bytes of `msg` in use.
    pub msg_len: u32,
    /// What failed, on which object, and what to do about it.
    pub msg: [c_char; SM_ERROR_MSG_CAP],
}

impl SmError {
    /// An empty error, ready to be passed to a slot.
    #[must_use]
    pub const fn new() -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "256, asserted below")]
        let struct_size = size_of::<Self>() as u32;
        Self {
            struct_size,
            code: SM_OK,
            native_code: 0,
            flags: 0,
            msg_len: 0,
            msg: [0; SM_ERROR_MSG_CAP],
        }
    }

    /// An error with a message, cut to fit at a character boundary.
    #[must_use]
    pub fn with_message(code: i32, message: &str) -> Self {
        let mut error = Self::new();
        error.code = code;
        error.set_message(message);
        error
    }

    /// Puts in a message, cut to fit at a character boundary; [`SM_ERROR_TRUNCATED`] says whether
    /// it was.
    pub fn set_message(&mut self, message: &str) {
        self.set_message_within(message, SM_ERROR_MSG_CAP);
    }

    /// Puts in a message for a reader that has room for `cap` bytes.
    pub fn set_message_within(&mut self, message: &str, cap: usize) {
        let len = message.floor_char_boundary(cap.min(SM_ERROR_MSG_CAP));
        for (to, from) in self.msg.iter_mut().zip(&message.as_bytes()[..len]) {
            *to = c_char::from_ne_bytes([*from]);
        }
        #[expect(clippy::cast_possible_truncation, reason = "at most the cap, 232")]
        let msg_len = len as u32;
        self.msg_len = msg_len;
        self.flags &= !SM_ERROR_TRUNCATED;
        if len < message.len() {
            self.flags |= SM_ERROR_TRUNCATED;
        }
    }

    /// The bytes of the message. A length beyond the array is taken as the whole array, so a
    /// hostile writer cannot make a reader go astray.
    #[must_use]
    pub fn message_bytes(&self) -> [u8; SM_ERROR_MSG_CAP] {
        let mut bytes = [0; SM_ERROR_MSG_CAP];
        for (to, from) in bytes
            .iter_mut()
            .zip(self.msg.iter().take(self.message_len()))
        {
            *to = from.to_ne_bytes()[0];
        }
        bytes
    }

    /// Bytes of the message, never more than the array holds.
    #[must_use]
    pub fn message_len(&self) -> usize {
        usize::try_from(self.msg_len).map_or(SM_ERROR_MSG_CAP, |len| len.min(SM_ERROR_MSG_CAP))
    }
}

impl Default for SmError {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for SmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.message_bytes();
        f.debug_struct("SmError")
            .field("struct_size", &self.struct_size)
            .field("code", &Code::from_raw(self.code))
            .field("native_code", &self.native_code)
            .field("flags", &self.flags)
            .field(
                "msg",
                &core::str::from_utf8(&bytes[..self.message_len()]).unwrap_or("<not utf-8>"),
            )
            .finish()
    }
}

/// A status code by name, for Rust code on either side. Only the number crosses the boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Code {
    /// [`SM_OK`].
    Ok,
    /// [`SM_CANCELLED`].
    Cancelled,
    /// [`SM_UNKNOWN`].
    Unknown,
    /// [`SM_INVALID_ARGUMENT`].
    InvalidArgument,
    /// [`SM_DEADLINE_EXCEEDED`].
    DeadlineExceeded,
    /// [`SM_NOT_FOUND`].
    NotFound,
    /// [`SM_ALREADY_EXISTS`].
    AlreadyExists,
    /// [`SM_PERMISSION_DENIED`].
    PermissionDenied,
    /// [`SM_RESOURCE_EXHAUSTED`].
    ResourceExhausted,
    /// [`SM_FAILED_PRECONDITION`].
    FailedPrecondition,
    /// [`SM_ABORTED`].
    Aborted,
    /// [`SM_OUT_OF_RANGE`].
    OutOfRange,
    /// [`SM_UNIMPLEMENTED`].
    Unimplemented,
    /// [`SM_INTERNAL`].
    Internal,
    /// [`SM_UNAVAILABLE`].
    Unavailable,
    /// [`SM_DATA_LOSS`].
    DataLoss,
    /// [`SM_UNAUTHENTICATED`].
    Unauthenticated,
    /// A number this build has no name for.
    Other(i32),
}

impl Code {
    /// The code of a number; an unknown number is kept, not refused.
    #[must_use]
    pub const fn from_raw(raw: i32) -> Self {
        match raw {
            SM_OK => Self::Ok,
            SM_CANCELLED => Self::Cancelled,
            SM_UNKNOWN => Self::Unknown,
            SM_INVALID_ARGUMENT => Self::InvalidArgument,
            SM_DEADLINE_EXCEEDED => Self::DeadlineExceeded,
            SM_NOT_FOUND => Self::NotFound,
            SM_ALREADY_EXISTS => Self::AlreadyExists,
            SM_PERMISSION_DENIED => Self::PermissionDenied,
            SM_RESOURCE_EXHAUSTED => Self::ResourceExhausted,
            SM_FAILED_PRECONDITION => Self::FailedPrecondition,
            SM_ABORTED => Self::Aborted,
            SM_OUT_OF_RANGE => Self::OutOfRange,
            SM_UNIMPLEMENTED => Self::Unimplemented,
            SM_INTERNAL => Self::Internal,
            SM_UNAVAILABLE => Self::Unavailable,
            SM_DATA_LOSS => Self::DataLoss,
            SM_UNAUTHENTICATED => Self::Unauthenticated,
            other => Self::Other(other),
        }
    }

    /// The number that crosses the boundary.
    #[must_use]
    pub const fn raw(self) -> i32 {
        match self {
            Self::Ok => SM_OK,
            Self::Cancelled => SM_CANCELLED,
            Self::Unknown => SM_UNKNOWN,
            Self::InvalidArgument => SM_INVALID_ARGUMENT,
            Self::DeadlineExceeded => SM_DEADLINE_EXCEEDED,
            Self::NotFound => SM_NOT_FOUND,
            Self::AlreadyExists => SM_ALREADY_EXISTS,
            Self::PermissionDenied => SM_PERMISSION_DENIED,
            Self::ResourceExhausted => SM_RESOURCE_EXHAUSTED,
            Self::FailedPrecondition => SM_FAILED_PRECONDITION,
            Self::Aborted => SM_ABORTED,
            Self::OutOfRange => SM_OUT_OF_RANGE,
            Self::Unimplemented => SM_UNIMPLEMENTED,
            Self::Internal => SM_INTERNAL,
            Self::Unavailable => SM_UNAVAILABLE,
            Self::DataLoss => SM_DATA_LOSS,
            Self::Unauthenticated => SM_UNAUTHENTICATED,
            Self::Other(other) => other,
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Ok => "ok",
            Self::Cancelled => "cancelled",
            Self::Unknown => "unknown",
            Self::InvalidArgument => "invalid argument",
            Self::DeadlineExceeded => "deadline exceeded",
            Self::NotFound => "not found",
            Self::AlreadyExists => "already exists",
            Self::PermissionDenied => "permission denied",
            Self::ResourceExhausted => "resource exhausted",
            Self::FailedPrecondition => "failed precondition",
            Self::Aborted => "aborted",
            Self::OutOfRange => "out of range",
            Self::Unimplemented => "unimplemented",
            Self::Internal => "internal",
            Self::Unavailable => "unavailable",
            Self::DataLoss => "data loss",
            Self::Unauthenticated => "unauthenticated",
            Self::Other(raw) => return write!(f, "status {raw}"),
        };
        f.write_str(name)
    }
}

/// Success. The numbers are those of gRPC and absl (PJRT and IREE use them too), so that layers
/// above map one to one.
pub const SM_OK: i32 = 0;
/// The operation was cancelled, typically by closing its instance.
pub const SM_CANCELLED: i32 = 1;
/// A failure of unknown kind.
pub const SM_UNKNOWN: i32 = 2;
/// An argument is wrong whatever the state.
pub const SM_INVALID_ARGUMENT: i32 = 3;
/// A bounded wait ran out; the object is still usable.
pub const SM_DEADLINE_EXCEEDED: i32 = 4;
/// The named thing does not exist.
pub const SM_NOT_FOUND: i32 = 5;
/// The named thing exists already.
pub const SM_ALREADY_EXISTS: i32 = 6;
/// The process lacks a right.
pub const SM_PERMISSION_DENIED: i32 = 7;
/// Out of memory, handles, descriptors or disk.
pub const SM_RESOURCE_EXHAUSTED: i32 = 8;
/// The instance is in the wrong state: closed, poisoned, forked.
pub const SM_FAILED_PRECONDITION: i32 = 9;
/// Stopped by a conflict; the caller may start over.
pub const SM_ABORTED: i32 = 10;
/// A position beyond the end.
pub const SM_OUT_OF_RANGE: i32 = 11;
/// This backend does not do that.
pub const SM_UNIMPLEMENTED: i32 = 12;
/// A bug: an invariant broke, a panic or exception was caught.
pub const SM_INTERNAL: i32 = 13;
/// Not now; the same call may succeed later.
pub const SM_UNAVAILABLE: i32 = 14;
/// Data was lost or is corrupt.
pub const SM_DATA_LOSS: i32 = 15;
/// The caller has not proved who it is.
pub const SM_UNAUTHENTICATED: i32 = 16;

/// Error flag: the same call may succeed if it is made again.
pub const SM_ERROR_RETRYABLE: u32 = 1 << 0;
/// Error flag: the device is gone; every later call on it fails.
pub const SM_ERROR_DEVICE_LOST: u32 = 1 << 1;
/// Error flag: the error stays until the instance is closed.
pub const SM_ERROR_STICKY: u32 = 1 << 2;
/// Error flag: memory ran out.
pub const SM_ERROR_OOM: u32 = 1 << 3;
/// Error flag: peers that rely on this device must be told.
pub const SM_ERROR_PEER_FATAL: u32 = 1 << 4;
/// Error flag: the message was cut to fit.
pub const SM_ERROR_TRUNCATED: u32 = 1 << 5;

/// Bytes of an error's message: what is left of 256 after the numbers.
pub const SM_ERROR_MSG_CAP: usize = 232;
/// Bytes before the message; a caller's `struct_size` below this gets no error written at all.
pub const SM_ERROR_FIXED_LEN: usize = 24;

const _: () = assert!(size_of::<SmError>() == 256);
const _: () = assert!(core::mem::offset_of!(SmError, msg) == SM_ERROR_FIXED_LEN);
