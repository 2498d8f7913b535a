//! How two tcp fabrics get to know each other: the connection, one hello from each side, and the
//! bounds on both.

#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::epoll;
use rustix::net::{RecvFlags, SendFlags};

use super::frame::{FIRST_LEN_BYTES_MAX, First, Hello};
use super::peer::Peer;
use super::receive::Receiver;
use super::send::Sender;
use super::{TcpFabric, address, socket};
use crate::error::Error;
use crate::fabric::{Address, FabricKind, PeerId};
use crate::news::{Deadline, check_hello};
use crate::table::Table;

/// A connection on its way.
#[derive(Debug)]
pub(super) struct Handshake {
    pub(super) id: PeerId,
    socket: OwnedFd,
    side: Side,
    /// What has come so far; the peer may go on right behind its hello.
    bytes: [u8; FIRST_LEN_BYTES_MAX],
    len: usize,
    deadline: Deadline,
}

/// Which end of the connection this is.
#[derive(Debug)]
enum Side {
    Accepting,
    Connecting {
        address: SocketAddr,
        hello: Vec<u8>,
        connected: bool,
    },
}

impl TcpFabric {
    /// Starts a connection.
    pub(super) fn start_connecting(
        &mut self,
        address: &Address,
        hello: &[u8],
        timeout: Duration,
    ) -> Result<PeerId, Error> {
        let address = address::decode(&address.0).ok_or_else(|| Error::InvalidAddress {
            fabric: FabricKind::Tcp,
            reason: "these are no such bytes".to_owned(),
        })?;
        let hello = check_hello(FabricKind::Tcp, hello)?;
        let id = self.insert_peer()?;
        let side = Side::Connecting {
            address,
            hello,
            connected: false,
        };
        let events = epoll::EventFlags::IN | epoll::EventFlags::OUT;
        let watched = socket::connect(address, &self.options).and_then(|socket| {
            epoll::add(&self.epoll, &socket, data(id), events)?;
            Ok(socket)
        });
        match watched {
            Ok(socket) => self
                .handshakes
                .push(Handshake::new(id, socket, side, timeout)),
            Err(error) => {
                self.peers.remove(id.0);
                let error = connecting_failed(address, error);
                self.news.closed(id, error);
            }
        }
        self.next_check_ns = 0;
        Ok(id)
    }

    /// Takes the connections that wait.
    pub(super) fn accept(&mut self) {
        for _ in 0..ACCEPTS_MAX {
            let (socket, from) = match socket::accept(&self.listener, &self.options) {
                Ok(Some(accepted)) => accepted,
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%error, "tcp: no connection can be accepted");
                    return;
                }
            };
            let Ok(id) = self.insert_peer() else {
                tracing::warn!(limit = self.options.peers_max, "tcp: one peer too many");
                continue;
            };
            tracing::debug!(?from, peer = id.0, "tcp: a peer connects");
            if epoll::add(&self.epoll, &socket, data(id), epoll::EventFlags::IN).is_err() {
                self.peers.remove(id.0);
                continue;
            }
            let timeout = self.options.handshake_timeout;
            self.handshakes
                .push(Handshake::new(id, socket, Side::Accepting, timeout));
        }
    }

    /// Ends what took too long.
    pub(super) fn check_handshakes(&mut self, now_ns: u64) {
        for index in (0..self.handshakes.len()).rev() {
            let handshake = &mut self.handshakes[index];
            if handshake.deadline.is_over(now_ns) {
                let object = match &handshake.side {
                    Side::Connecting { address, .. } => address.to_string(),
                    Side::Accepting => format!("peer {:?}", handshake.id),
                };
                let error = (handshake.deadline).error(FabricKind::Tcp, "the handshake", object);
                self.fail(index, error);
            }
        }
    }

    /// Goes on with a handshake whose socket is ready.
    pub(super) fn step_handshake(&mut self, index: usize) {
        let peer = self.handshakes[index].id;
        if let Err(error) = self.finish_connecting(index) {
            return self.fail(index, error);
        }
        let handshake = &mut self.handshakes[index];
        if matches!(
            handshake.side,
            Side::Connecting {
                connected: false,
                ..
            }
        ) {
            return;
        }
        let room = &mut handshake.bytes[handshake.len..];
        match rustix::net::recv(&handshake.socket, room, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => {
                let fabric = FabricKind::Tcp;
                return self.fail(index, Error::PeerClosed { fabric, peer });
            }
            Ok((_, read)) => handshake.len += read,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return,
            Err(error) => return self.fail(index, io_error("receiving a hello", error.into())),
        }
        match First::decode(&handshake.bytes[..handshake.len]) {
            Ok(None) => {}
            Ok(Some((First::Hello(hello), len))) => self.establish(index, hello, len),
            Ok(Some((First::Refused(refusal), _))) => {
                let error = Error::Refused {
                    fabric: FabricKind::Tcp,
                    peer,
                    reason: refusal.to_string(),
                };
                self.fail(index, error);
            }
            Err(refusal) => {
                // The connection ends either way; the answer only says why.
                let _ = send_all(&self.handshakes[index].socket, &refusal.encode());
                let error = Error::InvalidWire {
                    fabric: FabricKind::Tcp,
                    peer,
                    reason: "it did not begin with a hello of this version".to_owned(),
                };
                self.fail(index, error);
            }
        }
    }

    fn insert_peer(&mut self) -> Result<PeerId, Error> {
        let id = self.peers.insert_with(|_| None);
        id.map(PeerId).ok_or(Error::Limit {
            fabric: FabricKind::Tcp,
            what: "peers",
            limit: self.options.peers_max as u64,
        })
    }

    /// When the connection that we started is made: says hello.
    fn finish_connecting(&mut self, index: usize) -> Result<(), Error> {
        let ours = self.message_len_bytes_max();
        let Handshake {
            id, socket, side, ..
        } = &mut self.handshakes[index];
        let Side::Connecting {
            address,
            hello,
            connected: connected @ false,
        } = side
        else {
            return Ok(());
        };
        socket::connected(socket).map_err(|source| connecting_failed(*address, source))?;
        if rustix::net::getpeername(&*socket).is_err() {
            return Ok(());
        }
        *connected = true;
        let hello = Hello {
            message_len_bytes_max: ours,
            hello: std::mem::take(hello),
        };
        let watched = epoll::modify(&self.epoll, &*socket, data(*id), epoll::EventFlags::IN);
        watched
            .map_err(io::Error::from)
            .and_then(|()| send_all(socket, &hello.encode()))
            .map_err(|source| io_error("sending a hello", source))
    }

    /// The peer said hello: answers, if it came to us, and is connected.
    fn establish(&mut self, index: usize, hello: Hello, len: usize) {
        let accepting = matches!(self.handshakes[index].side, Side::Accepting);
        if accepting {
            let answer = Hello {
                message_len_bytes_max: self.message_len_bytes_max(),
                hello: self.hello.clone(),
            };
            let sent = send_all(&self.handshakes[index].socket, &answer.encode());
            if let Err(source) = sent {
                return self.fail(index, io_error("sending a hello", source));
            }
        }
        let handshake = self.handshakes.swap_remove(index);
        let id = handshake.id;
        let theirs = usize::try_from(hello.message_len_bytes_max).unwrap_or(usize::MAX);
        let ours = self.options.message_len_bytes_max;
        let early = &handshake.bytes[len..handshake.len];
        let peer = Peer {
            id,
            receiver: Receiver::new(ours, early),
            stalled: false,
            socket: handshake.socket,
            sender: Sender::default(),
            imports: Table::new(self.options.regions_max),
            shared: HashSet::new(),
            message_len_bytes_max: ours.min(theirs),
            watches_room: false,
            send_broken: false,
        };
        if let Some(entry) = self.peers.get_mut(id.0) {
            *entry = Some(Box::new(peer));
            self.live.push(id.0);
            // What came early is in no socket any more, so no readiness announces it.
            self.ready.push(id.0);
            match accepting {
                true => self.news.accepted(id, hello.hello),
                false => self.news.connected(id, hello.hello),
            }
        }
    }

    fn message_len_bytes_max(&self) -> u32 {
        u32::try_from(self.options.message_len_bytes_max).unwrap_or(u32::MAX)
    }

    /// Ends a handshake. Who connected to us is not known yet, so only our own are reported.
    fn fail(&mut self, index: usize, error: Error) {
        let handshake = self.handshakes.swap_remove(index);
        let id = handshake.id;
        self.peers.remove(id.0);
        match handshake.side {
            Side::Connecting { .. } => self.news.closed(id, error),
            Side::Accepting => tracing::debug!(%error, "tcp: a connection came to nothing"),
        }
        // It is closed in any case.
        let _ = epoll::delete(&self.epoll, &handshake.socket);
    }
}

impl Handshake {
    fn new(id: PeerId, socket: OwnedFd, side: Side, timeout: Duration) -> Self {
        Self {
            id,
            socket,
            side,
            bytes: [0; FIRST_LEN_BYTES_MAX],
            len: 0,
            deadline: Deadline::after(timeout),
        }
    }
}

pub(super) fn data(id: PeerId) -> epoll::EventData {
    epoll::EventData::new_u64(u64::from(id.0))
}

/// Sends a first frame, for which a fresh socket always has room.
fn send_all(socket: &OwnedFd, bytes: &[u8]) -> io::Result<()> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    if rustix::net::send(socket, bytes, flags)? != bytes.len() {
        return Err(io::ErrorKind::WriteZero.into());
    }
    Ok(())
}

fn connecting_failed(address: SocketAddr, source: io::Error) -> Error {
    Error::Io {
        fabric: FabricKind::Tcp,
        operation: "connecting",
        object: address.to_string(),
        source,
    }
}

fn io_error(operation: &'static str, source: io::Error) -> Error {
    Error::Io {
        fabric: FabricKind::Tcp,
        operation,
        object: "a connection".to_owned(),
        source,
    }
}

/// Connections accepted in one look, so that a flood cannot hold up the engine.
const ACCEPTS_MAX: usize = 16;
