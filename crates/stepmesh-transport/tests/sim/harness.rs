//! Two parties that stream chains to each other over a simulated network, and check every promise
//! of a fabric at each event. No test lives here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use stepmesh_transport::error::Error;
use stepmesh_transport::fabric::{
    Chain, EventSink, Fabric, PeerId, PostError, Posted, RegionId, RemoteId, Write,
};
use stepmesh_transport::memory::Memory;
use stepmesh_transport::sim::fabric::SimFabric;
use stepmesh_transport::sim::network::SimNetwork;

/// Memory that may be registered, read and written without unsafe code.
#[derive(Clone)]
pub(crate) struct Cells(Arc<[AtomicU8]>);

impl Cells {
    pub(crate) fn new(len: usize, value: u8) -> Self {
        Self((0..len).map(|_| AtomicU8::new(value)).collect())
    }

    pub(crate) fn memory(&self) -> Memory {
        let address = self.0.as_ptr().expose_provenance() as u64;
        let len_bytes = self.0.len() as u64;
        // SAFETY: the cells are allocated as long as the clone of their `Arc` that is passed as
        // keep-alive, and atomics may be written from anywhere at any time.
        unsafe { Memory::new(address, len_bytes, true, None, Arc::new(self.0.clone())) }
    }

    pub(crate) fn fill(&self, offset: usize, len: usize, value: u8) {
        for cell in &self.0[offset..offset + len] {
            cell.store(value, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_filled(&self, offset: usize, len: usize, value: u8) -> bool {
        let cells = &self.0[offset..offset + len];
        cells
            .iter()
            .all(|cell| cell.load(Ordering::Relaxed) == value)
    }
}

/// What a party saw, besides the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Connected(PeerId, Vec<u8>),
    Accepted(PeerId, Vec<u8>),
    Closed(PeerId, String),
}

/// Checks the incoming stream and notes the rest.
pub(crate) struct Recorder {
    pub(crate) seen: Vec<Seen>,
    pub(crate) received: Arc<AtomicU64>,
    pub(crate) sent: u64,
    slot: Cells,
    source: Cells,
    peer_received: Arc<AtomicU64>,
    closed: Vec<PeerId>,
}

impl EventSink for Recorder {
    fn connected(&mut self, peer: PeerId, hello: &[u8]) {
        self.seen.push(Seen::Connected(peer, hello.to_vec()));
    }

    fn accepted(&mut self, peer: PeerId, hello: &[u8]) {
        self.seen.push(Seen::Accepted(peer, hello.to_vec()));
    }

    fn message(&mut self, peer: PeerId, message: &[u8]) {
        assert!(
            !self.closed.contains(&peer),
            "a message of a closed connection"
        );
        let number = self.received.fetch_add(1, Ordering::Relaxed);
        assert_eq!(message, message_of(number), "not once, or not in order");
        let (len, value) = content_of(number);
        let is_placed = self.slot.is_filled(GUARD, len, value);
        assert!(
            is_placed,
            "chain {number} came without its bytes, or a later one is in place"
        );
        let is_guarded = self.slot.is_filled(0, GUARD, UNTOUCHED)
            && self.slot.is_filled(GUARD + SLOT_LEN, GUARD, UNTOUCHED);
        assert!(is_guarded, "bytes outside of the writes changed");
    }

    fn sent(&mut self, peer: PeerId, token: u64) {
        assert!(!self.closed.contains(&peer), "sent on a closed connection");
        assert_eq!(token, self.sent, "sent out of order, or twice");
        let received = self.peer_received.load(Ordering::Relaxed);
        assert!(
            token < received,
            "chain {token} is sent, {received} were received"
        );
        self.sent += 1;
        // The source is ours again; a fabric that still reads it is found out.
        self.source.fill(source_offset(token), SLOT_LEN, SCRIBBLED);
    }

    fn closed(&mut self, peer: PeerId, reason: Error) {
        assert!(!self.closed.contains(&peer), "closed twice");
        self.closed.push(peer);
        self.seen.push(Seen::Closed(peer, reason.to_string()));
    }
}

/// One end of a stream in both directions.
pub(crate) struct Party {
    pub(crate) fabric: SimFabric,
    pub(crate) sink: Recorder,
    pub(crate) peer: PeerId,
    pub(crate) region: RegionId,
    pub(crate) posted: u64,
    pub(crate) refusals: u64,
    pub(crate) failed: Option<Error>,
    source_region: RegionId,
    remote: Option<RemoteId>,
}

impl Party {
    fn new(network: &SimNetwork, name: &str, counters: [Arc<AtomicU64>; 2]) -> Self {
        let mut fabric = network.fabric(name);
        let slot = Cells::new(GUARD + SLOT_LEN + GUARD, UNTOUCHED);
        let source = Cells::new(SOURCES * SLOT_LEN, SCRIBBLED);
        let region = fabric.register(slot.memory()).unwrap();
        let source_region = fabric.register(source.memory()).unwrap();
        fabric.set_hello(format!("answer of {name}").as_bytes());
        let [received, peer_received] = counters;
        Self {
            fabric,
            sink: Recorder {
                seen: Vec::new(),
                received,
                sent: 0,
                slot,
                source,
                peer_received,
                closed: Vec::new(),
            },
            peer: PeerId(0),
            region,
            posted: 0,
            refusals: 0,
            failed: None,
            source_region,
            remote: None,
        }
    }

    pub(crate) fn received(&self) -> u64 {
        self.sink.received.load(Ordering::Relaxed)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.sink.closed.contains(&self.peer)
    }

    /// Posts the next chain of the stream, in two writes.
    pub(crate) fn post_next(&mut self) -> Result<Posted, PostError> {
        let number = self.posted;
        let (len, value) = content_of(number);
        let local_offset = source_offset(number);
        self.sink.source.fill(local_offset, len, value);
        let first_len = len / 3;
        let write = |from: usize, to: usize| Write {
            local: self.source_region,
            local_offset: (local_offset + from) as u64,
            remote: self.remote.unwrap(),
            remote_offset: (GUARD + from) as u64,
            len_bytes: (to - from) as u64,
        };
        let chain = Chain {
            writes: &[write(0, first_len), write(first_len, len)],
            message: &message_of(number),
            token: number,
        };
        let posted = self.fabric.post(self.peer, &chain)?;
        assert_eq!(posted, Posted::Pending);
        self.posted += 1;
        Ok(posted)
    }

    /// Posts until `count` chains are posted or the window is full.
    pub(crate) fn post_up_to(&mut self, count: u64) {
        while self.posted < count && self.failed.is_none() {
            match self.post_next() {
                Ok(_) => (),
                Err(PostError::Full) => {
                    self.refusals += 1;
                    return;
                }
                Err(PostError::Failed(error)) => self.failed = Some(error),
            }
        }
    }

    /// How the connection ended, if it did.
    pub(crate) fn closing(&self) -> Option<&str> {
        self.sink.seen.iter().find_map(|seen| match seen {
            Seen::Closed(peer, reason) if *peer == self.peer => Some(reason.as_str()),
            _ => None,
        })
    }

    pub(crate) fn poll(&mut self, now_ns: u64) -> usize {
        self.fabric.poll(now_ns, &mut self.sink)
    }
}

/// Two parties, "a" and "b"; "a" connects to "b".
pub(crate) struct World {
    pub(crate) network: SimNetwork,
    pub(crate) a: Party,
    pub(crate) b: Party,
    /// How many chains each party is to post.
    pub(crate) count: u64,
}

impl World {
    /// Both parties, not connected.
    pub(crate) fn new(network: &SimNetwork) -> Self {
        let counters = [Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0))];
        let [of_a, of_b] = counters;
        Self {
            network: network.clone(),
            a: Party::new(network, "a", [Arc::clone(&of_a), Arc::clone(&of_b)]),
            b: Party::new(network, "b", [of_b, of_a]),
            count: 0,
        }
    }

    /// Both parties, connected and with regions exchanged; `None` if the connection failed, which
    /// it may under heavy faults.
    pub(crate) fn connected(network: &SimNetwork) -> Option<Self> {
        let mut world = Self::new(network);
        world.connect().then_some(world)
    }

    pub(crate) fn connect(&mut self) -> bool {
        let address = self.b.fabric.address();
        let timeout = Duration::from_secs(10);
        self.a.peer = self
            .a
            .fabric
            .connect(&address, b"hello of a", timeout)
            .unwrap();
        let seen = self.a.sink.seen.len();
        self.run(SECOND * 20, |world| world.a.sink.seen.len() > seen);
        let Some(Seen::Connected(peer, hello)) = self.a.sink.seen.last().cloned() else {
            return false;
        };
        assert_eq!(
            (peer, hello.as_slice()),
            (self.a.peer, b"answer of b".as_slice())
        );
        let Some(Seen::Accepted(peer, hello)) = self.b.sink.seen.last().cloned() else {
            return false;
        };
        assert_eq!(hello, b"hello of a");
        self.b.peer = peer;
        exchange(&mut self.a, &mut self.b) && exchange(&mut self.b, &mut self.a)
    }

    /// Kills "a", starts it anew, and lets both streams begin again.
    pub(crate) fn restart_a(&mut self) {
        let counters = [Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0))];
        let [of_a, of_b] = counters;
        self.a = Party::new(&self.network, "a", [Arc::clone(&of_a), Arc::clone(&of_b)]);
        self.b.posted = 0;
        self.b.sink.sent = 0;
        self.b.sink.received = of_b;
        self.b.sink.peer_received = of_a;
        self.count = 0;
    }

    /// Drives everything until the condition holds; `false` when it does not within the bound, or
    /// nothing will ever happen.
    pub(crate) fn run(&mut self, bound_ns: u64, until: impl Fn(&Self) -> bool) -> bool {
        let end_ns = self.network.now_ns() + bound_ns;
        let mut turns_at_once = 0;
        loop {
            self.turn();
            if until(self) {
                return true;
            }
            if self.network.now_ns() >= end_ns {
                return false;
            }
            let is_progress = self.network.step(end_ns - self.network.now_ns()) > 0;
            turns_at_once = if is_progress { 0 } else { turns_at_once + 1 };
            self.assert(
                turns_at_once < TURNS_AT_ONCE_MAX,
                "a timer is due and nothing is done",
            );
        }
    }

    /// Lets both parties post and poll once.
    pub(crate) fn turn(&mut self) {
        let now_ns = self.network.now_ns();
        for party in [&mut self.a, &mut self.b] {
            if !party.is_closed() {
                party.post_up_to(self.count);
            }
            party.poll(now_ns);
        }
    }

    pub(crate) fn is_all_sent(&self) -> bool {
        [&self.a, &self.b]
            .iter()
            .all(|party| party.sink.sent == self.count && party.received() == self.count)
    }

    /// Fails with the trace, which is what one needs to understand a seed.
    pub(crate) fn assert(&self, holds: bool, what: &str) {
        if !holds {
            let trace = self.network.trace();
            let tail = trace[trace.len().saturating_sub(60)..].join("\n");
            panic!("{what}\n{tail}\n{:?}", self.network.statistics());
        }
    }
}

/// Lets `from` write to `to`'s slot; `false` if one of them has lost the connection already.
fn exchange(from: &mut Party, to: &mut Party) -> bool {
    let Ok(shared) = to.fabric.share(to.region, to.peer) else {
        return false;
    };
    from.remote = from.fabric.import(from.peer, &shared).ok();
    from.remote.is_some()
}

/// What chain `number` writes: how many bytes, of which value. Neighbours differ in both.
pub(crate) fn content_of(number: u64) -> (usize, u8) {
    let len = usize::try_from(number * 37 % (SLOT_LEN as u64 + 1)).unwrap();
    (len, u8::try_from(number % 200).unwrap() + 1)
}

pub(crate) fn message_of(number: u64) -> [u8; 8] {
    number.to_le_bytes()
}

fn source_offset(number: u64) -> usize {
    usize::try_from(number).unwrap() % SOURCES * SLOT_LEN
}

pub(crate) const SECOND: u64 = 1_000_000_000;
pub(crate) const MILLISECOND: u64 = 1_000_000;

/// All chains of a direction write to the same slot, so that one placed too early is noticed.
const SLOT_LEN: usize = 100;

/// Bytes before and after the slot that nobody writes.
const GUARD: usize = 16;

/// More than the widest window, so that a source is not needed again before it was sent.
const SOURCES: usize = 65;

/// Far more turns than all packets of both windows need without time passing.
const TURNS_AT_ONCE_MAX: u32 = 1000;

const UNTOUCHED: u8 = 0xee;
const SCRIBBLED: u8 = 0xdd;
