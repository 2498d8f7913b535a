//! Packets with descriptors over a Unix socket in the abstract namespace. What is in the packets is
//! not known here.

#![forbid(unsafe_code)]

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

/// A packet as it came.
#[derive(Debug)]
pub(super) struct Packet {
    pub(super) len_bytes: usize,
    pub(super) descriptors: Vec<OwnedFd>,
}

/// What a look at the socket found.
#[derive(Debug)]
pub(super) enum Received {
    /// Nothing for now.
    Empty,
    /// The other side is gone.
    Closed,
    /// A packet.
    Packet(Packet),
}

/// Listens under a name of the abstract namespace.
pub(super) fn listen(name: &[u8], backlog: i32) -> io::Result<OwnedFd> {
    let socket = socket()?;
    rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
    rustix::net::listen(&socket, backlog)?;
    Ok(socket)
}

/// Takes a waiting connection, if there is one.
pub(super) fn accept(listener: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    match rustix::net::accept_with(listener, flags) {
        Ok(socket) => Ok(Some(socket)),
        Err(error) if is_transient(error) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A socket that is not connected yet.
pub(super) fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    Ok(rustix::net::socket_with(family, kind, flags, None)?)
}

/// Connects, or says false when the listener's queue is full for now.
pub(super) fn connect(socket: &OwnedFd, name: &[u8]) -> io::Result<bool> {
    match rustix::net::connect(socket, &SocketAddrUnix::new_abstract_name(name)?) {
        Ok(()) => Ok(true),
        Err(error) if is_transient(error) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Sends one packet, or says false when there is no room for it now.
pub(super) fn send(
    socket: &OwnedFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<bool> {
    let mut space = [MaybeUninit::uninit(); ANCILLARY_LEN_BYTES];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("too many descriptors for one packet"));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags) {
        Ok(_) => Ok(true),
        Err(error) if is_transient(error) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Receives one packet into `out`.
///
/// # Errors
/// A packet that is longer than `out` or carries too many descriptors is invalid data.
pub(super) fn receive(socket: &OwnedFd, out: &mut [u8]) -> io::Result<Received> {
    let mut space = [MaybeUninit::uninit(); ANCILLARY_LEN_BYTES];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(out)], &mut ancillary, flags);
    let message = match received {
        Ok(message) => message,
        Err(error) if is_transient(error) => return Ok(Received::Empty),
        Err(Errno::CONNRESET) => return Ok(Received::Closed),
        Err(error) => return Err(error.into()),
    };
    let mut descriptors = Vec::new();
    for part in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            descriptors.extend(rights);
        }
    }
    if message
        .flags
        .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC)
    {
        return Err(crate::segment::invalid("a packet is too long"));
    }
    if message.bytes == 0 {
        return Ok(Received::Closed);
    }
    Ok(Received::Packet(Packet {
        len_bytes: message.bytes,
        descriptors,
    }))
}

/// Whether the other side has hung up; looks and takes nothing.
pub(super) fn is_hung_up(socket: &OwnedFd) -> bool {
    wait(socket, PollFlags::RDHUP, 0)
}

/// Waits a little for something to read.
pub(super) fn wait_readable(socket: &OwnedFd, timeout_ms: i64) {
    wait(socket, PollFlags::IN, timeout_ms);
}

fn wait(socket: &OwnedFd, what: PollFlags, timeout_ms: i64) -> bool {
    let mut watched = [PollFd::from_borrowed_fd(socket.as_fd(), what)];
    let timeout = Timespec {
        tv_sec: 0,
        tv_nsec: timeout_ms * 1_000_000,
    };
    poll(&mut watched, Some(&timeout)).is_ok_and(|ready| ready > 0)
}

fn is_transient(error: Errno) -> bool {
    error == Errno::AGAIN || error == Errno::INTR || error == Errno::CONNABORTED
}

/// Descriptors that one packet carries at most: ring, doorbell page, eventfd.
pub(super) const DESCRIPTORS_MAX: usize = 3;

const ANCILLARY_LEN_BYTES: usize = rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX));
