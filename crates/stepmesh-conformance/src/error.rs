//! What keeps the checks from running at all. What a plugin does wrong is in the report instead.
#![forbid(unsafe_code)]

use std::io;
use std::path::PathBuf;

/// Why no verdict could be reached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The plugin's file cannot be read.
    #[error("cannot read {}", path.display())]
    ReadPlugin {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The file is no ELF library of this machine.
    #[error("{} is not a shared library of this machine: {fault}", path.display())]
    NotALibrary {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        fault: String,
    },
    /// No check has a matching identity.
    #[error("no check matches `{pattern}`; identities look like M3, a group like M or M*")]
    NothingMatches {
        /// What was asked for.
        pattern: String,
    },
    /// The list of expectations cannot be read.
    #[error("cannot read the expectations in {}", path.display())]
    ReadExpectations {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The list of expectations is wrong.
    #[error("the expectations in {} are wrong: {fault}", path.display())]
    BadExpectations {
        /// The file.
        path: PathBuf,
        /// What is wrong, with the remedy.
        fault: String,
    },
    /// A child process could not be started, or its files not be made.
    #[error("cannot start the process of check {check}")]
    Child {
        /// Identity of the check.
        check: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}
