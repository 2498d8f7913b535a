//! A connected peer: what arrives from it, what it owes and is owed, and how it ends. Posting is in
//! `post`, how the connection came about in `half` and `handshake`.

#![forbid(unsafe_code)]

use std::collections::VecDeque;

use stepmesh_transport::error::Error;
use stepmesh_transport::fabric::{EventSink, FabricKind, PeerId, RemoteId, SharedRegion};
use stepmesh_transport::news::Deadline;
use stepmesh_transport::table::Table;

use super::adapter::{Seat, verbs_error};
use super::half::{Half, MessageMemory, Pair, RECEIVES_PER_POST, receive_id};
use super::options::RdmaOptions;
use super::regions::Regions;
use super::ring::Producer;
use super::ring::{self, Arrival, Broken, Consumer, HEADER_LEN_BYTES, Header, LINE_LEN_BYTES};
use super::window::Chains;
use super::wire::{RemoteWord, Ring, Side};
use crate::verbs::{WorkCompletion, WorkStatus};

/// A connected peer.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) id: PeerId,
    pub(super) pairs: Vec<Pair>,
    pub(super) memory: MessageMemory,
    pub(super) seat: Seat,
    /// The ring of the other side's that messages go into.
    pub(super) remote_ring: Ring,
    pub(super) remote_credit: RemoteWord,
    /// Regions of the peer.
    pub(super) imports: Table<Remote>,
    pub(super) producer: Producer,
    pub(super) chains: Chains,
    /// The regions that the chains on their way read from, oldest first.
    pub(super) sources: VecDeque<u32>,
    /// Longest message that both sides take.
    pub(super) message_len_bytes_max: usize,
    /// Whether a write of credit is on its way.
    pub(super) telling: bool,
    /// Whether it is on the fabric's list of peers to look after.
    pub(super) is_dirty: bool,
    /// What the other side said, until it is known to be ready.
    pub(super) unannounced: Option<Vec<u8>>,
    /// By when it must be.
    pub(super) ready_by: Option<Deadline>,
    consumer: Consumer,
    /// Messages that have come and were not delivered, oldest first.
    arrivals: VecDeque<Arrival>,
    /// Parts that came by the further queue pairs and belong to no delivered message yet.
    stripes: Vec<u32>,
    /// The first completion that failed for a reason of its own.
    failure: Option<Error>,
    /// Whether a queue pair stopped.
    flushed: bool,
    /// The connection is over, for this reason unless a completion tells a better one.
    ended: Option<Error>,
}

/// A region of a peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Remote {
    pub(super) address: u64,
    pub(super) key: u32,
    pub(super) len_bytes: u64,
}

impl Peer {
    /// Joins this side's half, which is connected, and the other side's.
    pub(super) fn new(half: Half, theirs: &Side, options: &RdmaOptions) -> Self {
        let lines = half.memory.lines.min(theirs.ring.lines);
        let message_len_bytes_max = options
            .message_len_bytes_max
            .min(theirs.message_len_bytes_max as usize)
            .min(ring::message_len_bytes_max(lines));
        Self {
            id: half.id,
            remote_ring: theirs.ring,
            remote_credit: theirs.credit,
            imports: Table::new(options.regions_max),
            producer: Producer::new(lines),
            chains: Chains::with_capacity(lines as usize),
            sources: VecDeque::new(),
            message_len_bytes_max,
            telling: false,
            is_dirty: false,
            unannounced: None,
            ready_by: None,
            consumer: Consumer::new(lines),
            arrivals: VecDeque::with_capacity(lines as usize),
            stripes: vec![0; half.pairs.len()],
            failure: None,
            flushed: false,
            ended: None,
            pairs: half.pairs,
            memory: half.memory,
            seat: half.seat,
        }
    }

    /// Makes a region of the peer's usable as a target. The adapter of the peer checks the key.
    pub(super) fn import(&mut self, shared: &SharedRegion) -> Result<RemoteId, Error> {
        if shared.key.checked_add(shared.len_bytes).is_none() {
            return Err(self.invalid("a region wraps around"));
        }
        let id = self.imports.insert_with(|_| Remote {
            address: shared.key,
            key: shared.region,
            len_bytes: shared.len_bytes,
        });
        id.map(RemoteId).ok_or(Error::Limit {
            fabric: FabricKind::Rdma,
            what: "imported regions",
            limit: self.imports.len() as u64,
        })
    }

    /// Notes one completion of this peer's.
    #[inline]
    pub(super) fn complete(
        &mut self,
        completion: &WorkCompletion,
        queue_pair: usize,
        received: bool,
    ) {
        if completion.status != WorkStatus::Success {
            return self.failed(completion, received);
        }
        let done = if received {
            self.received(queue_pair, completion.imm_data)
        } else {
            self.sent(queue_pair)
        };
        if let Err(Broken(reason)) = done {
            self.end(self.invalid(reason));
        }
    }

    /// Delivers what can be delivered, and says what was sent; the number of events. The rest is left
    /// for the next call when there were enough.
    #[inline]
    pub(super) fn report(
        &mut self,
        regions: &mut Regions,
        scratch: &mut [u8],
        events_max: usize,
        sink: &mut dyn EventSink,
    ) -> usize {
        let mut events = 0;
        if let Some(hello) = self.unannounced.take_if(|_| !self.arrivals.is_empty()) {
            // Who sends is ready, though its word for that comes by another way.
            sink.accepted(self.id, &hello);
            events += 1;
        }
        while events < events_max
            && let Some(len_bytes) = self.next_message(scratch)
        {
            sink.message(self.id, &scratch[..len_bytes]);
            events += 1;
        }
        while events < events_max
            && let Some(sent) = self.chains.pop_done()
        {
            for region in self.sources.drain(..sent.sources.min(self.sources.len())) {
                regions.release(region);
            }
            sink.sent(self.id, sent.token);
            events += 1;
        }
        events
    }

    /// Whether [`report`](Self::report) would report something.
    #[inline]
    pub(super) fn has_news(&self) -> bool {
        self.chains.has_done()
            || self
                .arrivals
                .front()
                .is_some_and(|front| self.is_whole(front))
    }

    /// Posts receives and tells credit, where enough has gathered.
    #[inline]
    pub(super) fn settle(&mut self) {
        if self.ended.is_some() || self.flushed {
            return;
        }
        let mut failed = None;
        for (index, pair) in self.pairs.iter_mut().enumerate() {
            if pair.receives_owed < RECEIVES_PER_POST {
                continue;
            }
            let count = std::mem::take(&mut pair.receives_owed);
            let posted = pair
                .queue_pair
                .post_recv_empty(receive_id(self.id, index), count);
            if let Err(error) = posted {
                failed = Some(error);
            }
        }
        if let Some(error) = failed {
            self.end(verbs_error("posting receives", &error.error));
        } else if self.consumer.owes() && !self.telling {
            self.tell();
        }
    }

    /// The lines to give back with the next message.
    #[inline]
    pub(super) fn credit_to_tell(&self) -> u32 {
        self.consumer.position()
    }

    /// They are on their way.
    #[inline]
    pub(super) fn credit_is_told(&mut self) {
        self.consumer.told();
    }

    /// Takes the credit that the other side wrote into our word.
    #[inline]
    pub(super) fn take_credit(&mut self) -> Result<(), Error> {
        let word = self.memory.incoming.pages.load(self.memory.credit_offset());
        let word = word.unwrap_or(0);
        let taken = match u32::try_from(word) {
            Ok(consumed) => self.producer.credit(consumed),
            Err(_) => Err(Broken("its credit is no number of lines")),
        };
        taken.map_err(|Broken(reason)| {
            self.end(self.invalid(reason));
            self.invalid(reason)
        })
    }

    /// Notes that the connection is over; what has come is still delivered, unless it was broken.
    pub(super) fn end(&mut self, reason: Error) {
        self.ended.get_or_insert(reason);
    }

    /// Whether the connection is over, or a queue pair of it stopped.
    pub(super) fn is_ending(&self) -> bool {
        self.ended.is_some() || self.failure.is_some() || self.flushed
    }

    /// The queue pair has this number.
    pub(super) fn has_queue_pair(&self, number: u32) -> bool {
        self.pairs
            .iter()
            .any(|pair| pair.queue_pair.number() == number)
    }

    /// Why it is over. What the adapter said about a request of ours is the best reason, then what
    /// the connection said; if a queue pair just stopped, the peer did what it may not.
    pub(super) fn reason(&mut self) -> Error {
        if matches!(self.ended, Some(Error::InvalidWire { .. })) {
            return self.ended.take().unwrap_or_else(|| self.closed());
        }
        match (self.failure.take(), self.ended.take()) {
            (Some(failure), _) => failure,
            (None, Some(ended)) => ended,
            (None, None) => self.invalid(
                "its queue pair was stopped by the adapter, as for a write outside of what is \
                 shared with it",
            ),
        }
    }

    /// Lets go of the regions that chains on their way read from; their queue pairs are gone.
    pub(super) fn release_sources(&mut self, regions: &mut Regions) {
        self.pairs.clear();
        for region in self.sources.drain(..) {
            regions.release(region);
        }
    }

    pub(super) fn closed(&self) -> Error {
        Error::PeerClosed {
            fabric: FabricKind::Rdma,
            peer: self.id,
        }
    }

    pub(super) fn invalid(&self, reason: &str) -> Error {
        Error::InvalidWire {
            fabric: FabricKind::Rdma,
            peer: self.id,
            reason: reason.to_owned(),
        }
    }

    #[cold]
    fn failed(&mut self, completion: &WorkCompletion, received: bool) {
        self.flushed = true;
        if completion.status.is_flush() || self.failure.is_some() {
            return;
        }
        let what = if received { "a receive" } else { "a write" };
        let reason = format!(
            "{what} failed: {} (vendor's code {:#x})",
            describe(completion.status),
            completion.vendor_error
        );
        self.failure = Some(Error::Broken {
            fabric: FabricKind::Rdma,
            peer: self.id,
            reason,
        });
    }

    #[inline]
    fn sent(&mut self, queue_pair: usize) -> Result<(), Broken> {
        let Some(pair) = self.pairs.get_mut(queue_pair) else {
            return Ok(());
        };
        match pair.window.complete() {
            Ok(Some(chain)) => self.chains.part_done(chain),
            Ok(None) => self.telling = false,
            Err(()) => return Err(Broken("more was completed than posted")),
        }
        Ok(())
    }

    #[inline]
    fn received(&mut self, queue_pair: usize, imm: Option<u32>) -> Result<(), Broken> {
        let Some(pair) = self.pairs.get_mut(queue_pair) else {
            return Ok(());
        };
        pair.receives_owed += 1;
        let imm = imm.ok_or(Broken("a message without its number"))?;
        if queue_pair == 0 {
            return self.arrived(imm);
        }
        if imm != ring::stripe_imm(queue_pair) {
            return Err(Broken(
                "a part of a chain came by another queue pair than its own",
            ));
        }
        self.stripes[queue_pair] += 1;
        Ok(())
    }

    /// A message came, of which this is the number.
    #[inline]
    fn arrived(&mut self, imm: u32) -> Result<(), Broken> {
        let line = self.consumer.announced(imm)?;
        let offset = line as usize * LINE_LEN_BYTES;
        let pages = &self.memory.incoming.pages;
        let (first, second) = (pages.load(offset), pages.load(offset + 8));
        let header = Header::of_words([first.unwrap_or(0), second.unwrap_or(0)])?;
        self.producer.credit(header.credit)?;
        let (len_max, pairs) = (self.message_len_bytes_max, self.pairs.len());
        let arrival = self.consumer.arrived(line, &header, len_max, pairs)?;
        self.arrivals.push_back(arrival);
        Ok(())
    }

    /// Copies the next message, if all parts of its chain have come.
    #[inline]
    fn next_message(&mut self, scratch: &mut [u8]) -> Option<usize> {
        if matches!(self.ended, Some(Error::InvalidWire { .. })) {
            return None;
        }
        let arrival = *self.arrivals.front().filter(|front| self.is_whole(front))?;
        self.arrivals.pop_front();
        for parts in &mut self.stripes[1..arrival.stripes] {
            *parts -= 1;
        }
        let offset = arrival.line as usize * LINE_LEN_BYTES + HEADER_LEN_BYTES;
        let message = &mut scratch[..arrival.len_bytes];
        let copied = self.memory.incoming.pages.read(offset, message);
        debug_assert!(copied, "a record was checked to lie inside of its ring");
        self.consumer.delivered(&arrival);
        Some(arrival.len_bytes)
    }

    #[inline]
    fn is_whole(&self, arrival: &Arrival) -> bool {
        self.stripes[1..arrival.stripes]
            .iter()
            .all(|parts| *parts > 0)
    }
}

/// What a failed request means, and what helps.
fn describe(status: WorkStatus) -> &'static str {
    match status {
        WorkStatus::RetriesExhausted | WorkStatus::ResponseTimeout => {
            "the peer did not acknowledge over all retries (rdma.timeout, rdma.retry_count): it or \
             the way to it is gone"
        }
        WorkStatus::ReceiverNotReady => {
            "the peer was not ready to receive over all retries (rdma.rnr_retry)"
        }
        WorkStatus::RemoteAccess => {
            "the peer's adapter refused access: the memory is not shared, or no longer"
        }
        WorkStatus::RemoteInvalidRequest => "the peer's adapter refused the request",
        WorkStatus::RemoteOperation | WorkStatus::RemoteAborted => "the peer's adapter gave up",
        WorkStatus::LocalProtection | WorkStatus::LocalAccess => {
            "our adapter may not access the memory"
        }
        WorkStatus::LocalLength => "a length is wrong",
        WorkStatus::LocalOperation => "our adapter refused the request, as when its port is down",
        WorkStatus::BadResponse => "an answer of the peer's adapter made no sense",
        WorkStatus::Fatal => "our adapter broke (see dmesg)",
        _ => "for a reason that is not known",
    }
}
