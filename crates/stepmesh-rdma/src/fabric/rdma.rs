//! The fabric itself: its peers, its regions, its one open port, and what a poll does.

#![forbid(unsafe_code)]

use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustc_hash::FxHashMap;
use rustix::event::{Timespec, epoll};

use stepmesh_transport::error::Error;
use stepmesh_transport::fabric::{
    Address, Chain, EventSink, Fabric, FabricKind, Limits, POLL_EVENTS_MAX, PeerId, PostError,
    Posted, RegionId, RemoteId, SharedRegion,
};
use stepmesh_transport::memory::Memory;
use stepmesh_transport::news::{self, News};
use stepmesh_transport::tcp::{TcpFabric, TcpOptions};

use super::adapter::Adapter;
use super::half::split_id;
use super::handshake::{ControlEvents, Handshake};
use super::options::RdmaOptions;
use super::peer::Peer;
use super::regions::Regions;
use super::ring::{self, HEADER_LEN_BYTES};
use super::wire::{CONTROL_HELLO, FRAME_LEN_BYTES_MAX};
use super::{WRITES_MAX, address};
use crate::verbs::{AsyncEvent, WorkCompletion};

/// One port of an RDMA adapter as a [`Fabric`].
pub struct RdmaFabric {
    pub(super) options: RdmaOptions,
    // Connections, then regions, then what both hang from: dropped in this order.
    pub(super) peers: FxHashMap<u32, Box<Peer>>,
    pub(super) handshakes: Vec<Handshake>,
    regions: Regions,
    pub(super) adapter: Adapter,
    /// The control connections; peers have the numbers that they have there.
    pub(super) control: TcpFabric,
    control_events: ControlEvents,
    pub(super) hello: Vec<u8>,
    pub(super) news: News,
    /// Peers about which something is to be reported or done.
    dirty: Vec<u32>,
    /// Peers whose connection is over, or stopped.
    pub(super) ending: Vec<u32>,
    /// Control connections, asynchronous events, completions.
    epoll: OwnedFd,
    completions: Box<[WorkCompletion]>,
    /// Where a message is while it is delivered.
    scratch: Box<[u8]>,
    /// Whether the control connections are to be looked at now.
    pub(super) look: bool,
    next_look_ns: u64,
    /// Whether no completion came since the last time that somebody prepared to sleep.
    was_quiet: bool,
}

impl RdmaFabric {
    /// Chooses and opens a port, and starts to listen for control connections.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when there is no libibverbs, no adapter or no port that can be used,
    /// with the reason for each; [`Error::InvalidOption`]; [`Error::Io`] when the adapter cannot be
    /// opened or the address not be listened on.
    pub fn new(options: RdmaOptions) -> Result<Self, Error> {
        options.check()?;
        let adapter = Adapter::open(&options)?;
        let mut control = TcpFabric::new(TcpOptions {
            message_len_bytes_max: FRAME_LEN_BYTES_MAX,
            ..options.control.clone()
        })?;
        control.set_hello(&CONTROL_HELLO);
        let epoll = watch(&adapter, &control).map_err(|source| Error::Io {
            fabric: FabricKind::Rdma,
            operation: "epoll_create",
            object: adapter.context.device_name().to_owned(),
            source,
        })?;
        let longest = ring::message_len_bytes_max(options.ring_lines());
        Ok(Self {
            peers: FxHashMap::default(),
            handshakes: Vec::new(),
            regions: Regions::new(&adapter.domain, options.regions_max),
            adapter,
            control,
            control_events: ControlEvents::default(),
            hello: Vec::new(),
            news: News::default(),
            dirty: Vec::new(),
            ending: Vec::new(),
            epoll,
            completions: vec![WorkCompletion::EMPTY; COMPLETIONS_MAX].into(),
            scratch: vec![0; longest + HEADER_LEN_BYTES].into(),
            look: false,
            next_look_ns: 0,
            was_quiet: true,
            options,
        })
    }

    /// The name of the adapter that was chosen.
    #[must_use]
    pub fn adapter_name(&self) -> &str {
        self.adapter.context.device_name()
    }

    /// Takes completions from the adapter to the peers that they belong to.
    #[inline]
    fn take_completions(&mut self) -> usize {
        let (peers, dirty, ending) = (&mut self.peers, &mut self.dirty, &mut self.ending);
        self.adapter.poll(&mut self.completions, |completion| {
            let (id, queue_pair, received) = split_id(completion.wr_id);
            // Of a connection that is gone there may still be some.
            let Some(peer) = peers.get_mut(&id.0) else {
                return;
            };
            peer.complete(completion, queue_pair, received);
            if !peer.is_dirty {
                peer.is_dirty = true;
                dirty.push(id.0);
            }
            if peer.is_ending() && !ending.contains(&id.0) {
                ending.push(id.0);
            }
        })
    }

    /// Reports what completions brought.
    #[inline]
    fn report_peers(&mut self, events_max: usize, sink: &mut dyn EventSink) -> usize {
        let mut events = 0;
        let mut kept = 0;
        for index in 0..self.dirty.len() {
            let id = self.dirty[index];
            let Some(peer) = self.peers.get_mut(&id) else {
                continue;
            };
            if events < events_max {
                let (regions, scratch) = (&mut self.regions, &mut self.scratch);
                events += peer.report(regions, scratch, events_max - events, sink);
                peer.settle();
            }
            peer.is_dirty = peer.has_news();
            if peer.is_dirty {
                self.dirty[kept] = id;
                kept += 1;
            }
            if peer.is_ending() && !self.ending.contains(&id) {
                self.ending.push(id);
            }
        }
        self.dirty.truncate(kept);
        events
    }

    /// Looks at control connections, asynchronous events and deadlines.
    #[cold]
    fn look_around(&mut self, now_ns: u64) {
        self.look = false;
        self.next_look_ns = now_ns.saturating_add(LOOK_NS);
        self.control.poll(now_ns, &mut self.control_events);
        let mut events = std::mem::take(&mut self.control_events.0);
        for event in events.drain(..) {
            self.obey(event);
        }
        self.control_events.0 = events;
        for event in self.adapter.events() {
            self.heed(event);
        }
        if self.adapter.broken.is_some() {
            self.end_all();
        }
        self.check_handshakes(now_ns);
    }

    /// Does what an asynchronous event asks for.
    fn heed(&mut self, event: AsyncEvent) {
        let adapter = self.adapter.context.device_name();
        match event {
            AsyncEvent::DeviceFatal | AsyncEvent::CompletionQueueError => {
                let reason =
                    format!("{adapter} reports {event:?}: it is gone or broken (see dmesg)");
                tracing::error!(adapter, ?event, "rdma: the adapter cannot be used any more");
                self.adapter.broken = Some(reason);
            }
            AsyncEvent::QueuePairAccessError { qp_num }
            | AsyncEvent::QueuePairRequestError { qp_num } => {
                let reason = "it sent a request that the adapter refuses: it writes outside of what \
                              is shared with it";
                self.end_of(qp_num, |peer| peer.invalid(reason));
            }
            AsyncEvent::QueuePairFatal { qp_num } => {
                self.end_of(qp_num, |peer| Error::Broken {
                    fabric: FabricKind::Rdma,
                    peer: peer.id,
                    reason: "the adapter stopped its queue pair".to_owned(),
                });
            }
            AsyncEvent::PortError { port } => {
                // A link that comes back within the retries has lost nothing.
                tracing::warn!(adapter, port, "rdma: the port is down");
            }
            AsyncEvent::PortActive { port } => {
                tracing::info!(adapter, port, "rdma: the port is up")
            }
            AsyncEvent::GidChange { .. } | AsyncEvent::LidChange { .. } => self.readdress(),
            other => tracing::debug!(adapter, event = ?other, "rdma: an event of the adapter"),
        }
    }

    /// The addresses of the port changed: where ours is another now, connections made with the old
    /// one are over, and the mesh makes them anew.
    fn readdress(&mut self) {
        match self.adapter.readdress(&self.options) {
            Ok(false) => {}
            Ok(true) => self.end_with("the address of the port changed"),
            Err(error) => {
                tracing::warn!(%error, "rdma: the port has no address now");
                self.end_with("the port has no address any more");
            }
        }
    }

    fn end_all(&mut self) {
        let reason = self.adapter.broken.clone().unwrap_or_default();
        self.end_with(&reason);
    }

    fn end_with(&mut self, reason: &str) {
        for peer in self.peers.values_mut() {
            peer.end(Error::Broken {
                fabric: FabricKind::Rdma,
                peer: peer.id,
                reason: reason.to_owned(),
            });
        }
        self.ending.clear();
        self.ending.extend(self.peers.keys());
    }

    /// Notes the end of the peer that a queue pair belongs to.
    fn end_of(&mut self, qp_num: u32, reason: impl FnOnce(&Peer) -> Error) {
        let mut peers = self.peers.values_mut();
        if let Some(peer) = peers.find(|peer| peer.has_queue_pair(qp_num)) {
            let reason = reason(peer);
            peer.end(reason);
            self.ending.push(peer.id.0);
        }
    }

    /// Takes away the peers whose connection is over, once everything of them was delivered.
    #[cold]
    fn end_peers(&mut self, events_max: usize, sink: &mut dyn EventSink) -> usize {
        let mut events = 0;
        let ids = std::mem::take(&mut self.ending);
        for id in ids {
            let Some(peer) = self.peers.get_mut(&id) else {
                continue;
            };
            let waits = !self.adapter.is_drained(peer.seat) && self.adapter.broken.is_none();
            if waits || peer.has_news() || events >= events_max {
                self.ending.push(id);
                continue;
            }
            let reason = peer.reason();
            let announced = peer.unannounced.is_none();
            self.close(PeerId(id));
            if announced {
                sink.closed(PeerId(id), reason);
                events += 1;
            } else {
                tracing::warn!(%reason, "rdma: a connection came to nothing");
            }
        }
        events
    }
}

impl Fabric for RdmaFabric {
    fn kind(&self) -> FabricKind {
        FabricKind::Rdma
    }

    fn limits(&self) -> Limits {
        Limits {
            writes_max: WRITES_MAX.min(self.options.send_depth - 1),
            message_len_bytes_max: self.options.message_len_bytes_max,
            message_inline_len_bytes: self.options.message_len_bytes_max.min(INLINE_LEN_BYTES),
        }
    }

    fn address(&self) -> Address {
        address::encode(&self.control.address())
    }

    fn register(&mut self, memory: Memory) -> Result<RegionId, Error> {
        self.regions.register(&self.adapter, memory)
    }

    fn deregister(&mut self, region: RegionId) -> Result<(), Error> {
        self.regions.deregister(region)
    }

    fn forget_allocation(&mut self, allocation_id: u64) {
        self.regions.invalidate(allocation_id);
    }

    fn share(&mut self, region: RegionId, peer: PeerId) -> Result<SharedRegion, Error> {
        let shared = self.regions.share(&self.adapter, region)?;
        match self.peers.contains_key(&peer.0) {
            true => Ok(shared),
            false => Err(unknown_peer(peer)),
        }
    }

    fn import(&mut self, peer: PeerId, region: &SharedRegion) -> Result<RemoteId, Error> {
        let found = self.peers.get_mut(&peer.0);
        found.ok_or_else(|| unknown_peer(peer))?.import(region)
    }

    fn release(&mut self, peer: PeerId, remote: RemoteId) {
        if let Some(peer) = self.peers.get_mut(&peer.0) {
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

    #[inline]
    fn post(&mut self, peer: PeerId, chain: &Chain<'_>) -> Result<Posted, PostError> {
        let Some(found) = self.peers.get_mut(&peer.0) else {
            return Err(unknown_peer(peer).into());
        };
        let posted = found.post(&mut self.regions, self.adapter.piece_len_bytes_max, chain);
        if found.is_ending() && !self.ending.contains(&peer.0) {
            self.ending.push(peer.0);
        }
        posted
    }

    fn poll(&mut self, now_ns: u64, sink: &mut dyn EventSink) -> usize {
        if self.look || now_ns >= self.next_look_ns || !self.handshakes.is_empty() {
            self.look_around(now_ns);
        }
        let mut events = 0;
        if !self.news.is_empty() {
            events += self.news.report(POLL_EVENTS_MAX, sink);
        }
        let taken = self.take_completions();
        self.was_quiet &= taken == 0;
        if taken > 0 || !self.dirty.is_empty() {
            events += self.report_peers(POLL_EVENTS_MAX - events, sink);
        }
        if !self.ending.is_empty() && events < POLL_EVENTS_MAX {
            events += self.end_peers(POLL_EVENTS_MAX - events, sink);
        }
        events
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }

    fn prepare_wait(&mut self) -> bool {
        if let Err(error) = self.adapter.arm() {
            self.adapter.broken.get_or_insert_with(|| error.to_string());
            self.look = true;
        }
        // The next poll looks only at completions unless it is told to. What woke a sleeper was a
        // completion if one has come since; if it was something else as well, that ends the next
        // sleep at once, and then it is looked at.
        if std::mem::replace(&mut self.was_quiet, true) {
            self.look |= is_readable(&self.epoll);
        }
        !self.look && self.dirty.is_empty() && self.ending.is_empty() && self.news.is_empty()
    }

    fn close(&mut self, peer: PeerId) {
        self.control.close(peer);
        self.news.forget(peer);
        self.ending.retain(|other| *other != peer.0);
        self.dirty.retain(|other| *other != peer.0);
        if let Some(mut closed) = self.peers.remove(&peer.0) {
            closed.release_sources(&mut self.regions);
            self.adapter.leave(closed.seat);
        }
        if let Some(index) = self.handshakes.iter().position(|other| other.id == peer)
            && let Some(seat) = self.handshakes.swap_remove(index).seat()
        {
            self.adapter.leave(seat);
        }
    }
}

impl fmt::Debug for RdmaFabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdmaFabric")
            .field("adapter", &self.adapter_name())
            .field("port", &self.adapter.port)
            .field("mtu", &self.adapter.mtu)
            .field("lag", &self.adapter.lag)
            .field("control", &self.control)
            .field("peers", &self.peers.len())
            .field("connecting", &self.handshakes.len())
            .field("regions", &self.regions.len())
            .finish_non_exhaustive()
    }
}

pub(super) fn unknown_peer(peer: PeerId) -> Error {
    Error::UnknownPeer {
        fabric: FabricKind::Rdma,
        peer,
    }
}

/// One descriptor for all that may happen.
fn watch(adapter: &Adapter, control: &TcpFabric) -> io::Result<OwnedFd> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let fds = [
        Some(adapter.channel_fd()),
        Some(adapter.context.async_fd()),
        control.wait_fd(),
    ];
    for fd in fds.into_iter().flatten() {
        let data = epoll::EventData::new_u64(0);
        epoll::add(&epoll, fd, data, epoll::EventFlags::IN)?;
    }
    Ok(epoll)
}

fn is_readable(epoll: &OwnedFd) -> bool {
    let mut ready = [MaybeUninit::uninit(); 1];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    epoll::wait(epoll, &mut ready, Some(&now)).is_ok_and(|(ready, _)| !ready.is_empty())
}

/// Completions that one poll takes from a queue.
const COMPLETIONS_MAX: usize = 64;

/// How often a busy engine looks at what is no completion. A look costs some system calls, so this is
/// far below a hundredth of its time, and a death is still noticed well within any bound. One that
/// sleeps is woken for it.
const LOOK_NS: u64 = 5_000_000;

/// Messages up to this length go inline on most adapters.
const INLINE_LEN_BYTES: usize = 256 - HEADER_LEN_BYTES;
