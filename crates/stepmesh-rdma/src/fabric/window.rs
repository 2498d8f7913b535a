//! Credit of send queues: how many work requests are outstanding on each queue pair, and which chains
//! are still on their way. Pure counting.
//!
//! Only the last request of a chain on each queue pair is signalled. A queue pair works in order, so
//! its completion frees the places of all before it.

#![forbid(unsafe_code)]

use std::collections::VecDeque;

/// The send queue of one queue pair.
#[derive(Debug)]
pub(super) struct SendWindow {
    depth: usize,
    outstanding: usize,
    /// What was posted and has not completed, oldest first.
    posted: VecDeque<Posted>,
}

/// What one signalled request stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Posted {
    /// With the unsignalled ones before it.
    requests: usize,
    chain: Option<u64>,
}

/// The chains of a peer that were posted, oldest first.
#[derive(Debug, Default)]
pub(super) struct Chains {
    sending: VecDeque<Sending>,
    /// The number of the first in `sending`.
    first: u64,
}

/// A chain on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sending {
    pub(super) token: u64,
    /// How many regions it reads from.
    pub(super) sources: usize,
    /// Queue pairs that have not completed their part.
    parts_left: usize,
}

impl SendWindow {
    pub(super) fn new(depth: usize) -> Self {
        Self {
            depth,
            outstanding: 0,
            posted: VecDeque::with_capacity(depth),
        }
    }

    /// How many requests the queue takes now.
    #[inline]
    pub(super) fn room(&self) -> usize {
        self.depth - self.outstanding
    }

    /// Notes requests of which the last is signalled. The credit for a ring belongs to no chain.
    #[inline]
    pub(super) fn post(&mut self, requests: usize, chain: Option<u64>) {
        debug_assert!(requests <= self.room() && requests > 0);
        self.outstanding += requests;
        self.posted.push_back(Posted { requests, chain });
    }

    /// Notes a completion. `Err` when nothing was outstanding.
    #[inline]
    pub(super) fn complete(&mut self) -> Result<Option<u64>, ()> {
        let posted = self.posted.pop_front().ok_or(())?;
        self.outstanding -= posted.requests;
        Ok(posted.chain)
    }
}

impl Chains {
    pub(super) fn with_capacity(capacity: usize) -> Self {
        Self {
            sending: VecDeque::with_capacity(capacity),
            first: 0,
        }
    }

    /// Adds a chain; the number it is known by.
    #[inline]
    pub(super) fn push(&mut self, token: u64, sources: usize, parts: usize) -> u64 {
        let number = self.first + self.sending.len() as u64;
        self.sending.push_back(Sending {
            token,
            sources,
            parts_left: parts,
        });
        number
    }

    /// Notes that one queue pair has done its part.
    #[inline]
    pub(super) fn part_done(&mut self, number: u64) {
        let index = usize::try_from(number.wrapping_sub(self.first)).ok();
        if let Some(sending) = index.and_then(|index| self.sending.get_mut(index)) {
            sending.parts_left = sending.parts_left.saturating_sub(1);
        }
    }

    /// The oldest chain, taken out when all of it is done: chains are reported in order.
    #[inline]
    pub(super) fn pop_done(&mut self) -> Option<Sending> {
        if self.sending.front()?.parts_left > 0 {
            return None;
        }
        self.first += 1;
        self.sending.pop_front()
    }

    /// Whether the oldest chain is done.
    #[inline]
    pub(super) fn has_done(&self) -> bool {
        self.sending
            .front()
            .is_some_and(|front| front.parts_left == 0)
    }
}

#[cfg(test)]
mod tests {
    //! Counts over posts and completions in any order.

    use super::{Chains, SendWindow};

    #[test]
    fn a_completion_frees_what_came_before_it() {
        let mut window = SendWindow::new(8);
        window.post(5, Some(0));
        window.post(1, None);
        window.post(2, Some(1));
        assert_eq!(window.room(), 0);
        assert_eq!(window.complete(), Ok(Some(0)));
        assert_eq!(window.room(), 5);
        assert_eq!(window.complete(), Ok(None));
        assert_eq!(window.complete(), Ok(Some(1)));
        assert_eq!(window.room(), 8);
        assert_eq!(window.complete(), Err(()), "more completions than requests");
    }

    #[test]
    fn chains_are_reported_in_order_and_when_all_parts_are_done() {
        let mut chains = Chains::with_capacity(4);
        let striped = chains.push(7, 3, 2);
        let small = chains.push(8, 1, 1);
        chains.part_done(small);
        chains.part_done(striped);
        assert!(!chains.has_done());
        assert_eq!(chains.pop_done(), None);
        chains.part_done(striped);
        let done: Vec<_> = std::iter::from_fn(|| chains.pop_done())
            .map(|done| (done.token, done.sources))
            .collect();
        assert_eq!(done, [(7, 3), (8, 1)]);
        chains.part_done(striped);
        let third = chains.push(9, 0, 1);
        assert_eq!(third, 2);
        chains.part_done(third);
        assert!(chains.has_done());
    }
}
