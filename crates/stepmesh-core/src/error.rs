//! The one error type of this crate. What went wrong, with which object, and what to do about it.
#![forbid(unsafe_code)]

use std::io;
use std::path::PathBuf;

use crate::config::Origin;

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
}

/// ` (did you mean ...?)`, or nothing.
pub(crate) fn hint(nearest: Option<&str>) -> String {
    nearest
        .map(|name| format!("; did you mean `{name}`?"))
        .unwrap_or_default()
}
