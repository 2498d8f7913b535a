//! `stepmesh.ipc.v1` for backends: the trait, and the table made from it.
#![expect(unsafe_code, reason = "functions of the C table")]

use std::os::fd::{AsRawFd as _, BorrowedFd, IntoRawFd as _, OwnedFd};

use stepmesh_abi::extension::{SM_IPC_FD, SM_IPC_MAPPABLE, SM_IPC_OPAQUE};
use stepmesh_abi::{SmBackend, SmError, SmHdr, SmIpcHandle, SmIpcV1};

use crate::boundary::{Struct, Value, read_sized};
use crate::instance::{Instance, Phase, slot};
use crate::{Backend, Error, Extension, Result};

/// Memory shared between processes. Offer it with `Extension::ipc` in [`Backend::extension`].
pub trait Ipc: Backend {
    /// Exports a range within one allocation.
    ///
    /// # Errors
    /// `SM_INVALID_ARGUMENT` if the range is not within one allocation; `SM_UNIMPLEMENTED` if the
    /// memory cannot be shared.
    fn export(&self, device: u32, ptr: u64, len_bytes: u64) -> Result<IpcExport>;

    /// Makes another process's memory usable by a device and gives its address.
    ///
    /// # Errors
    /// If the handle is not what it says.
    fn import(&self, device: u32, import: IpcImport<'_>) -> Result<u64>;

    /// Ends an import. The address is not 0.
    ///
    /// # Safety
    /// - No work on the memory is in flight, and no one uses it afterwards.
    ///
    /// # Errors
    /// `SM_NOT_FOUND` if it is no import.
    unsafe fn close_import(&self, device: u32, ptr: u64) -> Result<()>;
}

/// What [`Ipc::export`] gives.
#[derive(Debug)]
#[non_exhaustive]
pub enum IpcExport {
    /// A descriptor; it becomes the caller's.
    Fd {
        /// Made with `O_CLOEXEC`.
        fd: OwnedFd,
        /// Where the range starts in the file, in bytes.
        offset_bytes: u64,
        /// Bytes of the range.
        len_bytes: u64,
        /// Whether the host can map it.
        mappable: bool,
    },
    /// Bytes of the vendor's.
    Opaque {
        /// The vendor's handle.
        bytes: [u8; 64],
        /// Where the range starts in the vendor's object, in bytes.
        offset_bytes: u64,
        /// Bytes of the range.
        len_bytes: u64,
    },
}

/// What [`Ipc::import`] is given.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum IpcImport<'a> {
    /// A descriptor that stays the caller's.
    Fd {
        /// The descriptor.
        fd: BorrowedFd<'a>,
        /// Where the range starts in the file, in bytes. A claim: check it against the file.
        offset_bytes: u64,
        /// Bytes of the range. A claim too; not 0.
        len_bytes: u64,
    },
    /// Bytes of the vendor's.
    Opaque {
        /// The vendor's handle.
        bytes: [u8; 64],
        /// Where the range starts in the vendor's object, in bytes.
        offset_bytes: u64,
        /// Bytes of the range; not 0.
        len_bytes: u64,
    },
}

impl Extension {
    /// The table of `stepmesh.ipc.v1`.
    #[must_use]
    pub fn ipc<B: Ipc>() -> Self {
        Self::new(const { &ipc_table::<B>() }, 1)
    }
}

const fn ipc_table<B: Ipc>() -> SmIpcV1 {
    SmIpcV1 {
        hdr: SmHdr::of::<SmIpcV1>(),
        export_memory: Some(export_memory::<B>),
        import_memory: Some(import_memory::<B>),
        close_import: Some(close_import::<B>),
    }
}

unsafe extern "C" fn export_memory<B: Ipc>(
    s: *mut SmBackend,
    dev: u32,
    ptr: u64,
    size: u64,
    out: *mut SmIpcHandle,
    err: *mut SmError,
) -> i32 {
    let work = |i: &Instance<B>| {
        let dev = i.check_device(dev)?;
        if size == 0 || ptr.checked_add(size).is_none() {
            return Err(Error::invalid_argument(format!(
                "cannot export {size} bytes at {ptr:#x}"
            )));
        }
        i.backend.export(dev, ptr, size).map(handle)
    };
    // SAFETY: the table's contract for the instance, the out struct and `err`.
    unsafe { slot::<B, _>(s, err, "export_memory", Phase::Open, Struct(out), work) }
}

fn handle(export: IpcExport) -> SmIpcHandle {
    let mut handle = SmIpcHandle::new();
    match export {
        IpcExport::Fd {
            fd,
            offset_bytes,
            len_bytes,
            mappable,
        } => {
            handle.kind = SM_IPC_FD;
            // From here on the descriptor is the caller's to close.
            handle.fd = fd.into_raw_fd();
            (handle.offset, handle.len) = (offset_bytes, len_bytes);
            handle.flags = if mappable { SM_IPC_MAPPABLE } else { 0 };
        }
        IpcExport::Opaque {
            bytes,
            offset_bytes,
            len_bytes,
        } => {
            handle.kind = SM_IPC_OPAQUE;
            handle.bytes = bytes;
            (handle.offset, handle.len) = (offset_bytes, len_bytes);
        }
    }
    handle
}

unsafe extern "C" fn import_memory<B: Ipc>(
    s: *mut SmBackend,
    dev: u32,
    from: *const SmIpcHandle,
    ptr: *mut u64,
    err: *mut SmError,
) -> i32 {
    let work = |i: &Instance<B>| {
        let dev = i.check_device(dev)?;
        let mut handle = SmIpcHandle::new();
        if from.is_null() {
            return Err(Error::invalid_argument("the handle is null"));
        }
        // SAFETY: not null, of the size it says by the table's contract, and numbers only.
        unsafe { read_sized(from, &mut handle)? };
        let (offset_bytes, len_bytes) = (handle.offset, handle.len);
        if len_bytes == 0 || offset_bytes.checked_add(len_bytes).is_none() {
            return Err(Error::invalid_argument(format!(
                "the handle's range of {len_bytes} bytes at {offset_bytes} is impossible"
            )));
        }
        let import = match handle.kind {
            SM_IPC_FD if handle.fd >= 0 => {
                // SAFETY: the table's contract: the caller's descriptor, open during the call.
                let fd = unsafe { BorrowedFd::borrow_raw(handle.fd) };
                debug_assert_eq!(fd.as_raw_fd(), handle.fd);
                IpcImport::Fd {
                    fd,
                    offset_bytes,
                    len_bytes,
                }
            }
            SM_IPC_OPAQUE => IpcImport::Opaque {
                bytes: handle.bytes,
                offset_bytes,
                len_bytes,
            },
            kind => {
                let message = format!("handle kind {kind} with fd {} is unknown", handle.fd);
                return Err(Error::invalid_argument(message));
            }
        };
        i.backend.import(dev, import)
    };
    // SAFETY: the table's contract for the instance, the out pointer and `err`.
    unsafe { slot::<B, _>(s, err, "import_memory", Phase::Open, Value(ptr), work) }
}

unsafe extern "C" fn close_import<B: Ipc>(
    s: *mut SmBackend,
    dev: u32,
    ptr: u64,
    err: *mut SmError,
) -> i32 {
    let work = |i: &Instance<B>| {
        let dev = i.check_device(dev)?;
        if ptr == 0 {
            return Ok(());
        }
        // SAFETY: the table's contract: no work on the memory is in flight, and its use ends here.
        unsafe { i.backend.close_import(dev, ptr) }
    };
    // SAFETY: the table's contract for the instance and `err`.
    unsafe { slot::<B, _>(s, err, "close_import", Phase::Ending, (), work) }
}
