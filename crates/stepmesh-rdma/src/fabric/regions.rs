//! Memory of this process that the fabric knows: as the source of writes from when it was registered,
//! and as their target once it was shared. How an adapter reaches it is told in `registration`.
#![forbid(unsafe_code)]

use std::io;
use std::sync::Arc;

use stepmesh_transport::error::Error;
use stepmesh_transport::fabric::{FabricKind, RegionId, SharedRegion};
use stepmesh_transport::memory::Memory;
use stepmesh_transport::table::Table;

use super::adapter::{Adapter, broken};
use crate::Access;
use crate::registration::{Cache, CacheLimits, Held, Machine};
use crate::verbs::{MemoryRegion, ProtectionDomain};

/// The regions of a fabric.
#[derive(Debug)]
pub(super) struct Regions {
    table: Table<Local>,
    /// Regions that were deregistered while chains read from them.
    retiring: Vec<(u32, Local)>,
    limit: usize,
    cache: Cache<Arc<ProtectionDomain>>,
}

/// A region.
#[derive(Debug)]
struct Local {
    memory: Arc<Memory>,
    /// For reading only; gone once `target` can serve for it.
    source: Option<Held<MemoryRegion>>,
    /// Peers may write to it: a registration of its own, made when it is first shared, so that what
    /// is only sent is never open to anyone, and closed at once when it is deregistered.
    target: Option<Held<MemoryRegion>>,
    /// Writes that read from it and have not completed.
    pending: u32,
}

/// Where a write reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    pub(super) address: u64,
    pub(super) lkey: u32,
    pub(super) len_bytes: u64,
}

impl Regions {
    pub(super) fn new(domain: &Arc<ProtectionDomain>, limit: usize) -> Self {
        let cache = Cache::new(Arc::clone(domain), Machine::this(), CacheLimits::default());
        Self {
            table: Table::new(limit),
            retiring: Vec::new(),
            limit,
            cache,
        }
    }

    /// Forgets the registration of an allocation that ended.
    pub(super) fn invalidate(&mut self, allocation_id: u64) {
        self.cache.invalidate(allocation_id);
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn register(
        &mut self,
        adapter: &Adapter,
        memory: Memory,
    ) -> Result<RegionId, Error> {
        let memory = Arc::new(memory);
        let source = register(adapter, &memory, || {
            self.cache
                .source(&memory)
                .map_err(|refused| refused.to_string())
        })?;
        let id = self.table.insert_with(|_| Local {
            memory,
            source,
            target: None,
            pending: 0,
        });
        id.map(RegionId).ok_or(Error::Limit {
            fabric: FabricKind::Rdma,
            what: "regions",
            limit: self.limit as u64,
        })
    }

    pub(super) fn deregister(&mut self, region: RegionId) -> Result<(), Error> {
        let mut local = self.table.remove(region.0).ok_or_else(|| unknown(region))?;
        if local.pending > 0 {
            if local.source.is_some() {
                local.target = None;
            }
            self.retiring.push((region.0, local));
        }
        Ok(())
    }

    /// Opens a region to those who are told its key.
    pub(super) fn share(
        &mut self,
        adapter: &Adapter,
        region: RegionId,
    ) -> Result<SharedRegion, Error> {
        let local = self
            .table
            .get_mut(region.0)
            .ok_or_else(|| unknown(region))?;
        if local.target.is_none() {
            let memory = &local.memory;
            local.target = register(adapter, memory, || {
                let target = self.cache.target(memory, Access::REMOTE_WRITE);
                target.map_err(|refused| refused.to_string())
            })?;
            if local.pending == 0 && local.target.is_some() {
                local.source = None;
            }
        }
        let target = local.target.as_ref();
        Ok(SharedRegion {
            region: target.map_or(0, |target| target.rkey()),
            len_bytes: local.memory.len_bytes(),
            key: target.map_or(0, |_| local.memory.address()),
        })
    }

    #[inline]
    pub(super) fn source(&self, region: RegionId) -> Result<Source, Error> {
        let local = self.table.get(region.0).ok_or_else(|| unknown(region))?;
        let registered = local.source.as_ref().or(local.target.as_ref());
        Ok(Source {
            address: registered.map_or(0, |_| local.memory.address()),
            lkey: registered.map_or(0, |region| region.lkey()),
            len_bytes: local.memory.len_bytes(),
        })
    }

    /// Holds a region until [`release`](Self::release).
    #[inline]
    pub(super) fn hold(&mut self, region: RegionId) {
        if let Some(local) = self.table.get_mut(region.0) {
            local.pending += 1;
        }
    }

    /// A write that read from the region has completed.
    #[inline]
    pub(super) fn release(&mut self, region: u32) {
        if let Some(local) = self.table.get_mut(region) {
            local.pending = local.pending.saturating_sub(1);
        } else if let Some(index) = self.retiring.iter().position(|(id, _)| *id == region) {
            let local = &mut self.retiring[index].1;
            local.pending = local.pending.saturating_sub(1);
            if local.pending == 0 {
                self.retiring.swap_remove(index);
            }
        }
    }
}

/// Registers memory, or nothing when it is empty. A refusal names every way that was tried.
fn register(
    adapter: &Adapter,
    memory: &Arc<Memory>,
    by: impl FnOnce() -> Result<Held<MemoryRegion>, String>,
) -> Result<Option<Held<MemoryRegion>>, Error> {
    if memory.len_bytes() == 0 {
        return Ok(None);
    }
    if let Some(reason) = &adapter.broken {
        return Err(broken(reason));
    }
    let refusal = match by() {
        Ok(held) => return Ok(Some(held)),
        Err(refusal) => refusal,
    };
    let operation = "registering memory";
    if memory.is_host_accessible() {
        // Staging would register host memory too: this is for the user to mend.
        let object = format!("{} bytes at {:#x}", memory.len_bytes(), memory.address());
        return Err(Error::Io {
            fabric: FabricKind::Rdma,
            operation,
            object,
            source: io::Error::other(refusal),
        });
    }
    Err(Error::Unsupported {
        fabric: FabricKind::Rdma,
        operation,
        reason: refusal,
    })
}

fn unknown(region: RegionId) -> Error {
    Error::UnknownRegion {
        fabric: FabricKind::Rdma,
        region,
    }
}
