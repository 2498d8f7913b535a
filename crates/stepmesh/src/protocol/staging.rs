//! Staging: copies between memory that a fabric cannot reach and pinned host memory that it can.
//!
//! Each device has a lane: a stream of the mesh's own, a pool of pinned buffers and a pool of
//! events. Tensors leave chunk by chunk, so that copying and sending overlap.

use std::sync::Arc;

use stepmesh_core::{AllocOptions, Buffer, Device, Event, EventOptions, MemoryKind, Stream};

use crate::error::Error;
use crate::tensor::Tensor;

/// The lanes of all devices that need one.
#[derive(Debug, Default)]
pub(super) struct Stager {
    lanes: Vec<Lane>,
}

#[derive(Debug)]
struct Lane {
    device: Device,
    stream: Stream,
    pinned: Vec<Arc<Buffer>>,
    events: Vec<Event>,
}

/// A tensor on its way into pinned memory.
#[derive(Debug)]
pub(super) struct Outgoing {
    pinned: Arc<Buffer>,
    device: Device,
    len_bytes: u64,
    /// One for each chunk, recorded behind its copy.
    chunks: Vec<Event>,
}

/// Copies into device memory that are under way.
#[derive(Debug)]
pub(super) struct Incoming {
    device: Device,
    done: Event,
}

/// A part of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) offset: u64,
    pub(super) len_bytes: u64,
}

impl Stager {
    /// Pinned memory of at least this length, for one who keeps it.
    pub(super) fn pinned(&mut self, device: &Device, len_bytes: u64) -> Result<Arc<Buffer>, Error> {
        let lane = self.lane(device)?;
        let fits = lane
            .pinned
            .iter()
            .position(|buffer| buffer.len_bytes() >= len_bytes);
        if let Some(position) = fits {
            return Ok(lane.pinned.swap_remove(position));
        }
        let options = AllocOptions {
            kind: MemoryKind::HostPinned,
            ..AllocOptions::default()
        };
        let len_bytes = len_bytes.max(1).next_power_of_two();
        let buffer = device.alloc_with(len_bytes, options);
        Ok(Arc::new(
            buffer.map_err(Error::backend("allocating a staging buffer"))?,
        ))
    }

    /// Starts to copy a tensor into pinned memory.
    pub(super) fn copy_out(&mut self, tensor: &Tensor) -> Result<Outgoing, Error> {
        let device = tensor.buffer().device().clone();
        let pinned = self.pinned(&device, tensor.len_bytes())?;
        let mut outgoing = Outgoing {
            pinned,
            device,
            len_bytes: tensor.len_bytes(),
            chunks: Vec::new(),
        };
        let lane = self.lane(&outgoing.device)?;
        while let Some(chunk) = outgoing.chunk(outgoing.chunks.len()) {
            let from = tensor.offset_bytes() + chunk.offset;
            let (pinned, offset) = (&outgoing.pinned, chunk.offset);
            lane.stream
                .copy(pinned, offset, tensor.buffer(), from, chunk.len_bytes)
                .map_err(Error::backend("staging a tensor"))?;
            outgoing.chunks.push(lane.mark()?);
        }
        Ok(outgoing)
    }

    /// Starts to copy a part of pinned memory into device memory.
    pub(super) fn copy_in(
        &mut self,
        pinned: &Arc<Buffer>,
        target: &Arc<Buffer>,
        target_offset: u64,
        chunk: Chunk,
    ) -> Result<(), Error> {
        let lane = self.lane(target.device())?;
        let to = target_offset + chunk.offset;
        lane.stream
            .copy(target, to, pinned, chunk.offset, chunk.len_bytes)
            .map_err(Error::backend("staging a tensor"))
    }

    /// Marks the end of the copies into this device so far.
    pub(super) fn incoming(&mut self, device: &Device) -> Result<Incoming, Error> {
        Ok(Incoming {
            device: device.clone(),
            done: self.lane(device)?.mark()?,
        })
    }

    /// Takes back what an outgoing tensor used, once its bytes have left.
    pub(super) fn give(&mut self, outgoing: Outgoing) {
        // A lane that cannot be had was never used.
        if let Ok(lane) = self.lane(&outgoing.device) {
            lane.events.extend(outgoing.chunks);
            if lane.pinned.len() < PINNED_KEPT_MAX {
                lane.pinned.push(outgoing.pinned);
            }
        }
    }

    /// Takes back what finished copies used.
    pub(super) fn give_incoming(&mut self, incoming: Incoming) {
        if let Ok(lane) = self.lane(&incoming.device) {
            lane.events.push(incoming.done);
        }
    }

    fn lane(&mut self, device: &Device) -> Result<&mut Lane, Error> {
        let same = |lane: &Lane| {
            lane.device.ordinal() == device.ordinal()
                && lane.device.backend().is_same(device.backend())
        };
        let position = match self.lanes.iter().position(same) {
            Some(position) => position,
            None => {
                let stream = device.create_stream();
                self.lanes.push(Lane {
                    device: device.clone(),
                    stream: stream.map_err(Error::backend("creating a stream for staging"))?,
                    pinned: Vec::new(),
                    events: Vec::new(),
                });
                self.lanes.len() - 1
            }
        };
        let damaged = || Error::invalid("staging", "the table of lanes is damaged");
        self.lanes.get_mut(position).ok_or_else(damaged)
    }
}

impl Lane {
    fn mark(&mut self) -> Result<Event, Error> {
        let event = match self.events.pop() {
            Some(event) => event,
            None => {
                let event = self.device.create_event(EventOptions::default());
                event.map_err(Error::backend("creating an event for staging"))?
            }
        };
        event
            .record(&self.stream)
            .map_err(Error::backend("recording an event for staging"))?;
        Ok(event)
    }
}

impl Outgoing {
    /// The memory that the fabric sends from.
    pub(super) fn pinned(&self) -> &Arc<Buffer> {
        &self.pinned
    }

    /// The chunks, in the order in which they are copied.
    pub(super) fn chunks(&self) -> impl Iterator<Item = Chunk> + '_ {
        (0..self.chunks.len()).filter_map(|index| self.chunk(index))
    }

    /// Chunk `index` of the tensor, if it has so many.
    fn chunk(&self, index: usize) -> Option<Chunk> {
        let offset = (index as u64).checked_mul(CHUNK_LEN_BYTES)?;
        (offset < self.len_bytes).then(|| Chunk {
            offset,
            len_bytes: CHUNK_LEN_BYTES.min(self.len_bytes - offset),
        })
    }

    /// Whether chunk `index` has arrived in pinned memory.
    pub(super) fn is_ready(&self, index: usize) -> Result<bool, Error> {
        match self.chunks.get(index) {
            Some(event) => event.is_done().map_err(Error::backend("staging a tensor")),
            None => Ok(true),
        }
    }
}

impl Incoming {
    /// Whether the copies are done.
    pub(super) fn is_done(&self) -> Result<bool, Error> {
        self.done
            .is_done()
            .map_err(Error::backend("staging a tensor"))
    }
}

/// How much is copied before the sending of it begins. At PCIe and network speeds of some tens of
/// GB/s a MiB takes some tens of microseconds, which hides the cost of an event and a message.
const CHUNK_LEN_BYTES: u64 = 1 << 20;

/// Pinned buffers kept for their next use, for each device.
const PINNED_KEPT_MAX: usize = 32;
