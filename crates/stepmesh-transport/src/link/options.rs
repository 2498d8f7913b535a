//! The bounds and timers of a link.

/// Bounds and timers of every connection of an endpoint. All times are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkOptions {
    /// Most units that were posted and are not acknowledged; 1 to [`WINDOW_UNITS_MAX`].
    pub window_units: usize,
    /// Most bytes of such units. One unit may be longer if it is alone.
    pub window_len_bytes: u64,
    /// How long an acknowledgement may wait for a packet that could carry it.
    pub ack_delay_ns: u64,
    /// Time to the first retransmission before a round trip was measured.
    pub retransmit_initial_ns: u64,
    /// Shortest time to a retransmission, whatever was measured.
    pub retransmit_min_ns: u64,
    /// Longest time between retransmissions; the back-off doubles up to here.
    pub retransmit_max_ns: u64,
    /// How often one unit is sent again before the connection is given up.
    pub retries_max: u32,
    /// A connection that sent nothing for so long sends an acknowledgement, to be heard.
    pub keep_alive_ns: u64,
    /// A connection that heard nothing for so long is dead.
    pub silence_ns: u64,
    /// Most connections of an endpoint.
    pub peers_max: usize,
}

impl Default for LinkOptions {
    /// Suits a fast local network and the mesh's default bound of 2 s on a peer's death: eight
    /// keep-alives fit into the silence, and all retransmissions into about the same time.
    fn default() -> Self {
        Self {
            window_units: WINDOW_UNITS_MAX,
            window_len_bytes: 64 << 20,
            ack_delay_ns: 100_000,
            retransmit_initial_ns: 1_000_000,
            retransmit_min_ns: 200_000,
            retransmit_max_ns: 200_000_000,
            retries_max: 16,
            keep_alive_ns: 250_000_000,
            silence_ns: 2_000_000_000,
            peers_max: 1024,
        }
    }
}

impl LinkOptions {
    /// How long a unit is tried at least, in nanoseconds: all waits of its retransmissions, when
    /// round trips are short.
    pub fn retries_duration_ns(&self) -> u64 {
        let mut wait_ns = self.retransmit_min_ns;
        let mut total_ns = wait_ns;
        for _ in 0..self.retries_max {
            wait_ns = wait_ns.saturating_mul(2).min(self.retransmit_max_ns);
            total_ns = total_ns.saturating_add(wait_ns);
            if wait_ns == 0 {
                break;
            }
        }
        total_ns
    }

    /// The same options with the window brought into its range, and no keep-alive due at once
    /// after the one before.
    pub(super) fn normalised(mut self) -> Self {
        self.window_units = self.window_units.clamp(1, WINDOW_UNITS_MAX);
        self.keep_alive_ns = self.keep_alive_ns.max(1);
        self
    }
}

/// Widest window, in units: the selective acknowledgement is one word of 64 bits.
pub const WINDOW_UNITS_MAX: usize = 64;
