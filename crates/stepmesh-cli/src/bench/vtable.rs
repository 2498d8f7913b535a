//! What a call through the table of a loaded plugin costs more than the same call without a table:
//! the same function of the same backend, compiled into this program.
#![expect(unsafe_code, reason = "calls a function of the C table")]

use std::hint::black_box;
use std::ptr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use stepmesh_backend_cpu::Cpu;
use stepmesh_core::abi::{SmBackend, SmBackendApi, SmError, SmPluginInfo};
use stepmesh_core::config::Config;
use stepmesh_core::{Backend, Registry};

use crate::bench::statistics::median;

/// Costs of one call, in nanoseconds.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct VtableOutcome {
    /// Through the table of the plugin's file.
    pub(crate) loaded_ns: f64,
    /// Linked into the program.
    pub(crate) direct_ns: f64,
    /// The median over the pairs of neighbouring blocks, of their difference.
    pub(crate) extra_ns: f64,
}

/// Measures both in turns for `budget`.
///
/// # Errors
/// When there is no file of the cpu plugin to load.
pub(crate) fn measure(config: &Config, budget: Duration) -> Result<VtableOutcome> {
    let registry = Registry::discover(&config.plugins);
    let loaded = open(&registry, true)?;
    let direct = open(&registry, false)?;
    // Which function it is must stay unknown until the program runs, as it is for any plugin.
    let through_table = black_box(loaded.as_raw().api).device_count;
    let through_table = through_table.context("the cpu plugin has no device_count")?;
    let (loaded, direct) = (loaded.as_raw().handle, direct.as_raw().handle);
    let (mut loaded_ns, mut direct_ns, mut extra_ns) = (Vec::new(), Vec::new(), Vec::new());
    let deadline = Instant::now() + budget;
    while Instant::now() < deadline || extra_ns.is_empty() {
        // SAFETY: the slot belongs to the table of the backend that the handle is of; any thread
        // may call it, and the other pointers are the block's own locals.
        let ours = block(|n, e| unsafe { through_table(black_box(loaded), n, e) })?;
        // SAFETY: the backend is the one that is linked in, whose table has this very function.
        let bare = block(|n, e| unsafe { device_count(black_box(direct), n, e) })?;
        loaded_ns.push(ours);
        direct_ns.push(bare);
        extra_ns.push(ours - bare);
    }
    Ok(VtableOutcome {
        loaded_ns: median(&loaded_ns).unwrap_or_default(),
        direct_ns: median(&direct_ns).unwrap_or_default(),
        extra_ns: median(&extra_ns).unwrap_or_default(),
    })
}

/// Opens the cpu backend: that of the plugin's file, or the one that is linked into the program.
pub(crate) fn open(registry: &Registry, from_file: bool) -> Result<Backend> {
    let candidates = registry.candidates().iter();
    let mut wanted = candidates.filter(|candidate| {
        candidate.name() == Some("cpu") && candidate.path().is_some() == from_file
    });
    let what = if from_file {
        "no file of the cpu plugin was found (cargo xtask build-plugins --release)"
    } else {
        "the cpu backend is not linked into this program"
    };
    wanted
        .next()
        .context(what)?
        .open()
        .map_err(|reason| anyhow::anyhow!("the cpu backend does not open: {reason}"))
}

/// The cost of one of many calls that ask for the number of devices.
#[inline]
fn block(mut call: impl FnMut(*mut u32, *mut SmError) -> i32) -> Result<f64> {
    let mut count = 0_u32;
    let started = Instant::now();
    for _ in 0..CALLS {
        let status = call(black_box(&raw mut count), ptr::null_mut());
        ensure!(status == 0, "device_count failed with status {status}");
    }
    let elapsed = started.elapsed();
    ensure!(count > 0, "the cpu backend has no device");
    Ok(elapsed.as_secs_f64() * 1e9 / f64::from(CALLS))
}

/// The slot as an ordinary function of this program. It is called, not merged into the loop around
/// it: the table's price is that of a pointer, and no accelerator's driver could be merged either.
///
/// # Safety
/// - As for the slot.
#[inline(never)]
unsafe extern "C" fn device_count(s: *mut SmBackend, n: *mut u32, err: *mut SmError) -> i32 {
    // SAFETY: this function's contract.
    unsafe { DIRECT(s, n, err) }
}

type DeviceCount = unsafe extern "C" fn(*mut SmBackend, *mut u32, *mut SmError) -> i32;

/// Known at compile time, so that calling it is calling a function.
const DIRECT: DeviceCount = match TABLE.device_count {
    Some(device_count) => device_count,
    None => panic!("the cpu backend has device_count"),
};

const TABLE: SmBackendApi =
    stepmesh_plugin::table::<Cpu>(const { &SmPluginInfo::new("cpu", "", "", "") });

/// Calls of a block: about 100 µs.
const CALLS: u32 = 20_000;
