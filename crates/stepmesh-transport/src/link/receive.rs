//! The receiving half of a connection: duplicates are dropped, early units wait for their turn.

use std::collections::BTreeMap;

use super::connection::{Arrival, Violation};

/// Units that arrived and were not delivered yet.
#[derive(Debug)]
pub(super) struct ReceiveWindow<I> {
    held: BTreeMap<u64, (I, u64)>,
    held_len_bytes: u64,
    delivered: u64,
    window_units: u64,
    window_len_bytes: u64,
}

impl<I> ReceiveWindow<I> {
    pub(super) fn new(window_units: u64, window_len_bytes: u64) -> Self {
        Self {
            held: BTreeMap::new(),
            held_len_bytes: 0,
            delivered: 0,
            window_units,
            window_len_bytes,
        }
    }

    pub(super) fn arrived(
        &mut self,
        sequence: u64,
        unit: I,
        len_bytes: u64,
    ) -> Result<Arrival, Violation> {
        if sequence < self.delivered || self.held.contains_key(&sequence) {
            return Ok(Arrival::Duplicate);
        }
        if sequence - self.delivered >= self.window_units {
            return Err(Violation("it sent more units ahead than the window holds"));
        }
        let is_next = sequence == self.delivered;
        let total_len_bytes = self.held_len_bytes.saturating_add(len_bytes);
        // The next unit is always taken: waiting for it, nothing else could ever be delivered.
        if total_len_bytes > self.window_len_bytes && !is_next {
            return Ok(Arrival::Dropped);
        }
        self.held_len_bytes = total_len_bytes;
        self.held.insert(sequence, (unit, len_bytes));
        Ok(if is_next && self.held.len() == 1 {
            Arrival::InOrder
        } else {
            Arrival::OutOfOrder
        })
    }

    pub(super) fn has_next(&self) -> bool {
        self.held.contains_key(&self.delivered)
    }

    pub(super) fn deliver_next(&mut self) -> Option<I> {
        let (unit, len_bytes) = self.held.remove(&self.delivered)?;
        self.held_len_bytes -= len_bytes;
        self.delivered += 1;
        Some(unit)
    }

    pub(super) fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Bit `i`: unit `delivered + i` is here.
    pub(super) fn held_bitmap(&self) -> u64 {
        self.held.keys().fold(0, |bitmap, sequence| {
            bitmap | 1 << (sequence - self.delivered)
        })
    }
}
