//! Plans: which tensors a request pushes and pulls, prepared once and launched many times.
//!
//! A plan is found by its keys and its pull tensors. The tensors that are pushed may change from
//! launch to launch: only their dtype and the shape of a row belong to the plan.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use stepmesh_core::Buffer;

use crate::dtype::DType;
use crate::error::Error;
use crate::protocol::wire::{PushSpec, TENSORS_MAX, TensorSpec};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// A tensor under its key: what the original calls a `KeyTensor`.
#[derive(Clone, Copy, Debug)]
pub struct Keyed<'a> {
    /// The key; unique among the tensors of one worker that are in flight together.
    pub key: u64,
    /// The tensor.
    pub tensor: &'a Tensor,
}

impl<'a> Keyed<'a> {
    /// `tensor` under `key`.
    pub fn new(key: u64, tensor: &'a Tensor) -> Self {
        Self { key, tensor }
    }
}

/// A prepared set of pushes and pulls.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) push: Vec<PushPart>,
    pub(super) pull: Vec<PullPart>,
    /// Requests that use it now; it is not forgotten before there are none.
    pub(super) in_flight: u32,
    hash: u64,
    last_used: u64,
}

/// A tensor that is pushed.
#[derive(Debug)]
pub(super) struct PushPart {
    pub(super) key: u64,
    pub(super) dtype: DType,
    /// The shape with the most rows that the plan allows.
    pub(super) shape: Shape,
}

/// A tensor that is pulled into.
#[derive(Debug)]
pub(super) struct PullPart {
    pub(super) key: u64,
    pub(super) tensor: Tensor,
    /// Pinned memory that the server writes to when the fabric cannot reach the tensor.
    pub(super) landing: Option<Landing>,
}

/// Pinned memory beside a pull tensor.
#[derive(Debug)]
pub(super) struct Landing {
    pub(super) pinned: Arc<Buffer>,
    /// Bytes of the answer under way that are being copied out of it already.
    pub(super) copied_bytes: u64,
}

/// The plans of a worker, found by content, the least recently used forgotten first.
#[derive(Debug)]
pub(super) struct PlanTable {
    plans: Vec<Option<Plan>>,
    by_hash: FxHashMap<u64, u32>,
    clock: u64,
    plans_max: usize,
}

/// A plan that was looked up.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It was there.
    Known(u32),
    /// It is new under this number; servers that knew the number must be told to forget it.
    New { plan: u32, evicted: bool },
}

impl PlanTable {
    pub(super) fn new(plans_max: usize) -> Self {
        Self {
            plans: Vec::new(),
            by_hash: FxHashMap::default(),
            clock: 0,
            plans_max,
        }
    }

    pub(super) fn plan(&self, index: u32) -> Option<&Plan> {
        self.plans.get(index as usize)?.as_ref()
    }

    pub(super) fn plan_mut(&mut self, index: u32) -> Option<&mut Plan> {
        self.plans.get_mut(index as usize)?.as_mut()
    }

    /// Finds the plan for these tensors or makes one.
    pub(super) fn find(&mut self, push: &[Keyed<'_>], pull: &[Keyed<'_>]) -> Result<Found, Error> {
        self.clock += 1;
        let hash = content_hash(push, pull);
        if let Some(index) = self.by_hash.get(&hash).copied()
            && let Some(plan) = self.plans.get_mut(index as usize).and_then(Option::as_mut)
            && plan.fits(push, pull)
        {
            plan.last_used = self.clock;
            return Ok(Found::Known(index));
        }
        self.insert(hash, push, pull)
    }

    fn insert(
        &mut self,
        hash: u64,
        push: &[Keyed<'_>],
        pull: &[Keyed<'_>],
    ) -> Result<Found, Error> {
        check_apart(pull)?;
        let plan = Plan {
            push: push.iter().map(PushPart::new).collect(),
            pull: pull.iter().map(PullPart::new).collect(),
            in_flight: 0,
            hash,
            last_used: self.clock,
        };
        if self.plans.len() < self.plans_max {
            let index = u32::try_from(self.plans.len()).unwrap_or(u32::MAX);
            self.plans.push(Some(plan));
            self.by_hash.insert(hash, index);
            return Ok(Found::New {
                plan: index,
                evicted: false,
            });
        }
        let idle = self
            .plans
            .iter_mut()
            .enumerate()
            .filter_map(|(index, plan)| {
                let used = plan.as_ref().map(|plan| (plan.in_flight, plan.last_used));
                matches!(used, Some((0, _))).then_some((used, index, plan))
            });
        let Some((_, index, slot)) = idle.min_by_key(|(used, _, _)| *used) else {
            return Err(Error::Limit {
                operation: "push_pull",
                what: "different sets of tensors in flight",
                limit: self.plans_max as u64,
                remedy: "limits.batches_max",
            });
        };
        let evicted = slot.replace(plan);
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        if let Some(old) = evicted
            && self.by_hash.get(&old.hash) == Some(&index)
        {
            self.by_hash.remove(&old.hash);
        }
        self.by_hash.insert(hash, index);
        Ok(Found::New {
            plan: index,
            evicted: true,
        })
    }
}

impl Plan {
    /// Whether these tensors can be launched by this plan.
    fn fits(&self, push: &[Keyed<'_>], pull: &[Keyed<'_>]) -> bool {
        self.push.len() == push.len()
            && self.pull.len() == pull.len()
            && self
                .push
                .iter()
                .zip(push)
                .all(|(part, keyed)| part.fits(keyed))
            && self
                .pull
                .iter()
                .zip(pull)
                .all(|(part, keyed)| part.fits(keyed))
    }

    /// What servers are told of the pushes.
    pub(super) fn push_specs(&self) -> Vec<PushSpec> {
        let spec = |part: &PushPart| PushSpec {
            key: part.key,
            tensor: TensorSpec::new(part.dtype, &part.shape),
        };
        self.push.iter().map(spec).collect()
    }

    /// The pull tensors that server `server` of `servers` fills.
    pub(super) fn pulls_of_mut(&mut self, server: usize, servers: usize) -> &mut [PullPart] {
        let slots = self.pull.len() / servers.max(1);
        self.pull
            .get_mut(server * slots..(server + 1) * slots)
            .unwrap_or_default()
    }
}

impl PushPart {
    fn new(keyed: &Keyed<'_>) -> Self {
        Self {
            key: keyed.key,
            dtype: keyed.tensor.dtype(),
            shape: *keyed.tensor.shape(),
        }
    }

    fn fits(&self, keyed: &Keyed<'_>) -> bool {
        let shape = keyed.tensor.shape();
        self.key == keyed.key
            && self.dtype == keyed.tensor.dtype()
            && self.shape.same_rows_shape(shape)
            && shape.rows() <= self.shape.rows()
    }
}

impl PullPart {
    fn new(keyed: &Keyed<'_>) -> Self {
        Self {
            key: keyed.key,
            tensor: keyed.tensor.clone(),
            landing: None,
        }
    }

    fn fits(&self, keyed: &Keyed<'_>) -> bool {
        // The plan keeps its tensor alive, so an equal address is the same memory.
        self.key == keyed.key
            && self.tensor.device_ptr() == keyed.tensor.device_ptr()
            && self.tensor.dtype() == keyed.tensor.dtype()
            && self.tensor.shape() == keyed.tensor.shape()
    }
}

/// Checks what every request must fulfil.
pub(super) fn check(push: &[Keyed<'_>], pull: &[Keyed<'_>], servers: usize) -> Result<(), Error> {
    let invalid = |reason: String| Err(Error::invalid("push_pull", reason));
    if push.is_empty() && pull.is_empty() {
        return invalid("nothing to push and nothing to pull".into());
    }
    if servers == 0 || !pull.len().is_multiple_of(servers) {
        return invalid(format!(
            "{} pull tensors for {servers} servers: each server needs the same number, first all \
             of server 0, then all of server 1, and so on",
            pull.len()
        ));
    }
    if push.len() > TENSORS_MAX || pull.len() / servers > TENSORS_MAX {
        return invalid(format!(
            "more than {TENSORS_MAX} tensors a server in one request"
        ));
    }
    for (index, keyed) in push.iter().enumerate() {
        if push.iter().take(index).any(|other| other.key == keyed.key) {
            return invalid(format!("key {} is pushed twice in one request", keyed.key));
        }
        if u32::try_from(keyed.tensor.shape().rows()).is_err() {
            return invalid(format!(
                "key {}: {} rows; at most 2^32 - 1 are supported",
                keyed.key,
                keyed.tensor.shape().rows()
            ));
        }
    }
    Ok(())
}

/// Checks that no two answers go into the same memory; once for each plan, as it takes a while.
fn check_apart(pull: &[Keyed<'_>]) -> Result<(), Error> {
    let occupied = pull.iter().filter(|keyed| keyed.tensor.len_bytes() > 0);
    let mut occupied: Vec<&Keyed<'_>> = occupied.collect();
    let device = |keyed: &Keyed<'_>| keyed.tensor.buffer().device().ordinal();
    occupied.sort_unstable_by_key(|keyed| (device(keyed), keyed.tensor.device_ptr()));
    for pair in occupied.windows(2) {
        let &[first, second] = pair else { continue };
        let end = first.tensor.device_ptr() + first.tensor.len_bytes();
        if device(first) == device(second) && second.tensor.device_ptr() < end {
            return Err(Error::invalid(
                "push_pull",
                format!(
                    "the tensors of keys {} and {} share memory, and each answer needs its own",
                    first.key, second.key
                ),
            ));
        }
    }
    Ok(())
}

/// A hash of what [`Plan::fits`] compares, but for the number of rows.
fn content_hash(push: &[Keyed<'_>], pull: &[Keyed<'_>]) -> u64 {
    let mut hash = push.len() as u64;
    for keyed in push {
        hash = mix(hash, keyed.key);
        hash = mix(hash, keyed.tensor.row_len_bytes());
    }
    for keyed in pull {
        hash = mix(hash, keyed.key);
        hash = mix(hash, keyed.tensor.device_ptr());
    }
    hash
}

/// One step of the multiply-rotate hash of Firefox and rustc (FxHash): a few cycles, and good
/// enough where a match is compared in full afterwards.
fn mix(hash: u64, value: u64) -> u64 {
    (hash.rotate_left(5) ^ value).wrapping_mul(0x517c_c1b7_2722_0a95)
}
