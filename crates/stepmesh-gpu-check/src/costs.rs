//! What allocating memory, registering the host's and getting memory ready for a network adapter costs.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use anyhow::Result;
use stepmesh_core::{AllocFlags, AllocOptions, Device, DmabufMapping, MemoryKind};

use crate::bare::Bare;
use crate::rows::{Rows, microseconds};

pub(crate) fn measure(device: &Device, bare: &Bare, rows: &mut Rows) -> Result<()> {
    registration(device, bare, rows)?;
    let rdma = AllocOptions {
        flags: AllocFlags::RDMA,
        ..AllocOptions::default()
    };
    let pinned = AllocOptions {
        kind: MemoryKind::HostPinned,
        ..AllocOptions::default()
    };
    for (what, len, options) in [
        ("alloc, 2 MiB", 2 << 20, AllocOptions::default()),
        ("alloc, 64 MiB for adapters", 64 << 20, rdma),
        ("alloc, 64 MiB pinned", 64 << 20, pinned),
    ] {
        let (mut took, mut gone) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let start = Instant::now();
            let buffer = device.alloc_with(len, options)?;
            took.push(start.elapsed());
            let start = Instant::now();
            buffer.release()?;
            gone.push(start.elapsed());
        }
        rows.add(
            what,
            microseconds(&mut took),
            format!("free {}", microseconds(&mut gone)),
        );
    }
    let buffer = device.alloc_with(64 << 20, rdma)?;
    let what = "export as a dma-buf, 64 MiB";
    let Some(adapters) = device.rdma() else {
        rows.add_bad(what, "no stepmesh.rdma.v1", "");
        return Ok(());
    };
    for mapping in [DmabufMapping::Default, DmabufMapping::Pcie] {
        let offered = adapters.capabilities()?.has_mapping(mapping);
        let what = format!("{what}, {mapping:?} mapping");
        if !offered {
            rows.add(what, "not offered", "");
            continue;
        }
        let mut took: Vec<Duration> = Vec::new();
        for _ in 0..ROUNDS {
            let start = Instant::now();
            drop(adapters.export(&buffer, 0, 64 << 20, mapping)?);
            took.push(start.elapsed());
        }
        rows.add(what, microseconds(&mut took), "with its close");
    }
    Ok(())
}

/// The driver's call alone: the backend adds an entry in a table.
fn registration(device: &Device, bare: &Bare, rows: &mut Rows) -> Result<()> {
    let _current = bare.enter(device.ordinal())?;
    // Written, so that the pages are there.
    let mut memory = vec![1_u8; 64 << 20];
    let (mut took, mut gone) = (Vec::new(), Vec::new());
    for _ in 0..REGISTRATIONS {
        let [registered, undone] = bare.register(&mut memory)?;
        took.push(registered);
        gone.push(undone);
    }
    rows.add(
        "register 64 MiB of host memory",
        microseconds(&mut took),
        format!("by cuMemHostRegister, undone {}", microseconds(&mut gone)),
    );
    Ok(())
}

/// Rounds of a call that takes milliseconds.
const REGISTRATIONS: usize = 10;
/// Rounds of each.
const ROUNDS: usize = 50;
