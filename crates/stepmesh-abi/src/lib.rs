//! The C ABI between the StepMesh host and its accelerator backends.
//!
//! A backend is a shared library with one exported symbol, [`QUERY_SYMBOL`], and one ELF note
//! ([`note`]). The symbol returns a table of functions, [`SmBackendApi`]; the host passes in a table
//! of its own, [`SmHostApi`]. This crate is the only place where these are written down: the C
//! header `include/stepmesh_backend.h` is generated from it, and `docs/abi.md` explains it.
//!
//! Choices that hold for every item here:
//! - Only fixed-width integers, pointers with lengths, opaque handles and function pointers cross.
//!   No Rust enum, bool, `usize`, string or generic; no C `enum`, `long`, `size_t` or bit-field.
//! - Each struct starts with [`SmHdr`] (an [`SmError`] with its size alone), is a multiple of eight
//!   bytes long and only ever grows at its end. A reader uses the smaller of the two sizes.
//! - Who allocates, frees: every create has its destroy in the same table, strings are copied.
//! - A new major version is a new symbol name; a new minor version appends slots.
//!
//! This crate declares and checks layout. It loads nothing, calls nothing and allocates nothing.
//!
//! # Example
//! ```
//! use stepmesh_abi::note::{NoteParams, note_bytes, note_len, parse_note};
//!
//! const PARAMS: NoteParams<'static> = NoteParams::new("demo", "0.1.0");
//! const BYTES: [u8; note_len(&PARAMS)] = note_bytes(&PARAMS);
//! let note = parse_note(&BYTES).unwrap();
//! assert_eq!(note.name, "demo");
//! assert_eq!(note.abi_major, stepmesh_abi::SM_ABI_MAJOR);
//! ```
#![no_std]
#![deny(unsafe_code)]
#![deny(improper_ctypes_definitions)]

pub mod backend;
pub mod compute;
pub mod device;
pub mod error;
pub mod event;
pub mod extension;
pub mod header;
pub mod host;
pub mod memory;
pub mod note;
pub mod stream;

pub use backend::{QUERY_SYMBOL, SmBackend, SmBackendApi, SmBackendQueryFn};
pub use backend::{SmOpenArgs, SmPluginInfo};
pub use compute::{SmAlias, SmAttr, SmGraph, SmNode, SmTensorInfo, SmValue};
pub use compute::{SmCompileOptions, SmComputeV1, SmExecutable, SmExecutableInfo, SmFingerprint};
pub use device::SmDeviceInfo;
pub use error::{Code, SmError};
pub use event::SmEvent;
pub use extension::{SmGraphV1, SmIpcHandle, SmIpcV1, SmMemEvent, SmMemEventV1};
pub use extension::{SmRdmaCaps, SmRdmaV1};
pub use header::{SM_ABI_MAJOR, SM_ABI_MINOR, SmHdr, SmStr};
pub use host::SmHostApi;
pub use memory::SmPtrAttr;
