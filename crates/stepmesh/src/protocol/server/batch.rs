//! Batches: one worker's push_pull as the server sees it, from arrival to answer.

use stepmesh_transport::fabric::RemoteId;

use crate::dtype::DType;
use crate::protocol::staging::{Incoming, Outgoing};
use crate::protocol::wire::Tag;
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Everything about one batch. Boxed once and used again and again.
#[derive(Debug, Default)]
pub(crate) struct BatchRecord {
    /// The next of those that were taken together.
    next: Option<Box<Self>>,
    /// The worker's link, and which life of it.
    pub(super) worker: usize,
    pub(super) life: u64,
    pub(super) request: u64,
    pub(super) tag: Tag,
    pub(super) keys: Vec<u64>,
    pub(super) tensors: Vec<Tensor>,
    pub(super) pulls: Vec<PullInfo>,
    /// Where the pulls are, in the same order.
    pub(super) targets: Vec<PullTarget>,
    /// The slots that it reads from.
    pub(super) slots: Vec<usize>,
    /// What is sent back.
    pub(super) answers: Vec<Tensor>,
    /// Copies of answers in pinned memory, for a fabric that cannot reach them: the place of the
    /// answer, and the copy.
    pub(super) outgoing: Vec<(usize, Outgoing)>,
    pub(super) chunks_sent: usize,
    /// The copies from pinned memory into the slots, while they are under way.
    pub(super) incoming: Option<Incoming>,
    /// Bit 0: the pushed tensors went through pinned memory; bit 1: the answers do.
    pub(super) staged: u8,
    /// Received, taken, answered, posted.
    pub(super) times_ns: [u64; 4],
    /// The number of its answer among those to this worker.
    pub(super) answer: u64,
}

/// What a worker pulls into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PullInfo {
    /// The worker's key of it.
    pub key: u64,
    /// Its element type.
    pub dtype: DType,
    /// Its shape, with the most rows that an answer may have.
    pub shape: Shape,
}

/// Where one answer goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct PullTarget {
    pub(super) remote: RemoteId,
    pub(super) offset: u64,
}

impl BatchRecord {
    /// The worker's group rank.
    pub(crate) fn worker(&self) -> u32 {
        u32::try_from(self.worker).unwrap_or(u32::MAX)
    }

    pub(crate) fn tag(&self) -> Tag {
        self.tag
    }

    pub(crate) fn keys(&self) -> &[u64] {
        &self.keys
    }

    pub(crate) fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    pub(crate) fn pulls(&self) -> &[PullInfo] {
        &self.pulls
    }

    /// Makes its lists long enough for a plan of so many pushes and pulls. It is empty.
    fn reserve(&mut self, pushes: usize, pulls: usize) {
        self.keys.reserve(pushes);
        self.tensors.reserve(pushes);
        self.slots.reserve(pushes);
        self.pulls.reserve(pulls);
        self.targets.reserve(pulls);
        self.answers.reserve(pulls);
    }

    /// Empties it for its next use; the memory of its lists stays.
    pub(super) fn clear(&mut self) {
        self.keys.clear();
        self.tensors.clear();
        self.pulls.clear();
        self.targets.clear();
        self.slots.clear();
        self.answers.clear();
        self.chunks_sent = 0;
        self.staged = 0;
        self.times_ns = [0; 4];
    }
}

/// Batches that were taken together, in rank order: a chain, so that it allocates nothing.
#[derive(Debug, Default)]
pub(crate) struct BatchList {
    first: Option<Box<BatchRecord>>,
    len: usize,
}

impl BatchList {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn first(&self) -> Option<&BatchRecord> {
        self.first.as_deref()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &BatchRecord> {
        std::iter::successors(self.first.as_deref(), |record| record.next.as_deref())
    }

    pub(crate) fn push_front(&mut self, mut record: Box<BatchRecord>) {
        record.next = self.first.take();
        self.first = Some(record);
        self.len += 1;
    }

    pub(crate) fn pop_front(&mut self) -> Option<Box<BatchRecord>> {
        let mut record = self.first.take()?;
        self.first = record.next.take();
        self.len -= 1;
        Some(record)
    }
}

impl Iterator for BatchList {
    type Item = Box<BatchRecord>;

    fn next(&mut self) -> Option<Self::Item> {
        self.pop_front()
    }
}

/// Records that wait for their next use.
#[derive(Debug, Default)]
#[expect(
    clippy::vec_box,
    reason = "records move between lists as boxes; unboxing would copy them"
)]
pub(super) struct BatchPool(Vec<Box<BatchRecord>>);

impl BatchPool {
    /// Makes sure that batches of a plan of so many pushes and pulls find records.
    pub(super) fn stock(&mut self, pushes: usize, pulls: usize) {
        while self.0.len() < STOCK_LEN {
            self.0.push(Box::default());
        }
        for record in self.0.iter_mut().rev().take(STOCK_LEN) {
            record.reserve(pushes, pulls);
        }
    }

    pub(super) fn take(&mut self) -> Box<BatchRecord> {
        self.0.pop().unwrap_or_default()
    }

    pub(super) fn give(&mut self, mut record: Box<BatchRecord>) {
        record.clear();
        if self.0.len() < POOL_LEN_MAX {
            self.0.push(record);
        }
    }
}

/// Records that are there before the first batch: its worker may send the next one before the answer
/// to it is known to have left.
const STOCK_LEN: usize = 2;

/// Records that are kept: a burst of batches does not hold memory for ever.
const POOL_LEN_MAX: usize = 1024;
