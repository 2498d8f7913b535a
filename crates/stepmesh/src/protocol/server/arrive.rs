//! What comes in from workers: launches that become batches, and the chunks of staged pushes.

use crate::error::Error;
use crate::protocol::staging;
use crate::protocol::wire::{Chunk, Launch, Message, Setup};

use super::batch::BatchRecord;
use super::{ServerMachine, Todo};

impl ServerMachine {
    pub(super) fn on_message(&mut self, index: usize, bytes: &[u8]) -> Result<(), String> {
        let Some(worker) = self.workers.get_mut(index) else {
            return Ok(());
        };
        worker.link.heard(self.now_ns);
        match Message::decode(bytes).map_err(|error| error.0)? {
            Message::Launch(launch) => self.on_launch(index, &launch),
            Message::Chunk(chunk) => self.on_chunk(index, chunk).map_err(str::to_owned),
            Message::Setup(body) => {
                let setup = Setup::decode(body).map_err(|error| error.0)?;
                self.todo.push_back(Todo::SetUp {
                    worker: index,
                    life: worker.life,
                    setup,
                });
                Ok(())
            }
            Message::Heartbeat => Ok(()),
            Message::Response(_) | Message::Release { .. } => {
                Err("it sent an answer, which only servers send".into())
            }
        }
    }

    /// Makes batches ready whose copies from pinned memory are done.
    pub(super) fn land(&mut self) {
        let mut position = 0;
        while let Some(record) = self.arriving.get_mut(position) {
            let done = match &record.incoming {
                Some(incoming) => incoming.is_done(),
                None => Ok(true),
            };
            let failed = match done {
                Ok(false) => {
                    position += 1;
                    continue;
                }
                Ok(true) => None,
                Err(error) => Some(error),
            };
            let Some(mut record) = self.arriving.swap_remove_front(position) else {
                return;
            };
            if let Some(incoming) = record.incoming.take() {
                self.stager.give_incoming(incoming);
            }
            match failed {
                None => self.make_ready(record),
                Some(error) => self.drop_arriving(record, &error),
            }
        }
    }

    fn make_ready(&mut self, record: Box<BatchRecord>) {
        match self.workers.get_mut(record.worker) {
            Some(worker) if worker.life == record.life && worker.link.is_up() => {
                worker.ready.push_back(record);
                self.news = true;
            }
            // The worker was lost while its tensors were being copied.
            _ => self.recycle(record),
        }
    }

    fn drop_arriving(&mut self, record: Box<BatchRecord>, error: &Error) {
        let (worker, life) = (record.worker, record.life);
        self.recycle(record);
        self.todo.push_back(Todo::Lose {
            worker,
            life,
            reason: error.to_string(),
        });
        self.dirty = true;
    }

    /// Frees what a batch holds that nobody will answer.
    pub(super) fn recycle(&mut self, mut record: Box<BatchRecord>) {
        self.free_slots(&record);
        for (_, outgoing) in record.outgoing.drain(..) {
            self.stager.give(outgoing);
        }
        self.pool.give(record);
    }

    fn on_launch(&mut self, index: usize, launch: &Launch<'_>) -> Result<(), String> {
        let Some(worker) = self.workers.get_mut(index) else {
            return Ok(());
        };
        let Some(plan) = worker.plans.get(&launch.plan) else {
            return Err("it launched a plan that it did not define".into());
        };
        if launch.rows.len() != plan.push.len() {
            return Err("its launch has another number of tensors than its plan".into());
        }
        if worker.ready.len() >= self.limits.batches_max {
            return Err(format!(
                "{} of its batches wait to be taken (limits.batches_max)",
                self.limits.batches_max
            ));
        }
        let mut record = self.pool.take();
        record.worker = index;
        record.life = worker.life;
        record.request = launch.request;
        record.tag = launch.tag;
        record.times_ns[0] = self.now_ns;
        for (part, rows) in plan.push.iter().zip(launch.rows.iter()) {
            if rows > part.shape.rows() {
                return Err("it pushed more rows than its plan allows".into());
            }
            let Some(slot) = self.slots.slot(part.slot) else {
                continue;
            };
            if slot.busy.is_some() {
                return Err("it overwrote a slot that was still in use".into());
            }
            let tensor = slot.tensor(part.dtype, part.shape.with_rows(rows));
            record
                .tensors
                .push(tensor.map_err(|error| error.to_string())?);
            record.keys.push(part.key);
            record.slots.push(part.slot);
        }
        record.pulls.extend_from_slice(&plan.pull);
        record.targets.extend_from_slice(&plan.targets);
        for slot in &record.slots {
            self.slots.occupy(*slot, record.life);
        }
        if self
            .copy_from_landing(&mut record)
            .map_err(|error| error.to_string())?
        {
            self.arriving.push_back(record);
        } else {
            self.make_ready(record);
        }
        Ok(())
    }

    /// A part of a push is in pinned memory: on it goes, while the next is on the wire.
    fn on_chunk(&mut self, index: usize, chunk: Chunk) -> Result<(), &'static str> {
        let unknown = "it sent a chunk of a plan that it did not define";
        let worker = self.workers.get(index).ok_or(unknown)?;
        let plan = u32::try_from(chunk.of)
            .ok()
            .and_then(|plan| worker.plans.get(&plan));
        let part = plan
            .and_then(|plan| plan.push.get(chunk.part as usize))
            .ok_or(unknown)?;
        let slot = self.slots.slot_mut(part.slot).ok_or(unknown)?;
        if slot.busy.is_some() {
            return Err("it overwrote a slot that was still in use");
        }
        let end = chunk.offset.checked_add(chunk.len_bytes);
        if end.is_none_or(|end| end > slot.len_bytes) {
            return Err("it sent a chunk outside of its slot");
        }
        let Some(landing) = &mut slot.landing else {
            return Ok(());
        };
        let part_of = staging::Chunk {
            offset: chunk.offset,
            len_bytes: chunk.len_bytes,
        };
        match self
            .stager
            .copy_in(&landing.pinned, &slot.buffer, slot.offset, part_of)
        {
            Ok(()) => landing.copied_bytes = landing.copied_bytes.saturating_add(chunk.len_bytes),
            // The launch itself copies everything then, and reports what is wrong.
            Err(error) => tracing::debug!(%error, "a chunk was not copied"),
        }
        Ok(())
    }

    /// Starts the copies out of pinned memory, if the pushes went there. False if not.
    fn copy_from_landing(&mut self, record: &mut BatchRecord) -> Result<bool, Error> {
        let mut device = None;
        for (slot, tensor) in record.slots.iter().zip(&record.tensors) {
            let Some(slot) = self.slots.slot_mut(*slot) else {
                continue;
            };
            let Some(landing) = &mut slot.landing else {
                self.visibility.arrived(&slot.buffer);
                continue;
            };
            let len_bytes = tensor.len_bytes();
            if std::mem::take(&mut landing.copied_bytes) < len_bytes {
                let all = staging::Chunk {
                    offset: 0,
                    len_bytes,
                };
                self.stager
                    .copy_in(&landing.pinned, &slot.buffer, slot.offset, all)?;
            }
            device = Some(slot.buffer.device().clone());
        }
        self.visibility.flush()?;
        let Some(device) = device else {
            return Ok(false);
        };
        record.staged |= 1;
        record.incoming = Some(self.stager.incoming(&device)?);
        Ok(true)
    }
}
