//! Answering: the results go straight into the worker's pull tensors, and the slots are free.

use stepmesh_transport::error::Error as FabricError;
use stepmesh_transport::fabric::{PostError, Posted, Write};

use crate::error::Error;
use crate::protocol::fabrics::{Fabrics, Reach};
use crate::protocol::link::TOKEN_NONE;
use crate::protocol::wire::Chunk;
use crate::tensor::Tensor;

use super::ServerMachine;
use super::batch::BatchRecord;

/// One answer to one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AnswerId {
    worker: usize,
    life: u64,
    number: u64,
}

/// Why an answer did not leave.
enum Stay {
    /// Until there is room or a copy is done, which nobody announces.
    Retry,
    /// The answer cannot be read: its request fails, the others go on.
    Fail(Error),
    /// The worker cannot be talked to any more.
    Lose(String),
}

impl ServerMachine {
    /// Sends `answers` into the batch's pull tensors. On an error the batch comes back to the
    /// caller, who may answer again.
    pub(crate) fn respond(
        &mut self,
        fabrics: &mut Fabrics,
        mut record: Box<BatchRecord>,
        answers: &[Tensor],
    ) -> Result<AnswerId, (Box<BatchRecord>, Error)> {
        self.now_ns = self.clock.now_ns();
        if let Err(error) = self.check_answers(&record, answers) {
            return Err((record, error));
        }
        record.answers.clear();
        record.answers.extend_from_slice(answers);
        record.times_ns[2] = self.now_ns;
        Ok(self.queue(fabrics, record))
    }

    /// Lets go of a batch without an answer.
    pub(crate) fn release(&mut self, fabrics: &mut Fabrics, mut record: Box<BatchRecord>) {
        let worker = self.workers.get(record.worker);
        let alive = worker.is_some_and(|w| w.life == record.life && w.link.is_up());
        if !alive {
            self.recycle(record);
            return;
        }
        record.answers.clear();
        record.pulls.clear();
        self.queue(fabrics, record);
    }

    /// Whether the answer's memory may be used again.
    pub(crate) fn is_answered(&self, id: AnswerId) -> Result<bool, Error> {
        let Some(worker) = self.workers.get(id.worker) else {
            return Ok(true);
        };
        if worker.life != id.life {
            return Ok(true);
        }
        if worker.answers_sent >= id.number {
            return Ok(true);
        }
        worker.link.lost().map_or(Ok(false), Err)
    }

    /// Posts the answers of one worker that wait, in order.
    pub(super) fn flush(&mut self, fabrics: &mut Fabrics, index: usize) {
        let Some(worker) = self.workers.get_mut(index) else {
            return;
        };
        if worker.link.has_queued()
            && let Err(reason) = worker.link.flush(fabrics, &mut self.message, self.now_ns)
        {
            self.lose_later(index, reason.to_string());
            return;
        }
        loop {
            let Some(worker) = self.workers.get_mut(index) else {
                return;
            };
            let Some(record) = worker.unsent.pop_front() else {
                return;
            };
            match self.post(fabrics, index, record) {
                Ok(()) => {}
                Err((record, Stay::Retry)) => {
                    self.dirty = true;
                    self.put_back(index, record);
                    return;
                }
                Err((mut record, Stay::Fail(error))) => {
                    tracing::error!(%error, "an answer cannot be sent; the batch is released");
                    record.answers.clear();
                    record.pulls.clear();
                    self.put_back(index, record);
                }
                Err((record, Stay::Lose(reason))) => {
                    self.recycle(record);
                    self.lose_later(index, reason);
                    return;
                }
            }
        }
    }

    fn put_back(&mut self, index: usize, record: Box<BatchRecord>) {
        if let Some(worker) = self.workers.get_mut(index) {
            worker.unsent.push_front(record);
        }
    }

    /// The fabric is done with an answer, and with those before it.
    pub(super) fn answer_sent(&mut self, index: usize, token: u64) {
        let Some(worker) = self.workers.get_mut(index) else {
            return;
        };
        let mut sent = None;
        while let Some(mut record) = worker
            .in_flight
            .pop_front_if(|record| record.answer <= token)
        {
            sent = Some(record.answer);
            for (_, outgoing) in record.outgoing.drain(..) {
                self.stager.give(outgoing);
            }
            self.pool.give(record);
        }
        if let Some(answer) = sent {
            worker.answers_sent = worker.answers_sent.max(answer);
            self.news = true;
        }
    }

    fn queue(&mut self, fabrics: &mut Fabrics, mut record: Box<BatchRecord>) -> AnswerId {
        let index = record.worker;
        let Some(worker) = self.workers.get_mut(index) else {
            return AnswerId {
                worker: index,
                life: 0,
                number: 0,
            };
        };
        worker.answers_made += 1;
        record.answer = worker.answers_made;
        let id = AnswerId {
            worker: index,
            life: worker.life,
            number: record.answer,
        };
        worker.unsent.push_back(record);
        self.flush(fabrics, index);
        id
    }

    fn post(
        &mut self,
        fabrics: &mut Fabrics,
        index: usize,
        mut record: Box<BatchRecord>,
    ) -> Result<(), (Box<BatchRecord>, Stay)> {
        if let Err(error) = self.prepare_writes(fabrics, index, &mut record) {
            return Err((record, error));
        }
        let Some(worker) = self.workers.get_mut(index) else {
            return Ok(());
        };
        // The slots are given back before the worker can know it: its next push may be here
        // before this function returns.
        for slot in &record.slots {
            self.slots.free(*slot);
        }
        self.dirty |= !self.deferred.is_empty();
        if self.limits.trace {
            record.times_ns[3] = self.clock.now_ns();
        }
        let message = if record.pulls.is_empty() {
            self.message.release(record.request)
        } else {
            let rows = record.answers.iter().map(rows_of);
            self.message
                .response(record.request, record.staged, record.times_ns, rows)
        };
        let posted = worker
            .link
            .post(fabrics, &self.writes, message, record.answer, self.now_ns);
        match posted {
            Ok(Posted::Pending) => worker.in_flight.push_back(record),
            Ok(Posted::Complete) => {
                if worker.in_flight.is_empty() {
                    worker.answers_sent = record.answer;
                }
                self.give_back(record);
            }
            Err(error) => {
                for slot in &record.slots {
                    self.slots.occupy(*slot, record.life);
                }
                return Err((record, error.into()));
            }
        }
        Ok(())
    }

    /// Prepares the writes of an answer; those of staged tensors are posted chunk by chunk here.
    fn prepare_writes(
        &mut self,
        fabrics: &mut Fabrics,
        index: usize,
        record: &mut BatchRecord,
    ) -> Result<(), Stay> {
        self.writes.clear();
        let Some(worker) = self.workers.get_mut(index) else {
            return Ok(());
        };
        let Some(peer) = worker.link.peer() else {
            return Err(Stay::Retry);
        };
        let mut chunks_before = 0;
        for (place, (answer, target)) in record.answers.iter().zip(&record.targets).enumerate() {
            if let Reach::Direct(region) = fabrics.reach(peer.fabric, answer.buffer())? {
                self.writes.push(Write {
                    local: region,
                    local_offset: answer.offset_bytes(),
                    remote: target.remote,
                    remote_offset: target.offset,
                    len_bytes: answer.len_bytes(),
                });
                continue;
            }
            record.staged |= 2;
            if record.outgoing.iter().all(|(of, _)| *of != place) {
                let outgoing = self.stager.copy_out(answer).map_err(Stay::Fail)?;
                record.outgoing.push((place, outgoing));
            }
            let Some((_, outgoing)) = record.outgoing.iter().find(|(of, _)| *of == place) else {
                continue;
            };
            let Reach::Direct(region) = fabrics.reach(peer.fabric, outgoing.pinned())? else {
                return Err(Stay::Fail(Error::invalid(
                    "respond",
                    "the fabric reaches neither the answer nor pinned memory of its backend",
                )));
            };
            let sent = record.chunks_sent.saturating_sub(chunks_before);
            for (number, chunk) in outgoing.chunks().enumerate().skip(sent) {
                if !outgoing.is_ready(number).map_err(Stay::Fail)? {
                    return Err(Stay::Retry);
                }
                let write = Write {
                    local: region,
                    local_offset: chunk.offset,
                    remote: target.remote,
                    remote_offset: target.offset + chunk.offset,
                    len_bytes: chunk.len_bytes,
                };
                let message = self.message.chunk(&Chunk {
                    of: record.request,
                    part: u32::try_from(place).unwrap_or(u32::MAX),
                    offset: chunk.offset,
                    len_bytes: chunk.len_bytes,
                });
                worker
                    .link
                    .post(fabrics, &[write], message, TOKEN_NONE, self.now_ns)?;
                record.chunks_sent += 1;
            }
            chunks_before += outgoing.chunks().count();
        }
        Ok(())
    }

    /// Keeps what an answer used for its next use.
    pub(super) fn give_back(&mut self, mut record: Box<BatchRecord>) {
        for (_, outgoing) in record.outgoing.drain(..) {
            self.stager.give(outgoing);
        }
        self.pool.give(record);
    }

    pub(super) fn free_slots(&mut self, record: &BatchRecord) {
        for slot in &record.slots {
            self.slots.free(*slot);
        }
        // Somebody may have been waiting for one of them.
        self.dirty |= !self.deferred.is_empty();
    }

    fn check_answers(&self, record: &BatchRecord, answers: &[Tensor]) -> Result<(), Error> {
        let worker = self.workers.get(record.worker);
        let Some(worker) = worker else {
            return Err(Error::invalid("respond", "the batch is of no worker"));
        };
        if worker.life != record.life || !worker.link.is_up() {
            return Err(worker.link.lost().unwrap_or_else(|| Error::PeerLost {
                peer: worker.link.member,
                reason: "it connected again since it sent this batch".into(),
            }));
        }
        if answers.len() != record.pulls.len() {
            return Err(Error::invalid(
                "respond",
                format!(
                    "{} tensors, but {} asked for {}",
                    answers.len(),
                    worker.link.member,
                    record.pulls.len()
                ),
            ));
        }
        for (answer, pull) in answers.iter().zip(&record.pulls) {
            let fits = answer.dtype() == pull.dtype
                && pull.shape.same_rows_shape(answer.shape())
                && answer.shape().rows() <= pull.shape.rows();
            if !fits {
                return Err(Error::invalid(
                    "respond",
                    format!(
                        "key {}: {} {} does not go into {}'s {} {} (the same dtype, the same row, \
                         at most as many rows)",
                        pull.key,
                        answer.dtype(),
                        answer.shape(),
                        worker.link.member,
                        pull.dtype,
                        pull.shape
                    ),
                ));
            }
        }
        Ok(())
    }
}

impl From<PostError> for Stay {
    fn from(error: PostError) -> Self {
        match error {
            PostError::Full => Self::Retry,
            PostError::Failed(error) => Self::Lose(error.to_string()),
        }
    }
}

impl From<FabricError> for Stay {
    fn from(error: FabricError) -> Self {
        Self::Lose(error.to_string())
    }
}

/// At most as many as the worker's tensor has, which fit.
fn rows_of(tensor: &Tensor) -> u32 {
    u32::try_from(tensor.shape().rows()).unwrap_or(u32::MAX)
}
