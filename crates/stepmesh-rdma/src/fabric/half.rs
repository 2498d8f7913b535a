//! This side's half of a connection before the other is known: queue pairs, message memory, and their
//! description for the other side. Both halves together are a `Peer`.
#![expect(unsafe_code, reason = "registers the message memory that it allocates")]

use std::any::Any;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;

use stepmesh_transport::error::Error;
use stepmesh_transport::fabric::{FabricKind, PeerId};

use super::adapter::{Adapter, Seat, broken, unsupported, verbs_error};
use super::options::RdmaOptions;
use super::pages::Pages;
use super::ring::LINE_LEN_BYTES;
use super::window::SendWindow;
use super::wire::{RemoteWord, Ring, Side};
use crate::Access;
use crate::verbs::{Endpoint, MemoryRegion, Mtu, PathOptions, QueuePair, SendList};

/// This side's half.
#[derive(Debug)]
pub(super) struct Half {
    pub(super) id: PeerId,
    pub(super) pairs: Vec<Pair>,
    pub(super) memory: MessageMemory,
    pub(super) seat: Seat,
}

/// A queue pair with its accounts.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) queue_pair: QueuePair,
    pub(super) window: SendWindow,
    /// Used again for every chain.
    pub(super) list: SendList,
    /// Receives that were used up and not posted again yet.
    pub(super) receives_owed: usize,
    pub(super) psn: u32,
}

/// The memory of messages: what the other side writes, and what is sent when it is too long to go
/// inline.
#[derive(Debug)]
pub(super) struct MessageMemory {
    pub(super) lines: u32,
    /// The ring that the other side writes, and behind it the word for its credit.
    pub(super) incoming: Block,
    /// A picture of the other side's ring, and behind it the word for our credit. A line is free to
    /// be written again when the other side gave its line back, for then it has arrived.
    pub(super) outgoing: Block,
}

/// Registered pages. The region is dropped before the pages.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) region: MemoryRegion,
    pub(super) pages: Arc<Pages>,
}

impl Half {
    /// Makes a half that can receive: the queue pairs exist, with receives posted.
    pub(super) fn new(
        adapter: &mut Adapter,
        options: &RdmaOptions,
        id: PeerId,
        queue_pairs: usize,
    ) -> Result<Self, Error> {
        if let Some(reason) = &adapter.broken {
            return Err(broken(reason));
        }
        adapter.reread(options)?;
        let lines = options.ring_lines();
        let receives = lines as usize + RECEIVES_PER_POST;
        let sends = options.send_depth + CREDIT_REQUESTS;
        if receives.max(sends) > adapter.queue_depth_max() {
            return Err(Error::Limit {
                fabric: FabricKind::Rdma,
                what: "requests in a queue of this adapter (rdma.send_depth, rdma.ring_len_bytes)",
                limit: adapter.queue_depth_max() as u64,
            });
        }
        let memory = MessageMemory::new(adapter, lines)?;
        let seat = adapter.seat((receives + sends) * queue_pairs)?;
        let pairs = (0..queue_pairs)
            .map(|index| Pair::new(adapter, options, (id, index), seat, (sends, receives)))
            .collect::<Result<Vec<_>, _>>();
        match pairs {
            Ok(pairs) => Ok(Self {
                id,
                pairs,
                memory,
                seat,
            }),
            Err(error) => {
                adapter.leave(seat);
                Err(error)
            }
        }
    }

    /// What the other side has to know.
    pub(super) fn side(&self, adapter: &Adapter, options: &RdmaOptions, hello: &[u8]) -> Side {
        let incoming = &self.memory.incoming;
        let ring_len_bytes = self.memory.lines as usize * LINE_LEN_BYTES;
        Side {
            message_len_bytes_max: u32::try_from(options.message_len_bytes_max).unwrap_or(u32::MAX),
            mtu_len_bytes: adapter.mtu.len_bytes(),
            lid: adapter.lid,
            gid: adapter.gid,
            ring: Ring {
                address: incoming.region.address(),
                key: incoming.region.rkey(),
                lines: self.memory.lines,
            },
            credit: RemoteWord {
                address: incoming.region.address() + ring_len_bytes as u64,
                key: incoming.region.rkey(),
            },
            queue_pairs: (self.pairs.iter())
                .map(|pair| (pair.queue_pair.number(), pair.psn))
                .collect(),
            hello: hello.to_vec(),
        }
    }

    /// Connects the queue pairs with the other side's. What this side has more of is given up.
    pub(super) fn connect(
        &mut self,
        adapter: &mut Adapter,
        options: &RdmaOptions,
        theirs: &Side,
    ) -> Result<(), Error> {
        if theirs.queue_pairs.len() > self.pairs.len() {
            return Err(Error::InvalidWire {
                fabric: FabricKind::Rdma,
                peer: self.id,
                reason: "it answers with more queue pairs than were offered".to_owned(),
            });
        }
        let same_kind = (theirs.gid == [0; 16]) == (adapter.gid == [0; 16]);
        if !same_kind {
            return Err(unsupported(
                "one side has an address (GID) and the other none".to_owned(),
            ));
        }
        self.pairs.truncate(theirs.queue_pairs.len());
        let path = PathOptions {
            mtu: adapter.mtu.min(Mtu::at_most(theirs.mtu_len_bytes)),
            ..path(adapter, options)
        };
        for (index, (pair, (qp_num, psn))) in
            self.pairs.iter_mut().zip(&theirs.queue_pairs).enumerate()
        {
            let endpoint = Endpoint {
                qp_num: *qp_num,
                psn: *psn,
                lid: theirs.lid,
                gid: theirs.gid,
            };
            let path = PathOptions {
                local_psn: pair.psn,
                ..path
            };
            let connected = pair.queue_pair.connect(&endpoint, &path);
            connected.map_err(|error| verbs_error("connecting a queue pair", &error))?;
            let queue_pair = &mut pair.queue_pair;
            (adapter.lag).pin(index, |port| queue_pair.pin_to_lag_port(port));
        }
        Ok(())
    }
}

impl Pair {
    fn new(
        adapter: &Adapter,
        options: &RdmaOptions,
        (id, index): (PeerId, usize),
        seat: Seat,
        (sends, receives): (usize, usize),
    ) -> Result<Self, Error> {
        let failed = |error| verbs_error("preparing a queue pair", &error);
        let mut queue_pair = adapter.queue_pair(seat, sends, receives)?;
        queue_pair
            .prepare(&path(adapter, options))
            .map_err(failed)?;
        let posted = queue_pair.post_recv_empty(receive_id(id, index), receives);
        posted.map_err(|error| failed(error.error))?;
        Ok(Self {
            queue_pair,
            window: SendWindow::new(sends),
            list: SendList::with_capacity(options.send_depth),
            receives_owed: 0,
            psn: random_24(),
        })
    }
}

impl MessageMemory {
    fn new(adapter: &Adapter, lines: u32) -> Result<Self, Error> {
        let len_bytes = lines as usize * LINE_LEN_BYTES + WORD_LEN_BYTES;
        Ok(Self {
            lines,
            incoming: Block::new(adapter, len_bytes, Access::REMOTE_WRITE)?,
            outgoing: Block::new(adapter, len_bytes, Access::LOCAL)?,
        })
    }

    /// Where the credit words are, in both blocks.
    #[inline]
    pub(super) fn credit_offset(&self) -> usize {
        self.lines as usize * LINE_LEN_BYTES
    }
}

impl Block {
    fn new(adapter: &Adapter, len_bytes: usize, access: Access) -> Result<Self, Error> {
        let pages = Arc::new(Pages::new(len_bytes));
        let keep_alive: Arc<dyn Any + Send + Sync> = Arc::clone(&pages) as _;
        let len_bytes = pages.len_bytes() as u64;
        // SAFETY: the pages are allocated while the keep-alive is, and all access to them is by
        // atomics, whoever writes.
        let region = unsafe {
            adapter
                .domain
                .register(pages.address(), len_bytes, access, keep_alive)
        };
        let region = region.map_err(|error| verbs_error("registering message memory", &error))?;
        Ok(Self { region, pages })
    }
}

/// What a send completes with: the peer, so that completions of a connection that is gone find
/// nobody, and the queue pair.
#[inline]
pub(super) fn send_id(peer: PeerId, queue_pair: usize) -> u64 {
    u64::from(peer.0) << 32 | queue_pair as u64
}

/// The same for a receive.
#[inline]
pub(super) fn receive_id(peer: PeerId, queue_pair: usize) -> u64 {
    send_id(peer, queue_pair) | RECEIVE
}

/// Takes such a number apart: the peer, the queue pair, whether it is a receive.
#[inline]
pub(super) fn split_id(wr_id: u64) -> (PeerId, usize, bool) {
    let [index, _, _, kind, peer @ ..] = wr_id.to_le_bytes();
    let peer = PeerId(u32::from_le_bytes(peer));
    (peer, usize::from(index), kind != 0)
}

fn path(adapter: &Adapter, options: &RdmaOptions) -> PathOptions {
    PathOptions {
        port: adapter.port,
        gid_index: adapter.gid_index,
        mtu: adapter.mtu,
        traffic_class: options.traffic_class,
        service_level: options.service_level,
        timeout: options.timeout,
        retry_count: options.retry_count,
        rnr_retry: options.rnr_retry,
        ..PathOptions::default()
    }
}

/// A packet number that packets of an earlier connection do not have by chance. Not a secret.
fn random_24() -> u32 {
    let bytes = RandomState::new().hash_one(0).to_le_bytes();
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0])
}

/// Receives are posted again so many at a time: a call into the provider costs about as much as ten
/// receives.
pub(super) const RECEIVES_PER_POST: usize = 64;

/// Requests that are kept for writes of credit, which must not wait for a full queue.
pub(super) const CREDIT_REQUESTS: usize = 1;

const WORD_LEN_BYTES: usize = 8;

const RECEIVE: u64 = 1 << 24;
