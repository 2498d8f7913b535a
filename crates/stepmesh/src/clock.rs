//! The clock that the protocol is given: the system's monotonic one, or a test's.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// A monotonic clock. Cloning gives the same clock.
#[derive(Clone, Debug)]
pub(crate) struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    Monotonic {
        start: Instant,
    },
    #[cfg_attr(not(test), expect(dead_code, reason = "only tests simulate time"))]
    Simulated(Arc<AtomicU64>),
}

impl Clock {
    /// The system's monotonic clock.
    pub(crate) fn monotonic() -> Self {
        Self(Source::Monotonic {
            start: Instant::now(),
        })
    }

    /// A clock that shows what a test writes into it, in nanoseconds.
    #[cfg(test)]
    pub(crate) fn simulated(now_ns: Arc<AtomicU64>) -> Self {
        Self(Source::Simulated(now_ns))
    }

    /// Nanoseconds since some point before the clock was made; never 0.
    pub(crate) fn now_ns(&self) -> u64 {
        match &self.0 {
            // 2^64 ns are 584 years.
            Source::Monotonic { start } => u64::try_from(start.elapsed().as_nanos())
                .unwrap_or(u64::MAX)
                .saturating_add(1),
            Source::Simulated(now_ns) => now_ns.load(Ordering::Relaxed).saturating_add(1),
        }
    }
}
