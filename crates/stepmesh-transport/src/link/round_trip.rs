//! The time to a retransmission, learnt from round trips as RFC 6298 does.

use super::options::LinkOptions;

/// Smoothed round trip time and the retransmission time that follows from it.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundTrip {
    smoothed_ns: Option<u64>,
    variation_ns: u64,
    retransmit_ns: u64,
    min_ns: u64,
    max_ns: u64,
    ack_delay_ns: u64,
}

impl RoundTrip {
    pub(super) fn new(options: &LinkOptions) -> Self {
        let max_ns = options.retransmit_max_ns.max(1);
        Self {
            smoothed_ns: None,
            variation_ns: 0,
            retransmit_ns: options.retransmit_initial_ns.clamp(1, max_ns),
            min_ns: options.retransmit_min_ns.clamp(1, max_ns),
            max_ns,
            ack_delay_ns: options.ack_delay_ns,
        }
    }

    /// Takes a measured round trip of a unit that was sent once: which copy of a unit was
    /// acknowledged cannot be told otherwise (Karn).
    pub(super) fn measured(&mut self, sample_ns: u64) {
        let smoothed_ns = match self.smoothed_ns {
            None => {
                self.variation_ns = sample_ns / 2;
                sample_ns
            }
            Some(smoothed_ns) => {
                let error_ns = smoothed_ns.abs_diff(sample_ns);
                self.variation_ns = self.variation_ns - self.variation_ns / 4 + error_ns / 4;
                smoothed_ns - smoothed_ns / 8 + sample_ns / 8
            }
        };
        self.smoothed_ns = Some(smoothed_ns);
        self.retransmit_ns = smoothed_ns
            .saturating_add(self.variation_ns.saturating_mul(4))
            .saturating_add(self.ack_delay_ns)
            .clamp(self.min_ns, self.max_ns);
    }

    /// A unit that was sent several times took this long in all, so a round trip takes no longer.
    /// Later units wait that long, and half as much again as round trips differ, until one of them
    /// is measured: or a round trip longer than the first guess would have each of them sent
    /// twice, and none ever measured.
    pub(super) fn bounded_by(&mut self, elapsed_ns: u64) {
        let wait_ns = elapsed_ns.saturating_add(elapsed_ns / 2);
        self.retransmit_ns = self.retransmit_ns.max(wait_ns).min(self.max_ns);
    }

    pub(super) fn retransmit_ns(&self) -> u64 {
        self.retransmit_ns
    }

    pub(super) fn doubled(&self, retransmit_ns: u64) -> u64 {
        retransmit_ns.saturating_mul(2).min(self.max_ns)
    }
}
