//! The backend as the kit sees it: hands each method to the module that does it.
#![expect(
    unsafe_code,
    reason = "the trait has methods whose caller vouches for addresses"
)]

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use stepmesh_plugin::abi::extension::{
    SM_EXTENSION_COMPUTE_V1, SM_EXTENSION_GRAPH_V1, SM_EXTENSION_IPC_V1, SM_EXTENSION_MEMEVENT_V1,
    SM_EXTENSION_RDMA_V1,
};
use stepmesh_plugin::abi::note::NoteParams;
use stepmesh_plugin::abi::{Code, SmDeviceInfo, SmPtrAttr};
use stepmesh_plugin::{
    AllocRequest, Backend, CopyRequest, Error, EventOptions, EventState, Extension, FillRequest,
    Health, Host, HostFunc, Invalidation, LogLevel, Optional, Probe, Result, Stream, WaitMode,
};

use crate::event::Event;
use crate::memory::Table;
use crate::shared::{Device, Shared, lock};
use crate::words::Words;
use crate::{Driver, host_funcs, info, wait};

/// An instance of a backend over a driver.
#[derive(Debug)]
pub struct Accelerator<D: Driver> {
    pub(crate) shared: Arc<Shared<D>>,
}

impl<D: Driver> Backend for Accelerator<D> {
    type Event = Event<D>;

    const NOTE: NoteParams<'static> = D::NOTE;
    const VENDOR: &'static str = D::VENDOR;
    const OPTIONAL: &'static [Optional] = &[
        Optional::MemInfo,
        Optional::AllocAsync,
        Optional::HostRegister,
        Optional::MemcpySync,
        Optional::MemsetAsync,
        Optional::EventElapsed,
        Optional::LaunchHostFunc,
        Optional::Health,
    ];

    fn probe(host: &Host) -> Result<Probe> {
        let counted = D::load()
            .map_err(|absent| absent.reason)
            .and_then(|driver| {
                let count = driver.device_count();
                count.map_err(|failure| failure.text(&driver))
            });
        let device_count = counted.unwrap_or_else(|reason| {
            // No driver is no error; `open` tells the reason to who wants the backend.
            let message = format_args!("no {} device: {reason}", D::TITLE);
            host.log(LogLevel::Debug, "stepmesh::driver", message);
            0
        });
        Ok(Probe {
            device_count,
            score: if device_count == 0 { 0 } else { SCORE },
        })
    }

    fn open(host: Host) -> Result<Self> {
        let driver = D::load().map_err(|absent| {
            let message = format!("no {} device: {}", D::TITLE, absent.reason);
            Error::new(Code::Unavailable, message).with_native_code(i64::from(absent.status))
        })?;
        let title = D::TITLE;
        let count = driver
            .device_count()
            .map_err(|failure| failure.error(&driver, &format!("count {title} devices")))?;
        if count == 0 {
            let message = format!("no {title} device: the driver shows none to this process");
            return Err(Error::new(Code::Unavailable, message));
        }
        let devices = (0..count).map(|device| {
            let facts = driver.facts(device).map_err(|failure| {
                failure.error(&driver, &format!("ask about {title} device {device}"))
            })?;
            Ok(Device::new(facts))
        });
        let devices = devices.collect::<Result<_>>()?;
        Ok(Self {
            shared: Arc::new(Shared {
                host,
                driver,
                devices,
                table: Table::default(),
                invalidation: Invalidation::default(),
                words: Words::default(),
                streams: RwLock::default(),
                serial: NEXT_SERIAL.fetch_add(1, Ordering::Relaxed),
            }),
        })
    }

    fn quiesce(&self) -> Result<()> {
        self.drain(QUIESCE_MAX)
    }

    fn device_count(&self) -> u32 {
        u32::try_from(self.shared.devices.len()).unwrap_or(u32::MAX)
    }

    fn device_info(&self, device: u32) -> Result<SmDeviceInfo> {
        let facts = &self.shared.device(device)?.facts;
        Ok(info::device_info::<D>(device, facts, Path::new("/")))
    }

    fn mem_info(&self, device: u32) -> Result<(u64, u64)> {
        let what = || format!("ask for the free memory of device {device}");
        self.shared.on_relaxed(device, what, Driver::memory_info)
    }

    fn capabilities(&self, device: u32) -> Result<u64> {
        let shared = &self.shared;
        let facts = &shared.device(device)?.facts;
        let reaches =
            |peer| peer != device && shared.driver.can_access_peer(device, peer).unwrap_or(false);
        let has_peers = (0..self.device_count()).any(reaches);
        Ok(info::capabilities(facts, has_peers))
    }

    fn set_current_device(&self, device: u32) -> Result<()> {
        let shared = &self.shared;
        let set = shared
            .context(device)
            .and_then(|context| shared.driver.set_current(device, context));
        set.map_err(|failure| {
            shared.explain(device, &format!("make device {device} current"), failure)
        })
    }

    fn current_device(&self) -> Result<Option<u32>> {
        let driver = &self.shared.driver;
        driver
            .current()
            .map_err(|failure| failure.error(driver, "ask for the current device"))
    }

    fn device_sync(&self, device: u32) -> Result<()> {
        let what = || format!("wait for the work of device {device}");
        self.shared.on(device, what, Driver::synchronize)
    }

    fn alloc(&self, device: u32, request: &AllocRequest) -> Result<u64> {
        self.shared.alloc(device, request)
    }

    unsafe fn free(&self, device: u32, ptr: u64) -> Result<()> {
        self.shared.free(device, ptr)
    }

    fn alloc_async(&self, device: u32, len_bytes: u64, stream: Stream) -> Result<u64> {
        self.shared.check_stream(stream)?;
        self.shared.alloc_async(device, len_bytes, stream)
    }

    unsafe fn free_async(&self, device: u32, ptr: u64, stream: Stream) -> Result<()> {
        self.shared.check_stream(stream)?;
        self.shared.free_async(device, ptr, stream)
    }

    unsafe fn host_register(&self, ptr: u64, len_bytes: u64, read_only: bool) -> Result<u64> {
        // SAFETY: this method's contract.
        unsafe { self.shared.register(ptr, len_bytes, read_only) }
    }

    fn host_unregister(&self, ptr: u64) -> Result<()> {
        self.shared.unregister(ptr)
    }

    fn pointer_attributes(&self, ptr: u64) -> Result<SmPtrAttr> {
        self.shared.attributes(ptr)
    }

    fn stream_create(&self, device: u32, priority: i32, non_blocking: bool) -> Result<u64> {
        self.shared.create_stream(device, priority, non_blocking)
    }

    fn stream_destroy(&self, stream: Stream) -> Result<()> {
        self.shared.destroy_stream(stream)
    }

    fn stream_sync(&self, stream: Stream, timeout_ns: u64) -> Result<()> {
        self.shared.synchronize_stream(stream, timeout_ns)
    }

    fn stream_is_done(&self, stream: Stream) -> Result<bool> {
        self.shared.check_stream(stream)?;
        self.shared.is_stream_done(stream)
    }

    fn stream_wait_event(&self, stream: Stream, event: &Event<D>) -> Result<()> {
        self.shared.check_stream(stream)?;
        let what = || format!("make a stream of device {} wait", stream.device);
        self.shared.on(stream.device, what, |driver| {
            // SAFETY: a live event; the table's contract: a live stream.
            unsafe { driver.wait_event(stream.raw, event.raw) }
        })
    }

    unsafe fn memcpy_async(&self, request: &CopyRequest, stream: Stream) -> Result<()> {
        // SAFETY: this method's contract.
        unsafe { self.shared.copy(request, stream) }
    }

    unsafe fn memcpy_sync(&self, request: &CopyRequest) -> Result<()> {
        // SAFETY: this method's contract.
        unsafe { self.shared.copy_now(request) }
    }

    unsafe fn memset_async(&self, request: &FillRequest, stream: Stream) -> Result<()> {
        // SAFETY: this method's contract.
        unsafe { self.shared.fill(request, stream) }
    }

    fn event_create(&self, device: u32, options: EventOptions) -> Result<Event<D>> {
        Event::new(&self.shared, device, options)
    }

    fn event_record(&self, event: &Event<D>, stream: Stream) -> Result<()> {
        event.record(stream)
    }

    fn event_query(&self, event: &Event<D>) -> Result<EventState> {
        event.state()
    }

    fn event_sync(&self, event: &Event<D>, timeout_ns: u64, mode: WaitMode) -> Result<()> {
        event.synchronize(timeout_ns, mode)
    }

    fn event_elapsed_ms(&self, start: &Event<D>, end: &Event<D>) -> Result<f64> {
        start.elapsed_ms(end)
    }

    fn launch_host_func(&self, stream: Stream, func: HostFunc) -> Result<()> {
        self.shared.launch_host_func(stream, func)
    }

    fn health(&self, device: u32) -> Result<Health> {
        let asked = self.mem_info(device);
        let is_lost = self.shared.device(device)?.is_lost();
        Ok(match asked {
            _ if is_lost => Health::Lost,
            Ok(_) => Health::Ok,
            Err(_) => Health::Degraded,
        })
    }

    fn extension(&self, name: &str, _min_version: u32) -> Option<Extension> {
        let has_any = |has: fn(&crate::Facts) -> bool| {
            let mut devices = self.shared.devices.iter();
            devices.any(|device| has(&device.facts))
        };
        match name {
            SM_EXTENSION_RDMA_V1 => Some(Extension::rdma::<Self>()),
            SM_EXTENSION_COMPUTE_V1 => Some(Extension::compute::<Self>()),
            SM_EXTENSION_MEMEVENT_V1 => Some(Extension::mem_event::<Self>()),
            SM_EXTENSION_IPC_V1 if has_any(|facts| facts.has_ipc) => Some(Extension::ipc::<Self>()),
            SM_EXTENSION_GRAPH_V1 if has_any(|facts| facts.has_graphs) => {
                Some(Extension::graph::<Self>())
            }
            _ => None,
        }
    }
}

impl<D: Driver> Accelerator<D> {
    /// Waits until the work of this instance's streams is done.
    fn drain(&self, limit: Duration) -> Result<()> {
        let start = Instant::now();
        for stream in self.own_streams() {
            if self.shared.device(stream.device)?.is_lost() {
                continue;
            }
            let left = limit.saturating_sub(start.elapsed());
            let left_ns = u64::try_from(left.as_nanos()).unwrap_or(u64::MAX);
            let look = || self.shared.is_stream_done(stream);
            match wait::until(left_ns, WaitMode::Block, look) {
                Ok(true) => {}
                Ok(false) => {
                    return Err(Error::deadline_exceeded(format!(
                        "the work of a stream of device {} was not done within {} ms",
                        stream.device,
                        limit.as_millis()
                    )));
                }
                // Work that failed has ended too.
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Waits until no graph runs, on streams of others either, and says whether that is so.
    fn drain_lanes(&self, limit: Duration) -> bool {
        let limit_ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        let is_drained = |(device, state): (u32, &Device<D>)| {
            if state.made_context().is_none() || state.is_lost() {
                return true;
            }
            let what = || format!("look at the graphs that run on device {device}");
            let look = || {
                let idle = |driver: &D| state.lanes.is_idle(driver);
                self.shared.on_relaxed(device, what, idle)
            };
            // Work that failed has ended too.
            wait::until(limit_ns, WaitMode::Block, look).unwrap_or(true)
        };
        (0..).zip(&self.shared.devices).all(is_drained)
    }

    fn own_streams(&self) -> Vec<Stream> {
        let streams = self.shared.streams.read();
        let streams = streams.unwrap_or_else(PoisonError::into_inner);
        let stream = |(raw, device): (&u64, &u32)| Stream {
            device: *device,
            raw: *raw,
        };
        streams.iter().map(stream).collect()
    }

    /// Gives everything back. Memory that work may still use stays.
    fn end(&self) {
        let shared = &self.shared;
        let is_drained = self.drain(END_MAX).is_ok() && self.drain_lanes(END_MAX);
        // Those that the driver will not call: each must run once.
        host_funcs::run_all_of(shared.serial, None);
        let ended = |outcome: Result<()>| {
            if let Err(error) = outcome {
                shared.log(LogLevel::Warn, format_args!("{error}"));
            }
        };
        for stream in self.own_streams() {
            ended(shared.end_stream(stream));
        }
        if !is_drained {
            let message = "work was under way at the end of the instance: its memory stays";
            return shared.log(LogLevel::Warn, format_args!("{message}"));
        }
        for (device, state) in (0..).zip(&shared.devices) {
            if state.made_context().is_some() {
                let what = || format!("give back what graphs of device {device} used");
                let drained = state.lanes.drain();
                ended(shared.on_ending(device, what, |driver| drained.give_back(driver)));
            }
        }
        for (ptr, block) in shared.table.drain() {
            ended(shared.give_back_any(ptr, &block));
        }
        for (chunk, device) in shared.words.drain() {
            ended(shared.free_words(chunk, device));
        }
        for (device, state) in (0..).zip(&shared.devices) {
            *lock(&state.copies) = 0;
            if let Some(context) = state.made_context()
                && let Err(failure) = shared.driver.release(device, context)
            {
                ended(Err(
                    failure.error(&shared.driver, &format!("release device {device}"))
                ));
            }
        }
    }
}

impl<D: Driver> Drop for Accelerator<D> {
    fn drop(&mut self) {
        // The driver may be gone by the time that late destructors run.
        if !self.shared.host.is_process_exiting() {
            self.end();
        }
    }
}

/// Counts instances of the process.
static NEXT_SERIAL: AtomicU64 = AtomicU64::new(1);
/// Above host memory, so that a GPU is the first choice.
const SCORE: u32 = 100;
/// How long work may go on when an instance is quiesced.
const QUIESCE_MAX: Duration = Duration::from_secs(2);
/// The same when it ends: it was quiesced before, or is out of use.
const END_MAX: Duration = Duration::from_millis(500);
