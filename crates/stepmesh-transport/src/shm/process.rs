//! The process on the other side of a connection: who it is, and its memory as the kernel lets us
//! reach it. Mapped memory is in `region`.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;

use rustix::process::{Pid, PidfdFlags};

use crate::memory::Memory;

/// Who is on the other side of a socket, as the kernel noted when the connection was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Credentials {
    /// Zero for a process that our pid namespace cannot see.
    pid: libc::pid_t,
    uid: libc::uid_t,
}

impl Credentials {
    pub(super) fn of(socket: &OwnedFd) -> io::Result<Self> {
        let mut found = libc::ucred {
            pid: 0,
            uid: libc::uid_t::MAX,
            gid: 0,
        };
        let mut len =
            libc::socklen_t::try_from(size_of::<libc::ucred>()).map_err(io::Error::other)?;
        let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
        let out = (&raw mut found).cast();
        // SAFETY: `out` points at a `ucred` and `len` says how long it is; both outlive the call.
        let done = unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, out, &raw mut len) };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            pid: found.pid,
            uid: found.uid,
        })
    }

    /// Whether it may share memory with us: the same user, or root.
    pub(super) fn is_trusted(self) -> bool {
        self.uid == 0 || self.uid == rustix::process::geteuid().as_raw()
    }

    /// A descriptor that becomes readable when the process ends, where the kernel has such.
    pub(super) fn watch(self) -> Option<OwnedFd> {
        rustix::process::pidfd_open(Pid::from_raw(self.pid)?, PidfdFlags::empty()).ok()
    }

    /// Whether we may reach the process' memory: the nonce that it told us is where it told us.
    pub(super) fn probe(self, address: u64, nonce: u64) -> bool {
        let mut found = 0_u64;
        let len = size_of::<u64>();
        let local = libc::iovec {
            iov_base: (&raw mut found).cast(),
            iov_len: len,
        };
        let Some(remote) = self.range(address, len) else {
            return false;
        };
        // SAFETY: `local` is the whole of `found`; the remote range is checked by the kernel.
        let read = unsafe {
            libc::process_vm_readv(self.pid, &raw const local, 1, &raw const remote, 1, 0)
        };
        usize::try_from(read) == Ok(len) && found == nonce
    }

    /// Copies from our memory into the process'.
    ///
    /// # Errors
    /// What the kernel says; invalid input for a source that is not inside of `memory`.
    pub(super) fn write(
        self,
        address: u64,
        memory: &Memory,
        offset: u64,
        len_bytes: u64,
    ) -> io::Result<()> {
        let mut done = 0;
        while done < len_bytes {
            let len = (len_bytes - done).min(WRITE_LEN_BYTES_MAX);
            let source = memory.host_range(offset + done, len);
            let len = usize::try_from(len).map_err(io::Error::other)?;
            let remote = address.checked_add(done).and_then(|at| self.range(at, len));
            let (Some(source), Some(remote)) = (source, remote) else {
                return Err(io::ErrorKind::InvalidInput.into());
            };
            let local = libc::iovec {
                iov_base: source.as_ptr().cast(),
                iov_len: len,
            };
            // SAFETY: `local` is a range that `host_range` checked; the kernel only reads it. The
            // remote range is checked by the kernel.
            let written = unsafe {
                libc::process_vm_writev(self.pid, &raw const local, 1, &raw const remote, 1, 0)
            };
            match u64::try_from(written) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => done += written,
                Err(_) => return Err(io::Error::last_os_error()),
            }
        }
        Ok(())
    }

    fn range(self, address: u64, len: usize) -> Option<libc::iovec> {
        if self.pid <= 0 {
            return None;
        }
        Some(libc::iovec {
            // An address of another process: it has no meaning as a pointer of ours.
            iov_base: ptr::without_provenance_mut(usize::try_from(address).ok()?),
            iov_len: len,
        })
    }
}

/// The kernel stops a little below 2 GiB; a round number keeps the rest aligned.
const WRITE_LEN_BYTES_MAX: u64 = 1 << 30;
