//! What it costs to wait for a mem-event that is due already, beside a bare loop of atomic loads.

use std::hint::{self, black_box};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use stepmesh_core::config::Config;

use crate::bench::mesh;
use crate::bench::statistics::{median, ratio_of_pairs};

/// Costs of one wait, in nanoseconds.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct MemEventOutcome {
    pub(crate) wait_ns: f64,
    /// The loop around a load.
    pub(crate) poll_ns: f64,
    /// The median over the pairs of neighbouring blocks, of their ratio.
    pub(crate) ratio: f64,
}

/// Measures both in turns for `budget`, on the cpu backend.
pub(crate) fn measure(config: &Config, budget: Duration) -> Result<MemEventOutcome> {
    let mut config = config.clone();
    config.backend = "cpu".into();
    let device = mesh::device(&config)?;
    let (stream, event) = (device.create_stream()?, device.create_mem_event()?);
    let seq = event.arm_next(&stream)?;
    event.wait(seq, LONGEST)?;
    let word = AtomicU64::new(seq);
    // Where they are and what is waited for must stay unknown until the program runs.
    let (event, word, seq) = (black_box(&event), black_box(&word), black_box(seq));
    let (mut wait_ns, mut poll_ns, mut pairs) = (Vec::new(), Vec::new(), Vec::new());
    let deadline = Instant::now() + budget;
    while Instant::now() < deadline || pairs.is_empty() {
        let ours = block(|| Ok(event.wait(seq, LONGEST)?))?;
        let bare = block(|| {
            while word.load(Ordering::Acquire) < seq {
                hint::spin_loop();
            }
            Ok(())
        })?;
        wait_ns.push(ours);
        poll_ns.push(bare);
        pairs.push((ours, bare));
    }
    Ok(MemEventOutcome {
        wait_ns: median(&wait_ns).unwrap_or_default(),
        poll_ns: median(&poll_ns).unwrap_or_default(),
        ratio: ratio_of_pairs(&pairs).context("the loads took no time at all")?,
    })
}

/// The cost of one of many waits.
#[inline]
fn block(mut wait: impl FnMut() -> Result<()>) -> Result<f64> {
    let started = Instant::now();
    for _ in 0..WAITS {
        wait()?;
    }
    Ok(started.elapsed().as_secs_f64() * 1e9 / f64::from(WAITS))
}

/// Far longer than the stream needs to raise the number.
const LONGEST: Duration = Duration::from_secs(5);

/// Waits of a block: about 100 µs.
const WAITS: u32 = 100_000;
