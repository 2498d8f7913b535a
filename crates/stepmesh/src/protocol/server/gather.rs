//! Taking batches: from every worker, matched by tag, or from whoever comes first.

use std::sync::Arc;

use crate::error::list;
use crate::protocol::wire::Tag;

use super::batch::BatchList;
use super::{ServerMachine, Worker};

impl ServerMachine {
    /// Takes one batch of every living worker, all with the same tag, in rank order. Of several
    /// tags that are complete, the one that came first from the first worker wins. `None` if there
    /// is none, or nobody lives.
    pub(crate) fn take_matched(&mut self) -> Option<BatchList> {
        let mut living = self.workers.iter().filter(|worker| worker.link.is_up());
        let first = living.next()?;
        let everybody_has = |tag: Tag| {
            living
                .clone()
                .all(|worker| worker.oldest(Some(tag)).is_some())
        };
        let mut tags = first.ready.iter().map(|record| record.tag);
        let tag = tags.find(|tag| everybody_has(*tag))?;
        let mut list = BatchList::default();
        for index in (0..self.workers.len()).rev() {
            self.take(index, Some(tag), &mut list);
        }
        Some(list)
    }

    /// Takes the batch that has waited longest, of any worker.
    pub(crate) fn take_any(&mut self) -> Option<BatchList> {
        let oldest = self
            .workers
            .iter()
            .enumerate()
            .filter_map(|(index, worker)| {
                let record = worker.ready.front()?;
                Some((record.times_ns[0], index))
            });
        let (_, index) = oldest.min()?;
        let mut list = BatchList::default();
        self.take(index, None, &mut list);
        Some(list)
    }

    /// Who has no batch waiting.
    pub(crate) fn without_batch(&self) -> Arc<str> {
        let without = self.workers.iter().filter(|worker| worker.ready.is_empty());
        list(without.map(|worker| {
            let state = if worker.link.is_up() {
                "no batch"
            } else {
                "not connected"
            };
            format!("{} ({state})", worker.link.member)
        }))
    }

    fn take(&mut self, index: usize, tag: Option<Tag>, out: &mut BatchList) {
        let Some(worker) = self.workers.get_mut(index) else {
            return;
        };
        let Some(position) = worker.oldest(tag) else {
            return;
        };
        if let Some(mut record) = worker.ready.remove(position) {
            if self.limits.trace {
                record.times_ns[1] = self.clock.now_ns();
            }
            out.push_front(record);
        }
    }
}

impl Worker {
    fn oldest(&self, tag: Option<Tag>) -> Option<usize> {
        self.ready
            .iter()
            .position(|record| tag.is_none_or(|tag| record.tag == tag))
    }
}
