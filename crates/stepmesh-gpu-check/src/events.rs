//! How long it takes to mark a stream's end and to learn that it was reached.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use anyhow::Result;
use stepmesh_core::{Backend, Device, EventOptions, WaitMode};

use crate::rows::{Rows, microseconds};

pub(crate) fn measure(backend: &Backend, device: &Device, rows: &mut Rows) -> Result<()> {
    let stream = device.create_stream()?;
    let event = device.create_event(EventOptions::default())?;
    let by_event = samples(|| {
        event.record(&stream)?;
        Ok(event.synchronize(LONG, WaitMode::Spin)?)
    })?;
    let memory = device.create_mem_event()?;
    let by_memory = samples(|| {
        let seq = memory.arm_next(&stream)?;
        Ok(memory.wait(seq, LONG)?)
    })?;
    let by_query = samples(|| {
        // The same work before it: a stream without any is done at once.
        event.record(&stream)?;
        while !stream.is_done()? {
            std::hint::spin_loop();
        }
        Ok(())
    })?;
    let name = backend.name();
    rows.add(
        "record and wait, event",
        by_event,
        format!("polled by {name}'s event_query"),
    );
    rows.add(
        "record and wait, mem-event",
        by_memory,
        "polled by loads of the host",
    );
    rows.add(
        "record and wait, stream query",
        by_query,
        "polled by stream_query",
    );
    Ok(())
}

fn samples(mut round: impl FnMut() -> Result<()>) -> Result<String> {
    for _ in 0..WARM_UP {
        round()?;
    }
    let mut samples = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        round()?;
        samples.push(start.elapsed());
    }
    Ok(microseconds(&mut samples))
}

/// Rounds before those that count.
const WARM_UP: usize = 100;
/// Rounds that count: enough for a 99th percentile.
const ROUNDS: usize = 2000;
/// More than a mark takes on any device that works.
const LONG: Duration = Duration::from_secs(10);
