//! Posting: a chain becomes one list of work requests for each queue pair that carries it, posted with
//! one call each. Nothing is allocated. Everything is checked before any of it is posted.
#![expect(unsafe_code, reason = "names memory by address, after checking it")]

use stepmesh_transport::error::Error;
use stepmesh_transport::fabric::{Chain, FabricKind, PostError, Posted, Write as ChainWrite};

use super::adapter::verbs_error;
use super::counters::Counters;
use super::half::{CREDIT_REQUESTS, Pair, send_id};
use super::peer::Peer;
use super::regions::Regions;
use super::ring::{HEADER_LEN_BYTES, Header, LINE_LEN_BYTES, Place, stripe_imm};
use super::stripe::Plan;
use crate::verbs::Write;

impl Peer {
    /// Posts a chain.
    #[inline]
    pub(super) fn post(
        &mut self,
        regions: &mut Regions,
        piece_len_bytes_max: u32,
        chain: &Chain<'_>,
    ) -> Result<Posted, PostError> {
        let bytes_total = self.check(regions, chain)?;
        let Some(place) = self.place(chain.message.len())? else {
            return Err(PostError::Full);
        };
        let plan = Plan::new(bytes_total, self.pairs.len(), piece_len_bytes_max);
        self.list_writes(regions, chain, &plan)?;
        self.list_message(chain.message, place, plan.stripes)?;
        let carrying = &self.pairs[..plan.stripes];
        if (carrying.iter()).any(|pair| pair.list.len() + CREDIT_REQUESTS > pair.window.room()) {
            return Err(PostError::Full);
        }
        self.producer.push(place);
        let number = self
            .chains
            .push(chain.token, chain.writes.len(), plan.stripes);
        for write in chain.writes {
            regions.hold(write.local);
            self.sources.push_back(write.local.0);
        }
        for pair in &mut self.pairs[..plan.stripes] {
            if let Err(error) = pair.post(Some(number)) {
                self.end(verbs_error("posting a chain", &error));
                return Err(verbs_error("posting a chain", &error).into());
            }
        }
        self.credit_is_told();
        Counters::chain();
        Ok(Posted::Pending)
    }

    /// Writes our credit into the other side's word, because no message takes it along.
    pub(super) fn tell(&mut self) {
        let credit = self.credit_to_tell();
        let offset = self.memory.credit_offset();
        let outgoing = &self.memory.outgoing;
        outgoing.pages.store(offset, u64::from(credit));
        let Some(pair) = self.pairs.first_mut() else {
            return;
        };
        let write = Write {
            wr_id: send_id(self.id, 0),
            lkey: outgoing.region.lkey(),
            local_address: outgoing.region.address() + offset as u64,
            len_bytes: 8,
            rkey: self.remote_credit.key,
            remote_address: self.remote_credit.address,
            signalled: true,
        };
        let inline = pair.queue_pair.caps().max_inline_len_bytes >= write.len_bytes;
        pair.list.clear();
        let listed = if inline {
            // SAFETY: the word lies in registered pages that live as long as the queue pair, and the
            // peer named its word for this.
            unsafe { pair.list.push_write_inline(&write) }
        } else {
            // SAFETY: as above.
            unsafe { pair.list.push_write(&write) }
        };
        debug_assert!(listed, "the list is empty, and never has room for none");
        match pair.post(None) {
            Ok(()) => {
                self.telling = true;
                self.credit_is_told();
                Counters::credit();
            }
            Err(error) => self.end(verbs_error("writing credit", &error)),
        }
    }

    /// Checks all of a chain. Returns how many bytes its writes have.
    #[inline]
    fn check(&self, regions: &Regions, chain: &Chain<'_>) -> Result<u64, Error> {
        if self.is_ending() {
            return Err(self.closed());
        }
        let limit = |what, limit: usize| Error::Limit {
            fabric: FabricKind::Rdma,
            what,
            limit: limit as u64,
        };
        if chain.writes.len() > super::WRITES_MAX {
            return Err(limit("writes in a chain", super::WRITES_MAX));
        }
        if chain.message.len() > self.message_len_bytes_max {
            return Err(limit("bytes in a message", self.message_len_bytes_max));
        }
        let mut bytes_total = 0;
        for write in chain.writes {
            let local_len_bytes = regions.source(write.local)?.len_bytes;
            let remote = self.imports.get(write.remote.0);
            let remote = remote.ok_or(Error::UnknownRemote {
                fabric: FabricKind::Rdma,
                peer: self.id,
                remote: write.remote,
            })?;
            for (what, offset, region_len_bytes) in [
                ("local region", write.local_offset, local_len_bytes),
                ("remote region", write.remote_offset, remote.len_bytes),
            ] {
                let end = offset.checked_add(write.len_bytes);
                if end.is_none_or(|end| end > region_len_bytes) {
                    return Err(outside(what, offset, write, region_len_bytes));
                }
            }
            bytes_total += write.len_bytes;
        }
        Ok(bytes_total)
    }

    /// Where the message goes, if there is room for it.
    #[inline]
    fn place(&mut self, len_bytes: usize) -> Result<Option<Place>, Error> {
        if let Some(place) = self.producer.place(len_bytes) {
            return Ok(Some(place));
        }
        self.take_credit()?;
        Ok(self.producer.place(len_bytes))
    }

    /// Lists the writes of a chain that was checked.
    #[inline]
    fn list_writes(
        &mut self,
        regions: &Regions,
        chain: &Chain<'_>,
        plan: &Plan,
    ) -> Result<(), Error> {
        for pair in &mut self.pairs {
            pair.list.clear();
        }
        let (id, pairs, imports) = (self.id, &mut self.pairs, &self.imports);
        let lengths = chain.writes.iter().map(|write| write.len_bytes);
        plan.cut(lengths, |piece| {
            let write = &chain.writes[piece.write];
            let source = regions.source(write.local)?;
            let remote = imports.get(write.remote.0).ok_or_else(|| too_many(0))?;
            let list = &mut pairs[piece.queue_pair].list;
            let request = Write {
                wr_id: send_id(id, piece.queue_pair),
                lkey: source.lkey,
                local_address: source.address + write.local_offset + piece.offset,
                len_bytes: piece.len_bytes,
                rkey: remote.key,
                remote_address: remote.address + write.remote_offset + piece.offset,
                signalled: false,
            };
            // SAFETY: both ranges were checked to lie inside of their regions. The local one stays
            // registered until the chain completed, for `regions` is told to hold it when the chain
            // is posted; the peer described the remote one to us for this.
            match unsafe { list.push_write(&request) } {
                true => Ok(()),
                false => Err(too_many(list.len())),
            }
        })
    }

    /// Lists the message, and what ends the chain on the further queue pairs.
    #[inline]
    fn list_message(&mut self, message: &[u8], place: Place, stripes: usize) -> Result<(), Error> {
        let header = Header {
            len_bytes: u32::try_from(message.len()).unwrap_or(u32::MAX),
            stripes: u16::try_from(stripes).unwrap_or(u16::MAX),
            credit: self.credit_to_tell(),
        };
        let offset = place.line as usize * LINE_LEN_BYTES;
        let outgoing = &self.memory.outgoing;
        let [first, second] = header.words();
        outgoing.pages.store(offset, first);
        outgoing.pages.store(offset + 8, second);
        let written = outgoing.pages.write(offset + HEADER_LEN_BYTES, message);
        debug_assert!(written, "a place lies inside of the ring");
        let record_len_bytes = HEADER_LEN_BYTES + message.len();
        for (index, pair) in self.pairs[..stripes].iter_mut().enumerate() {
            let len_bytes = if index == 0 { record_len_bytes } else { 0 };
            let write = Write {
                wr_id: send_id(self.id, index),
                lkey: outgoing.region.lkey(),
                local_address: outgoing.region.address() + offset as u64,
                len_bytes: u32::try_from(len_bytes).unwrap_or(u32::MAX),
                rkey: self.remote_ring.key,
                remote_address: self.remote_ring.address + offset as u64,
                signalled: true,
            };
            let inline = write.len_bytes <= pair.queue_pair.caps().max_inline_len_bytes;
            let imm = if index == 0 {
                place.imm
            } else {
                stripe_imm(index)
            };
            // SAFETY: the record lies in registered pages that live as long as the queue pair, and is
            // not changed before the peer gave its lines back; the peer named its ring for this.
            let listed = unsafe {
                pair.list
                    .push_write_imm(&write, imm, inline && len_bytes > 0)
            };
            if !listed {
                return Err(too_many(pair.list.len()));
            }
        }
        Ok(())
    }
}

impl Pair {
    /// Posts the list, whose last request is signalled.
    #[inline]
    fn post(&mut self, chain: Option<u64>) -> Result<(), crate::VerbsError> {
        match self.queue_pair.post(&mut self.list) {
            Ok(count) => {
                self.window.post(count, chain);
                Counters::post(self.list.signalled());
                Ok(())
            }
            // The connection is over, so what was taken is not counted any more.
            Err(error) => Err(error.error),
        }
    }
}

#[cold]
fn too_many(limit: usize) -> Error {
    Error::Limit {
        fabric: FabricKind::Rdma,
        what: "work requests for one chain (rdma.send_depth)",
        limit: limit as u64,
    }
}

#[cold]
fn outside(what: &'static str, offset: u64, write: &ChainWrite, region_len_bytes: u64) -> Error {
    Error::OutOfBounds {
        fabric: FabricKind::Rdma,
        what,
        offset,
        len_bytes: write.len_bytes,
        region_len_bytes,
    }
}
