//! All connections of one node: the handshake, which packet belongs to which connection, and the
//! refusal of packets that belong to none.
//!
//! A *generation* is one life of a node. Every packet names the generations of both ends, so that
//! nothing sent by or to an earlier life reaches a later one. A node that is heard under a newer
//! generation has died in between: its older connections end at once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

use super::connection::{Arrival, Connection, Death, Transmission, Violation};
use super::options::LinkOptions;
use super::packet::{Header, Kind};
use crate::fabric::PeerId;

/// The connections of one node in one of its lives. Units that are sent have the type `O`; units
/// that arrive are bytes.
#[derive(Debug)]
pub struct Endpoint<O> {
    generation: u64,
    options: LinkOptions,
    hello: Vec<u8>,
    peers: BTreeMap<PeerId, Peer<O>>,
    next_peer: u32,
    accepted: BTreeMap<Remote, PeerId>,
    finished: VecDeque<Remote>,
    newest_generations: BTreeMap<NodeId, u64>,
    events: VecDeque<Event<O>>,
    replies: VecDeque<(NodeId, Header)>,
    ready: BTreeSet<PeerId>,
    last_served: PeerId,
}

/// A node as the network below knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

/// Where a connection leads: one life of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Destination {
    /// The node.
    pub node: NodeId,
    /// Its generation.
    pub generation: u64,
}

/// What happened, from [`Endpoint::next_event`].
#[derive(Debug, PartialEq, Eq)]
pub enum Event<O> {
    /// A connection that this side started is up.
    Connected(PeerId, Vec<u8>),
    /// A peer connected to this side.
    Accepted(PeerId, Vec<u8>),
    /// A unit of this peer, whose turn it is.
    Delivered(PeerId, Vec<u8>),
    /// The peer has delivered this unit.
    Acknowledged(PeerId, O),
    /// The connection is gone. Nothing of it follows.
    Closed(PeerId, Ending),
}

/// Why a connection is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The peer closed it, refused it, or lives again under a new generation.
    Closed,
    /// It died.
    Dead(Death),
    /// No answer to the attempt to connect within this time, in nanoseconds.
    ConnectTimeout(u64),
    /// The peer broke the protocol.
    Violation(&'static str),
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was taken.
    Taken,
    /// It came before and changes nothing.
    Duplicate,
    /// It does not belong here, for this reason.
    Refused(&'static str),
}

/// Why a connection cannot be started or used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UseError {
    /// No such connection, or it is not up.
    NotConnected,
    /// The window is full.
    Full,
    /// [`LinkOptions::peers_max`] is reached.
    TooManyPeers,
}

/// What follows the header of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload<'a, O> {
    /// Nothing.
    None,
    /// A hello.
    Hello(&'a [u8]),
    /// A unit, which the caller encodes; and whether it was sent before.
    Unit(&'a O, bool),
}

#[derive(Debug)]
struct Peer<O> {
    destination: Destination,
    /// The other side's number of the connection; 0 until it is known.
    connection_to: u32,
    phase: Phase,
    connection: Connection<O, Vec<u8>>,
}

#[derive(Debug)]
enum Phase {
    Connecting {
        hello: Vec<u8>,
        timeout_ns: u64,
        deadline_ns: u64,
        due_ns: u64,
        retry_ns: u64,
    },
    Up {
        /// The other side has not heard, as far as we know, that we agreed.
        accept_due: bool,
    },
}

/// A connection as the other side numbers it.
type Remote = (Destination, u32);

impl<O> Endpoint<O> {
    /// A node without connections, in the life `generation`.
    pub fn new(generation: u64, options: LinkOptions) -> Self {
        Self {
            generation,
            options: options.normalised(),
            hello: Vec::new(),
            peers: BTreeMap::new(),
            next_peer: 1,
            accepted: BTreeMap::new(),
            finished: VecDeque::new(),
            newest_generations: BTreeMap::new(),
            events: VecDeque::new(),
            replies: VecDeque::new(),
            ready: BTreeSet::new(),
            last_served: PeerId(0),
        }
    }

    /// What is answered to whoever connects. The caller keeps it within its bound.
    pub fn set_hello(&mut self, hello: &[u8]) {
        self.hello = hello.to_vec();
    }

    /// Starts a connection; [`Event::Connected`] or [`Event::Closed`] follows within the timeout.
    ///
    /// # Errors
    /// [`UseError::TooManyPeers`].
    pub fn connect(
        &mut self,
        destination: Destination,
        hello: &[u8],
        timeout_ns: u64,
        now_ns: u64,
    ) -> Result<PeerId, UseError> {
        let phase = Phase::Connecting {
            hello: hello.to_vec(),
            timeout_ns,
            deadline_ns: now_ns.saturating_add(timeout_ns),
            due_ns: now_ns,
            retry_ns: self.options.retransmit_initial_ns.max(1),
        };
        self.insert(destination, 0, phase, now_ns)
    }

    /// Takes a unit for a peer.
    ///
    /// # Errors
    /// [`UseError::NotConnected`], [`UseError::Full`]; the unit is dropped then, so ask
    /// [`has_room`](Self::has_room) before building a costly one.
    pub fn post(
        &mut self,
        peer: PeerId,
        unit: O,
        len_bytes: u64,
        now_ns: u64,
    ) -> Result<(), UseError> {
        self.has_room(peer, len_bytes)?;
        let peer = self.peers.get_mut(&peer).ok_or(UseError::NotConnected)?;
        peer.connection
            .post(unit, len_bytes, now_ns)
            .map_err(|_| UseError::Full)
    }

    /// Whether a unit of that length would be taken now.
    ///
    /// # Errors
    /// [`UseError::NotConnected`], [`UseError::Full`].
    pub fn has_room(&self, peer: PeerId, len_bytes: u64) -> Result<(), UseError> {
        match self.peers.get(&peer) {
            Some(peer) if matches!(peer.phase, Phase::Connecting { .. }) => {
                Err(UseError::NotConnected)
            }
            None => Err(UseError::NotConnected),
            Some(peer) if !peer.connection.has_room(len_bytes) => Err(UseError::Full),
            Some(_) => Ok(()),
        }
    }

    /// Whether there is such a connection, up or coming up.
    pub fn has_peer(&self, peer: PeerId) -> bool {
        self.peers.contains_key(&peer)
    }

    /// Ends a connection. The peer is told once; no event follows.
    pub fn close(&mut self, peer: PeerId) {
        self.events.retain(|event| event.peer() != peer);
        self.remove(peer, true);
    }

    /// Ends a connection whose peer sent a unit that no honest peer sends. The peer is told once;
    /// [`Event::Closed`] follows.
    pub fn violated(&mut self, peer: PeerId, reason: &'static str) {
        self.end(peer, Ending::Violation(reason), true);
    }

    /// Ends all connections.
    pub fn close_all(&mut self) {
        while let Some((&peer, _)) = self.peers.first_key_value() {
            self.close(peer);
        }
    }

    /// Whether as much has happened as may wait for [`next_event`](Self::next_event): take no
    /// packet until there is room again.
    pub fn is_congested(&self) -> bool {
        self.events.len() >= EVENTS_MAX || self.replies.len() >= REPLIES_MAX
    }

    /// Takes a packet that came from `node`.
    pub fn handle(&mut self, node: NodeId, header: &Header, body: &[u8], now_ns: u64) -> Verdict {
        let source = Destination {
            node,
            generation: header.generation_from,
        };
        if header.generation_to != self.generation {
            return self.refuse(node, header, "it is meant for an earlier life of this node");
        }
        let newest = self.newest_generations.get(&node);
        let is_old = newest.is_some_and(|&newest| header.generation_from < newest);
        // The refusal of an attempt to reach the earlier life speaks in that life's name.
        if is_old && header.kind != Kind::Close {
            return Verdict::Refused("it comes from an earlier life of its sender");
        }
        if header.kind == Kind::Connect {
            return self.on_connect(source, header, body, now_ns);
        }
        let id = PeerId(header.connection_to);
        let Some(peer) = self.peers.get_mut(&id) else {
            return self.refuse(node, header, "there is no such connection");
        };
        let is_connecting = matches!(peer.phase, Phase::Connecting { .. });
        let is_its_own = peer.connection_to == header.connection_from;
        if peer.destination != source || !(is_connecting || is_its_own) {
            return self.refuse(node, header, "the connection is another's");
        }
        match header.kind {
            Kind::Close => self.end(id, Ending::Closed, false),
            Kind::Accept if is_connecting => {
                peer.connection_to = header.connection_from;
                peer.phase = Phase::Up { accept_due: false };
                peer.connection = Connection::new(self.options, now_ns);
                self.supersede(source);
                self.events.push_back(Event::Connected(id, body.to_vec()));
            }
            Kind::Accept => {
                peer.connection.heard(now_ns);
                return Verdict::Duplicate;
            }
            // The `Accept` was overtaken or lost. The unit will come again.
            _ if is_connecting => return Verdict::Refused("the connection is not up yet"),
            _ => return self.on_traffic(id, header, body, now_ns),
        }
        Verdict::Taken
    }

    /// Ends what has died by `now_ns`. To be called only after everything that arrived was
    /// handled: what waits in a queue is no silence.
    pub fn check(&mut self, now_ns: u64) {
        let ended: Vec<(PeerId, Ending)> = self
            .peers
            .iter()
            .filter_map(|(&id, peer)| peer.ending(now_ns).map(|ending| (id, ending)))
            .collect();
        for (id, ending) in ended {
            self.end(id, ending, true);
        }
    }

    /// What happened next. Connections take turns, so that none waits for a busy one.
    pub fn next_event(&mut self, now_ns: u64) -> Option<Event<O>> {
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        loop {
            let after = (Bound::Excluded(self.last_served), Bound::Unbounded);
            let id = *self
                .ready
                .range(after)
                .next()
                .or_else(|| self.ready.first())?;
            self.last_served = id;
            if let Some(peer) = self.peers.get_mut(&id) {
                if let Some(body) = peer.connection.next_delivery(now_ns) {
                    return Some(Event::Delivered(id, body));
                }
                if let Some(unit) = peer.connection.next_acknowledged() {
                    return Some(Event::Acknowledged(id, unit));
                }
            }
            self.ready.remove(&id);
        }
    }

    /// Gives every packet that is to leave now to `send`.
    pub fn transmit(&mut self, now_ns: u64, send: &mut dyn FnMut(NodeId, Header, Payload<'_, O>)) {
        for (node, header) in self.replies.drain(..) {
            send(node, header, Payload::None);
        }
        for (&id, peer) in &mut self.peers {
            peer.transmit(id, self.generation, &self.hello, now_ns, send);
        }
    }

    /// When [`check`](Self::check), [`transmit`](Self::transmit) or
    /// [`next_event`](Self::next_event) has something to do next, if ever.
    pub fn next_timer_ns(&self) -> Option<u64> {
        if !self.events.is_empty() || !self.ready.is_empty() || !self.replies.is_empty() {
            return Some(0);
        }
        self.peers.values().map(Peer::next_timer_ns).min()
    }

    fn on_connect(
        &mut self,
        source: Destination,
        header: &Header,
        hello: &[u8],
        now_ns: u64,
    ) -> Verdict {
        let remote = (source, header.connection_from);
        if self.finished.contains(&remote) {
            return self.refuse(source.node, header, "the connection has ended");
        }
        if let Some(peer) = self
            .accepted
            .get(&remote)
            .and_then(|id| self.peers.get_mut(id))
        {
            peer.connection.heard(now_ns);
            peer.phase = Phase::Up { accept_due: true };
            return Verdict::Duplicate;
        }
        self.supersede(source);
        let phase = Phase::Up { accept_due: true };
        let Ok(id) = self.insert(source, header.connection_from, phase, now_ns) else {
            return self.refuse(source.node, header, "there are too many connections");
        };
        self.accepted.insert(remote, id);
        self.events.push_back(Event::Accepted(id, hello.to_vec()));
        Verdict::Taken
    }

    fn on_traffic(&mut self, id: PeerId, header: &Header, body: &[u8], now_ns: u64) -> Verdict {
        let Some(peer) = self.peers.get_mut(&id) else {
            return Verdict::Refused("there is no such connection");
        };
        let connection = &mut peer.connection;
        connection.heard(now_ns);
        let mut verdict = Verdict::Taken;
        let mut taken = connection.on_ack(header.acknowledged, header.held, now_ns);
        if taken.is_ok() && header.kind == Kind::Data {
            let len_bytes = body.len() as u64;
            taken = connection
                .on_unit(header.sequence, body.to_vec(), len_bytes, now_ns)
                .map(|arrival| match arrival {
                    Arrival::Duplicate => verdict = Verdict::Duplicate,
                    Arrival::Dropped => verdict = Verdict::Refused("there is no room for it yet"),
                    Arrival::InOrder | Arrival::OutOfOrder => (),
                });
        }
        if let Err(Violation(reason)) = taken {
            self.violated(id, reason);
            return Verdict::Refused(reason);
        }
        if peer.connection.has_news() {
            self.ready.insert(id);
        }
        verdict
    }

    /// A node lives in a new generation: its earlier life, and what was connected to it, is over.
    fn supersede(&mut self, source: Destination) {
        let newest = self.newest_generations.entry(source.node).or_insert(0);
        *newest = (*newest).max(source.generation);
        let over: Vec<PeerId> = self
            .peers
            .iter()
            .filter(|(_, peer)| {
                peer.destination.node == source.node
                    && peer.destination.generation < source.generation
            })
            .map(|(&id, _)| id)
            .collect();
        for id in over {
            self.end(id, Ending::Closed, false);
        }
    }

    fn insert(
        &mut self,
        destination: Destination,
        connection_to: u32,
        phase: Phase,
        now_ns: u64,
    ) -> Result<PeerId, UseError> {
        let next_peer = self.next_peer.checked_add(1);
        let (Some(next_peer), true) = (next_peer, self.peers.len() < self.options.peers_max) else {
            return Err(UseError::TooManyPeers);
        };
        let id = PeerId(std::mem::replace(&mut self.next_peer, next_peer));
        let peer = Peer {
            destination,
            connection_to,
            phase,
            connection: Connection::new(self.options, now_ns),
        };
        self.peers.insert(id, peer);
        Ok(id)
    }

    fn end(&mut self, id: PeerId, ending: Ending, tell: bool) {
        if self.remove(id, tell) {
            self.events.push_back(Event::Closed(id, ending));
        }
    }

    fn remove(&mut self, id: PeerId, tell: bool) -> bool {
        let Some(peer) = self.peers.remove(&id) else {
            return false;
        };
        self.ready.remove(&id);
        let remote = (peer.destination, peer.connection_to);
        if self.accepted.remove(&remote).is_some() {
            // A late copy of its `Connect` must not open it again.
            if self.finished.len() >= FINISHED_MAX {
                self.finished.pop_front();
            }
            self.finished.push_back(remote);
        }
        if tell && peer.connection_to != 0 {
            let header = peer.header(id, self.generation, Kind::Close);
            self.replies.push_back((peer.destination.node, header));
        }
        true
    }

    fn refuse(&mut self, node: NodeId, header: &Header, reason: &'static str) -> Verdict {
        // A refusal is never refused, or two nodes could go on for ever.
        if header.kind != Kind::Close {
            self.replies.push_back((node, header.refusal()));
        }
        Verdict::Refused(reason)
    }
}

impl<O> Peer<O> {
    fn ending(&self, now_ns: u64) -> Option<Ending> {
        match self.phase {
            Phase::Connecting {
                timeout_ns,
                deadline_ns,
                ..
            } => (now_ns >= deadline_ns).then_some(Ending::ConnectTimeout(timeout_ns)),
            Phase::Up { .. } => self.connection.check(now_ns).err().map(Ending::Dead),
        }
    }

    fn next_timer_ns(&self) -> u64 {
        match self.phase {
            Phase::Connecting {
                deadline_ns,
                due_ns,
                ..
            } => due_ns.min(deadline_ns),
            Phase::Up { accept_due: true } => 0,
            Phase::Up { accept_due: false } => self.connection.next_timer_ns(),
        }
    }

    fn header(&self, id: PeerId, generation: u64, kind: Kind) -> Header {
        Header {
            kind,
            generation_from: generation,
            generation_to: self.destination.generation,
            connection_from: id.0,
            connection_to: self.connection_to,
            sequence: 0,
            acknowledged: 0,
            held: 0,
        }
    }

    fn transmit(
        &mut self,
        id: PeerId,
        generation: u64,
        answer: &[u8],
        now_ns: u64,
        send: &mut dyn FnMut(NodeId, Header, Payload<'_, O>),
    ) {
        let node = self.destination.node;
        let connect = self.header(id, generation, Kind::Connect);
        let accept = self.header(id, generation, Kind::Accept);
        match &mut self.phase {
            Phase::Connecting {
                hello,
                due_ns,
                retry_ns,
                ..
            } => {
                if *due_ns <= now_ns {
                    *due_ns = now_ns.saturating_add(*retry_ns);
                    *retry_ns = retry_ns.saturating_mul(2).min(CONNECT_RETRY_NS_MAX);
                    send(node, connect, Payload::Hello(hello));
                }
                return;
            }
            Phase::Up { accept_due } => {
                if std::mem::take(accept_due) {
                    send(node, accept, Payload::Hello(answer));
                }
            }
        }
        let (acknowledged, held) = self.connection.acknowledgement();
        let ack = Header {
            acknowledged,
            held,
            ..self.header(id, generation, Kind::Ack)
        };
        while let Some(transmission) = self.connection.transmit(now_ns) {
            match transmission {
                Transmission::Ack => send(node, ack, Payload::None),
                Transmission::Unit {
                    sequence,
                    unit,
                    again,
                } => {
                    let data = Header {
                        kind: Kind::Data,
                        sequence,
                        ..ack
                    };
                    send(node, data, Payload::Unit(unit, again));
                }
            }
        }
    }
}

impl<O> Event<O> {
    fn peer(&self) -> PeerId {
        match *self {
            Self::Connected(peer, _)
            | Self::Accepted(peer, _)
            | Self::Delivered(peer, _)
            | Self::Acknowledged(peer, _)
            | Self::Closed(peer, _) => peer,
        }
    }
}

/// Most events that wait. A peer that connects and closes in a circle cannot make us hold more.
const EVENTS_MAX: usize = 1024;

/// Most refusals and closings that wait to leave.
const REPLIES_MAX: usize = 1024;

/// How many ended connections are remembered, so that a late copy of their `Connect` does not open
/// them again. A network that holds a packet back for longer than so many connections of one
/// endpoint take can still open one; it dies of silence or refusal.
const FINISHED_MAX: usize = 1024;

/// Longest wait between two attempts to connect, in nanoseconds: short enough for a peer that is
/// just starting, long enough not to flood it.
const CONNECT_RETRY_NS_MAX: u64 = 100_000_000;
