//! Writes that neither a mapping nor the kernel can do: they travel through the ring in chunks, and
//! the owner of the region puts them in place. The last resort; one chain at a time.

#![forbid(unsafe_code)]

use std::collections::VecDeque;

use super::control::{CHUNK_HEADER_LEN_BYTES, ChunkHeader};
use super::peer::{KIND_AWAITED, KIND_CHUNK, Peer};
use super::region::{Local, Target};
use super::ring::{BrokenRing, Producer};
use crate::fabric::{Chain, EventSink, PostError, Posted};
use crate::memory::Memory;
use crate::table::Table;

/// The chain that is being bounced, and those that are in the ring but not read yet. Buffers are
/// used again.
#[derive(Debug, Default)]
pub(super) struct Bounce {
    active: bool,
    writes: VecDeque<Piece>,
    message: Vec<u8>,
    token: u64,
    /// Chains of which everything is in the ring: the position behind each, and its token.
    unread: VecDeque<(u64, u64)>,
}

/// What is left of a write.
#[derive(Debug)]
struct Piece {
    memory: Memory,
    offset: u64,
    region: u32,
    region_offset: u64,
    len_bytes: u64,
}

impl Bounce {
    /// Whether a chain is not yet wholly in the ring.
    #[inline]
    pub(super) fn is_active(&self) -> bool {
        self.active
    }

    /// Whether there is anything to do or to wait for.
    #[inline]
    pub(super) fn is_waiting(&self) -> bool {
        self.active || !self.unread.is_empty()
    }

    /// Gives up on writes to a region that its owner deregistered.
    pub(super) fn forget(&mut self, region: u32) {
        self.writes.retain(|piece| piece.region != region);
    }

    /// Puts as much into the ring as there is room for. True when anything was.
    fn drive(&mut self, tx: &mut Producer, scratch: &mut [u8]) -> Result<bool, BrokenRing> {
        let mut pushed = false;
        // A quarter of the ring, so that writing and reading overlap.
        let chunk_max = scratch.len().min(tx.record_len_bytes_max() / 2);
        while let Some(piece) = self.writes.front_mut() {
            let room = (chunk_max - CHUNK_HEADER_LEN_BYTES) as u64;
            let len = piece.len_bytes.min(room);
            let record_len = CHUNK_HEADER_LEN_BYTES
                + usize::try_from(len).expect("invariant: no longer than the scratch buffer");
            if len > 0 {
                if !tx.has_room(record_len)? {
                    return Ok(pushed);
                }
                piece.fill(&mut scratch[..record_len]);
                tx.push(KIND_CHUNK, &scratch[..record_len]);
                pushed = true;
                piece.advance(len);
            }
            if piece.len_bytes == 0 {
                self.writes.pop_front();
            }
        }
        if !tx.has_room(self.message.len())? {
            return Ok(pushed);
        }
        tx.push(KIND_AWAITED, &self.message);
        self.unread.push_back((tx.position(), self.token));
        self.active = false;
        Ok(true)
    }
}

impl Piece {
    fn fill(&self, record: &mut [u8]) {
        let header = ChunkHeader {
            region: self.region,
            offset: self.region_offset,
        };
        let (front, bytes) = record.split_at_mut(CHUNK_HEADER_LEN_BYTES);
        front.copy_from_slice(&header.encode());
        let copied = self.memory.copy_out(self.offset, bytes);
        debug_assert!(copied, "the range was checked when the chain was posted");
    }

    fn advance(&mut self, len: u64) {
        self.offset += len;
        self.region_offset += len;
        self.len_bytes -= len;
    }
}

impl Peer {
    /// Posts a checked chain of which some writes bounce; the others are done at once.
    pub(super) fn post_bounced(
        &mut self,
        regions: &Table<Local>,
        scratch: &mut [u8],
        chain: &Chain<'_>,
    ) -> Result<Posted, PostError> {
        self.bounce.writes.clear();
        for write in chain.writes {
            self.write(regions, write)?;
            let local = super::local(regions, write.local)?;
            let remote = self.remote(write.remote)?;
            if matches!(remote.target, Target::Bounce) {
                let piece = Piece {
                    memory: local.memory.clone(),
                    offset: write.local_offset,
                    region: remote.region,
                    region_offset: write.remote_offset,
                    len_bytes: write.len_bytes,
                };
                self.bounce.writes.push_back(piece);
            }
        }
        self.bounce.active = true;
        self.bounce.token = chain.token;
        self.bounce.message.clear();
        self.bounce.message.extend_from_slice(chain.message);
        self.drive_bounce(scratch);
        Ok(Posted::Pending)
    }

    /// Goes on with a bounced chain, and reports those that the peer has read.
    pub(super) fn poll_bounce(
        &mut self,
        scratch: &mut [u8],
        events_max: usize,
        sink: &mut dyn EventSink,
    ) -> usize {
        if self.bounce.active {
            self.drive_bounce(scratch);
        }
        let mut events = 0;
        if self.bounce.unread.is_empty() {
            return events;
        }
        match self.tx.consumed() {
            Ok(read) => {
                while events < events_max
                    && let Some(&(position, token)) = self.bounce.unread.front()
                    && position <= read
                {
                    self.bounce.unread.pop_front();
                    sink.sent(self.id, token);
                    events += 1;
                }
            }
            Err(broken) => {
                self.broke(broken);
            }
        }
        events
    }

    fn drive_bounce(&mut self, scratch: &mut [u8]) {
        match self.bounce.drive(&mut self.tx, scratch) {
            Ok(true) => self.doorbell.ring(),
            Ok(false) => {}
            Err(broken) => {
                self.broke(broken);
            }
        }
    }
}
