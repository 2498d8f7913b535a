//! One node's fabric: a link endpoint over the simulated network's datagrams. The protocol is in
//! `link`; here are regions, chains and the translation into the words of [`Fabric`].

#![forbid(unsafe_code)]

use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::network::SimNetwork;
use super::options::SimOptions;
use super::placement;
use super::regions::Regions;
use super::state::{Condition, Life, State};
use crate::error::Error;
use crate::fabric::{
    Address, Chain, EventSink, Fabric, FabricKind, HELLO_LEN_BYTES_MAX, Limits, POLL_EVENTS_MAX,
    PeerId, PostError, Posted, RegionId, RemoteId, SharedRegion,
};
use crate::link::chain::{self, Target};
use crate::link::connection::Death;
use crate::link::endpoint::{Destination, Ending, Endpoint, Event, Payload, UseError, Verdict};
use crate::link::options::LinkOptions;
use crate::link::packet::{HEADER_LEN_BYTES, Header};
use crate::memory::Memory;

/// The fabric of one node of a [`SimNetwork`], in one of the node's lives.
///
/// Its clock is the network's virtual time; the time given to [`poll`](Fabric::poll) is not used.
/// `sent` comes only once the bytes are in the peer's memory and the message was delivered. Once
/// its node is killed or restarted it is silent: it polls nothing and takes nothing. Dropping it
/// closes its connections and tells the peers, as a process that ends in order does.
#[derive(Debug)]
pub struct SimFabric {
    network: SimNetwork,
    life: Life,
    address: Address,
    endpoint: Endpoint<PostedChain>,
    regions: Regions,
    limits: Limits,
    link: LinkOptions,
}

/// A chain until its peer has delivered it. It keeps its source memory, and is encoded anew each
/// time it is sent.
#[derive(Debug)]
struct PostedChain {
    sources: Vec<(Memory, u64)>,
    targets: Vec<Target>,
    message: Vec<u8>,
    token: u64,
}

impl SimFabric {
    pub(super) fn new(network: SimNetwork, life: Life, name: &str, options: &SimOptions) -> Self {
        let mut address = life.generation.to_le_bytes().to_vec();
        address.extend_from_slice(name.as_bytes());
        Self {
            network,
            life,
            address: Address(address),
            endpoint: Endpoint::new(life.generation, options.link),
            regions: Regions::new(options.regions_max),
            limits: options.limits,
            link: options.link,
        }
    }

    fn prepare(&self, peer: PeerId, chain: &Chain<'_>) -> Result<(PostedChain, u64), PostError> {
        let limits = self.limits;
        if chain.writes.len() > limits.writes_max {
            return Err(limit("writes in a chain", limits.writes_max).into());
        }
        if chain.message.len() > limits.message_len_bytes_max {
            return Err(limit("bytes in a message", limits.message_len_bytes_max).into());
        }
        let mut sources = Vec::with_capacity(chain.writes.len());
        let mut targets = Vec::with_capacity(chain.writes.len());
        for write in chain.writes {
            let len_bytes = write.len_bytes;
            let memory = self
                .regions
                .source(write.local, write.local_offset, len_bytes)?;
            let remote = self
                .regions
                .target(peer, write.remote, write.remote_offset, len_bytes)?;
            sources.push((memory.clone(), write.local_offset));
            targets.push(Target {
                region: remote.region,
                key: remote.key,
                offset: write.remote_offset,
                len_bytes,
            });
        }
        let body_len_bytes = chain::body_len_bytes(&targets, chain.message)
            .ok_or_else(|| limit("bytes in a chain", usize::MAX))?;
        let posted = PostedChain {
            sources,
            targets,
            message: chain.message.to_vec(),
            token: chain.token,
        };
        Ok((posted, body_len_bytes as u64))
    }

    fn receive(&mut self, now_ns: u64) {
        for _ in 0..POLL_PACKETS_MAX {
            if self.endpoint.is_congested() {
                return;
            }
            let Some((from, bytes)) = self.network.lock().receive(self.life) else {
                self.endpoint.check(now_ns);
                return;
            };
            let verdict = match Header::decode(&bytes) {
                Ok((header, body)) => {
                    let verdict = self.endpoint.handle(from, &header, body, now_ns);
                    match verdict {
                        Verdict::Refused(reason) => Err(reason.to_owned()),
                        verdict => Ok(verdict),
                    }
                }
                Err(error) => Err(error.to_string()),
            };
            let mut state = self.network.lock();
            match verdict {
                Ok(Verdict::Duplicate) => state.statistics.recognised_copies += 1,
                Ok(_) => (),
                Err(reason) => {
                    state.statistics.refused += 1;
                    note(
                        &mut state,
                        self.life,
                        format_args!("refuses a packet: {reason}"),
                    );
                }
            }
        }
    }

    /// Tells the sink, and returns whether there was something to tell.
    fn report(&mut self, event: Event<PostedChain>, sink: &mut dyn EventSink) -> bool {
        match event {
            Event::Connected(peer, hello) => {
                self.note(format_args!("connected to peer {}", peer.0));
                sink.connected(peer, &hello);
            }
            Event::Accepted(peer, hello) => {
                self.note(format_args!("accepted peer {}", peer.0));
                sink.accepted(peer, &hello);
            }
            Event::Delivered(peer, body) => {
                if let Err(reason) = self.deliver(peer, &body, sink) {
                    // The event of the closing is the next one.
                    self.endpoint.violated(peer, reason);
                    return false;
                }
            }
            Event::Acknowledged(peer, posted) => {
                self.note(format_args!("sent {} to peer {}", posted.token, peer.0));
                sink.sent(peer, posted.token);
            }
            Event::Closed(peer, ending) => {
                self.note(format_args!("peer {} is gone: {ending:?}", peer.0));
                self.regions.forget_peer(peer);
                sink.closed(peer, self.reason(peer, ending));
            }
        }
        true
    }

    fn deliver(
        &self,
        peer: PeerId,
        body: &[u8],
        sink: &mut dyn EventSink,
    ) -> Result<(), &'static str> {
        let limits = self.limits;
        let chain = chain::decode(body, limits.writes_max, limits.message_len_bytes_max)?;
        self.regions.place(peer, &chain)?;
        let mut state = self.network.lock();
        state.statistics.delivered += 1;
        note(
            &mut state,
            self.life,
            format_args!(
                "message of {} bytes from peer {}",
                chain.message.len(),
                peer.0
            ),
        );
        drop(state);
        sink.message(peer, chain.message);
        Ok(())
    }

    fn transmit(&mut self, now_ns: u64) {
        let (network, life) = (&self.network, self.life);
        self.endpoint.transmit(now_ns, &mut |to, header, payload| {
            let bytes = encode(&header, &payload);
            let mut state = network.lock();
            if !state.is_running(life) {
                return;
            }
            if matches!(payload, Payload::Unit(_, true)) {
                state.statistics.retransmitted += 1;
            }
            state.send(life.node, to, bytes);
        });
        let timer_ns = self.endpoint.next_timer_ns();
        self.network.lock().set_timer(self.life, timer_ns);
    }

    fn now_if_running(&self) -> Option<u64> {
        let state = self.network.lock();
        state.is_running(self.life).then_some(state.now_ns)
    }

    fn note(&self, what: std::fmt::Arguments<'_>) {
        note(&mut self.network.lock(), self.life, what);
    }

    fn reason(&self, peer: PeerId, ending: Ending) -> Error {
        let fabric = FabricKind::Sim;
        let timeout = |operation, timeout_ns: u64| Error::Timeout {
            fabric,
            operation,
            object: format!("peer {}", peer.0),
            timeout_ms: timeout_ns / NS_PER_MS,
        };
        match ending {
            Ending::Closed => Error::PeerClosed { fabric, peer },
            Ending::ConnectTimeout(timeout_ns) => timeout("connect", timeout_ns),
            Ending::Dead(Death::Silence) => timeout("keep-alive", self.link.silence_ns),
            Ending::Dead(Death::RetriesExhausted) => {
                timeout("acknowledgement", self.link.retries_duration_ns())
            }
            Ending::Violation(reason) => Error::InvalidWire {
                fabric,
                peer,
                reason: reason.to_owned(),
            },
        }
    }

    fn destination(&self, address: &Address) -> Result<Destination, Error> {
        let invalid = |reason: String| Error::InvalidAddress {
            fabric: FabricKind::Sim,
            reason,
        };
        let (generation, name) = address
            .0
            .split_first_chunk()
            .ok_or_else(|| invalid("shorter than a generation".to_owned()))?;
        let name = std::str::from_utf8(name)
            .map_err(|_| invalid("the name of the node is not UTF-8".to_owned()))?;
        let node = self
            .network
            .lock()
            .find(name)
            .ok_or_else(|| invalid(format!("the network has no node {name:?}")))?;
        Ok(Destination {
            node,
            generation: u64::from_le_bytes(*generation),
        })
    }
}

impl Fabric for SimFabric {
    fn kind(&self) -> FabricKind {
        FabricKind::Sim
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn address(&self) -> Address {
        self.address.clone()
    }

    fn register(&mut self, memory: Memory) -> Result<RegionId, Error> {
        let key = self.network.lock().random_u64();
        self.regions.register(memory, key)
    }

    fn deregister(&mut self, region: RegionId) -> Result<(), Error> {
        self.regions.deregister(region)
    }

    fn share(&mut self, region: RegionId, peer: PeerId) -> Result<SharedRegion, Error> {
        if !self.endpoint.has_peer(peer) {
            return Err(unknown_peer(peer));
        }
        self.regions.share(region, peer)
    }

    /// Only the peer can tell whether the description is one of its own; it closes the connection
    /// on the first write if not.
    fn import(&mut self, peer: PeerId, region: &SharedRegion) -> Result<RemoteId, Error> {
        if !self.endpoint.has_peer(peer) {
            return Err(unknown_peer(peer));
        }
        self.regions.import(peer, *region)
    }

    fn release(&mut self, peer: PeerId, remote: RemoteId) {
        self.regions.release(peer, remote);
    }

    fn connect(
        &mut self,
        address: &Address,
        hello: &[u8],
        timeout: Duration,
    ) -> Result<PeerId, Error> {
        if hello.len() > HELLO_LEN_BYTES_MAX {
            return Err(limit("bytes in a hello", HELLO_LEN_BYTES_MAX));
        }
        let destination = self.destination(address)?;
        let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let now_ns = self.network.now_ns();
        let peer = self
            .endpoint
            .connect(destination, hello, timeout_ns, now_ns)
            .map_err(|_| limit("peers", self.link.peers_max))?;
        self.transmit(now_ns);
        Ok(peer)
    }

    /// A hello longer than [`HELLO_LEN_BYTES_MAX`] is cut there.
    fn set_hello(&mut self, hello: &[u8]) {
        let len = hello.len().min(HELLO_LEN_BYTES_MAX);
        self.endpoint.set_hello(&hello[..len]);
    }

    fn post(&mut self, peer: PeerId, chain: &Chain<'_>) -> Result<Posted, PostError> {
        let (posted, len_bytes) = self.prepare(peer, chain)?;
        let now_ns = self.now_if_running().ok_or(PostError::Full)?;
        match self.endpoint.post(peer, posted, len_bytes, now_ns) {
            Ok(()) => {
                self.transmit(now_ns);
                Ok(Posted::Pending)
            }
            Err(UseError::Full) => Err(PostError::Full),
            Err(UseError::NotConnected | UseError::TooManyPeers) => Err(unknown_peer(peer).into()),
        }
    }

    fn poll(&mut self, _now_ns: u64, sink: &mut dyn EventSink) -> usize {
        let Some(now_ns) = self.now_if_running() else {
            return 0;
        };
        self.receive(now_ns);
        let mut events = 0;
        while events < POLL_EVENTS_MAX {
            let Some(event) = self.endpoint.next_event(now_ns) else {
                break;
            };
            events += usize::from(self.report(event, sink));
        }
        self.transmit(now_ns);
        events
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn close(&mut self, peer: PeerId) {
        self.endpoint.close(peer);
        self.regions.forget_peer(peer);
        self.transmit(self.network.now_ns());
    }
}

impl Drop for SimFabric {
    fn drop(&mut self) {
        self.endpoint.close_all();
        self.transmit(self.network.now_ns());
        let mut state = self.network.lock();
        if state.is_current(self.life) {
            state.set_condition(self.life.node, Condition::Absent);
        }
    }
}

fn encode(header: &Header, payload: &Payload<'_, PostedChain>) -> Vec<u8> {
    match *payload {
        Payload::None => header.encode(0),
        Payload::Hello(hello) => {
            let mut bytes = header.encode(hello.len());
            bytes.extend_from_slice(hello);
            bytes
        }
        Payload::Unit(posted, _) => {
            let body_len = chain::body_len_bytes(&posted.targets, &posted.message).unwrap_or(0);
            let mut bytes = header.encode(body_len);
            chain::encode_head(&posted.targets, &posted.message, &mut bytes);
            for ((memory, offset), target) in posted.sources.iter().zip(&posted.targets) {
                let read = placement::read(memory, *offset, target.len_bytes, &mut bytes);
                debug_assert!(
                    read,
                    "bounds and access were checked when the chain was posted"
                );
            }
            debug_assert_eq!(bytes.len(), HEADER_LEN_BYTES + body_len);
            bytes
        }
    }
}

fn note(state: &mut State, life: Life, what: std::fmt::Arguments<'_>) {
    let line = format!("{} {what}", state.name(life.node));
    state.note(format_args!("{line}"));
}

fn limit(what: &'static str, limit: usize) -> Error {
    Error::Limit {
        fabric: FabricKind::Sim,
        what,
        limit: limit as u64,
    }
}

fn unknown_peer(peer: PeerId) -> Error {
    Error::UnknownPeer {
        fabric: FabricKind::Sim,
        peer,
    }
}

/// Most datagrams of one poll, so that a flood cannot keep the engine in one call.
const POLL_PACKETS_MAX: usize = 256;

const NS_PER_MS: u64 = 1_000_000;
