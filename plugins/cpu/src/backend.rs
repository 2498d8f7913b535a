//! The backend as the kit sees it: hands each method to the module that does it.
#![expect(
    unsafe_code,
    reason = "the trait has methods whose caller vouches for addresses"
)]

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use stepmesh_kernels::LazyPool;
use stepmesh_plugin::abi::extension::{
    SM_EXTENSION_COMPUTE_V1, SM_EXTENSION_IPC_V1, SM_EXTENSION_MEMEVENT_V1, SM_EXTENSION_RDMA_V1,
};
use stepmesh_plugin::abi::note::{NoteParams, SM_KIND_CPU, SM_NOTE_THREADS};
use stepmesh_plugin::abi::{SmDeviceInfo, SmPtrAttr, SmRdmaCaps};
use stepmesh_plugin::software::{Event, MemEvent, Streams, copy};
use stepmesh_plugin::{
    AllocRequest, Backend, CopyRequest, DmabufExport, DmabufMapping, Error, EventOptions,
    EventState, Extension, FillRequest, FlushScope, Health, Host, HostFunc, Invalidation, Ipc,
    IpcExport, IpcImport, MemEvents, Optional, Probe, Rdma, Result, Stream, WaitMode,
};

use crate::buffer::Memory;
use crate::compute;
use crate::device::{CAPABILITIES, RDMA_CAPS, Topology};
use crate::engine::Processor;

/// An instance of the cpu backend.
#[derive(Debug)]
pub struct Cpu {
    topology: Arc<Topology>,
    memory: Arc<Memory>,
    pub(crate) streams: Streams<Processor>,
    pub(crate) threads: LazyPool,
}

impl Backend for Cpu {
    type Event = Event;

    const NOTE: NoteParams<'static> = NoteParams {
        kind: SM_KIND_CPU,
        flags: SM_NOTE_THREADS,
        ..NoteParams::new("cpu", env!("CARGO_PKG_VERSION"))
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

    fn probe(_host: &Host) -> Result<Probe> {
        let device_count = Topology::read(Path::new("/")).device_count();
        Ok(Probe {
            device_count,
            score: SCORE,
        })
    }

    fn open(host: Host) -> Result<Self> {
        let topology = Arc::new(Topology::read(Path::new("/")));
        let threads = compute::threads(&host)?;
        let memory = Arc::new(Memory::new(host, Arc::clone(&topology)));
        let streams = Streams::new(
            topology.device_count(),
            Arc::new(Processor::new(Arc::clone(&memory))),
        );
        Ok(Self {
            topology,
            memory,
            streams,
            threads,
        })
    }

    fn quiesce(&self) -> Result<()> {
        self.streams.quiesce(QUIESCE_MAX)
    }

    fn device_count(&self) -> u32 {
        self.topology.device_count()
    }

    fn device_info(&self, device: u32) -> Result<SmDeviceInfo> {
        Ok(self.topology.info(device))
    }

    fn mem_info(&self, device: u32) -> Result<(u64, u64)> {
        Ok(self.topology.memory(device))
    }

    fn capabilities(&self, _device: u32) -> Result<u64> {
        Ok(CAPABILITIES)
    }

    fn set_current_device(&self, device: u32) -> Result<()> {
        let set = CURRENT_DEVICE.try_with(|current| current.set(device));
        set.map_err(|_| Error::failed_precondition("the thread is ending"))
    }

    fn current_device(&self) -> Result<Option<u32>> {
        Ok(CURRENT_DEVICE.try_with(Cell::get).ok())
    }

    fn device_sync(&self, device: u32) -> Result<()> {
        self.streams.synchronize_device(device, DEVICE_SYNC_MAX)
    }

    fn alloc(&self, device: u32, request: &AllocRequest) -> Result<u64> {
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
        self.streams.create(device)
    }

    fn stream_destroy(&self, stream: Stream) -> Result<()> {
        self.streams.destroy(stream)
    }

    fn stream_sync(&self, stream: Stream, timeout_ns: u64) -> Result<()> {
        self.streams
            .find(stream)?
            .synchronize(Duration::from_nanos(timeout_ns))
    }

    fn stream_is_done(&self, stream: Stream) -> Result<bool> {
        Ok(self.streams.find(stream)?.is_idle())
    }

    fn stream_wait_event(&self, stream: Stream, event: &Event) -> Result<()> {
        self.streams.find(stream)?.wait_event(event)
    }

    unsafe fn memcpy_async(&self, request: &CopyRequest, stream: Stream) -> Result<()> {
        let stream = self.streams.find(stream)?;
        // SAFETY: this method's contract.
        unsafe { stream.copy(*request) }
    }

    unsafe fn memcpy_sync(&self, request: &CopyRequest) -> Result<()> {
        if request.len_bytes != 0 {
            // SAFETY: this method's contract.
            unsafe { copy(request.dst, request.src, request.len_bytes) };
        }
        Ok(())
    }

    unsafe fn memset_async(&self, request: &FillRequest, stream: Stream) -> Result<()> {
        let stream = self.streams.find(stream)?;
        // SAFETY: this method's contract.
        unsafe { stream.fill(*request) }
    }

    fn event_create(&self, _device: u32, options: EventOptions) -> Result<Event> {
        if options.ipc {
            return Err(Error::unimplemented(
                "the cpu backend has no events between processes",
            ));
        }
        Ok(Event::new(options))
    }

    fn event_record(&self, event: &Event, stream: Stream) -> Result<()> {
        self.streams.find(stream)?.record(event)
    }

    fn event_query(&self, event: &Event) -> Result<EventState> {
        Ok(event.query())
    }

    fn event_sync(&self, event: &Event, timeout_ns: u64, mode: WaitMode) -> Result<()> {
        event.synchronize(Duration::from_nanos(timeout_ns), mode)
    }

    fn event_elapsed_ms(&self, start: &Event, end: &Event) -> Result<f64> {
        start.elapsed_ms(end)
    }

    fn launch_host_func(&self, stream: Stream, func: HostFunc) -> Result<()> {
        self.streams.find(stream)?.call(func)
    }

    fn health(&self, _device: u32) -> Result<Health> {
        Ok(Health::Ok)
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

impl Ipc for Cpu {
    fn export(&self, device: u32, ptr: u64, len_bytes: u64) -> Result<IpcExport> {
        self.memory.export(device, ptr, len_bytes)
    }

    fn import(&self, device: u32, import: IpcImport<'_>) -> Result<u64> {
        match import {
            IpcImport::Fd {
                fd,
                offset_bytes,
                len_bytes,
            } => self.memory.import(device, fd, offset_bytes, len_bytes),
            _ => Err(Error::invalid_argument(
                "the cpu backend imports descriptors only",
            )),
        }
    }

    unsafe fn close_import(&self, _device: u32, ptr: u64) -> Result<()> {
        self.memory.close_import(ptr)
    }
}

impl MemEvents for Cpu {
    type MemEvent = MemEvent;

    fn mem_event_create(&self, _device: u32) -> Result<MemEvent> {
        Ok(MemEvent::new())
    }

    fn mem_event_word(event: &MemEvent) -> &AtomicU64 {
        event.word()
    }

    fn mem_event_arm(&self, event: &MemEvent, stream: Stream, seq: u64) -> Result<()> {
        self.streams.find(stream)?.signal(event, seq)
    }

    fn mem_event_query(&self, event: &MemEvent, seq: u64) -> Result<bool> {
        event.query(seq)
    }
}

impl Rdma for Cpu {
    fn dmabuf_export(
        &self,
        _device: u32,
        ptr: u64,
        len_bytes: u64,
        _mapping: DmabufMapping,
    ) -> Result<DmabufExport> {
        Err(Error::unimplemented(format!(
            "the cpu backend exports no dma-buf: its memory is the host's, so register the \
             {len_bytes} bytes at {ptr:#x} themselves (ibv_reg_mr)"
        )))
    }

    fn rdma_caps(&self, _device: u32) -> Result<SmRdmaCaps> {
        Ok(RDMA_CAPS)
    }

    fn flush_rdma_writes(&self, _device: u32, _scope: FlushScope) -> Result<()> {
        // What an adapter wrote is in the host's memory, which is coherent.
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
        self.memory.invalidation()
    }
}

impl Drop for Cpu {
    fn drop(&mut self) {
        // The kit quiesces before it closes; a poisoned instance comes here without that.
        let _ = self.streams.quiesce(QUIESCE_MAX);
    }
}

thread_local! {
    /// The thread's current device; the first one until it says otherwise, as CUDA has it.
    static CURRENT_DEVICE: Cell<u32> = const { Cell::new(0) };
}

/// Below every accelerator: host memory always works, but is no one's first choice.
const SCORE: u32 = 1;
/// How long work may go on when an instance ends.
const QUIESCE_MAX: Duration = Duration::from_secs(2);
/// Bound of a wait for a device that has no bound of its own.
const DEVICE_SYNC_MAX: Duration = Duration::from_secs(60);
