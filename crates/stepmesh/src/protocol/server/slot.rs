//! Receive slots: where the pushes of one worker under one key land.

use std::collections::HashMap;
use std::sync::Arc;

use stepmesh_core::{Buffer, Device};

use crate::dtype::DType;
use crate::error::Error;
use crate::shape::Shape;
use crate::tensor::Tensor;

/// All slots of a server.
#[derive(Debug)]
pub(super) struct SlotTable {
    device: Device,
    registered: HashMap<Place, Registered>,
    slots: Vec<Slot>,
    by_place: HashMap<Place, usize>,
    /// Slots that nothing refers to any more.
    unused: Vec<usize>,
    slots_max: usize,
    len_bytes_max: u64,
}

/// Which worker (by group rank), under which key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) worker: u32,
    pub(super) key: u64,
}

/// A part of a buffer that the application set aside.
#[derive(Debug)]
struct Registered {
    buffer: Arc<Buffer>,
    offset: u64,
    len_bytes: u64,
}

/// Where pushes land.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) buffer: Arc<Buffer>,
    pub(super) offset: u64,
    pub(super) len_bytes: u64,
    /// Pinned memory that the worker writes to when the fabric cannot reach the slot.
    pub(super) landing: Option<Landing>,
    /// The connection whose batch reads from it: that batch was not answered or dropped yet.
    pub(super) busy: Option<u64>,
    place: Place,
}

/// Pinned memory beside a slot.
#[derive(Debug)]
pub(super) struct Landing {
    pub(super) pinned: Arc<Buffer>,
    /// Bytes of the push under way that are being copied out of it already.
    pub(super) copied_bytes: u64,
}

/// Why there is no slot.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoSlot {
    /// The worker is told this.
    Refused(String),
    /// A batch of an earlier connection still reads from the registered buffer.
    Later,
}

impl SlotTable {
    pub(super) fn new(device: Device, slots_max: usize, len_bytes_max: u64) -> Self {
        Self {
            device,
            registered: HashMap::new(),
            slots: Vec::new(),
            by_place: HashMap::new(),
            unused: Vec::new(),
            slots_max,
            len_bytes_max,
        }
    }

    /// Sets parts of `tensor` aside, one for each place, all of the same number of rows.
    pub(super) fn register(&mut self, tensor: &Tensor, places: &[Place]) -> Result<(), Error> {
        let operation = "register_recv_buffer";
        let count = places.len() as u64;
        let rows = tensor.shape().rows();
        if count == 0 || tensor.shape().dims().is_empty() || !rows.is_multiple_of(count) {
            return Err(Error::invalid(
                operation,
                format!(
                    "{} cannot be cut into {count} parts of whole rows",
                    tensor.shape()
                ),
            ));
        }
        for (index, place) in places.iter().enumerate() {
            let twice = places.iter().take(index).any(|other| other == place);
            if twice || self.registered.contains_key(place) || self.by_place.contains_key(place) {
                return Err(Error::invalid(
                    operation,
                    format!(
                        "worker {}, key {} has a receive buffer already; register before its \
                         first push, and once",
                        place.worker, place.key
                    ),
                ));
            }
        }
        let part_len_bytes = tensor.len_bytes() / count;
        for (index, place) in (0u64..).zip(places) {
            self.registered.insert(
                *place,
                Registered {
                    buffer: Arc::clone(tensor.buffer()),
                    offset: tensor.offset_bytes() + index * part_len_bytes,
                    len_bytes: part_len_bytes,
                },
            );
        }
        Ok(())
    }

    /// The slot for pushes of up to `len_bytes` over connection `life`: what the application
    /// registered, or memory of the server's device.
    pub(super) fn slot_for(
        &mut self,
        place: Place,
        len_bytes: u64,
        life: u64,
    ) -> Result<usize, NoSlot> {
        let current = self.by_place.get(&place).copied();
        let slot = current.and_then(|index| Some((index, self.slots.get(index)?)));
        let taken = slot.is_some_and(|(_, slot)| slot.busy.is_some_and(|busy| busy != life));
        if let Some((index, slot)) = slot
            && slot.len_bytes >= len_bytes
            && !taken
        {
            return Ok(index);
        }
        let slot = match self.registered.get(&place) {
            Some(_) if taken => return Err(NoSlot::Later),
            Some(registered) if registered.len_bytes < len_bytes => {
                return Err(NoSlot::Refused(format!(
                    "key {}: {len_bytes} bytes, but the registered receive buffer holds {}",
                    place.key, registered.len_bytes
                )));
            }
            Some(registered) => Slot {
                buffer: Arc::clone(&registered.buffer),
                offset: registered.offset,
                len_bytes: registered.len_bytes,
                landing: None,
                busy: None,
                place,
            },
            None => self.allocate(place, len_bytes).map_err(NoSlot::Refused)?,
        };
        let index = self.add(slot)?;
        self.by_place.insert(place, index);
        Ok(index)
    }

    fn add(&mut self, slot: Slot) -> Result<usize, NoSlot> {
        if let Some(index) = self.unused.pop()
            && let Some(old) = self.slots.get_mut(index)
        {
            *old = slot;
            return Ok(index);
        }
        if self.slots.len() >= self.slots_max {
            return Err(NoSlot::Refused(format!(
                "key {}: the server has {} slots already (limits.slots_max)",
                slot.place.key, self.slots_max
            )));
        }
        self.slots.push(slot);
        Ok(self.slots.len() - 1)
    }

    fn allocate(&self, place: Place, len_bytes: u64) -> Result<Slot, String> {
        if len_bytes > self.len_bytes_max {
            return Err(format!(
                "key {}: {len_bytes} bytes; a slot may have {} (limits.slot_len_max_bytes)",
                place.key, self.len_bytes_max
            ));
        }
        let buffer = self.device.alloc(len_bytes.max(1)).map_err(|error| {
            format!(
                "key {}: no memory for a slot of {len_bytes} bytes: {error}",
                place.key
            )
        })?;
        Ok(Slot {
            buffer: Arc::new(buffer),
            offset: 0,
            len_bytes,
            landing: None,
            busy: None,
            place,
        })
    }

    pub(super) fn slot(&self, index: usize) -> Option<&Slot> {
        self.slots.get(index)
    }

    pub(super) fn slot_mut(&mut self, index: usize) -> Option<&mut Slot> {
        self.slots.get_mut(index)
    }

    /// A batch that came over connection `life` reads from the slot from now on.
    pub(super) fn occupy(&mut self, index: usize, life: u64) {
        if let Some(slot) = self.slots.get_mut(index) {
            slot.busy = Some(life);
        }
    }

    /// The batch is answered or gone.
    pub(super) fn free(&mut self, index: usize) {
        if let Some(slot) = self.slots.get_mut(index) {
            slot.busy = None;
        }
    }

    /// A worker's connection is gone, and its plans with it: slots that a larger one took the
    /// place of serve again for others, unless a batch still reads from them.
    pub(super) fn forget_replaced(&mut self, worker: u32) {
        for (index, slot) in self.slots.iter().enumerate() {
            let replaced = self.by_place.get(&slot.place) != Some(&index);
            let idle = slot.place.worker == worker && slot.busy.is_none();
            if replaced && idle && !self.unused.contains(&index) {
                self.unused.push(index);
            }
        }
    }
}

impl Slot {
    /// The view of what was pushed.
    pub(super) fn tensor(&self, dtype: DType, shape: Shape) -> Result<Tensor, Error> {
        Tensor::at(Arc::clone(&self.buffer), self.offset, dtype, shape)
    }
}
