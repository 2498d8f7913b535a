//! What can be set on the simulated network, and what it counts.

#![forbid(unsafe_code)]

use crate::fabric::Limits;
use crate::link::options::LinkOptions;

/// Set once, when the network is made.
#[derive(Clone, Debug, PartialEq)]
pub struct SimOptions {
    /// The faults at the beginning.
    pub faults: Faults,
    /// Bounds and timers of every connection.
    pub link: LinkOptions,
    /// What one chain may hold.
    pub limits: Limits,
    /// Most datagrams that wait at a node which does not poll; more are lost.
    pub inbox_packets_max: usize,
    /// Most datagrams under way in the whole network; more are lost.
    pub in_flight_packets_max: usize,
    /// Most regions of a fabric, its own and imported ones each.
    pub regions_max: usize,
    /// Most lines of the trace; the oldest go first. 0: no trace.
    pub trace_lines_max: usize,
}

/// What the network does to datagrams, per direction. Can be changed at any time.
///
/// Probabilities are from 0 to 1; anything else counts as the nearer of these.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Faults {
    /// Probability that a datagram gets lost.
    pub loss: f64,
    /// Probability that a datagram comes twice, each copy with its own delay.
    pub duplication: f64,
    /// Probability that a datagram may overtake those before it and be overtaken by those after.
    pub reorder: f64,
    /// Shortest delay, in nanoseconds.
    pub delay_min_ns: u64,
    /// Longest delay, in nanoseconds; the delay is drawn evenly between both.
    pub delay_max_ns: u64,
    /// Bytes a second that fit through; `None`: any number.
    pub bandwidth_bytes_per_s: Option<u64>,
}

/// What the network counted since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Datagrams that nodes gave to the network.
    pub sent: u64,
    /// Datagrams that came to a node's inbox, copies included.
    pub arrived: u64,
    /// Datagrams that loss, partitions, death and full queues took.
    pub lost: u64,
    /// Datagrams of which a second copy was made.
    pub duplicated: u64,
    /// Datagrams that carried a chain which had been sent before.
    pub retransmitted: u64,
    /// Datagrams that a node recognised as a copy.
    pub recognised_copies: u64,
    /// Datagrams that a node refused: damaged, of another life, of no connection.
    pub refused: u64,
    /// Messages that were delivered.
    pub delivered: u64,
}

impl Default for SimOptions {
    /// A fast and faultless network with the bounds of the mesh's own defaults.
    fn default() -> Self {
        Self {
            faults: Faults::default(),
            link: LinkOptions::default(),
            limits: Limits {
                writes_max: 256,
                message_len_bytes_max: 16384,
                message_inline_len_bytes: 64,
            },
            inbox_packets_max: 4096,
            in_flight_packets_max: 1 << 16,
            regions_max: 1 << 16,
            trace_lines_max: 1 << 16,
        }
    }
}

impl Default for Faults {
    /// No faults; 5 to 20 us one way, in order.
    fn default() -> Self {
        Self {
            loss: 0.0,
            duplication: 0.0,
            reorder: 0.0,
            delay_min_ns: 5_000,
            delay_max_ns: 20_000,
            bandwidth_bytes_per_s: None,
        }
    }
}
