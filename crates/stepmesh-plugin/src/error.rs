//! The error of a backend's method. How it reaches the caller lives in the boundary module.

use std::fmt;

use stepmesh_abi::Code;
use stepmesh_abi::error::SM_ERROR_OOM;

/// What a method of a backend answers.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a method failed: a status code and a message that names the object and what to do.
///
/// A struct rather than an enum because this is what the ABI carries: codes are the ABI's and the
/// message is for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    code: Code,
    flags: u32,
    native_code: i64,
    message: String,
}

impl Error {
    /// An error of any code.
    #[must_use]
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            flags: 0,
            native_code: 0,
            message: message.into(),
        }
    }

    /// An argument is wrong whatever the state.
    #[must_use]
    pub fn invalid_argument(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }

    /// The named thing does not exist.
    #[must_use]
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(Code::NotFound, message)
    }

    /// The instance is in the wrong state.
    #[must_use]
    pub fn failed_precondition(message: impl Into<String>) -> Self {
        Self::new(Code::FailedPrecondition, message)
    }

    /// A bounded wait ran out.
    #[must_use]
    pub fn deadline_exceeded(message: impl Into<String>) -> Self {
        Self::new(Code::DeadlineExceeded, message)
    }

    /// This backend does not do that.
    #[must_use]
    pub fn unimplemented(message: impl Into<String>) -> Self {
        Self::new(Code::Unimplemented, message)
    }

    /// A bug of the plugin.
    #[must_use]
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(Code::Internal, message)
    }

    /// Memory ran out; sets `SM_ERROR_OOM`.
    #[must_use]
    pub fn out_of_memory(message: impl Into<String>) -> Self {
        Self::new(Code::ResourceExhausted, message).with_flags(SM_ERROR_OOM)
    }

    /// Adds `SM_ERROR_*` flags.
    #[must_use]
    pub fn with_flags(mut self, flags: u32) -> Self {
        self.flags |= flags;
        self
    }

    /// Adds the vendor's own number (`cudaError_t`, `errno`).
    #[must_use]
    pub fn with_native_code(mut self, native_code: i64) -> Self {
        self.native_code = native_code;
        self
    }

    /// Status code.
    #[must_use]
    pub fn code(&self) -> Code {
        self.code
    }

    /// `SM_ERROR_*` flags.
    #[must_use]
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// The vendor's own number, 0 if there is none.
    #[must_use]
    pub fn native_code(&self) -> i64 {
        self.native_code
    }

    /// What failed and what to do.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.code)
    }
}

impl std::error::Error for Error {}
