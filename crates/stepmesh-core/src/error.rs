//! The one error type of this crate. What went wrong, with which object, and what to do about it.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::time::Duration;
use std::{fmt, io};

use stepmesh_abi::Code;
use stepmesh_graph::{DType, OpKind};

use crate::config::Origin;
use crate::status::{ErrorFlags, Failure};

/// Everything that can fail in `stepmesh-core`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(
    clippy::error_impl_error,
    reason = "each crate of the workspace has one `Error`"
)]
pub enum Error {
    /// A configuration file that was named cannot be read.
    #[error("cannot read the configuration file {path}; name an existing file or none", path = path.display())]
    ConfigRead {
        /// The file.
        path: PathBuf,
        /// Why the system refused.
        #[source]
        source: io::Error,
    },
    /// A configuration file is not TOML.
    #[error("the configuration file {path} is not valid TOML", path = path.display())]
    ConfigParse {
        /// The file.
        path: PathBuf,
        /// Line, column and what was expected there.
        #[source]
        source: Box<toml::de::Error>,
    },
    /// A key that no part of StepMesh reads.
    #[error(
        "unknown configuration key `{key}` from {origin}{}",
        hint(nearest.as_deref())
    )]
    ConfigUnknownKey {
        /// The key as it was written, with its section.
        key: String,
        /// Where it was written.
        origin: Origin,
        /// The known key that looks most like it.
        nearest: Option<String>,
    },
    /// A value of the wrong type or outside the allowed range.
    #[error("configuration key `{key}` = `{value}` from {origin}: allowed is {allowed}")]
    ConfigValue {
        /// The key with its section.
        key: String,
        /// The value as it was written; `***` for a secret.
        value: String,
        /// Where it was written.
        origin: Origin,
        /// What would be accepted.
        allowed: String,
    },
    /// Two environment variables mean the same key and disagree.
    #[error("{first} and {second} both set `{key}` and differ; unset one of them")]
    ConfigConflict {
        /// The key with its section.
        key: String,
        /// One variable and its value.
        first: String,
        /// The other variable and its value.
        second: String,
    },
    /// The backend that was asked for cannot be used; says why for every plugin file.
    #[error(transparent)]
    BackendUnavailable(Box<Unavailable>),
    /// An alias such as `GPU` fits several backends equally well.
    #[error("{alias} could be any of {names}; name one of them in STEPMESH_BACKEND")]
    BackendAmbiguous {
        /// What was asked for.
        alias: String,
        /// The backends that have devices, with their files.
        names: String,
    },
    /// A backend failed.
    #[error(
        "{operation} failed on {object}: {message} ({code}{native})",
        object = object(backend, *device),
        native = native(*native_code)
    )]
    Backend {
        /// The slot of the backend's table.
        operation: &'static str,
        /// Name of the backend.
        backend: &'static str,
        /// The device, where the operation has one.
        device: Option<u32>,
        /// What kind of failure.
        code: Code,
        /// The vendor's number, 0 if there is none.
        native_code: i64,
        /// What may be done about it.
        flags: ErrorFlags,
        /// In the backend's words.
        message: String,
    },
    /// A bounded wait ran out. The object is still usable.
    #[error("{operation} on {object} took longer than {timeout:?}", object = object(backend, *device))]
    Timeout {
        /// The slot of the backend's table.
        operation: &'static str,
        /// Name of the backend.
        backend: &'static str,
        /// The device, where the operation has one.
        device: Option<u32>,
        /// The bound.
        timeout: Duration,
    },
    /// The backend does not do that.
    #[error("{object} does not support {operation}: {message}", object = object(backend, *device))]
    Unsupported {
        /// The slot or the extension.
        operation: &'static str,
        /// Name of the backend.
        backend: &'static str,
        /// The device, where the operation has one.
        device: Option<u32>,
        /// In the backend's words.
        message: String,
    },
    /// A device does not do an operation for a type.
    #[error(
        "{object} has no {op} for {dtype}{at}; cast to another type, or compute it elsewhere ({message})",
        object = object(backend, Some(*device)),
        at = location.as_ref().map(|at| format!(" (at {at})")).unwrap_or_default()
    )]
    UnsupportedOp {
        /// Name of the backend.
        backend: &'static str,
        /// The device.
        device: u32,
        /// The operation.
        op: OpKind,
        /// The type.
        dtype: DType,
        /// Where in the user's program it comes from.
        location: Option<String>,
        /// In the backend's words, which may say what is missing.
        message: String,
    },
    /// Memory ran out. Free some, or ask for less; the device is still usable.
    #[error("out of memory on {object}: {message}", object = object(backend, *device))]
    OutOfMemory {
        /// Name of the backend.
        backend: &'static str,
        /// The device.
        device: Option<u32>,
        /// In the backend's words.
        message: String,
    },
    /// The backend gave an answer that cannot be true; it has a bug.
    #[error("backend {backend} gave a bad answer to {operation}: {fault}")]
    BadAnswer {
        /// The slot of the backend's table.
        operation: &'static str,
        /// Name of the backend.
        backend: &'static str,
        /// What is wrong with it.
        fault: String,
    },
    /// A device number at or beyond the count.
    #[error("backend {backend} has {count} devices, there is no device {ordinal}")]
    NoSuchDevice {
        /// Name of the backend.
        backend: &'static str,
        /// What was asked for.
        ordinal: u32,
        /// How many there are.
        count: u32,
    },
    /// A range that is not within the buffer.
    #[error(
        "{operation} of {len_bytes} bytes at {offset} exceeds the buffer of {buffer_len_bytes}"
    )]
    OutOfRange {
        /// What was to be done.
        operation: &'static str,
        /// Start of the range in the buffer.
        offset: u64,
        /// Length of the range.
        len_bytes: u64,
        /// Length of the buffer.
        buffer_len_bytes: u64,
    },
    /// Handles of two backends, or of two openings of one, do not mix.
    #[error("{operation} mixes handles of {first} and {second}, which were opened separately")]
    ForeignHandle {
        /// What was to be done.
        operation: &'static str,
        /// Backend of the first handle.
        first: &'static str,
        /// Backend of the second handle.
        second: &'static str,
    },
    /// An argument that is wrong whatever the state.
    #[error("{operation}: {fault}")]
    InvalidArgument {
        /// What was to be done.
        operation: &'static str,
        /// What is wrong.
        fault: String,
    },
    /// A name under which another backend was registered.
    #[error("a backend is registered under the name `{name}` already; take another name")]
    NameTaken {
        /// The name.
        name: String,
    },
}

/// Why a backend cannot be used, for each file that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unavailable {
    /// What was asked for.
    pub name: String,
    /// Whether any candidate has that name or alias.
    pub is_found: bool,
    /// The known name that looks most like it, when it is unknown.
    pub nearest: Option<String>,
    /// Each candidate, `file (name version)`, and why it was not taken.
    pub candidates: Vec<(String, String)>,
    /// The places that were searched, in order.
    pub searched: Vec<PathBuf>,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, hint) = (&self.name, hint(self.nearest.as_deref()));
        let why = if self.is_found {
            "cannot be used"
        } else {
            "was not found"
        };
        write!(f, "backend `{name}` {why}{hint}")?;
        for (candidate, reason) in &self.candidates {
            write!(f, "\n  {candidate}: {reason}")?;
        }
        let searched: Vec<_> = self
            .searched
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        write!(f, "\n  searched: {}", searched.join(", "))?;
        if !self.is_found {
            let remedy = "put its plugin there, or name its folder in STEPMESH_PLUGIN_PATH";
            write!(f, "\n  {remedy}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Unavailable {}

impl Error {
    /// A failure of a plugin as the variant that callers branch on.
    pub(crate) fn from_failure(
        operation: &'static str,
        backend: &'static str,
        device: Option<u32>,
        failure: Failure,
    ) -> Self {
        let Failure {
            code,
            native_code,
            flags,
            message,
        } = failure;
        match code {
            Code::Unimplemented => Self::Unsupported {
                operation,
                backend,
                device,
                message,
            },
            Code::ResourceExhausted if flags.is_out_of_memory() => Self::OutOfMemory {
                backend,
                device,
                message,
            },
            _ => Self::Backend {
                operation,
                backend,
                device,
                code,
                native_code,
                flags,
                message,
            },
        }
    }
}

fn object(backend: &str, device: Option<u32>) -> String {
    match device {
        Some(ordinal) => format!("{backend}:{ordinal}"),
        None => format!("backend {backend}"),
    }
}

fn native(native_code: i64) -> String {
    if native_code == 0 {
        String::new()
    } else {
        format!(", native code {native_code}")
    }
}

/// ` (did you mean ...?)`, or nothing.
pub(crate) fn hint(nearest: Option<&str>) -> String {
    nearest
        .map(|name| format!("; did you mean `{name}`?"))
        .unwrap_or_default()
}
