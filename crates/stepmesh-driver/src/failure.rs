//! What a driver answered, and what that means to a host: the mapping from a vendor's numbers to the
//! ABI's codes and flags. Which number is of which kind is the vendor's and told by its plugin.
#![forbid(unsafe_code)]

use stepmesh_plugin::Error;
use stepmesh_plugin::abi::Code;
use stepmesh_plugin::abi::error::{
    SM_ERROR_DEVICE_LOST, SM_ERROR_OOM, SM_ERROR_PEER_FATAL, SM_ERROR_STICKY,
};

use crate::Driver;

/// What a call of a driver answers.
pub type Answer<T> = Result<T, Failure>;

/// A call of a driver that did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The library has no such function.
    Missing {
        /// The vendor's name of the function.
        call: &'static str,
    },
    /// The function answered with another status than success.
    Status {
        /// The vendor's name of the function.
        call: &'static str,
        /// The vendor's number.
        status: i32,
    },
}

/// What a vendor's number means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Memory ran out.
    OutOfMemory,
    /// An argument or a handle is wrong.
    Invalid,
    /// Work is still running.
    NotReady,
    /// The device, the driver or the memory does not do that.
    NotSupported,
    /// The process lacks a right.
    NotPermitted,
    /// The host memory is registered already.
    AlreadyRegistered,
    /// The host memory is not registered.
    NotRegistered,
    /// Access between peers is on already.
    AlreadyEnabled,
    /// The device's context is broken by a fault of work, or the device is gone.
    Lost,
    /// The driver or the context ended before us: late destructors see it.
    Ended,
    /// There is no device, or none that can be used.
    NoDevice,
    /// The driver is not initialised in this process: after a fork, for example.
    NotInitialized,
    /// The call is not allowed while a stream is captured.
    Capturing,
    /// Anything else.
    Other,
}

impl Failure {
    /// What it means.
    #[must_use]
    pub fn kind<D: Driver>(self) -> Kind {
        match self {
            Self::Missing { .. } => Kind::NotSupported,
            Self::Status { status, .. } => D::kind(status),
        }
    }

    /// The vendor's number, 0 if there is none.
    #[must_use]
    pub fn native_code(self) -> i64 {
        match self {
            Self::Missing { .. } => 0,
            Self::Status { status, .. } => i64::from(status),
        }
    }

    /// The call and what it answered, by the vendor's names.
    #[must_use]
    pub fn text<D: Driver>(self, driver: &D) -> String {
        match self {
            Self::Missing { call } => {
                format!("the driver library has no {call}: the driver is too old for it")
            }
            Self::Status { call, status } => {
                format!("{call} answered {} ({status})", driver.status_name(status))
            }
        }
    }

    /// The error for a host. `what` names the operation and its object, such as `allocate 4096 bytes
    /// on device 0`.
    #[must_use]
    pub fn error<D: Driver>(self, driver: &D, what: &str) -> Error {
        let kind = self.kind::<D>();
        let message = format!("cannot {what}: {}", self.text(driver));
        Error::new(code(kind), message)
            .with_flags(flags(kind))
            .with_native_code(self.native_code())
    }
}

fn code(kind: Kind) -> Code {
    match kind {
        Kind::OutOfMemory => Code::ResourceExhausted,
        Kind::Invalid => Code::InvalidArgument,
        Kind::NotReady | Kind::Lost => Code::Unavailable,
        Kind::NotSupported => Code::Unimplemented,
        Kind::NotPermitted => Code::PermissionDenied,
        Kind::AlreadyRegistered | Kind::AlreadyEnabled => Code::AlreadyExists,
        Kind::NotRegistered | Kind::NoDevice => Code::NotFound,
        Kind::Ended | Kind::NotInitialized | Kind::Capturing => Code::FailedPrecondition,
        Kind::Other => Code::Unknown,
    }
}

fn flags(kind: Kind) -> u32 {
    match kind {
        Kind::OutOfMemory => SM_ERROR_OOM,
        Kind::Lost => SM_ERROR_DEVICE_LOST | SM_ERROR_STICKY | SM_ERROR_PEER_FATAL,
        _ => 0,
    }
}
