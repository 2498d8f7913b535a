//! The fabrics of one engine, the memory registered with each, and who is behind which peer.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use stepmesh_core::Buffer;
use stepmesh_transport::error::Error as FabricError;
use stepmesh_transport::fabric::{
    Chain, EventSink, Fabric, FabricKind, PeerId, PostError, Posted, RegionId, SharedRegion,
};

use crate::memory;
use crate::protocol::ended::Ended;
use crate::protocol::wire::Grant;

/// All fabrics of one engine.
#[derive(Debug, Default)]
pub(crate) struct Fabrics {
    list: Vec<Attached>,
    /// Allocations that ended, which fabrics may have kept something of.
    ended: Ended,
}

/// A fabric with what the mesh knows about it.
#[derive(Debug)]
struct Attached {
    fabric: Box<dyn Fabric>,
    regions: RegionCache,
    /// Which member's link a peer is, by the number of the peer.
    links: FxHashMap<PeerId, usize>,
}

/// A peer on one of the fabrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerRef {
    pub(crate) fabric: usize,
    pub(crate) peer: PeerId,
}

/// How a fabric reaches a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// The fabric reads and writes it itself.
    Direct(RegionId),
    /// It cannot; the engine copies through pinned host memory.
    Staged,
}

/// What one poll of the fabrics reports, with the link that each peer stands for.
pub(crate) trait LinkSink {
    fn connected(&mut self, peer: PeerRef, hello: &[u8]);
    /// Returns the link that the peer's messages belong to, if it is welcome.
    fn accepted(&mut self, peer: PeerRef, hello: &[u8]) -> Option<usize>;
    fn message(&mut self, link: usize, message: &[u8]);
    fn sent(&mut self, link: usize, token: u64);
    fn closed(&mut self, peer: PeerRef, link: Option<usize>, reason: FabricError);
}

impl Fabrics {
    pub(crate) fn new(fabrics: Vec<Box<dyn Fabric>>) -> Self {
        let attach = |fabric| Attached {
            fabric,
            regions: RegionCache::default(),
            links: FxHashMap::default(),
        };
        Self {
            list: fabrics.into_iter().map(attach).collect(),
            ended: Ended::default(),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &dyn Fabric> {
        self.list.iter().map(|attached| &*attached.fabric)
    }

    /// Whether all peers ring the doorbell for their messages.
    pub(crate) fn only_doorbell(&self) -> bool {
        self.list
            .iter()
            .all(|attached| attached.fabric.kind() == FabricKind::Shm || attached.links.is_empty())
    }

    /// How many peers are on this host, as far as the fabrics know.
    pub(crate) fn local_peers(&self) -> usize {
        let shm = self
            .list
            .iter()
            .filter(|attached| attached.fabric.kind() == FabricKind::Shm);
        shm.map(|attached| attached.links.len()).sum()
    }

    pub(crate) fn fabric(&mut self, index: usize) -> Option<&mut dyn Fabric> {
        let attached = self.list.get_mut(index)?;
        Some(&mut *attached.fabric)
    }

    /// Says that messages from `peer` belong to `link` from now on.
    pub(crate) fn bind(&mut self, peer: PeerRef, link: usize) {
        if let Some(attached) = self.list.get_mut(peer.fabric) {
            attached.links.insert(peer.peer, link);
        }
    }

    pub(crate) fn close(&mut self, peer: PeerRef) {
        if let Some(attached) = self.list.get_mut(peer.fabric) {
            attached.links.remove(&peer.peer);
            attached.fabric.close(peer.peer);
        }
    }

    /// Polls every fabric once. Returns how many events there were.
    pub(crate) fn poll(&mut self, now_ns: u64, sink: &mut dyn LinkSink) -> usize {
        self.forget_ended();
        let mut events = 0;
        for (index, attached) in self.list.iter_mut().enumerate() {
            let mut adapter = Adapter {
                fabric: index,
                links: &mut attached.links,
                sink,
            };
            events += attached.fabric.poll(now_ns, &mut adapter);
        }
        events
    }

    /// Prepares every fabric for a sleep on its descriptor; see [`Fabric::prepare_wait`]. True when
    /// all agree to it.
    pub(crate) fn prepare_wait(&mut self) -> bool {
        let mut agreed = true;
        for attached in &mut self.list {
            agreed &= attached.fabric.prepare_wait();
        }
        agreed
    }

    pub(crate) fn post(&mut self, peer: PeerRef, chain: &Chain<'_>) -> Result<Posted, PostError> {
        match self.list.get_mut(peer.fabric) {
            Some(attached) => attached.fabric.post(peer.peer, chain),
            None => Err(PostError::Failed(unknown(peer))),
        }
    }

    /// How the fabric reaches this buffer; registers it the first time.
    pub(crate) fn reach(
        &mut self,
        fabric: usize,
        buffer: &Arc<Buffer>,
    ) -> Result<Reach, FabricError> {
        self.forget_ended();
        match self.list.get_mut(fabric) {
            Some(attached) => {
                if attached.fabric.kind() == FabricKind::Rdma {
                    self.ended.watch(buffer.device().backend());
                }
                attached.regions.reach(&mut *attached.fabric, buffer)
            }
            None => Err(unknown(PeerRef {
                fabric,
                peer: PeerId(0),
            })),
        }
    }

    /// Tells the fabrics of allocations that ended since the last time.
    #[inline]
    fn forget_ended(&mut self) {
        for allocation_id in self.ended.take() {
            for attached in &mut self.list {
                attached.fabric.forget_allocation(allocation_id);
            }
        }
    }

    /// Lets the peer write to a registered region and describes a part of it.
    pub(crate) fn grant(
        &mut self,
        peer: PeerRef,
        region: RegionId,
        offset: u64,
        len_bytes: u64,
    ) -> Result<Grant, FabricError> {
        let attached = self
            .list
            .get_mut(peer.fabric)
            .ok_or_else(|| unknown(peer))?;
        let shared = attached.fabric.share(region, peer.peer)?;
        Ok(Grant {
            region: shared.region,
            region_len_bytes: shared.len_bytes,
            key: shared.key,
            offset,
            len_bytes,
        })
    }

    /// Makes what a peer granted a target of writes.
    pub(crate) fn import(
        &mut self,
        peer: PeerRef,
        grant: &Grant,
    ) -> Result<stepmesh_transport::fabric::RemoteId, FabricError> {
        let attached = self
            .list
            .get_mut(peer.fabric)
            .ok_or_else(|| unknown(peer))?;
        let shared = SharedRegion {
            region: grant.region,
            len_bytes: grant.region_len_bytes,
            key: grant.key,
        };
        attached.fabric.import(peer.peer, &shared)
    }

    /// Changes whenever a region was deregistered, so that a remembered [`RegionId`] can be
    /// checked without a look-up.
    pub(crate) fn epoch(&self, fabric: usize) -> u64 {
        self.list
            .get(fabric)
            .map_or(0, |attached| attached.regions.epoch)
    }
}

fn unknown(peer: PeerRef) -> FabricError {
    FabricError::UnknownPeer {
        fabric: FabricKind::Sim,
        peer: peer.peer,
    }
}

/// Translates a fabric's peers into links.
struct Adapter<'a> {
    fabric: usize,
    links: &'a mut FxHashMap<PeerId, usize>,
    sink: &'a mut dyn LinkSink,
}

impl Adapter<'_> {
    fn peer(&self, peer: PeerId) -> PeerRef {
        PeerRef {
            fabric: self.fabric,
            peer,
        }
    }
}

impl EventSink for Adapter<'_> {
    fn connected(&mut self, peer: PeerId, hello: &[u8]) {
        self.sink.connected(self.peer(peer), hello);
    }

    fn accepted(&mut self, peer: PeerId, hello: &[u8]) {
        if let Some(link) = self.sink.accepted(self.peer(peer), hello) {
            self.links.insert(peer, link);
        }
    }

    fn message(&mut self, peer: PeerId, message: &[u8]) {
        // A peer without a link was refused and is being closed; what it says no longer counts.
        if let Some(link) = self.links.get(&peer) {
            self.sink.message(*link, message);
        }
    }

    fn sent(&mut self, peer: PeerId, token: u64) {
        if let Some(link) = self.links.get(&peer) {
            self.sink.sent(*link, token);
        }
    }

    fn closed(&mut self, peer: PeerId, reason: FabricError) {
        let link = self.links.remove(&peer);
        self.sink.closed(self.peer(peer), link, reason);
    }
}

/// Which buffers are registered with a fabric.
///
/// The fabric keeps a registered buffer alive, so an address in this table belongs to one
/// allocation for as long as it stands there.
#[derive(Debug, Default)]
struct RegionCache {
    by_address: FxHashMap<u64, Cached>,
    epoch: u64,
    sweep_at: usize,
}

#[derive(Debug)]
struct Cached {
    reach: Reach,
    buffer: Arc<Buffer>,
    /// How many references the cache and the fabric hold themselves.
    own_references: usize,
}

impl RegionCache {
    fn reach(
        &mut self,
        fabric: &mut dyn Fabric,
        buffer: &Arc<Buffer>,
    ) -> Result<Reach, FabricError> {
        if let Some(cached) = self.by_address.get(&buffer.device_ptr()) {
            return Ok(cached.reach);
        }
        if self.by_address.len() >= self.sweep_at.max(SWEEP_LEN_MIN) {
            self.sweep(fabric);
            self.sweep_at = self.by_address.len() * 2;
        }
        let (reach, own_references) = match fabric.register(memory::describe(buffer)) {
            Ok(region) => (Reach::Direct(region), 2),
            Err(FabricError::Unsupported { reason, .. }) => {
                tracing::debug!(fabric = %fabric.kind(), reason, "memory will be staged");
                (Reach::Staged, 1)
            }
            Err(error) => return Err(error),
        };
        self.by_address.insert(
            buffer.device_ptr(),
            Cached {
                reach,
                buffer: Arc::clone(buffer),
                own_references,
            },
        );
        Ok(reach)
    }

    fn sweep(&mut self, fabric: &mut dyn Fabric) {
        let before = self.by_address.len();
        self.by_address.retain(|_, cached| {
            let in_use = Arc::strong_count(&cached.buffer) > cached.own_references;
            if let (false, Reach::Direct(region)) = (in_use, cached.reach)
                && let Err(error) = fabric.deregister(region)
            {
                tracing::warn!(%error, "a region could not be deregistered");
            }
            in_use
        });
        if self.by_address.len() < before {
            self.epoch += 1;
        }
    }
}

/// Below this many regions a sweep is not worth its time.
const SWEEP_LEN_MIN: usize = 64;
