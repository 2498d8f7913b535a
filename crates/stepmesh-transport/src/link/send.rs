//! The sending half of a connection: which units are under way, and when each is sent again.

use std::collections::VecDeque;

use super::connection::Violation;
use super::options::LinkOptions;
use super::round_trip::RoundTrip;

/// Units that were posted and are not yet acknowledged, and those acknowledged but not yet
/// reported. Both together are bounded by the window.
#[derive(Debug)]
pub(super) struct SendWindow<O> {
    in_flight: VecDeque<InFlight<O>>,
    in_flight_len_bytes: u64,
    /// The earliest time at which one of them is due, so that an idle poll looks at none.
    earliest_due_ns: Option<u64>,
    next_sequence: u64,
    acknowledged: VecDeque<O>,
    round_trip: RoundTrip,
    /// The first unit that may be measured. One unit of each window's worth is: a row of nearly
    /// equal samples would have us forget how much round trips differ.
    measured_from: u64,
    window_units: usize,
    window_len_bytes: u64,
    retries_max: u32,
}

#[derive(Debug)]
struct InFlight<O> {
    unit: O,
    len_bytes: u64,
    due_ns: u64,
    /// When it was sent first; meaningful once `sends` is not 0.
    first_sent_ns: u64,
    sends: u32,
    /// Sends since the peer was last known to hold it; what the limit of retries counts.
    unanswered: u32,
    retransmit_ns: u64,
    held_by_peer: bool,
    early: Early,
}

/// Whether a unit was sent again before its timer, because later ones have overtaken it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Early {
    No,
    Due,
    Done,
}

impl<O> SendWindow<O> {
    pub(super) fn new(options: &LinkOptions) -> Self {
        Self {
            in_flight: VecDeque::new(),
            in_flight_len_bytes: 0,
            earliest_due_ns: None,
            next_sequence: 0,
            acknowledged: VecDeque::new(),
            round_trip: RoundTrip::new(options),
            measured_from: 0,
            window_units: options.window_units,
            window_len_bytes: options.window_len_bytes,
            retries_max: options.retries_max,
        }
    }

    pub(super) fn has_room(&self, len_bytes: u64) -> bool {
        let units = self.in_flight.len() + self.acknowledged.len();
        let total_len_bytes = self.in_flight_len_bytes.saturating_add(len_bytes);
        units < self.window_units
            && (self.in_flight.is_empty() || total_len_bytes <= self.window_len_bytes)
    }

    pub(super) fn push(&mut self, unit: O, len_bytes: u64, now_ns: u64) {
        debug_assert!(self.has_room(len_bytes));
        self.in_flight.push_back(InFlight {
            unit,
            len_bytes,
            due_ns: now_ns,
            first_sent_ns: now_ns,
            sends: 0,
            unanswered: 0,
            retransmit_ns: self.round_trip.retransmit_ns(),
            held_by_peer: false,
            early: Early::No,
        });
        self.in_flight_len_bytes = self.in_flight_len_bytes.saturating_add(len_bytes);
        self.next_sequence += 1;
        self.find_earliest();
    }

    /// Takes an acknowledgement: `delivered` units were delivered, and of those after them the
    /// bits of `held` wait for their turn. An old one, overtaken by a newer, changes nothing.
    pub(super) fn acknowledge(
        &mut self,
        delivered: u64,
        held: u64,
        now_ns: u64,
    ) -> Result<(), Violation> {
        let highest = match held.checked_ilog2() {
            Some(bit) => delivered.saturating_add(u64::from(bit) + 1),
            None => delivered,
        };
        if highest > self.next_sequence {
            return Err(Violation("it acknowledged units that were never sent"));
        }
        while self.first_sequence() < delivered {
            let sequence = self.first_sequence();
            let Some(acknowledged) = self.in_flight.pop_front() else {
                break;
            };
            if acknowledged.sends == 0 {
                return Err(Violation("it acknowledged units that were never sent"));
            }
            self.learn(sequence, &acknowledged, now_ns);
            self.in_flight_len_bytes -= acknowledged.len_bytes;
            self.acknowledged.push_back(acknowledged.unit);
        }
        self.note_held(delivered, held, now_ns);
        self.find_earliest();
        Ok(())
    }

    pub(super) fn take_acknowledged(&mut self) -> Option<O> {
        self.acknowledged.pop_front()
    }

    pub(super) fn has_acknowledged(&self) -> bool {
        !self.acknowledged.is_empty()
    }

    /// The next unit that is to be sent now: its number, itself, and whether it was sent before.
    pub(super) fn next_due(&mut self, now_ns: u64) -> Option<(u64, &O, bool)> {
        if !self.is_due(now_ns) {
            return None;
        }
        let index = self
            .in_flight
            .iter()
            .position(|unit| unit.due_ns <= now_ns)?;
        let round_trip = self.round_trip;
        let unit = self.in_flight.get_mut(index)?;
        if unit.sends == 0 {
            unit.first_sent_ns = now_ns;
        } else if unit.early == Early::Due {
            unit.early = Early::Done;
        } else {
            unit.retransmit_ns = round_trip.doubled(unit.retransmit_ns);
        }
        unit.sends = unit.sends.saturating_add(1);
        unit.unanswered = unit.unanswered.saturating_add(1);
        // Never due again at once, whatever the options say.
        unit.due_ns = now_ns.saturating_add(unit.retransmit_ns.max(1));
        self.find_earliest();
        let sequence = self.first_sequence() + index as u64;
        let unit = self.in_flight.get(index)?;
        Some((sequence, &unit.unit, unit.sends > 1))
    }

    /// Whether a unit was sent as often as allowed and its last wait is over.
    pub(super) fn is_exhausted(&self, now_ns: u64) -> bool {
        let is_exhausted =
            |unit: &InFlight<O>| unit.due_ns <= now_ns && unit.unanswered > self.retries_max;
        self.is_due(now_ns) && self.in_flight.iter().any(is_exhausted)
    }

    pub(super) fn next_due_ns(&self) -> Option<u64> {
        self.earliest_due_ns
    }

    /// Whether there is a unit to be sent now.
    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        self.earliest_due_ns.is_some_and(|due_ns| due_ns <= now_ns)
    }

    fn find_earliest(&mut self) {
        self.earliest_due_ns = self.in_flight.iter().map(|unit| unit.due_ns).min();
    }

    fn first_sequence(&self) -> u64 {
        self.next_sequence - self.in_flight.len() as u64
    }

    fn learn(&mut self, sequence: u64, acknowledged: &InFlight<O>, now_ns: u64) {
        let elapsed_ns = now_ns.saturating_sub(acknowledged.first_sent_ns);
        if acknowledged.sends > 1 {
            self.round_trip.bounded_by(elapsed_ns);
        } else if sequence >= self.measured_from {
            self.measured_from = self.next_sequence;
            self.round_trip.measured(elapsed_ns);
        }
    }

    /// Marks what the peer holds, and sends at once, and once, what [`OVERTAKEN_MAX`] later units
    /// have overtaken: it was lost.
    ///
    /// A unit that the peer holds keeps its timer: the acknowledgement of its delivery may get
    /// lost, and the answer to a duplicate is how we then learn of it.
    fn note_held(&mut self, delivered: u64, held: u64, now_ns: u64) {
        let first_sequence = self.first_sequence();
        let mut later_held = 0_u32;
        for index in (0..self.in_flight.len()).rev() {
            let unit = &mut self.in_flight[index];
            let bit = (first_sequence + index as u64).checked_sub(delivered);
            let is_held = bit.is_some_and(|bit| bit < 64 && held & (1 << bit) != 0);
            if is_held {
                unit.unanswered = 0;
            }
            if is_held && !unit.held_by_peer {
                unit.held_by_peer = true;
                unit.early = Early::Done;
                unit.due_ns = now_ns.saturating_add(unit.retransmit_ns);
            }
            if unit.held_by_peer {
                later_held += 1;
            } else if later_held >= OVERTAKEN_MAX && unit.sends > 0 && unit.early == Early::No {
                unit.early = Early::Due;
                unit.due_ns = now_ns;
            }
        }
    }
}

/// A unit overtaken by so many is taken for lost, as in TCP: fewer is common reordering.
const OVERTAKEN_MAX: u32 = 3;
