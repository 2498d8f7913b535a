//! Why a plugin is not taken. One sentence for each case, made for the user's terminal.
#![forbid(unsafe_code)]

use std::path::PathBuf;

use stepmesh_abi::note::NoteError;

/// Why a candidate is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// The configured path does not exist or cannot be read.
    #[error("cannot be read: {error}")]
    Unreadable {
        /// What the system said.
        error: String,
    },
    /// A directory, a pipe or a device.
    #[error("is not a regular file")]
    NotAFile,
    /// Others may change the code.
    #[error(
        "{what} {path} {fault}, so other users could change the code; correct that or set \
         plugins.trust",
        path = path.display()
    )]
    Untrusted {
        /// `file` or `directory`.
        what: &'static str,
        /// The offending one.
        path: PathBuf,
        /// What is wrong with its owner or mode.
        fault: String,
    },
    /// A glob of `plugins.disable` matches.
    #[error("is disabled by `{glob}` in plugins.disable")]
    Disabled {
        /// The glob.
        glob: String,
    },
    /// Not an ELF shared library, or a damaged one.
    #[error("is not a shared library: {fault}")]
    NotALibrary {
        /// What is wrong.
        fault: String,
    },
    /// For another processor.
    #[error("is built for another machine ({machine})")]
    WrongMachine {
        /// Class and machine number of the file.
        machine: String,
    },
    /// No StepMesh note, or a bad one.
    #[error("has no usable stepmesh note: {0}")]
    Note(NoteError),
    /// Another major version of the ABI.
    #[error("is built for ABI {plugin}, this host has ABI {host}")]
    WrongMajor {
        /// The plugin's.
        plugin: u16,
        /// This host's.
        host: u16,
    },
    /// It wants a newer host.
    #[error("needs a host of ABI minor version {needed} or newer, this one has {host}")]
    HostTooOld {
        /// The oldest the plugin accepts.
        needed: u16,
        /// This host's.
        host: u16,
    },
    /// Another target triple or pointer width.
    #[error("is built for {plugin}, this host for {host}")]
    WrongTarget {
        /// The plugin's.
        plugin: String,
        /// This host's.
        host: String,
    },
    /// Built with a sanitizer that the host lacks.
    #[error("is built with a sanitizer (bits {bits:#x}), this host is not")]
    Sanitizer {
        /// `SM_SANITIZER_*`.
        bits: u8,
    },
    /// It takes more of the static thread-local space than is left for libraries opened late.
    #[error(
        "uses {bytes} bytes of static thread-local storage, at most {max} are safe to load late"
    )]
    StaticTls {
        /// Of the file.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// Found before by another path.
    #[error("is the same file as {first}", first = first.display())]
    SameFile {
        /// The one that is used.
        first: PathBuf,
    },
    /// A copy of one found before.
    #[error("is a copy of {first} (same build)", first = first.display())]
    SameBuild {
        /// The one that is used.
        first: PathBuf,
    },
    /// Another one of the same name is better.
    #[error("{winner} of the same name comes first ({why})")]
    Shadowed {
        /// The one that is used.
        winner: String,
        /// By which rule.
        why: &'static str,
    },
    /// `plugins.strict` and another file of the same name.
    #[error("{others} has the same name, and plugins.strict allows one file for each name")]
    Ambiguous {
        /// The other files.
        others: String,
    },
    /// dlopen failed.
    #[error("cannot be loaded: {error}")]
    Load {
        /// What the dynamic linker said; names the missing symbol or library.
        error: String,
    },
    /// The file changed between the check and the load, or another library was loaded.
    #[error("another file than the one that was checked was loaded ({loaded})")]
    Swapped {
        /// Path of the loaded one.
        loaded: String,
    },
    /// The file changed since this process first loaded it.
    #[error("was replaced since it was loaded; restart the program to load the new one")]
    Replaced,
    /// No entry symbol.
    #[error("does not export `{symbol}`")]
    MissingSymbol {
        /// The entry symbol.
        symbol: &'static str,
    },
    /// The entry function returned no table.
    #[error("refused this host: {message}")]
    Refused {
        /// What the plugin said.
        message: String,
    },
    /// The table or the description is malformed.
    #[error("has a bad table: {fault}")]
    BadTable {
        /// What is wrong.
        fault: String,
    },
    /// A slot without which nothing works is null.
    #[error("lacks the required function `{slot}`")]
    MissingSlot {
        /// Its name.
        slot: &'static str,
    },
    /// No device to work with.
    #[error("has no usable device{}", because(why.as_deref()))]
    NoDevice {
        /// What the plugin said when it was opened all the same.
        why: Option<String>,
    },
    /// `probe` failed.
    #[error("cannot look for devices: {message}")]
    Probe {
        /// What the plugin said.
        message: String,
    },
    /// `open` failed.
    #[error("cannot be opened: {message}")]
    Open {
        /// What the plugin said.
        message: String,
    },
}

fn because(why: Option<&str>) -> String {
    why.map_or_else(String::new, |why| format!(": {why}"))
}

impl From<NoteError> for Reason {
    fn from(error: NoteError) -> Self {
        Self::Note(error)
    }
}
