//! The server's receive slots as the worker knows them: where pushes go, and whose turn it is.

use std::collections::HashMap;

use stepmesh_transport::fabric::{RegionId, RemoteId, Write};

use crate::error::Error;
use crate::protocol::fabrics::{Fabrics, PeerRef};
use crate::protocol::staging;
use crate::protocol::wire::Grant;
use crate::tensor::Tensor;

use super::send::Stay;
use super::staged::region;

/// The slots of one server that this worker was granted.
#[derive(Debug, Default)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    by_place: HashMap<(u32, u64), usize>,
    /// Regions of the server that are already imported.
    imported: HashMap<u32, RemoteId>,
}

/// One slot. It holds one push at a time: the credit is here or on its way.
#[derive(Debug)]
struct Slot {
    remote: RemoteId,
    offset: u64,
    len_bytes: u64,
    busy: bool,
    /// A request that is older than the one at hand waits for it.
    claimed: bool,
}

/// Where one push of a plan goes, and where it came from the last time.
#[derive(Debug)]
pub(super) struct PushTarget {
    slot: usize,
    source: Option<Source>,
}

/// A registered buffer, remembered so that the next launch needs no look-up.
#[derive(Clone, Copy, Debug)]
struct Source {
    buffer_ptr: u64,
    region: RegionId,
    epoch: u64,
}

/// The targets of one plan, together with their slots.
pub(super) struct Targets<'a> {
    pub(super) slots: &'a mut Slots,
    pub(super) targets: &'a mut [PushTarget],
}

impl PushTarget {
    pub(super) fn new(slot: usize) -> Self {
        Self { slot, source: None }
    }
}

impl Slots {
    /// The slot at a granted place; imports its region the first time.
    pub(super) fn add(
        &mut self,
        fabrics: &mut Fabrics,
        peer: PeerRef,
        grant: &Grant,
    ) -> Result<usize, Error> {
        let place = (grant.region, grant.offset);
        if let Some(index) = self.by_place.get(&place) {
            return Ok(*index);
        }
        let remote = match self.imported.get(&grant.region) {
            Some(remote) => *remote,
            None => {
                let import = fabrics.import(peer, grant);
                let remote = import.map_err(Error::fabric("importing a slot"))?;
                self.imported.insert(grant.region, remote);
                remote
            }
        };
        self.slots.push(Slot {
            remote,
            offset: grant.offset,
            len_bytes: grant.len_bytes,
            busy: false,
            claimed: false,
        });
        self.by_place.insert(place, self.slots.len() - 1);
        Ok(self.slots.len() - 1)
    }

    /// The credits of these targets are back.
    pub(super) fn free(&mut self, targets: &[PushTarget]) {
        for target in targets {
            if let Some(slot) = self.slots.get_mut(target.slot) {
                slot.busy = false;
            }
        }
    }

    /// A request that waits comes before the ones behind it that want the same slots.
    pub(super) fn claim(&mut self, targets: &[PushTarget]) {
        for target in targets {
            if let Some(slot) = self.slots.get_mut(target.slot) {
                slot.claimed = true;
            }
        }
    }

    pub(super) fn drop_claims(&mut self) {
        for slot in &mut self.slots {
            slot.claimed = false;
        }
    }
}

impl Targets<'_> {
    pub(super) fn are_free(&self) -> bool {
        let mut slots = self
            .targets
            .iter()
            .map(|target| self.slots.slots.get(target.slot));
        slots.all(|slot| slot.is_some_and(|slot| !slot.busy && !slot.claimed))
    }

    pub(super) fn occupy(&mut self) {
        for target in self.targets.iter() {
            if let Some(slot) = self.slots.slots.get_mut(target.slot) {
                slot.busy = true;
            }
        }
    }

    /// Whether the tensor's memory is the one that was registered for the last launch.
    pub(super) fn knows_source(&self, place: usize, tensor: &Tensor, epoch: u64) -> bool {
        let source = self.targets.get(place).and_then(|target| target.source);
        source.is_some_and(|source| {
            source.epoch == epoch && source.buffer_ptr == tensor.buffer().device_ptr()
        })
    }

    /// The write that brings one tensor into its slot.
    pub(super) fn write(
        &mut self,
        fabrics: &mut Fabrics,
        peer: PeerRef,
        place: usize,
        tensor: &Tensor,
    ) -> Result<Write, Stay> {
        let epoch = fabrics.epoch(peer.fabric);
        let known = self.knows_source(place, tensor, epoch);
        let Some(target) = self.targets.get_mut(place) else {
            return Err(Stay::Wait);
        };
        let region = match target.source {
            Some(source) if known => source.region,
            _ => region(fabrics, peer, tensor.buffer()).map_err(Stay::Fail)?,
        };
        target.source = Some(Source {
            buffer_ptr: tensor.buffer().device_ptr(),
            region,
            epoch: fabrics.epoch(peer.fabric),
        });
        let whole = staging::Chunk {
            offset: 0,
            len_bytes: tensor.len_bytes(),
        };
        let write = self.chunk_write(place, region, whole)?;
        Ok(Write {
            local_offset: tensor.offset_bytes(),
            ..write
        })
    }

    /// The write that brings one chunk of a staged tensor into its slot.
    pub(super) fn chunk_write(
        &self,
        place: usize,
        source: RegionId,
        chunk: staging::Chunk,
    ) -> Result<Write, Stay> {
        let slot = self
            .targets
            .get(place)
            .and_then(|target| self.slots.slots.get(target.slot));
        let Some(slot) = slot else {
            return Err(Stay::Wait);
        };
        if chunk.offset + chunk.len_bytes > slot.len_bytes {
            let reason = "a tensor is larger than its slot";
            return Err(Stay::Fail(Error::invalid("push_pull", reason)));
        }
        Ok(Write {
            local: source,
            local_offset: chunk.offset,
            remote: slot.remote,
            remote_offset: slot.offset + chunk.offset,
            len_bytes: chunk.len_bytes,
        })
    }
}
