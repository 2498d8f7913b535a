//! Metrics and counters under the names that users of PyTorch's lazy core and of torch_xla know.
//! The text of a report is in `report`, what to conclude from it in `advice`.

mod advice;
mod report;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use stepmesh_graph::OpKind;

/// Everything that one [`LazyDevice`](crate::LazyDevice) counts. All methods may be called from any
/// thread.
#[derive(Debug)]
pub struct Metrics {
    started: Instant,
    counters: [AtomicU64; Counter::ALL.len()],
    timings: [Mutex<Samples>; Metric::ALL.len()],
    /// Calls that were traced, by operation.
    lowered: Box<[AtomicU64]>,
    /// Calls that fell back, by operation.
    fell_back: Box<[AtomicU64]>,
}

/// A counter. The name in reports is the reference's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Counter {
    /// Graphs that were found in the cache.
    CachedCompile,
    /// Graphs that were compiled.
    UncachedCompile,
    /// Ends of a step.
    MarkStep,
    /// Tensors made.
    CreateLtcTensor,
    /// Tensors dropped.
    DestroyLtcTensor,
    /// Numbers that became parameters of a graph.
    DeviceDataCacheMiss,
    /// Tensors whose host data was copied to the device.
    SyncTensorsToData,
    /// Tensors that were computed.
    SyncedTensorsWithIR,
    /// Graphs that were launched because they had grown too large.
    TrimIrGraph,
    /// Values on the device, made.
    CreateDataHandles,
    /// Values on the device, dropped.
    DestroyDataHandles,
    /// Executables made.
    CreateCompileHandles,
    /// Results that took over an argument's memory.
    InputOutputAliasCount,
    /// Executables dropped from the cache.
    DestroyCompileHandles,
    /// Allocations that were served by memory given back before.
    PooledAllocation,
    /// Allocations by the backend.
    DeviceAllocation,
}

/// A metric: a value with a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Metric {
    /// Waiting for one's turn at the device.
    DeviceLockWait,
    /// Nodes of the graphs that were synchronised.
    TensorsGraphSize,
    /// Tracing an operation; one in sixteen is timed.
    LazyTracing,
    /// Copying data to the device.
    TransferToDeviceTime,
    /// Copying data from the device, with the wait for it.
    TransferFromDeviceTime,
    /// Compiling a graph.
    CompileTime,
    /// Launching a graph; the device may do it later.
    ExecuteTime,
    /// Bytes copied to the host.
    InboundData,
    /// Bytes copied to the device.
    OutboundData,
    /// Making the data of a value that was traced available as data.
    IrValueTensorToDataHandle,
    /// Running an operation that fell back.
    EagerOpExecuteTime,
}

/// How a metric's values are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Nanoseconds,
    Bytes,
    Number,
}

/// The last samples of a metric, and the sum of all.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples {
    ring: VecDeque<Sample>,
    accumulator: f64,
    total: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) at_ns: u64,
    pub(crate) value: f64,
}

impl Default for Metrics {
    fn default() -> Self {
        let by_op = || OpKind::ALL.iter().map(|_| AtomicU64::new(0)).collect();
        Self {
            started: Instant::now(),
            counters: std::array::from_fn(|_| AtomicU64::new(0)),
            timings: std::array::from_fn(|_| Mutex::default()),
            lowered: by_op(),
            fell_back: by_op(),
        }
    }
}

impl Metrics {
    /// The value of a counter.
    #[must_use]
    pub fn counter(&self, counter: Counter) -> u64 {
        self.counters[counter as usize].load(Ordering::Relaxed)
    }

    /// How often a metric was sampled.
    #[must_use]
    pub fn samples(&self, metric: Metric) -> u64 {
        self.read(metric).total
    }

    /// The sum of a metric's values: nanoseconds, bytes or a number.
    #[must_use]
    pub fn total(&self, metric: Metric) -> f64 {
        self.read(metric).accumulator
    }

    /// Calls of an operation that were traced (`lazy::...` in the report).
    #[must_use]
    pub fn lowered(&self, op: OpKind) -> u64 {
        self.lowered[op as usize].load(Ordering::Relaxed)
    }

    /// Calls of an operation that fell back (`aten::...` in the report).
    #[must_use]
    pub fn fell_back(&self, op: OpKind) -> u64 {
        self.fell_back[op as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn count(&self, counter: Counter) {
        self.count_many(counter, 1);
    }

    pub(crate) fn count_many(&self, counter: Counter, by: u64) {
        self.counters[counter as usize].fetch_add(by, Ordering::Relaxed);
    }

    /// Counts a traced call; true for those whose tracing is to be timed.
    pub(crate) fn count_lowered(&self, op: OpKind) -> bool {
        let before = self.lowered[op as usize].fetch_add(1, Ordering::Relaxed);
        before.is_multiple_of(TRACINGS_PER_SAMPLE)
    }

    pub(crate) fn count_fallback(&self, op: OpKind) {
        self.fell_back[op as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn sample(&self, metric: Metric, value: f64) {
        let at_ns = nanoseconds(self.started);
        let mut samples = self.lock(metric);
        if samples.ring.len() == SAMPLES_MAX {
            samples.ring.pop_front();
        }
        samples.ring.push_back(Sample { at_ns, value });
        samples.accumulator += value;
        samples.total += 1;
    }

    /// Samples the time since `since`.
    pub(crate) fn sample_time(&self, metric: Metric, since: Instant) {
        #[expect(clippy::cast_precision_loss, reason = "nanoseconds of a run")]
        let value = nanoseconds(since) as f64;
        self.sample(metric, value);
    }

    /// Samples a number of bytes or of things.
    pub(crate) fn sample_count(&self, metric: Metric, count: usize) {
        #[expect(clippy::cast_precision_loss, reason = "for people to read")]
        let value = count as f64;
        self.sample(metric, value);
    }

    pub(crate) fn read(&self, metric: Metric) -> Samples {
        self.lock(metric).clone()
    }

    fn lock(&self, metric: Metric) -> std::sync::MutexGuard<'_, Samples> {
        self.timings[metric as usize]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn nanoseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

macro_rules! names {
    ($type:ident: $($variant:ident),+ $(,)?) => {
        impl $type {
            /// Every one.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// Its name in reports.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => stringify!($variant)),+ }
            }
        }
    };
}

names!(Counter: CachedCompile, UncachedCompile, MarkStep, CreateLtcTensor, DestroyLtcTensor,
    DeviceDataCacheMiss, SyncTensorsToData, SyncedTensorsWithIR, TrimIrGraph, CreateDataHandles,
    DestroyDataHandles, CreateCompileHandles, InputOutputAliasCount, DestroyCompileHandles,
    PooledAllocation, DeviceAllocation);
names!(Metric: DeviceLockWait, TensorsGraphSize, LazyTracing, TransferToDeviceTime,
    TransferFromDeviceTime, CompileTime, ExecuteTime, InboundData, OutboundData,
    IrValueTensorToDataHandle, EagerOpExecuteTime);

impl Metric {
    pub(crate) const fn unit(self) -> Unit {
        match self {
            Self::TensorsGraphSize => Unit::Number,
            Self::InboundData | Self::OutboundData => Unit::Bytes,
            _ => Unit::Nanoseconds,
        }
    }
}

impl Samples {
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    pub(crate) fn accumulator(&self) -> f64 {
        self.accumulator
    }

    pub(crate) fn ring(&self) -> &VecDeque<Sample> {
        &self.ring
    }
}

/// The reference's length of a metric's history.
const SAMPLES_MAX: usize = 1024;
/// Timing a call costs as much as tracing it.
const TRACINGS_PER_SAMPLE: u64 = 16;

#[cfg(test)]
mod tests;
