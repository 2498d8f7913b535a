//! The region tables of one fabric: its own regions, who may write to them, and imported ones.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};

use super::placement;
use crate::error::Error;
use crate::fabric::{FabricKind, PeerId, RegionId, RemoteId, SharedRegion};
use crate::link::chain::ChainBody;
use crate::memory::Memory;

/// Own and imported regions.
#[derive(Debug)]
pub(super) struct Regions {
    own: BTreeMap<RegionId, Region>,
    imported: BTreeMap<(PeerId, RemoteId), SharedRegion>,
    next_own: u32,
    next_imported: u32,
    regions_max: usize,
}

#[derive(Debug)]
struct Region {
    memory: Memory,
    key: u64,
    shared_with: BTreeSet<PeerId>,
}

impl Regions {
    pub(super) fn new(regions_max: usize) -> Self {
        Self {
            own: BTreeMap::new(),
            imported: BTreeMap::new(),
            next_own: 1,
            next_imported: 1,
            regions_max,
        }
    }

    /// Adds a region that is shared under `key`, which nobody can guess.
    pub(super) fn register(&mut self, memory: Memory, key: u64) -> Result<RegionId, Error> {
        if !memory.is_host_accessible() {
            return Err(Error::Unsupported {
                fabric: FabricKind::Sim,
                operation: "register",
                reason: "the CPU cannot reach this memory; stage it".to_owned(),
            });
        }
        let id = RegionId(take_id(
            &mut self.next_own,
            self.own.len(),
            self.regions_max,
        )?);
        self.own.insert(
            id,
            Region {
                memory,
                key,
                shared_with: BTreeSet::new(),
            },
        );
        Ok(id)
    }

    pub(super) fn deregister(&mut self, region: RegionId) -> Result<(), Error> {
        match self.own.remove(&region) {
            Some(_) => Ok(()),
            None => Err(unknown_region(region)),
        }
    }

    pub(super) fn share(&mut self, region: RegionId, peer: PeerId) -> Result<SharedRegion, Error> {
        let found = self
            .own
            .get_mut(&region)
            .ok_or_else(|| unknown_region(region))?;
        found.shared_with.insert(peer);
        Ok(SharedRegion {
            region: region.0,
            len_bytes: found.memory.len_bytes(),
            key: found.key,
        })
    }

    pub(super) fn import(&mut self, peer: PeerId, shared: SharedRegion) -> Result<RemoteId, Error> {
        let len = self.imported.len();
        let id = RemoteId(take_id(&mut self.next_imported, len, self.regions_max)?);
        self.imported.insert((peer, id), shared);
        Ok(id)
    }

    pub(super) fn release(&mut self, peer: PeerId, remote: RemoteId) {
        self.imported.remove(&(peer, remote));
    }

    /// The peer is gone; its number never comes back.
    pub(super) fn forget_peer(&mut self, peer: PeerId) {
        self.imported.retain(|&(owner, _), _| owner != peer);
        for region in self.own.values_mut() {
            region.shared_with.remove(&peer);
        }
    }

    /// The memory of an own region, if the range lies inside.
    pub(super) fn source(
        &self,
        region: RegionId,
        offset: u64,
        len_bytes: u64,
    ) -> Result<&Memory, Error> {
        let memory = match self.own.get(&region) {
            Some(found) => &found.memory,
            None => return Err(unknown_region(region)),
        };
        if !memory.contains(offset, len_bytes) {
            return Err(out_of_bounds(
                "local region",
                offset,
                len_bytes,
                memory.len_bytes(),
            ));
        }
        Ok(memory)
    }

    /// An imported region, if the range lies inside.
    pub(super) fn target(
        &self,
        peer: PeerId,
        remote: RemoteId,
        offset: u64,
        len_bytes: u64,
    ) -> Result<SharedRegion, Error> {
        let Some(&shared) = self.imported.get(&(peer, remote)) else {
            return Err(Error::Unsupported {
                fabric: FabricKind::Sim,
                operation: "post",
                reason: format!("{remote:?} is not imported from peer {peer:?}"),
            });
        };
        let end = offset.checked_add(len_bytes);
        if end.is_none_or(|end| end > shared.len_bytes) {
            return Err(out_of_bounds(
                "remote region",
                offset,
                len_bytes,
                shared.len_bytes,
            ));
        }
        Ok(shared)
    }

    /// Copies the bytes of a received chain to where it says, or, if any of it may not be written
    /// by this peer, touches nothing and says why.
    pub(super) fn place(&self, peer: PeerId, chain: &ChainBody<'_>) -> Result<(), &'static str> {
        let mut rest = chain.bytes;
        let mut writes = Vec::with_capacity(chain.targets.len());
        for target in &chain.targets {
            let region = self
                .own
                .get(&RegionId(target.region))
                .filter(|region| region.key == target.key && region.shared_with.contains(&peer))
                .ok_or("a write to a region that is not shared with it")?;
            if !region.memory.contains(target.offset, target.len_bytes) {
                return Err("a write outside of the region");
            }
            let (bytes, others) = usize::try_from(target.len_bytes)
                .ok()
                .and_then(|len| rest.split_at_checked(len))
                .ok_or("a write without its bytes")?;
            rest = others;
            writes.push((&region.memory, target.offset, bytes));
        }
        for (memory, offset, bytes) in writes {
            let placed = placement::write(memory, offset, bytes);
            debug_assert!(
                placed,
                "bounds and access were checked above and at registration"
            );
        }
        Ok(())
    }
}

fn take_id(next: &mut u32, len: usize, regions_max: usize) -> Result<u32, Error> {
    let limit = Error::Limit {
        fabric: FabricKind::Sim,
        what: "regions",
        limit: regions_max as u64,
    };
    if len >= regions_max {
        return Err(limit);
    }
    let following = next.checked_add(1).ok_or(limit)?;
    Ok(std::mem::replace(next, following))
}

fn unknown_region(region: RegionId) -> Error {
    Error::UnknownRegion {
        fabric: FabricKind::Sim,
        region,
    }
}

fn out_of_bounds(what: &'static str, offset: u64, len_bytes: u64, region_len_bytes: u64) -> Error {
    Error::OutOfBounds {
        fabric: FabricKind::Sim,
        what,
        offset,
        len_bytes,
        region_len_bytes,
    }
}
