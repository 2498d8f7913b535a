//! Plans as the server prepares them: a slot for each push, a target for each pull.

use stepmesh_transport::fabric::RegionId;

use crate::dtype::DType;
use crate::protocol::fabrics::{Fabrics, PeerRef, Reach};
use crate::protocol::staging::Stager;
use crate::protocol::wire::{Define, Grant};
use crate::shape::Shape;

use super::ServerMachine;
use super::batch::{PullInfo, PullTarget};
use super::slot::{Landing, NoSlot, Place, SlotTable};

/// A worker's plan, as the server prepared it.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) push: Vec<PushSlot>,
    pub(super) pull: Vec<PullInfo>,
    pub(super) targets: Vec<PullTarget>,
}

/// Where one push of a plan lands.
#[derive(Debug)]
pub(super) struct PushSlot {
    pub(super) key: u64,
    pub(super) slot: usize,
    pub(super) dtype: DType,
    /// The most rows that the worker may push.
    pub(super) shape: Shape,
}

impl ServerMachine {
    /// Prepares a plan. The outer error ends the connection, the inner one refuses the plan or
    /// puts it off.
    pub(super) fn define(
        &mut self,
        fabrics: &mut Fabrics,
        index: usize,
        define: &Define,
    ) -> Result<Result<Vec<Grant>, NoSlot>, String> {
        let Some(worker) = self.workers.get_mut(index) else {
            return Err("no such worker".into());
        };
        let Some(peer) = worker.link.peer() else {
            return Err("it is not connected".into());
        };
        let known = worker.plans.contains_key(&define.plan);
        if worker.plans.len() >= self.limits.plans_max && !known {
            return Err(format!("it has more than {} plans", self.limits.plans_max));
        }
        let mut plan = Plan::default();
        for spec in &define.pull {
            let (dtype, shape, len_bytes) = spec.tensor.checked().map_err(|error| error.0)?;
            if len_bytes > spec.target.len_bytes {
                return Err("a pull tensor is larger than the memory it names".into());
            }
            let remote = fabrics.import(peer, &spec.target);
            plan.pull.push(PullInfo {
                key: spec.key,
                dtype,
                shape,
            });
            plan.targets.push(PullTarget {
                remote: remote.map_err(|error| error.to_string())?,
                offset: spec.target.offset,
            });
        }
        let rank = u32::try_from(index).unwrap_or(u32::MAX);
        let mut grants = Vec::with_capacity(define.push.len());
        for spec in &define.push {
            let (dtype, shape, len_bytes) = spec.tensor.checked().map_err(|error| error.0)?;
            let place = Place {
                worker: rank,
                key: spec.key,
            };
            let slot = match self.slots.slot_for(place, len_bytes, worker.life) {
                Ok(slot) => slot,
                Err(no_slot) => return Ok(Err(no_slot)),
            };
            match grant(fabrics, peer, &mut self.stager, &mut self.slots, slot) {
                Ok(granted) => grants.push(granted),
                Err(reason) => return Ok(Err(NoSlot::Refused(reason))),
            }
            plan.push.push(PushSlot {
                key: spec.key,
                slot,
                dtype,
                shape,
            });
        }
        self.pool.stock(plan.push.len(), plan.pull.len());
        worker.plans.insert(define.plan, plan);
        Ok(Ok(grants))
    }
}

/// Lets a worker write into a slot, or into pinned memory beside it.
fn grant(
    fabrics: &mut Fabrics,
    peer: PeerRef,
    stager: &mut Stager,
    slots: &mut SlotTable,
    index: usize,
) -> Result<Grant, String> {
    let slot = slots.slot_mut(index).ok_or("no such slot")?;
    let reach = fabrics.reach(peer.fabric, &slot.buffer);
    let (region, offset): (RegionId, u64) = match reach.map_err(|error| error.to_string())? {
        Reach::Direct(region) => (region, slot.offset),
        Reach::Staged => {
            let landing = match slot.landing.take() {
                Some(landing) => landing,
                None => Landing {
                    pinned: stager
                        .pinned(slot.buffer.device(), slot.len_bytes)
                        .map_err(|error| error.to_string())?,
                    copied_bytes: 0,
                },
            };
            let reach = fabrics.reach(peer.fabric, &landing.pinned);
            slot.landing = Some(landing);
            match reach.map_err(|error| error.to_string())? {
                Reach::Direct(region) => (region, 0),
                Reach::Staged => {
                    return Err("the fabric reaches neither the slot nor pinned memory".into());
                }
            }
        }
    };
    fabrics
        .grant(peer, region, offset, slot.len_bytes)
        .map_err(|error| error.to_string())
}
