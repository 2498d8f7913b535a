//! Sending from and receiving into registered memory with one system call, without a copy in
//! between. Which ranges those are is decided elsewhere; here they are checked once more.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;

use crate::memory::Memory;

/// Ranges to send, in order.
#[derive(Debug)]
pub(super) struct Gather<'a>(Parts, PhantomData<&'a [u8]>);

/// Ranges to receive into, in order.
#[derive(Debug)]
pub(super) struct Scatter<'a>(Parts, PhantomData<&'a mut [u8]>);

impl<'a> Gather<'a> {
    pub(super) fn new() -> Self {
        Self(Parts::new(), PhantomData)
    }

    /// Adds bytes; false when there is no room for another range.
    pub(super) fn push_bytes(&mut self, bytes: &'a [u8]) -> bool {
        self.0.push(bytes.as_ptr().cast_mut(), bytes.len())
    }

    /// Adds a range of memory; false when there is no room for another range, or it is not inside.
    pub(super) fn push_memory(&mut self, memory: &'a Memory, offset: u64, len_bytes: u64) -> bool {
        self.0.push_memory(memory, offset, len_bytes)
    }

    /// How much there is, in bytes.
    pub(super) fn len_bytes(&self) -> usize {
        self.0.len_bytes
    }

    /// Sends as much as the socket takes now.
    pub(super) fn send(mut self, socket: &OwnedFd) -> io::Result<usize> {
        let message = self.0.message();
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: every range was checked when it was added and is borrowed for 'a; the kernel
        // only reads it.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}

impl<'a> Scatter<'a> {
    pub(super) fn new() -> Self {
        Self(Parts::new(), PhantomData)
    }

    /// Adds bytes; false when there is no room for another range.
    pub(super) fn push_bytes(&mut self, bytes: &'a mut [u8]) -> bool {
        self.0.push(bytes.as_mut_ptr(), bytes.len())
    }

    /// Adds a range of memory; false when there is no room for another range, or it is not inside.
    pub(super) fn push_memory(&mut self, memory: &'a Memory, offset: u64, len_bytes: u64) -> bool {
        self.0.push_memory(memory, offset, len_bytes)
    }

    /// How much room there is, in bytes.
    pub(super) fn len_bytes(&self) -> usize {
        self.0.len_bytes
    }

    /// Receives what the socket has now; zero at its end.
    pub(super) fn receive(mut self, socket: &OwnedFd) -> io::Result<usize> {
        let mut message = self.0.message();
        // SAFETY: every range was checked when it was added, may be written (a mutable slice, or
        // memory that by its contract peers may write), and is borrowed for 'a.
        let received =
            unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
        usize::try_from(received).map_err(|_| io::Error::last_os_error())
    }
}

struct Parts {
    parts: [libc::iovec; PARTS_MAX],
    count: usize,
    len_bytes: usize,
}

impl Parts {
    fn new() -> Self {
        const EMPTY: libc::iovec = libc::iovec {
            iov_base: ptr::null_mut(),
            iov_len: 0,
        };
        Self {
            parts: [EMPTY; PARTS_MAX],
            count: 0,
            len_bytes: 0,
        }
    }

    fn push(&mut self, base: *mut u8, len: usize) -> bool {
        let Some(part) = self.parts.get_mut(self.count) else {
            return false;
        };
        // The sum must be one that the kernel can return.
        let total = self.len_bytes.checked_add(len);
        let Some(total) = total.filter(|total| isize::try_from(*total).is_ok()) else {
            return false;
        };
        *part = libc::iovec {
            iov_base: base.cast(),
            iov_len: len,
        };
        self.count += 1;
        self.len_bytes = total;
        true
    }

    fn push_memory(&mut self, memory: &Memory, offset: u64, len_bytes: u64) -> bool {
        match (
            memory.host_range(offset, len_bytes),
            usize::try_from(len_bytes),
        ) {
            (Some(base), Ok(len)) => self.push(base.as_ptr(), len),
            _ => false,
        }
    }

    fn message(&mut self) -> libc::msghdr {
        // SAFETY: a message header of zeros has no name, no ranges and no control data.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = self.parts.as_mut_ptr();
        message.msg_iovlen = self.count;
        message
    }
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts")
            .field("count", &self.count)
            .field("len_bytes", &self.len_bytes)
            .finish_non_exhaustive()
    }
}

/// Ranges of one call: a batch has a few tensors; more of them take another call.
const PARTS_MAX: usize = 64;
