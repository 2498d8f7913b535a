//! The fabric of one host: writes are copies into the peer's mapped memory, messages are cache lines
//! in a ring. What is not mappable is written through the kernel, or bounced through the ring.
//!
//! Parts: `ring` (records), `region` and `process` (writes), `bounce` (the last resort), `peer` (a
//! connection), `handshake` (how it comes about), `socket` and `control` (packets with descriptors),
//! `address`.
//!
//! Peers that share memory trust each other not to write into regions outside of chains: a mapping
//! cannot be checked. What is checked is that no peer can make this process read or write outside
//! of what it shares, fault, or wait for ever.

pub(crate) mod address;
mod bounce;
pub(crate) mod control;
mod handshake;
mod peer;
#[expect(unsafe_code, reason = "system calls with addresses of another process")]
mod process;
#[expect(unsafe_code, reason = "copies between memory that was checked")]
mod region;
mod ring;
mod socket;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{Timespec, epoll};

use self::address::ShmAddress;
use self::control::{Control, FILE_ID_MAX, Place};
use self::handshake::Handshake;
use self::peer::Peer;
use self::region::{FileRange, Local};
use self::ring::HEAD_PAYLOAD_LEN_BYTES;
use crate::doorbell::Doorbell;
use crate::error::Error;
use crate::fabric::{
    Address, Chain, EventSink, Fabric, FabricKind, Limits, POLL_EVENTS_MAX, PeerId, PostError,
    Posted, RegionId, RemoteId, SharedRegion,
};
use crate::memory::{MappableFd, Memory};
use crate::news::{self, News};
use crate::segment::{self, LINE_LEN_BYTES};
use crate::table::Table;

/// Options of a [`ShmFabric`].
#[derive(Clone, Debug)]
pub struct ShmOptions {
    /// Where rings are kept; `None` for anonymous memory. With a directory, memory of peers that is
    /// not sealed against shrinking is mapped too: whoever may write there is trusted.
    pub dir: Option<PathBuf>,
    /// Length of the ring of each peer, in bytes; rounded up to a power of two.
    pub ring_len_bytes: usize,
    /// Longest message, in bytes; less than half of a ring.
    pub message_len_bytes_max: usize,
    /// Most peers, those that are still connecting included.
    pub peers_max: usize,
    /// Most regions of this process, and of each peer.
    pub regions_max: usize,
    /// How long a peer that connects may take to say who it is.
    pub handshake_timeout: Duration,
    /// The best way to reach a peer's memory that is tried.
    pub reach: Reach,
}

/// Ways to reach a peer's memory, best first. Worse ones are used where better ones are impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// Map it.
    Map,
    /// Have the kernel write it (`process_vm_writev`).
    Process,
    /// Send it through the ring.
    Bounce,
}

/// The shared memory of one host as a [`Fabric`].
pub struct ShmFabric {
    options: ShmOptions,
    ring_lines: u64,
    doorbell: Doorbell,
    address: ShmAddress,
    listener: OwnedFd,
    epoll: OwnedFd,
    hello: Vec<u8>,
    /// Read by peers that find out whether they can reach our memory; the box keeps its address.
    probe: Box<u64>,
    /// `None` while the handshake goes on.
    peers: Table<Option<Box<Peer>>>,
    handshakes: Vec<Handshake>,
    live: Vec<u32>,
    /// Where in `live` the next poll starts, so that no peer is always last.
    turn: usize,
    regions: Table<Local>,
    /// Regions that peers have yet to let go of.
    retiring: Vec<Retiring>,
    files: HashMap<FileIdentity, SharedFile>,
    files_free: Vec<u32>,
    news: News,
    /// Where records are copied to before they are looked at.
    scratch: Box<[u8]>,
    next_check_ns: u64,
}

impl Default for ShmOptions {
    fn default() -> Self {
        Self {
            dir: None,
            ring_len_bytes: 65536,
            message_len_bytes_max: 16384,
            peers_max: 1024,
            regions_max: 65536,
            handshake_timeout: Duration::from_secs(2),
            reach: Reach::Map,
        }
    }
}

impl ShmFabric {
    /// Starts to listen. Peers ring `doorbell` when they have posted something; connections and
    /// their end show at [`wait_fd`](Fabric::wait_fd).
    ///
    /// # Errors
    /// [`Error::InvalidOption`]; [`Error::NoSpace`] when not even one ring has room;
    /// [`Error::Io`] when the system has no descriptor left.
    pub fn new(options: ShmOptions, doorbell: Doorbell) -> Result<Self, Error> {
        let lines = options
            .ring_len_bytes
            .div_ceil(LINE_LEN_BYTES)
            .max(LINES_MIN);
        let ring_lines = lines.next_power_of_two() as u64;
        let record_len_bytes_max = ring::record_len_bytes_max(ring_lines);
        if options.message_len_bytes_max > record_len_bytes_max {
            return Err(Error::InvalidOption {
                fabric: FabricKind::Shm,
                option: "message_len_bytes_max",
                value: options.message_len_bytes_max.to_string(),
                reason: format!("a ring of this length takes {record_len_bytes_max} bytes at once"),
            });
        }
        let io = |operation, source| Error::Io {
            fabric: FabricKind::Shm,
            operation,
            object: "the listening socket".to_owned(),
            source,
        };
        let address = ShmAddress::random().map_err(|source| io("choosing a name", source))?;
        let listener = socket::listen(&address.socket_name(), BACKLOG)
            .map_err(|source| io("listening", source))?;
        let epoll = watch_listener(&listener).map_err(|source| io("epoll", source))?;
        let mut nonce = [0; 8];
        rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty())
            .map_err(|source| io("getrandom", source.into()))?;
        let fabric = Self {
            ring_lines,
            doorbell,
            address,
            listener,
            epoll,
            hello: Vec::new(),
            probe: Box::new(u64::from_ne_bytes(nonce)),
            peers: Table::new(options.peers_max),
            handshakes: Vec::new(),
            live: Vec::new(),
            turn: 0,
            regions: Table::new(options.regions_max),
            retiring: Vec::new(),
            files: HashMap::new(),
            files_free: Vec::new(),
            news: News::default(),
            scratch: vec![0; record_len_bytes_max].into(),
            next_check_ns: 0,
            options,
        };
        // A file system without room is better heard of now than at the first connection.
        drop(fabric.create_ring()?);
        Ok(fabric)
    }

    fn peer_mut(&mut self, peer: PeerId) -> Result<&mut Peer, Error> {
        let found = self.peers.get_mut(peer.0).and_then(Option::as_deref_mut);
        found.ok_or_else(|| unknown_peer(peer))
    }

    /// The file behind a range of memory, if peers can map it.
    fn file_range(&mut self, memory: &Memory) -> Option<FileRange> {
        let &MappableFd { ref fd, offset } = memory.mappable()?;
        if self.options.reach != Reach::Map
            || !(segment::is_sealed(fd) || self.options.dir.is_some())
        {
            return None;
        }
        let stat = rustix::fs::fstat(fd).ok()?;
        let end = offset.checked_add(memory.len_bytes())?;
        if end > u64::try_from(stat.st_size).ok()? {
            return None;
        }
        // An offset beyond what a key can say: that region is reached in other ways.
        Place::File { file: 0, offset }.encode()?;
        // Without free ids, those in use are exactly the first ones.
        let next = u32::try_from(self.files.len()).ok()?;
        let free = &mut self.files_free;
        let file = (self.files.entry((stat.st_dev, stat.st_ino))).or_insert_with(|| SharedFile {
            id: free.pop().unwrap_or(next),
            regions: 0,
        });
        file.regions += 1;
        Some(FileRange {
            file: file.id,
            offset,
        })
    }

    /// Drops a region that no peer can write any more.
    fn forget(&mut self, local: &Local) {
        let Some(FileRange { file: id, .. }) = local.file else {
            return;
        };
        let Some((&identity, file)) = self.files.iter_mut().find(|(_, file)| file.id == id) else {
            return;
        };
        file.regions -= 1;
        if file.regions > 0 {
            return;
        }
        self.files.remove(&identity);
        self.files_free.push(id);
        for (_, peer) in self.peers.iter_mut() {
            if let Some(peer) = peer
                && peer.files_sent.remove(&id)
            {
                peer.tell(Control::Forget { file: id }, None);
            }
        }
    }

    /// Takes a peer off the lists of everything that was waiting for it.
    fn forget_peer(&mut self, id: u32, peer: &Peer) {
        for region in &peer.shared {
            if let Some(local) = self.regions.get_mut(*region) {
                local.shared_with.retain(|other| other.0 != id);
            }
        }
        for region in &mut self.retiring {
            region.waiting.retain(|other| other.0 != id);
        }
        self.retire();
        for fd in [Some(&peer.socket), peer.process.as_ref()]
            .into_iter()
            .flatten()
        {
            // It is about to be closed; that it was not watched is no harm.
            let _ = epoll::delete(&self.epoll, fd);
        }
    }

    /// Drops the regions that the last peer has let go of.
    fn retire(&mut self) {
        while let Some(index) = (self.retiring.iter()).position(|region| region.waiting.is_empty())
        {
            let Retiring { local, .. } = self.retiring.swap_remove(index);
            self.forget(&local);
        }
    }

    /// Looks at the sockets: rarely, because each look is a system call.
    #[cold]
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
            #[expect(clippy::cast_possible_truncation, reason = "the lower half is the id")]
            let id = token as u32;
            match token & !u64::from(u32::MAX) {
                TOKEN_SOCKET => self.check_socket(id),
                TOKEN_PROCESS => self.with_peer(id, Peer::end),
                _ => self.accept(),
            }
        }
        self.check_handshakes(now_ns);
        let mut busy = !self.handshakes.is_empty();
        for id in &self.live {
            if let Some(Some(peer)) = self.peers.get_mut(*id)
                && !peer.outbox.is_empty()
            {
                peer.flush();
                busy |= !peer.outbox.is_empty();
            }
        }
        let interval_ns = if busy { CHECK_BUSY_NS } else { CHECK_NS };
        self.next_check_ns = now_ns.saturating_add(interval_ns);
    }

    fn check_socket(&mut self, id: u32) {
        if let Some(index) = self.handshakes.iter().position(|other| other.id.0 == id) {
            self.step_handshake(index);
        } else {
            self.with_peer(id, Peer::receive);
        }
    }

    /// Does something with a peer and looks after what came of it.
    fn with_peer(&mut self, id: u32, action: impl FnOnce(&mut Peer)) {
        let Some(Some(peer)) = self.peers.get_mut(id) else {
            return;
        };
        action(peer);
        if peer.ended.is_some() {
            for fd in [Some(&peer.socket), peer.process.as_ref()]
                .into_iter()
                .flatten()
            {
                // The end is noted; a socket at its end would be ready for ever.
                let _ = epoll::delete(&self.epoll, fd);
            }
        }
        if peer.revoked.is_empty() {
            return;
        }
        for region in std::mem::take(&mut peer.revoked) {
            for retiring in self.retiring.iter_mut().filter(|other| other.id == region) {
                retiring.waiting.retain(|other| other.0 != id);
            }
        }
        self.retire();
    }

    fn remove_ended(&mut self, events_max: usize, sink: &mut dyn EventSink) -> usize {
        let mut events = 0;
        let mut index = 0;
        while events < events_max
            && let Some(&id) = self.live.get(index)
        {
            let peer = self.peers.get_mut(id).and_then(Option::as_deref_mut);
            let Some(reason) = peer.and_then(Peer::over) else {
                index += 1;
                continue;
            };
            self.live.swap_remove(index);
            if let Some(Some(peer)) = self.peers.remove(id) {
                self.forget_peer(id, &peer);
            }
            sink.closed(PeerId(id), reason);
            events += 1;
        }
        events
    }
}

impl Fabric for ShmFabric {
    fn kind(&self) -> FabricKind {
        FabricKind::Shm
    }

    fn limits(&self) -> Limits {
        Limits {
            writes_max: WRITES_MAX,
            message_len_bytes_max: self.options.message_len_bytes_max,
            message_inline_len_bytes: HEAD_PAYLOAD_LEN_BYTES,
        }
    }

    fn address(&self) -> Address {
        self.address.encode()
    }

    fn register(&mut self, memory: Memory) -> Result<RegionId, Error> {
        if !memory.is_host_accessible() {
            return Err(Error::Unsupported {
                fabric: FabricKind::Shm,
                operation: "registering memory",
                reason: "the CPU cannot reach it; stage it in host memory".to_owned(),
            });
        }
        let limit = Error::Limit {
            fabric: FabricKind::Shm,
            what: "regions",
            limit: self.options.regions_max as u64,
        };
        if self.regions.len() + self.retiring.len() >= self.options.regions_max {
            return Err(limit);
        }
        let file = self.file_range(&memory);
        let id = self.regions.insert_with(|_| Local {
            memory,
            file,
            shared_with: Vec::new(),
        });
        id.map(RegionId).ok_or(limit)
    }

    fn deregister(&mut self, region: RegionId) -> Result<(), Error> {
        let removed = self.regions.remove(region.0);
        let mut local = removed.ok_or_else(|| unknown_region(region))?;
        let waiting = std::mem::take(&mut local.shared_with);
        for peer in &waiting {
            if let Ok(peer) = self.peer_mut(*peer) {
                peer.shared.remove(&region.0);
                peer.tell(Control::Revoke { region: region.0 }, None);
            }
        }
        self.retiring.push(Retiring {
            id: region.0,
            local,
            waiting,
        });
        self.retire();
        Ok(())
    }

    fn share(&mut self, region: RegionId, peer: PeerId) -> Result<SharedRegion, Error> {
        let Self { regions, peers, .. } = self;
        let found = peers.get_mut(peer.0).and_then(Option::as_deref_mut);
        let connected = found.ok_or_else(|| unknown_peer(peer))?;
        let local = regions
            .get_mut(region.0)
            .ok_or_else(|| unknown_region(region))?;
        if connected.shared.insert(region.0) {
            local.shared_with.push(peer);
        }
        let place = match local.file {
            Some(FileRange { file, offset }) => {
                if connected.files_sent.insert(file) {
                    let fd = local
                        .memory
                        .mappable()
                        .map(|mappable| Arc::clone(&mappable.fd));
                    connected.tell(Control::File { file }, fd);
                }
                Place::File { file, offset }
            }
            None => Place::Address(local.memory.address()),
        };
        let key = place.encode().ok_or_else(|| Error::Unsupported {
            fabric: FabricKind::Shm,
            operation: "sharing a region",
            reason: "its address is not one of a process".to_owned(),
        })?;
        Ok(SharedRegion {
            region: region.0,
            len_bytes: local.memory.len_bytes(),
            key,
        })
    }

    fn import(&mut self, peer: PeerId, region: &SharedRegion) -> Result<RemoteId, Error> {
        let may_reach_memory = self.options.reach <= Reach::Process;
        let imported = self.peer_mut(peer)?.import(region, may_reach_memory);
        // It may have read other packets on the way.
        self.with_peer(peer.0, |_| {});
        imported
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

    #[inline]
    fn post(&mut self, peer: PeerId, chain: &Chain<'_>) -> Result<Posted, PostError> {
        let Self {
            peers,
            regions,
            scratch,
            ..
        } = self;
        match peers.get_mut(peer.0) {
            Some(Some(peer)) => peer.post(regions, scratch, chain),
            _ => Err(unknown_peer(peer).into()),
        }
    }

    fn poll(&mut self, now_ns: u64, sink: &mut dyn EventSink) -> usize {
        if now_ns >= self.next_check_ns {
            self.check_sockets(now_ns);
        }
        let mut events = 0;
        if !self.news.is_empty() {
            events += self.news.report(POLL_EVENTS_MAX, sink);
        }
        let mut ended = false;
        self.turn = self.turn.wrapping_add(1);
        let start = self.turn.checked_rem(self.live.len()).unwrap_or(0);
        let (later, first) = self.live.split_at(start);
        for id in first.iter().chain(later) {
            if events >= POLL_EVENTS_MAX {
                break;
            }
            if let Some(Some(peer)) = self.peers.get_mut(*id) {
                let left = POLL_EVENTS_MAX - events;
                events += peer.poll(&self.regions, &mut self.scratch, left, sink);
                ended |= peer.ended.is_some();
            }
        }
        if ended && events < POLL_EVENTS_MAX {
            events += self.remove_ended(POLL_EVENTS_MAX - events, sink);
        }
        events
    }

    /// Readable when a peer connects, tells something or ends; chains ring the doorbell.
    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }

    fn close(&mut self, peer: PeerId) {
        self.handshakes.retain(|other| other.id != peer);
        self.live.retain(|other| *other != peer.0);
        self.news.forget(peer);
        if let Some(Some(closed)) = self.peers.remove(peer.0) {
            self.forget_peer(peer.0, &closed);
        }
    }
}

impl fmt::Debug for ShmFabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShmFabric")
            .field("options", &self.options)
            .field("peers", &self.live.len())
            .field("connecting", &self.handshakes.len())
            .field("regions", &self.regions.len())
            .finish_non_exhaustive()
    }
}

/// Device and inode: which file a descriptor is of.
type FileIdentity = (u64, u64);

/// A file of ours that regions lie in.
#[derive(Debug)]
struct SharedFile {
    id: u32,
    regions: u32,
}

/// A deregistered region whose memory must not go before all peers have let go of it.
#[derive(Debug)]
struct Retiring {
    id: u32,
    local: Local,
    waiting: Vec<PeerId>,
}

#[inline]
fn local(regions: &Table<Local>, region: RegionId) -> Result<&Local, Error> {
    regions.get(region.0).ok_or_else(|| unknown_region(region))
}

fn unknown_peer(peer: PeerId) -> Error {
    Error::UnknownPeer {
        fabric: FabricKind::Shm,
        peer,
    }
}

fn unknown_region(region: RegionId) -> Error {
    Error::UnknownRegion {
        fabric: FabricKind::Shm,
        region,
    }
}

fn watch_listener(listener: &OwnedFd) -> io::Result<OwnedFd> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let data = epoll::EventData::new_u64(TOKEN_LISTENER);
    epoll::add(&epoll, listener, data, epoll::EventFlags::IN)?;
    Ok(epoll)
}

/// Most writes in a chain: a batch of the mesh has a few tensors, and a bound keeps one post short.
const WRITES_MAX: usize = 256;

/// The shortest ring: one page.
const LINES_MIN: usize = 64;

/// Connections that wait to be accepted: as many as a mesh has peers by default.
const BACKLOG: i32 = 1024;

/// Sockets that one look handles; the rest are still ready at the next look.
const EPOLL_EVENTS_MAX: usize = 64;

/// How often a busy engine looks at the sockets. A look costs a third of a microsecond, so this is
/// far below a thousandth of its time, and a death is still noticed well within any bound.
const CHECK_NS: u64 = 1_000_000;

/// The same while something is going on there.
const CHECK_BUSY_NS: u64 = 50_000;

/// What an event of the epoll is about, in the upper half of its data.
const TOKEN_LISTENER: u64 = 0;
const TOKEN_SOCKET: u64 = 1 << 32;
const TOKEN_PROCESS: u64 = 2 << 32;

const _: () = assert!(
    FILE_ID_MAX as usize >= 1 << 20,
    "as many files as a table has regions"
);
