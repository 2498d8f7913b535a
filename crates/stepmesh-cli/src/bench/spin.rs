//! Waiting without sleeping, and the clock's own cost.

use std::hint;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Polls `check` until it holds. There is neither a system call nor a clock on the way unless it
/// takes long.
///
/// # Errors
/// When it does not hold within [`LONGEST`]: the other process is gone or stuck.
#[inline]
pub(crate) fn spin_until(what: &str, mut check: impl FnMut() -> bool) -> Result<()> {
    for _ in 0..SPINS_PER_CLOCK {
        if check() {
            return Ok(());
        }
        hint::spin_loop();
    }
    spin_on(what, check)
}

/// What one look at the clock costs: the median of many.
pub(crate) fn clock_cost_ns() -> u64 {
    let mut costs: Vec<u64> = (0..CLOCK_SAMPLES)
        .map(|_| {
            let started = Instant::now();
            (0..CLOCK_READS).for_each(|_| {
                hint::black_box(Instant::now());
            });
            u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX) / CLOCK_READS
        })
        .collect();
    costs.sort_unstable();
    costs.get(costs.len() / 2).copied().unwrap_or_default()
}

#[cold]
fn spin_on(what: &str, mut check: impl FnMut() -> bool) -> Result<()> {
    let started = Instant::now();
    while started.elapsed() < LONGEST {
        for _ in 0..SPINS_PER_CLOCK {
            if check() {
                return Ok(());
            }
            hint::spin_loop();
        }
        // Whoever is waited for may need this core to start up.
        std::thread::yield_now();
    }
    bail!("waited {} s for {what}", LONGEST.as_secs())
}

/// Longer than anything of the benchmark takes, the start of a process on a busy machine included.
const LONGEST: Duration = Duration::from_secs(20);

/// About a millisecond: no round trip that is measured lasts so long but the largest, which do not
/// mind a look at the clock.
const SPINS_PER_CLOCK: u32 = 1 << 15;

const CLOCK_SAMPLES: usize = 201;
const CLOCK_READS: u64 = 64;
