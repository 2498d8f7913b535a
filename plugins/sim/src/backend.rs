//! The backend as the kit sees it: refuses what a lost device would, and hands each method to the
//! module that does it.
#![expect(
    unsafe_code,
    reason = "the trait has methods whose caller vouches for addresses"
)]

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use stepmesh_kernels::LazyPool;
use stepmesh_plugin::abi::device::SM_CAP_DMABUF_DEFAULT;
use stepmesh_plugin::abi::extension::{
    SM_EXTENSION_COMPUTE_V1, SM_EXTENSION_IPC_V1, SM_EXTENSION_MEMEVENT_V1, SM_EXTENSION_RDMA_V1,
};
use stepmesh_plugin::abi::note::{NoteParams, SM_KIND_ACCELERATOR, SM_NOTE_THREADS};
use stepmesh_plugin::abi::{SmDeviceInfo, SmPtrAttr, SmRdmaCaps};
use stepmesh_plugin::software::{self, OrderedStream, Streams};
use stepmesh_plugin::{
    AllocRequest, Backend, CopyRequest, DmabufExport, DmabufMapping, Error, EventOptions,
    EventState, Extension, FillRequest, FlushScope, Health, Host, HostFunc, Invalidation, Ipc,
    IpcExport, IpcImport, MemEvents, Optional, Probe, Rdma, Result, Stream, WaitMode,
};

use crate::adapter;
use crate::device::{self, CAPABILITIES, Event, MemEvent};
use crate::engine::Simulator;
use crate::faults::{Faults, Kind};
use crate::memory::Memory;
use crate::options::Options;

/// An instance of the simulated accelerator.
#[derive(Debug)]
pub struct Sim {
    pub(crate) options: Options,
    pub(crate) memory: Arc<Memory>,
    pub(crate) faults: Arc<Faults>,
    pub(crate) simulator: Arc<Simulator>,
    streams: Streams<Simulator>,
    pub(crate) threads: LazyPool,
}

impl Sim {
    /// The stream of an argument, whose device must be there.
    pub(crate) fn stream(&self, stream: Stream) -> Result<Arc<OrderedStream<Simulator>>> {
        self.faults.check(stream.device)?;
        self.streams.find(stream)
    }
}

impl Backend for Sim {
    type Event = Event;

    const NOTE: NoteParams<'static> = NoteParams {
        // Not a GPU: the alias must never find it.
        kind: SM_KIND_ACCELERATOR,
        flags: SM_NOTE_THREADS,
        ..NoteParams::new("sim", env!("CARGO_PKG_VERSION"))
    };
    const VENDOR: &'static str = "StepMesh";
    const OPTIONAL: &'static [Optional] = &[
        Optional::MemInfo,
        Optional::HostRegister,
        Optional::MemcpySync,
        Optional::MemsetAsync,
        Optional::EventElapsed,
        Optional::LaunchHostFunc,
        Optional::Health,
    ];

    fn probe(host: &Host) -> Result<Probe> {
        let device_count = Options::read(host)?.device_count;
        Ok(Probe {
            device_count,
            score: SCORE,
        })
    }

    fn open(host: Host) -> Result<Self> {
        let options = Options::read(&host)?;
        let faults = Arc::new(Faults::parse(&options.faults, options.device_count)?);
        let memory = Memory::new(
            options.device_count,
            options.memory_len_bytes,
            options.rdma_unordered,
        );
        let memory = Arc::new(memory?);
        adapter::attach(&memory);
        let simulator = Arc::new(Simulator {
            host,
            memory: Arc::clone(&memory),
            faults: Arc::clone(&faults),
            stream_delay: options.stream_delay,
        });
        let streams = Streams::new(options.device_count, Arc::clone(&simulator));
        let threads = LazyPool::new(options.threads);
        Ok(Self {
            threads,
            options,
            memory,
            faults,
            simulator,
            streams,
        })
    }

    fn quiesce(&self) -> Result<()> {
        self.streams.quiesce(QUIESCE_MAX)
    }

    fn device_count(&self) -> u32 {
        self.options.device_count
    }

    fn device_info(&self, device: u32) -> Result<SmDeviceInfo> {
        let has_dmabufs = self.memory.dmabufs.is_there();
        Ok(device::info(
            device,
            self.options.memory_len_bytes,
            has_dmabufs,
            self.options.rdma_unordered,
        ))
    }

    fn mem_info(&self, device: u32) -> Result<(u64, u64)> {
        self.faults.check(device)?;
        self.memory.info(device)
    }

    fn capabilities(&self, _device: u32) -> Result<u64> {
        Ok(if self.memory.dmabufs.is_there() {
            CAPABILITIES | SM_CAP_DMABUF_DEFAULT
        } else {
            CAPABILITIES
        })
    }

    fn set_current_device(&self, device: u32) -> Result<()> {
        let set = CURRENT_DEVICE.try_with(|current| current.set(device));
        set.map_err(|_| Error::failed_precondition("the thread is ending"))
    }

    fn current_device(&self) -> Result<Option<u32>> {
        let current = CURRENT_DEVICE.try_with(Cell::get).ok();
        // Set by an instance with more devices.
        Ok(current.filter(|device| *device < self.options.device_count))
    }

    fn device_sync(&self, device: u32) -> Result<()> {
        self.faults.check(device)?;
        self.streams.synchronize_device(device, DEVICE_SYNC_MAX)
    }

    fn alloc(&self, device: u32, request: &AllocRequest) -> Result<u64> {
        self.faults.count_operation(device)?;
        if let Some(due) = self.faults.count(Kind::AllocOom, device) {
            return Err(Error::out_of_memory(format!(
                "cannot allocate {} bytes on simulated device {device}: {due}",
                request.len_bytes
            )));
        }
        self.memory.alloc(device, request)
    }

    unsafe fn free(&self, device: u32, ptr: u64) -> Result<()> {
        self.memory.free(device, ptr)
    }

    unsafe fn host_register(&self, ptr: u64, len_bytes: u64, _read_only: bool) -> Result<u64> {
        self.memory.register(ptr, len_bytes)
    }

    fn host_unregister(&self, ptr: u64) -> Result<()> {
        self.memory.unregister(ptr)
    }

    fn pointer_attributes(&self, ptr: u64) -> Result<SmPtrAttr> {
        Ok(self.memory.attributes(ptr))
    }

    fn stream_create(&self, device: u32, _priority: i32, _non_blocking: bool) -> Result<u64> {
        self.faults.check(device)?;
        self.streams.create(device)
    }

    fn stream_destroy(&self, stream: Stream) -> Result<()> {
        self.streams.destroy(stream)
    }

    fn stream_sync(&self, stream: Stream, timeout_ns: u64) -> Result<()> {
        self.stream(stream)?
            .synchronize(Duration::from_nanos(timeout_ns))
    }

    fn stream_is_done(&self, stream: Stream) -> Result<bool> {
        Ok(self.stream(stream)?.is_idle())
    }

    fn stream_wait_event(&self, stream: Stream, event: &Event) -> Result<()> {
        self.faults.check(event.device)?;
        self.stream(stream)?.wait_event(&event.event)
    }

    unsafe fn memcpy_async(&self, request: &CopyRequest, stream: Stream) -> Result<()> {
        let stream = self.stream(stream)?;
        if request.len_bytes != 0 {
            self.memory.check_copy(request)?;
        }
        // SAFETY: this method's contract.
        unsafe { stream.copy(*request) }
    }

    unsafe fn memcpy_sync(&self, request: &CopyRequest) -> Result<()> {
        if request.len_bytes == 0 {
            return Ok(());
        }
        self.memory.check_copy(request)?;
        // A copy between host and host is the first device's.
        let device = self.memory.device_of_copy(request).unwrap_or(0);
        // SAFETY: this method's contract.
        unsafe { self.simulator.copy_now(device, request) }
    }

    unsafe fn memset_async(&self, request: &FillRequest, stream: Stream) -> Result<()> {
        let stream = self.stream(stream)?;
        if request.len_bytes != 0 {
            self.memory.check_fill(request)?;
        }
        // SAFETY: this method's contract.
        unsafe { stream.fill(*request) }
    }

    fn event_create(&self, device: u32, options: EventOptions) -> Result<Event> {
        self.faults.check(device)?;
        if options.ipc {
            return Err(Error::unimplemented(
                "the sim backend has no events between processes",
            ));
        }
        let event = software::Event::new(options);
        Ok(Event { device, event })
    }

    fn event_record(&self, event: &Event, stream: Stream) -> Result<()> {
        if event.device != stream.device {
            return Err(Error::invalid_argument(format!(
                "an event of device {} cannot be recorded on a stream of device {}",
                event.device, stream.device
            )));
        }
        self.stream(stream)?.record(&event.event)
    }

    fn event_query(&self, event: &Event) -> Result<EventState> {
        if self.faults.is_lost(event.device) {
            return Ok(EventState::Error);
        }
        Ok(event.event.query())
    }

    fn event_sync(&self, event: &Event, timeout_ns: u64, mode: WaitMode) -> Result<()> {
        self.faults.check(event.device)?;
        event
            .event
            .synchronize(Duration::from_nanos(timeout_ns), mode)
    }

    fn event_elapsed_ms(&self, start: &Event, end: &Event) -> Result<f64> {
        self.faults.check(start.device)?;
        self.faults.check(end.device)?;
        start.event.elapsed_ms(&end.event)
    }

    fn launch_host_func(&self, stream: Stream, func: HostFunc) -> Result<()> {
        self.stream(stream)?.call(func)
    }

    fn health(&self, device: u32) -> Result<Health> {
        Ok(if self.faults.is_lost(device) {
            Health::Lost
        } else {
            Health::Ok
        })
    }

    fn extension(&self, name: &str, _min_version: u32) -> Option<Extension> {
        match name {
            SM_EXTENSION_COMPUTE_V1 => Some(Extension::compute::<Self>()),
            SM_EXTENSION_IPC_V1 => Some(Extension::ipc::<Self>()),
            SM_EXTENSION_MEMEVENT_V1 => Some(Extension::mem_event::<Self>()),
            SM_EXTENSION_RDMA_V1 => Some(Extension::rdma::<Self>()),
            _ => None,
        }
    }
}

impl Ipc for Sim {
    fn export(&self, device: u32, ptr: u64, len_bytes: u64) -> Result<IpcExport> {
        self.faults.check(device)?;
        self.memory.export(device, ptr, len_bytes)
    }

    fn import(&self, device: u32, import: IpcImport<'_>) -> Result<u64> {
        self.faults.check(device)?;
        match import {
            IpcImport::Fd {
                fd,
                offset_bytes,
                len_bytes,
            } => self.memory.import(device, fd, offset_bytes, len_bytes),
            _ => Err(Error::invalid_argument(
                "the sim backend imports descriptors only",
            )),
        }
    }

    unsafe fn close_import(&self, _device: u32, ptr: u64) -> Result<()> {
        self.memory.close_import(ptr)
    }
}

impl MemEvents for Sim {
    type MemEvent = MemEvent;

    fn mem_event_create(&self, device: u32) -> Result<MemEvent> {
        self.faults.check(device)?;
        let event = software::MemEvent::new();
        Ok(MemEvent { device, event })
    }

    fn mem_event_word(event: &MemEvent) -> &AtomicU64 {
        event.event.word()
    }

    fn mem_event_arm(&self, event: &MemEvent, stream: Stream, seq: u64) -> Result<()> {
        if event.device != stream.device {
            return Err(Error::invalid_argument(format!(
                "a mem-event of device {} cannot be armed on a stream of device {}",
                event.device, stream.device
            )));
        }
        self.stream(stream)?.signal(&event.event, seq)
    }

    fn mem_event_query(&self, event: &MemEvent, seq: u64) -> Result<bool> {
        self.faults.check(event.device)?;
        event.event.query(seq)
    }
}

impl Rdma for Sim {
    fn dmabuf_export(
        &self,
        device: u32,
        ptr: u64,
        len_bytes: u64,
        mapping: DmabufMapping,
    ) -> Result<DmabufExport> {
        self.faults.check(device)?;
        if mapping != DmabufMapping::Default {
            return Err(Error::unimplemented(
                "a simulated device is on no PCIe bus; ask for the default mapping",
            ));
        }
        self.memory.export_dmabuf(device, ptr, len_bytes)
    }

    fn rdma_caps(&self, _device: u32) -> Result<SmRdmaCaps> {
        let has_dmabufs = self.memory.dmabufs.is_there();
        Ok(device::rdma_caps(has_dmabufs, self.options.rdma_unordered))
    }

    fn flush_rdma_writes(&self, device: u32, _scope: FlushScope) -> Result<()> {
        self.faults.check(device)?;
        self.memory.flush_adapter_writes(device);
        Ok(())
    }

    fn set_sync_memops(&self, ptr: u64) -> Result<()> {
        // Synchronous copies are the processor's own, and over when they return.
        if self.memory.attributes(ptr).alloc_id == 0 {
            let message = format!("{ptr:#x} is in no allocation");
            return Err(Error::invalid_argument(message));
        }
        Ok(())
    }

    fn invalidation(&self) -> &Invalidation {
        &self.memory.invalidation
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        // The kit quiesces before it closes; a poisoned instance comes here without that.
        let _ = self.streams.quiesce(QUIESCE_MAX);
    }
}

thread_local! {
    /// The thread's current device; the first one until it says otherwise, as CUDA has it.
    static CURRENT_DEVICE: Cell<u32> = const { Cell::new(0) };
}

/// Below host memory, were anyone to compare: it is for those who ask for it.
const SCORE: u32 = 1;
/// How long work may go on when an instance ends: shorter than cpu's, because what hangs here was
/// made to hang.
const QUIESCE_MAX: Duration = Duration::from_millis(500);
/// Bound of a wait for a device that has no bound of its own.
const DEVICE_SYNC_MAX: Duration = Duration::from_secs(60);
