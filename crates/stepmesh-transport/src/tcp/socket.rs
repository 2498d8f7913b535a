//! Sockets with the options of the fabric. What goes over them is not known here.

#![forbid(unsafe_code)]

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrAny, SocketFlags, SocketType, ipproto, sockopt};

use super::TcpOptions;

/// Listens on the address of the options.
pub(super) fn listen(options: &TcpOptions) -> io::Result<(OwnedFd, SocketAddr)> {
    let address = SocketAddr::new(options.bind, options.port);
    let socket = socket(address)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    set_buffers(&socket, options)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    let bound = rustix::net::getsockname(&socket)?;
    let bound = SocketAddr::try_from(bound).map_err(|error| io::Error::other(error.to_string()))?;
    Ok((socket, bound))
}

/// Starts to connect; the socket becomes writable when that succeeded or failed.
pub(super) fn connect(address: SocketAddr, options: &TcpOptions) -> io::Result<OwnedFd> {
    let socket = socket(address)?;
    set_buffers(&socket, options)?;
    set_options(&socket, options)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

/// How the attempt to connect ended.
pub(super) fn connected(socket: &OwnedFd) -> io::Result<()> {
    Ok(sockopt::socket_error(socket)??)
}

/// Takes a waiting connection, if there is one.
pub(super) fn accept(
    listener: &OwnedFd,
    options: &TcpOptions,
) -> io::Result<Option<(OwnedFd, Option<SocketAddrAny>)>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    match rustix::net::acceptfrom_with(listener, flags) {
        Ok((socket, address)) => {
            set_options(&socket, options)?;
            Ok(Some((socket, address)))
        }
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn socket(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let protocol = Some(ipproto::TCP);
    Ok(rustix::net::socket_with(
        family,
        SocketType::STREAM,
        flags,
        protocol,
    )?)
}

/// Accepted sockets have the sizes of their listener.
fn set_buffers(socket: &OwnedFd, options: &TcpOptions) -> io::Result<()> {
    if options.send_buffer_bytes > 0 {
        sockopt::set_socket_send_buffer_size(socket, options.send_buffer_bytes)?;
    }
    if options.recv_buffer_bytes > 0 {
        sockopt::set_socket_recv_buffer_size(socket, options.recv_buffer_bytes)?;
    }
    Ok(())
}

fn set_options(socket: &OwnedFd, options: &TcpOptions) -> io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    let Some(dead_after) = options.dead_after else {
        return Ok(());
    };
    // A host that vanished while we send is noticed by the first, while we do not by the others.
    let timeout_ms = u32::try_from(dead_after.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(socket, timeout_ms.max(1))?;
    sockopt::set_socket_keepalive(socket, true)?;
    let probe = (dead_after / (KEEPALIVE_PROBES + 1)).max(KEEPALIVE_MIN);
    sockopt::set_tcp_keepidle(socket, probe)?;
    sockopt::set_tcp_keepintvl(socket, probe)?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES)?;
    Ok(())
}

/// Connections that wait to be accepted: as many as a mesh has peers by default.
const BACKLOG: i32 = 1024;

/// One lost probe is no death.
const KEEPALIVE_PROBES: u32 = 2;

/// The kernel counts these in seconds.
const KEEPALIVE_MIN: Duration = Duration::from_secs(1);
