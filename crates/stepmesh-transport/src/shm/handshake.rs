//! How two shm fabrics get to know each other: the connection, the check of who it is, the first
//! packets, and the bounds on all of it.

#![forbid(unsafe_code)]

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::epoll;

use super::address::ShmAddress;
use super::bounce::Bounce;
use super::control::{FIRST_LEN_BYTES_MAX, First, Hello, Refusal};
use super::peer::Peer;
use super::process::Credentials;
use super::ring::{Consumer, Producer};
use super::socket::{self, Packet, Received};
use super::{Reach, ShmFabric, TOKEN_PROCESS, TOKEN_SOCKET};
use crate::doorbell::RemoteDoorbell;
use crate::error::Error;
use crate::fabric::{Address, FabricKind, PeerId};
use crate::news::{Deadline, check_hello};
use crate::segment;
use crate::table::Table;

/// A connection on its way.
#[derive(Debug)]
pub(super) struct Handshake {
    pub(super) id: PeerId,
    socket: OwnedFd,
    side: Side,
    deadline: Deadline,
}

/// Which end of the connection this is.
#[derive(Debug)]
enum Side {
    /// It has to say hello first.
    Accepting,
    /// Ours. The listener's queue may have been full, so that the connection has yet to be made.
    Connecting {
        name: Vec<u8>,
        hello: Vec<u8>,
        ring: Consumer,
        connected: bool,
    },
}

impl ShmFabric {
    /// Starts a connection.
    pub(super) fn start_connecting(
        &mut self,
        address: &Address,
        hello: &[u8],
        timeout: Duration,
    ) -> Result<PeerId, Error> {
        let invalid = |reason: &str| Error::InvalidAddress {
            fabric: FabricKind::Shm,
            reason: reason.to_owned(),
        };
        let address =
            ShmAddress::decode(&address.0).ok_or_else(|| invalid("these are no such bytes"))?;
        if address.boot != self.address.boot {
            return Err(invalid("it is on another host, or from before a reboot"));
        }
        let hello = check_hello(FabricKind::Shm, hello)?;
        let ring = self.create_ring()?;
        let socket = socket::socket().map_err(|source| io_error("socket", source))?;
        let id = self.insert_peer()?;
        self.handshakes.push(Handshake {
            id,
            socket,
            side: Side::Connecting {
                name: address.socket_name(),
                hello,
                ring,
                connected: false,
            },
            deadline: Deadline::after(timeout),
        });
        self.try_connecting(self.handshakes.len() - 1);
        self.next_check_ns = 0;
        Ok(id)
    }

    /// A ring for one more peer.
    pub(super) fn create_ring(&self) -> Result<Consumer, Error> {
        let dir = self.options.dir.as_deref();
        Consumer::create(dir, self.ring_lines).map_err(|source| {
            let place = dir.map_or_else(
                || "anonymous memory".to_owned(),
                |dir| dir.display().to_string(),
            );
            match source.kind() {
                io::ErrorKind::StorageFull
                | io::ErrorKind::QuotaExceeded
                | io::ErrorKind::OutOfMemory => Error::NoSpace {
                    fabric: FabricKind::Shm,
                    place,
                    len_bytes: self.ring_lines * segment::LINE_LEN_BYTES as u64,
                    source,
                },
                _ => Error::Io {
                    fabric: FabricKind::Shm,
                    operation: "creating a ring",
                    object: place,
                    source,
                },
            }
        })
    }

    /// Takes the connections that wait.
    pub(super) fn accept(&mut self) {
        for _ in 0..ACCEPTS_MAX {
            let socket = match socket::accept(&self.listener) {
                Ok(Some(socket)) => socket,
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%error, "shm: no connection can be accepted");
                    return;
                }
            };
            let trusted = Credentials::of(&socket).is_ok_and(Credentials::is_trusted);
            if !trusted {
                tracing::warn!("shm: a process of another user was turned away");
                continue;
            }
            let Ok(id) = self.insert_peer() else {
                tracing::warn!(limit = self.options.peers_max, "shm: one peer too many");
                continue;
            };
            let data = epoll::EventData::new_u64(TOKEN_SOCKET | u64::from(id.0));
            if epoll::add(&self.epoll, &socket, data, epoll::EventFlags::IN).is_err() {
                self.peers.remove(id.0);
                continue;
            }
            self.handshakes.push(Handshake {
                id,
                socket,
                side: Side::Accepting,
                deadline: Deadline::after(self.options.handshake_timeout),
            });
        }
    }

    /// Connects what could not be connected before, and ends what took too long.
    pub(super) fn check_handshakes(&mut self, now_ns: u64) {
        for index in (0..self.handshakes.len()).rev() {
            let handshake = &mut self.handshakes[index];
            if handshake.deadline.is_over(now_ns) {
                let object = format!("peer {:?}", handshake.id);
                let error = (handshake.deadline).error(FabricKind::Shm, "the handshake", object);
                self.fail(index, error);
            } else if matches!(
                handshake.side,
                Side::Connecting {
                    connected: false,
                    ..
                }
            ) {
                self.try_connecting(index);
            }
        }
    }

    /// Goes on with a handshake whose socket has something.
    pub(super) fn step_handshake(&mut self, index: usize) {
        let mut bytes = [0; FIRST_LEN_BYTES_MAX];
        let handshake = &self.handshakes[index];
        let peer = handshake.id;
        let invalid = |reason: &str| Error::InvalidWire {
            fabric: FabricKind::Shm,
            peer,
            reason: reason.to_owned(),
        };
        let packet = match socket::receive(&handshake.socket, &mut bytes) {
            Ok(Received::Empty) => return,
            Ok(Received::Packet(packet)) => packet,
            Ok(Received::Closed) => {
                let fabric = FabricKind::Shm;
                return self.fail(index, Error::PeerClosed { fabric, peer });
            }
            Err(error) => return self.fail(index, invalid(&error.to_string())),
        };
        match First::decode(&bytes[..packet.len_bytes]) {
            Ok(First::Hello(hello)) => self.establish(index, hello, packet),
            Ok(First::Refused(refusal)) => {
                let error = Error::Refused {
                    fabric: FabricKind::Shm,
                    peer,
                    reason: refusal.to_string(),
                };
                self.fail(index, error);
            }
            Err(refusal) => {
                self.refuse(index, refusal);
                self.fail(
                    index,
                    invalid("it did not begin with a hello of this version"),
                );
            }
        }
    }

    fn insert_peer(&mut self) -> Result<PeerId, Error> {
        let id = self.peers.insert_with(|_| None);
        id.map(PeerId).ok_or(Error::Limit {
            fabric: FabricKind::Shm,
            what: "peers",
            limit: self.options.peers_max as u64,
        })
    }

    fn try_connecting(&mut self, index: usize) {
        let Handshake {
            id, socket, side, ..
        } = &mut self.handshakes[index];
        let Side::Connecting {
            name,
            hello,
            ring,
            connected,
        } = side
        else {
            return;
        };
        let id = *id;
        let made = match socket::connect(socket, name) {
            Ok(false) => return,
            Ok(true) => {
                *connected = true;
                let packet = hello_packet(&self.probe, self.ring_lines, &self.options, hello);
                let sent = greet(&self.epoll, socket, id, &packet, ring, &self.doorbell);
                sent.map_err(|source| io_error("sending a hello", source))
            }
            Err(source) => Err(io_error("connecting", source)),
        };
        if let Err(error) = made {
            self.fail(index, error);
        }
    }

    /// The peer said hello: takes what it brought, answers if it came to us, and is connected.
    fn establish(&mut self, index: usize, hello: Hello, packet: Packet) {
        let id = self.handshakes[index].id;
        let taken = self.take(&hello, packet, &self.handshakes[index].socket);
        let (tx, doorbell, credentials) = match taken {
            Ok(taken) => taken,
            Err(error) => {
                self.refuse(index, Refusal::Hello);
                let error = Error::InvalidWire {
                    fabric: FabricKind::Shm,
                    peer: id,
                    reason: error.to_string(),
                };
                return self.fail(index, error);
            }
        };
        let answered = match &self.handshakes[index].side {
            Side::Connecting { .. } => Ok(None),
            Side::Accepting => self.answer(index).map(Some),
        };
        let answer = match answered {
            Ok(answer) => answer,
            Err(error) => {
                self.refuse(index, Refusal::NoSpace);
                return self.fail(index, error);
            }
        };
        let handshake = self.handshakes.swap_remove(index);
        let (rx, connected) = match (handshake.side, answer) {
            (Side::Connecting { ring, .. }, _) => (ring, true),
            (Side::Accepting, Some(ring)) => (ring, false),
            (Side::Accepting, None) => return,
        };
        let process = credentials.watch();
        if let Some(process) = &process {
            let data = epoll::EventData::new_u64(TOKEN_PROCESS | u64::from(id.0));
            // Without it, the end still shows at the socket.
            let _ = epoll::add(&self.epoll, process, data, epoll::EventFlags::IN);
        }
        let theirs = usize::try_from(hello.message_len_bytes_max).unwrap_or(usize::MAX);
        let ours = self.options.message_len_bytes_max;
        doorbell.ring();
        let peer = Peer {
            id,
            rx,
            message_len_bytes_max: ours.min(theirs).min(tx.record_len_bytes_max()),
            tx,
            doorbell,
            socket: handshake.socket,
            process,
            credentials,
            reaches_memory: self.options.reach <= Reach::Process
                && credentials.probe(hello.probe_address, hello.probe_nonce),
            trusts_unsealed: self.options.dir.is_some(),
            imports: Table::new(self.options.regions_max),
            files: HashMap::new(),
            shared: HashSet::new(),
            files_sent: HashSet::new(),
            outbox: VecDeque::new(),
            revoked: Vec::new(),
            bounce: Bounce::default(),
            ended: None,
            end_position: 0,
        };
        if let Some(entry) = self.peers.get_mut(id.0) {
            *entry = Some(Box::new(peer));
            self.live.push(id.0);
            match connected {
                true => self.news.connected(id, hello.hello),
                false => self.news.accepted(id, hello.hello),
            }
        }
    }

    /// Checks and maps what came with a hello.
    fn take(
        &self,
        hello: &Hello,
        packet: Packet,
        socket: &OwnedFd,
    ) -> io::Result<(Producer, RemoteDoorbell, Credentials)> {
        let credentials = Credentials::of(socket)?;
        if !credentials.is_trusted() {
            return Err(segment::invalid("it belongs to another user"));
        }
        let Ok([ring, page, eventfd]) = <[OwnedFd; 3]>::try_from(packet.descriptors) else {
            return Err(segment::invalid("a hello brings three descriptors"));
        };
        if self.options.dir.is_none() && !segment::is_sealed(&ring) {
            return Err(segment::invalid("the ring is not sealed"));
        }
        let tx = Producer::map(&ring, hello.ring_lines)?;
        let doorbell = RemoteDoorbell::from_descriptors(page, eventfd)?;
        Ok((tx, doorbell, credentials))
    }

    /// Answers a hello with our own.
    fn answer(&self, index: usize) -> Result<Consumer, Error> {
        let ring = self.create_ring()?;
        let packet = hello_packet(&self.probe, self.ring_lines, &self.options, &self.hello);
        let socket = &self.handshakes[index].socket;
        send_hello(socket, &packet, &ring, &self.doorbell)
            .map_err(|source| io_error("sending a hello", source))?;
        Ok(ring)
    }

    fn refuse(&self, index: usize, refusal: Refusal) {
        // The connection ends either way; the answer only says why.
        let _ = socket::send(&self.handshakes[index].socket, &refusal.encode(), &[]);
    }

    /// Ends a handshake. Who connected to us is not known yet, so only our own are reported.
    fn fail(&mut self, index: usize, error: Error) {
        let handshake = self.handshakes.swap_remove(index);
        let id = handshake.id;
        self.peers.remove(id.0);
        match handshake.side {
            Side::Connecting { .. } => self.news.closed(id, error),
            Side::Accepting => tracing::debug!(%error, "shm: a connection came to nothing"),
        }
        // It may not be watched yet; it is closed in any case.
        let _ = epoll::delete(&self.epoll, &handshake.socket);
    }
}

fn hello_packet(
    probe: &u64,
    ring_lines: u64,
    options: &super::ShmOptions,
    hello: &[u8],
) -> Vec<u8> {
    Hello {
        ring_lines,
        message_len_bytes_max: u32::try_from(options.message_len_bytes_max).unwrap_or(u32::MAX),
        probe_address: std::ptr::from_ref(probe).expose_provenance() as u64,
        probe_nonce: *probe,
        hello: hello.to_vec(),
    }
    .encode()
}

/// Watches a socket that was just connected, and says hello on it.
fn greet(
    epoll: &OwnedFd,
    socket: &OwnedFd,
    id: PeerId,
    packet: &[u8],
    ring: &Consumer,
    doorbell: &crate::doorbell::Doorbell,
) -> io::Result<()> {
    let data = epoll::EventData::new_u64(TOKEN_SOCKET | u64::from(id.0));
    epoll::add(epoll, socket, data, epoll::EventFlags::IN)?;
    send_hello(socket, packet, ring, doorbell)
}

fn send_hello(
    socket: &OwnedFd,
    packet: &[u8],
    ring: &Consumer,
    doorbell: &crate::doorbell::Doorbell,
) -> io::Result<()> {
    let [page, eventfd] = doorbell.descriptors();
    match socket::send(socket, packet, &[ring.descriptor(), page, eventfd])? {
        true => Ok(()),
        false => Err(io::ErrorKind::WouldBlock.into()),
    }
}

fn io_error(operation: &'static str, source: io::Error) -> Error {
    Error::Io {
        fabric: FabricKind::Shm,
        operation,
        object: "a connection".to_owned(),
        source,
    }
}

/// Connections accepted in one look, so that a flood cannot hold up the engine.
const ACCEPTS_MAX: usize = 16;
