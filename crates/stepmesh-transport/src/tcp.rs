//! The fabric for hosts without RDMA: one-sided writes and messages over TCP, framed so that a
//! chain is usually one system call on either side.
//!
//! Parts: `frame` (bytes on the wire), `send` and `receive` (the halves of a connection), `vectored`
//! (the system calls on registered memory), `peer` (a connection), `handshake` (how it comes about),
//! `socket` and `address`.
//!
//! Bytes are neither encrypted nor signed: bind it to an interface that only the mesh reaches.

pub(crate) mod address;
pub(crate) mod frame;
mod handshake;
mod peer;
mod receive;
mod send;
mod socket;
#[expect(unsafe_code, reason = "system calls on memory that was checked")]
mod vectored;

use std::fmt;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{Timespec, epoll};

use self::handshake::Handshake;
use self::peer::{Peer, Remote, local};
use crate::error::Error;
use crate::fabric::{
    Address, Chain, EventSink, Fabric, FabricKind, Limits, POLL_EVENTS_MAX, PeerId, PostError,
    Posted, RegionId, RemoteId, SharedRegion,
};
use crate::memory::Memory;
use crate::news::{self, News};
use crate::table::Table;

/// Options of a [`TcpFabric`].
#[derive(Clone, Debug)]
pub struct TcpOptions {
    /// The address of the interface to listen on.
    pub bind: IpAddr,
    /// The port; zero for one that the system chooses.
    pub port: u16,
    /// What peers are told to connect to, if that is not `bind`. Needed when `bind` is unspecified.
    pub advertise: Option<IpAddr>,
    /// The kernel's send buffer of each connection, in bytes; zero leaves it to the kernel.
    pub send_buffer_bytes: usize,
    /// The kernel's receive buffer of each connection, in bytes; zero leaves it to the kernel.
    pub recv_buffer_bytes: usize,
    /// Longest message, in bytes.
    pub message_len_bytes_max: usize,
    /// Most peers, those that are still connecting included.
    pub peers_max: usize,
    /// Most regions of this process, and of each peer.
    pub regions_max: usize,
    /// How long a peer that connects may take to say who it is.
    pub handshake_timeout: Duration,
    /// After how long without an answer the kernel gives up on a host that vanished; `None` leaves
    /// it to the kernel (hours). Whole seconds, and at least three, are sensible.
    pub dead_after: Option<Duration>,
}

/// TCP as a [`Fabric`].
pub struct TcpFabric {
    options: TcpOptions,
    address: SocketAddr,
    listener: OwnedFd,
    /// Listener and all connections.
    epoll: OwnedFd,
    hello: Vec<u8>,
    /// `None` while the handshake goes on.
    peers: Table<Option<Box<Peer>>>,
    handshakes: Vec<Handshake>,
    live: Vec<u32>,
    /// Where in `live` the next poll starts, so that no peer is always last.
    turn: usize,
    regions: Regions,
    news: News,
    /// Peers to poll next: their sockets are ready, or the last poll left something of theirs.
    ready: Vec<u32>,
    /// The other of two lists that change places, so that neither grows anew.
    polling: Vec<u32>,
    next_check_ns: u64,
}

/// The [`Address`] of a tcp fabric that listens at `address`, for a caller who knows the socket
/// address from elsewhere.
#[must_use]
pub fn address_of(address: SocketAddr) -> Address {
    address::encode(address)
}

impl Default for TcpOptions {
    fn default() -> Self {
        Self {
            bind: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 0,
            advertise: None,
            send_buffer_bytes: 0,
            recv_buffer_bytes: 0,
            message_len_bytes_max: 16384,
            peers_max: 1024,
            regions_max: 65536,
            handshake_timeout: Duration::from_secs(2),
            dead_after: None,
        }
    }
}

impl TcpFabric {
    /// Starts to listen.
    ///
    /// # Errors
    /// [`Error::InvalidOption`]; [`Error::Io`] when the address is not one of this host, or the
    /// port is in use.
    pub fn new(options: TcpOptions) -> Result<Self, Error> {
        let advertised = options.advertise.unwrap_or(options.bind);
        if advertised.is_unspecified() {
            return Err(Error::InvalidOption {
                fabric: FabricKind::Tcp,
                option: "bind",
                value: options.bind.to_string(),
                reason: "peers cannot connect to it: name an interface, or an address to advertise"
                    .to_owned(),
            });
        }
        if options.message_len_bytes_max > MESSAGE_LEN_BYTES_MAX {
            return Err(Error::InvalidOption {
                fabric: FabricKind::Tcp,
                option: "message_len_bytes_max",
                value: options.message_len_bytes_max.to_string(),
                reason: format!("the most is {MESSAGE_LEN_BYTES_MAX}"),
            });
        }
        let io = |operation, source| Error::Io {
            fabric: FabricKind::Tcp,
            operation,
            object: SocketAddr::new(options.bind, options.port).to_string(),
            source,
        };
        let (listener, bound) =
            socket::listen(&options).map_err(|source| io("listening", source))?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|source| io("epoll_create", source.into()))?;
        let data = epoll::EventData::new_u64(TOKEN_LISTENER);
        epoll::add(&epoll, &listener, data, epoll::EventFlags::IN)
            .map_err(|source| io("epoll_ctl", source.into()))?;
        Ok(Self {
            address: SocketAddr::new(advertised, bound.port()),
            listener,
            epoll,
            hello: Vec::new(),
            peers: Table::new(options.peers_max),
            handshakes: Vec::new(),
            live: Vec::new(),
            turn: 0,
            regions: Table::new(options.regions_max),
            news: News::default(),
            ready: Vec::with_capacity(2 * EPOLL_EVENTS_MAX),
            polling: Vec::with_capacity(2 * EPOLL_EVENTS_MAX),
            next_check_ns: 0,
            options,
        })
    }

    /// Where it listens.
    pub fn socket_address(&self) -> SocketAddr {
        self.address
    }

    fn peer_mut(&mut self, peer: PeerId) -> Result<&mut Peer, Error> {
        let found = self.peers.get_mut(peer.0).and_then(Option::as_deref_mut);
        found.ok_or_else(|| unknown_peer(peer))
    }

    /// Asks which sockets are ready, and goes on with connections on their way.
    fn check_sockets(&mut self, now_ns: u64) {
        let mut ready = [MaybeUninit::uninit(); EPOLL_EVENTS_MAX];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let ready = match epoll::wait(&self.epoll, &mut ready, Some(&now)) {
            Ok((ready, _)) => &*ready,
            Err(_) => &[],
        };
        for event in ready {
            let token = event.data.u64();
            let Ok(id) = u32::try_from(token) else {
                self.accept();
                continue;
            };
            match self.handshakes.iter().position(|other| other.id.0 == id) {
                Some(index) => self.step_handshake(index),
                None if self.ready.contains(&id) => {}
                None => self.ready.push(id),
            }
        }
        self.check_handshakes(now_ns);
        self.next_check_ns = now_ns.saturating_add(CHECK_NS);
    }

    /// Polls one peer, and takes it away when it has ended.
    fn poll_peer(&mut self, id: u32, events_max: usize, sink: &mut dyn EventSink) -> usize {
        let Some(Some(peer)) = self.peers.get_mut(id) else {
            return 0;
        };
        let (mut events, end) = peer.poll(&self.regions, events_max, sink);
        let Some(reason) = end else {
            let waits = !peer.sender.is_empty();
            if waits != peer.watches_room {
                watch_room(&self.epoll, peer, waits);
            }
            if peer.stalled {
                self.ready.push(id);
            }
            return events;
        };
        self.close(PeerId(id));
        sink.closed(PeerId(id), reason);
        events += 1;
        events
    }
}

impl Fabric for TcpFabric {
    fn kind(&self) -> FabricKind {
        FabricKind::Tcp
    }

    fn limits(&self) -> Limits {
        Limits {
            writes_max: WRITES_MAX,
            message_len_bytes_max: self.options.message_len_bytes_max,
            message_inline_len_bytes: self.options.message_len_bytes_max.min(INLINE_LEN_BYTES),
        }
    }

    fn address(&self) -> Address {
        address::encode(self.address)
    }

    fn register(&mut self, memory: Memory) -> Result<RegionId, Error> {
        if !memory.is_host_accessible() {
            return Err(Error::Unsupported {
                fabric: FabricKind::Tcp,
                operation: "registering memory",
                reason: "the CPU cannot reach it; stage it in host memory".to_owned(),
            });
        }
        let shared_with = Vec::new();
        let local = Local {
            memory,
            shared_with,
        };
        let id = self.regions.insert_with(|_| local);
        id.map(RegionId).ok_or(Error::Limit {
            fabric: FabricKind::Tcp,
            what: "regions",
            limit: self.options.regions_max as u64,
        })
    }

    fn deregister(&mut self, region: RegionId) -> Result<(), Error> {
        let local = self.regions.remove(region.0).ok_or(Error::UnknownRegion {
            fabric: FabricKind::Tcp,
            region,
        })?;
        for peer in local.shared_with {
            if let Ok(peer) = self.peer_mut(peer) {
                peer.shared.remove(&region.0);
            }
        }
        Ok(())
    }

    fn share(&mut self, region: RegionId, peer: PeerId) -> Result<SharedRegion, Error> {
        let len_bytes = local(&self.regions, region)?.memory.len_bytes();
        let new = self.peer_mut(peer)?.shared.insert(region.0);
        if let (true, Some(local)) = (new, self.regions.get_mut(region.0)) {
            local.shared_with.push(peer);
        }
        Ok(SharedRegion {
            region: region.0,
            len_bytes,
            key: KEY,
        })
    }

    fn import(&mut self, peer: PeerId, region: &SharedRegion) -> Result<RemoteId, Error> {
        if region.key != KEY {
            return Err(Error::InvalidWire {
                fabric: FabricKind::Tcp,
                peer,
                reason: "a region of another fabric".to_owned(),
            });
        }
        self.peer_mut(peer)?.import(Remote {
            region: region.region,
            len_bytes: region.len_bytes,
        })
    }

    fn release(&mut self, peer: PeerId, remote: RemoteId) {
        if let Ok(peer) = self.peer_mut(peer) {
            peer.imports.remove(remote.0);
        }
    }

    fn connect(
        &mut self,
        address: &Address,
        hello: &[u8],
        timeout: Duration,
    ) -> Result<PeerId, Error> {
        self.start_connecting(address, hello, timeout)
    }

    fn set_hello(&mut self, hello: &[u8]) {
        self.hello = news::cut_hello(hello);
    }

    fn post(&mut self, peer: PeerId, chain: &Chain<'_>) -> Result<Posted, PostError> {
        let Some(Some(found)) = self.peers.get_mut(peer.0) else {
            return Err(unknown_peer(peer).into());
        };
        let posted = found.post(&self.regions, chain)?;
        if posted == Posted::Pending && !found.watches_room {
            watch_room(&self.epoll, found, true);
        }
        Ok(posted)
    }

    fn poll(&mut self, now_ns: u64, sink: &mut dyn EventSink) -> usize {
        // With few peers, asking each for bytes costs no more than asking whom to ask.
        let direct = self.live.len() <= DIRECT_PEERS_MAX;
        if !direct || now_ns >= self.next_check_ns || !self.handshakes.is_empty() {
            self.check_sockets(now_ns);
        }
        let mut events = 0;
        if !self.news.is_empty() {
            events += self.news.report(POLL_EVENTS_MAX, sink);
        }
        if direct {
            self.turn = self.turn.wrapping_add(1);
            let start = self.turn.checked_rem(self.live.len()).unwrap_or(0);
            let (later, first) = self.live.split_at(start);
            self.ready.clear();
            self.ready.extend(first.iter().chain(later));
        }
        std::mem::swap(&mut self.ready, &mut self.polling);
        for index in 0..self.polling.len() {
            let id = self.polling[index];
            if events < POLL_EVENTS_MAX {
                events += self.poll_peer(id, POLL_EVENTS_MAX - events, sink);
            } else {
                self.ready.push(id);
            }
        }
        self.polling.clear();
        events
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }

    fn close(&mut self, peer: PeerId) {
        self.handshakes.retain(|other| other.id != peer);
        self.live.retain(|other| *other != peer.0);
        self.news.forget(peer);
        if let Some(Some(closed)) = self.peers.remove(peer.0) {
            // It is closed right after; that it was watched is all there is to undo.
            let _ = epoll::delete(&self.epoll, &closed.socket);
            for region in &closed.shared {
                if let Some(local) = self.regions.get_mut(*region) {
                    local.shared_with.retain(|other| *other != peer);
                }
            }
        }
    }
}

impl fmt::Debug for TcpFabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpFabric")
            .field("address", &self.address)
            .field("peers", &self.live.len())
            .field("connecting", &self.handshakes.len())
            .field("regions", &self.regions.len())
            .finish_non_exhaustive()
    }
}

/// A registered region of this process.
#[derive(Debug)]
struct Local {
    memory: Memory,
    shared_with: Vec<PeerId>,
}

type Regions = Table<Local>;

/// Has the epoll tell, or not, when there is room to send.
fn watch_room(epoll: &OwnedFd, peer: &mut Peer, watch: bool) {
    let mut events = epoll::EventFlags::IN;
    events.set(epoll::EventFlags::OUT, watch);
    // If it fails, the sending goes on with every poll that happens for other reasons.
    if epoll::modify(epoll, &peer.socket, handshake::data(peer.id), events).is_ok() {
        peer.watches_room = watch;
    }
}

fn unknown_peer(peer: PeerId) -> Error {
    Error::UnknownPeer {
        fabric: FabricKind::Tcp,
        peer,
    }
}

/// Most writes in a chain: a batch of the mesh has a few tensors, and a bound keeps one post short.
const WRITES_MAX: usize = 256;

/// Each peer has a buffer of this length: more is a mistake.
const MESSAGE_LEN_BYTES_MAX: usize = 16 << 20;

/// Messages up to this length share a system call with a small write without a further range.
const INLINE_LEN_BYTES: usize = 4096;

/// The key of a region: connections tell peers apart, so it only tells fabrics apart.
const KEY: u64 = u64::from_le_bytes(*b"tcp-key1");

/// Up to this many peers a busy poll reads from each: an epoll costs about as much as two reads.
const DIRECT_PEERS_MAX: usize = 4;

/// Sockets that one look handles; the rest are still ready at the next look.
const EPOLL_EVENTS_MAX: usize = 64;

/// How often a busy engine with few peers looks for new connections.
const CHECK_NS: u64 = 1_000_000;

/// The listener's data in the epoll; peers have their ids, which are shorter.
const TOKEN_LISTENER: u64 = u64::MAX;
