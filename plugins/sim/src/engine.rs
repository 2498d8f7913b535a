//! What the threads of this backend's streams do: take their time, go wrong when they should, and
//! copy. When its turn comes is the kit's business.
#![expect(unsafe_code, reason = "touches the memory that submitters vouched for")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use stepmesh_plugin::abi::Code;
use stepmesh_plugin::software::{Engine, Worker};
use stepmesh_plugin::{CopyRequest, Error, FillRequest, Host, LogLevel, Result};

use crate::faults::{Faults, Kind};
use crate::memory::Memory;

/// Copies and fills as the device would.
#[derive(Debug)]
pub(crate) struct Simulator {
    pub(crate) host: Host,
    pub(crate) memory: Arc<Memory>,
    pub(crate) faults: Arc<Faults>,
    pub(crate) stream_delay: Duration,
}

impl Simulator {
    /// Copies now, without a stream.
    ///
    /// # Safety
    /// - Both ranges are valid until this returns, for reading and for writing, as far as they are
    ///   host memory.
    pub(crate) unsafe fn copy_now(&self, device: u32, request: &CopyRequest) -> Result<()> {
        self.faults.count_operation(device)?;
        // SAFETY: this method's contract.
        unsafe { self.copy_counted(device, request) }
    }

    /// # Safety
    /// - As [`Simulator::copy_now`].
    unsafe fn copy_counted(&self, device: u32, request: &CopyRequest) -> Result<()> {
        if let Some(due) = self.faults.count(Kind::CopyFail, device) {
            return Err(Error::new(
                Code::DataLoss,
                format!(
                    "a copy of {} bytes on simulated device {device} failed: {due}",
                    request.len_bytes
                ),
            ));
        }
        // SAFETY: this method's contract.
        unsafe { self.memory.copy(request) }
    }

    /// Does work that is no copy, with the time and the faults that work has.
    pub(crate) fn work(
        &self,
        worker: &Worker<'_>,
        work: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let done = self.begin(worker).and_then(|()| work());
        self.told(worker, done)
    }

    /// The time before work is done, in which the device may be lost and the stream may stick.
    fn begin(&self, worker: &Worker<'_>) -> Result<()> {
        let device = worker.device();
        self.faults.count_operation(device)?;
        if let Some(due) = self.faults.count(Kind::StreamStuck, device) {
            self.host.log(
                LogLevel::Info,
                "stepmesh::sim::stream",
                format_args!("a stream of simulated device {device} is stuck: {due}"),
            );
            return self.pause(worker, Duration::MAX);
        }
        self.pause(worker, self.stream_delay)
    }

    /// Lets time pass until the device is lost or the work is dropped.
    fn pause(&self, worker: &Worker<'_>, time: Duration) -> Result<()> {
        let start = Instant::now();
        loop {
            let left = time.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Ok(());
            }
            if !worker.pause(left.min(LOOK_UP_EVERY)) {
                let message = "the stream was ended while its work had not begun";
                return Err(Error::new(Code::Cancelled, message));
            }
            self.faults.check(worker.device())?;
        }
    }

    /// Tells the host of work that failed, once no one may be there to ask.
    fn told(&self, worker: &Worker<'_>, outcome: Result<()>) -> Result<()> {
        if let Err(error) = &outcome
            && error.code() != Code::Cancelled
        {
            self.host.report_async_error(worker.device(), error);
        }
        outcome
    }
}

impl Engine for Simulator {
    const THREAD_NAME: &'static str = "sm-sim";

    unsafe fn copy(&self, worker: &Worker<'_>, request: &CopyRequest) -> Result<()> {
        let done = self.begin(worker).and_then(|()| {
            // SAFETY: this method's contract.
            unsafe { self.copy_counted(worker.device(), request) }
        });
        self.told(worker, done)
    }

    unsafe fn fill(&self, worker: &Worker<'_>, request: &FillRequest) -> Result<()> {
        let done = self.begin(worker).and_then(|()| {
            // SAFETY: this method's contract; the kit checked width, size and alignment.
            unsafe { self.memory.fill(request) }
        });
        self.told(worker, done)
    }
}

/// How often waiting work looks whether its device is lost.
const LOOK_UP_EVERY: Duration = Duration::from_millis(10);
