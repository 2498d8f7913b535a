//! The clock that the protocol is given: the system's monotonic one, or a test's.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A monotonic clock. Cloning gives the same clock.
#[derive(Clone, Debug)]
pub(crate) struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    /// The processor's time-stamp counter where it is invariant, else the system's clock. A read
    /// of the system's clock costs some 25 ns, and a request takes seven.
    Monotonic { clock: quanta::Clock, start: u64 },
    #[cfg_attr(not(test), expect(dead_code, reason = "only tests simulate time"))]
    Simulated(Arc<AtomicU64>),
}

impl Clock {
    /// The system's monotonic clock.
    pub(crate) fn monotonic() -> Self {
        let clock = quanta::Clock::new();
        let start = clock.raw();
        Self(Source::Monotonic { clock, start })
    }

    /// A clock that shows what a test writes into it, in nanoseconds.
    #[cfg(test)]
    pub(crate) fn simulated(now_ns: Arc<AtomicU64>) -> Self {
        Self(Source::Simulated(now_ns))
    }

    /// Nanoseconds since some point before the clock was made; never 0.
    pub(crate) fn now_ns(&self) -> u64 {
        match &self.0 {
            Source::Monotonic { clock, start } => {
                clock.delta_as_nanos(*start, clock.raw()).saturating_add(1)
            }
            Source::Simulated(now_ns) => now_ns.load(Ordering::Relaxed).saturating_add(1),
        }
    }
}
