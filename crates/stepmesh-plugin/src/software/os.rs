//! From the kernel's numbers to the ABI's codes.
#![forbid(unsafe_code)]

use std::io;

use rustix::io::Errno;
use stepmesh_abi::Code;
use stepmesh_abi::error::SM_ERROR_OOM;

use crate::{Error, Result};

/// Names the operation and its object in the kernel's answer, and finds the ABI's code for it.
pub trait OsContext<T> {
    /// `what` is an operation with its object: `allocate 4096 bytes on device 0`.
    ///
    /// # Errors
    /// What the kernel said.
    fn context(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T> OsContext<T> for io::Result<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            let (code, flags) = match errno {
                Errno::NOMEM | Errno::NOSPC | Errno::FBIG => {
                    (Code::ResourceExhausted, SM_ERROR_OOM)
                }
                Errno::MFILE | Errno::NFILE | Errno::DQUOT => (Code::ResourceExhausted, 0),
                Errno::ACCESS | Errno::PERM | Errno::ROFS => (Code::PermissionDenied, 0),
                Errno::NOENT | Errno::NOTDIR => (Code::NotFound, 0),
                Errno::INVAL | Errno::BADF => (Code::InvalidArgument, 0),
                _ => (Code::Internal, 0),
            };
            Error::new(code, format!("cannot {}: {error}", what()))
                .with_flags(flags)
                .with_native_code(i64::from(errno.raw_os_error()))
        })
    }
}
