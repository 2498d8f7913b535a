//! Copies within the device: through the backend, and the same by the driver's bare call.
#![expect(unsafe_code, reason = "copies by the driver's bare call")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use stepmesh_core::Device;

use crate::bare::Bare;
use crate::rows::{Rows, gigabytes_per_second};

pub(crate) fn measure(device: &Device, bare: &Bare, rows: &mut Rows) -> Result<()> {
    let stream = device.create_stream()?;
    let _current = bare.enter(device.ordinal())?;
    for len in LENGTHS {
        let (from, to) = (Arc::new(device.alloc(len)?), Arc::new(device.alloc(len)?));
        let count = (BYTES_EACH / len).clamp(ROUNDS_MIN, ROUNDS_MAX);
        let by_backend = || -> Result<()> {
            for _ in 0..count {
                stream.copy(&to, 0, &from, 0, len)?;
            }
            Ok(stream.synchronize(LONG)?)
        };
        let by_hand = || -> Result<()> {
            let (dst, src) = (to.device_ptr(), from.device_ptr());
            for _ in 0..count {
                // SAFETY: two buffers of the device, which live until the wait below.
                unsafe { bare.copy(dst, src, len, stream.handle())? };
            }
            // SAFETY: the stream is alive.
            unsafe { bare.wait(stream.handle()) }
        };
        // Once each for the caches, then by turns, and the best of each: noise only slows down.
        by_backend()?;
        by_hand()?;
        let (mut ours, mut bares) = (Duration::MAX, Duration::MAX);
        for _ in 0..TURNS {
            ours = ours.min(timed(by_backend)?);
            bares = bares.min(timed(by_hand)?);
        }
        let [ours, bares] = [ours, bares].map(|took| gigabytes_per_second(len * count, took));
        rows.add(
            format!("copy within the device, {} KiB", len >> 10),
            format!("{ours:.2} GB/s"),
            format!(
                "{bares:.2} GB/s by cuMemcpyDtoDAsync, ratio {:.3}",
                ours / bares
            ),
        );
    }
    Ok(())
}

fn timed(work: impl Fn() -> Result<()>) -> Result<Duration> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed())
}

/// A token's hidden states, a layer's worth of them, and what shows the memory's speed.
const LENGTHS: [u64; 3] = [16 << 10, 1 << 20, 128 << 20];
/// Bytes copied in a turn, within the numbers of copies below.
const BYTES_EACH: u64 = 1 << 30;
const ROUNDS_MIN: u64 = 4;
/// No more than a stream takes without a wait on any device.
const ROUNDS_MAX: u64 = 512;
/// Turns of each.
const TURNS: u32 = 5;
/// More than all copies of a turn take.
const LONG: Duration = Duration::from_secs(60);
