//! The extensions: memory for network adapters, memory between processes, mem-events, captured work.
#![expect(
    unsafe_code,
    reason = "the traits have methods whose caller vouches for addresses"
)]

use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;

use stepmesh_plugin::abi::memory::SM_MEMORY_DEVICE;
use stepmesh_plugin::abi::{Code, SmRdmaCaps};
use stepmesh_plugin::software::{page_len, to_u64};
use stepmesh_plugin::{
    Capture, DmabufExport, DmabufMapping, Error, FlagWait, FlushScope, Graph, Invalidation, Ipc,
    IpcExport, IpcImport, MemEvents, Rdma, Result, Stream,
};

use crate::backend::Accelerator;
use crate::event::MemEvent;
use crate::memory::Origin;
use crate::shared::Shared;
use crate::{Driver, Kernel, Kind, info};

impl<D: Driver> Rdma for Accelerator<D> {
    fn dmabuf_export(
        &self,
        device: u32,
        ptr: u64,
        len_bytes: u64,
        mapping: DmabufMapping,
    ) -> Result<DmabufExport> {
        let shared = &self.shared;
        let what =
            || format!("export {len_bytes} bytes at {ptr:#x} of device {device} as a dma-buf");
        self.exportable(device, ptr, len_bytes, &what())?;
        let facts = &shared.device(device)?.facts;
        let is_offered = match mapping {
            DmabufMapping::Default => facts.has_dmabuf,
            DmabufMapping::Pcie => facts.has_dmabuf_pcie,
            _ => false,
        };
        if !is_offered {
            let peermem = if facts.has_peermem {
                "register the address itself (ibv_reg_mr), for which a kernel module is loaded"
            } else {
                "copy through pinned memory"
            };
            let message = format!(
                "cannot {}: device {device} has no {mapping:?} mapping; {peermem}",
                what()
            );
            return Err(Error::unimplemented(message));
        }
        let page_len = to_u64(page_len());
        let start = ptr - ptr % page_len;
        let end = (ptr + len_bytes).next_multiple_of(page_len);
        let exported = shared.on_relaxed(device, what, |driver| {
            // SAFETY: within one live allocation, checked above, but for what is left of its pages.
            unsafe { driver.export_dmabuf(start, end - start, mapping) }
        });
        let exported = exported.map_err(|error| match error.code() {
            // The driver could: the bits say so.
            Code::Unimplemented | Code::Unknown => {
                Error::new(Code::Unavailable, error.message()).with_native_code(error.native_code())
            }
            _ => error,
        })?;
        Ok(DmabufExport {
            fd: exported.fd,
            offset_bytes: exported.offset_bytes + (ptr - start),
            len_bytes: end - ptr,
        })
    }

    fn dmabuf_close(&self, fd: OwnedFd) -> Result<()> {
        let driver = &self.shared.driver;
        driver
            .close_dmabuf(fd)
            .map_err(|failure| failure.error(driver, "close a dma-buf"))
    }

    fn rdma_caps(&self, device: u32) -> Result<SmRdmaCaps> {
        Ok(info::rdma_caps(&self.shared.device(device)?.facts))
    }

    fn flush_rdma_writes(&self, device: u32, scope: FlushScope) -> Result<()> {
        if !info::can_flush(&self.shared.device(device)?.facts) {
            return Err(Error::unimplemented(format!(
                "the host cannot flush writes of network adapters to device {device}; a read of the \
                 adapter behind its writes does"
            )));
        }
        let what = || format!("flush writes of network adapters to device {device}");
        self.shared
            .on(device, what, |driver| driver.flush_rdma_writes(scope))
    }

    fn set_sync_memops(&self, ptr: u64) -> Result<()> {
        let shared = &self.shared;
        let known = shared.attributes(ptr)?;
        let device = u32::try_from(known.device).ok();
        let Some(device) = device.filter(|_| known.alloc_id != 0) else {
            let message = format!("{ptr:#x} is in no allocation of a device");
            return Err(Error::invalid_argument(message));
        };
        if !shared.device(device)?.facts.has_sync_memops {
            return Err(Error::unimplemented(format!(
                "copies of device {device} cannot be made synchronous for network adapters; wait for \
                 the stream before an adapter is told"
            )));
        }
        if known.kind != SM_MEMORY_DEVICE {
            // Of host memory, only what is copied synchronously is: the processor saw to it.
            return Ok(());
        }
        let what = || format!("make copies of {ptr:#x} synchronous for network adapters");
        // SAFETY: in a live allocation, as the table or the driver just said.
        shared.on(device, what, |driver| unsafe {
            driver.set_sync_memops(ptr)
        })
    }

    fn invalidation(&self) -> &Invalidation {
        &self.shared.invalidation
    }
}

impl<D: Driver> Accelerator<D> {
    /// Refuses what is no one allocation of the device's own memory.
    fn exportable(&self, device: u32, ptr: u64, len_bytes: u64, what: &str) -> Result<()> {
        let known = self.shared.attributes(ptr)?;
        let end = ptr.checked_add(len_bytes);
        let is_within = known.alloc_id != 0
            && end.is_some_and(|end| end <= known.base.saturating_add(known.size));
        if !is_within {
            let message = format!("cannot {what}: not within one allocation");
            return Err(Error::invalid_argument(message));
        }
        if known.kind != SM_MEMORY_DEVICE || self.shared.is_pooled(ptr) {
            let message = format!("cannot {what}: only memory of alloc of the kind device can be");
            return Err(Error::unimplemented(message));
        }
        if u32::try_from(known.device) != Ok(device) {
            let message = format!("cannot {what}: it is of device {}", known.device);
            return Err(Error::invalid_argument(message));
        }
        Ok(())
    }
}

impl<D: Driver> Ipc for Accelerator<D> {
    fn export(&self, device: u32, ptr: u64, len_bytes: u64) -> Result<IpcExport> {
        let what = || {
            format!("export {len_bytes} bytes at {ptr:#x} of device {device} to other processes")
        };
        self.exportable(device, ptr, len_bytes, &what())?;
        let shared = &self.shared;
        // The driver's allocation may start before ours; its handle is that of its start.
        let start = match shared.table.find(ptr, 1, |_, block| block.origin) {
            Some(Origin::Device { raw }) => raw,
            Some(_) => {
                let message = format!("cannot {}: another process's already", what());
                return Err(Error::unimplemented(message));
            }
            None => shared.attributes(ptr)?.base,
        };
        let bytes = shared.on_relaxed(device, what, |driver| {
            // SAFETY: the start of a live allocation, as the table or the driver just said.
            unsafe { driver.export_ipc(start) }
        })?;
        Ok(IpcExport::Opaque {
            bytes,
            offset_bytes: ptr - start,
            len_bytes,
        })
    }

    fn import(&self, device: u32, import: IpcImport<'_>) -> Result<u64> {
        match import {
            IpcImport::Opaque {
                bytes,
                offset_bytes,
                len_bytes,
            } => self.shared.import(device, bytes, offset_bytes, len_bytes),
            _ => Err(Error::invalid_argument(format!(
                "the {} backend imports handles of its own kind only, no descriptors",
                D::NOTE.name
            ))),
        }
    }

    unsafe fn close_import(&self, device: u32, ptr: u64) -> Result<()> {
        self.shared.close_import(device, ptr)
    }
}

impl<D: Driver> MemEvents for Accelerator<D> {
    type MemEvent = MemEvent<D>;

    fn mem_event_create(&self, device: u32) -> Result<MemEvent<D>> {
        MemEvent::new(&self.shared, device)
    }

    fn mem_event_word(event: &MemEvent<D>) -> &AtomicU64 {
        event.word()
    }

    fn mem_event_arm(&self, event: &MemEvent<D>, stream: Stream, seq: u64) -> Result<()> {
        event.arm(stream, seq)
    }

    fn mem_event_query(&self, event: &MemEvent<D>, seq: u64) -> Result<bool> {
        event.query(seq)
    }
}

impl<D: Driver> Graph for Accelerator<D> {
    fn capture(&self, stream: Stream) -> Result<Capture> {
        self.shared.check_stream(stream)?;
        self.shared.capture_state(stream)
    }

    unsafe fn write_flag(&self, stream: Stream, flag: u64, seq: u64) -> Result<()> {
        // SAFETY: this method's contract.
        unsafe { self.launch(stream, Kernel::WriteFlag { flag, seq }) }
    }

    unsafe fn wait_flag(&self, stream: Stream, wait: &FlagWait) -> Result<()> {
        // SAFETY: this method's contract.
        unsafe { self.launch(stream, Kernel::WaitFlag(*wait)) }
    }

    unsafe fn seq_add_one(&self, stream: Stream, seq: u64) -> Result<()> {
        // SAFETY: this method's contract.
        unsafe { self.launch(stream, Kernel::AddOne { seq }) }
    }
}

impl<D: Driver> Shared<D> {
    /// Whether a stream is captured.
    pub(crate) fn capture_state(&self, stream: Stream) -> Result<Capture> {
        let what = || {
            format!(
                "ask whether a stream of device {} is captured",
                stream.device
            )
        };
        self.on_relaxed(stream.device, what, |driver| {
            // SAFETY: the table's contract: a live stream.
            match unsafe { driver.capture(stream.raw) } {
                // The legacy default stream cannot be captured, nor asked while another one is.
                Err(failure) if failure.kind::<D>() == Kind::Capturing => Ok(Capture::None),
                answer => answer,
            }
        })
    }
}

impl<D: Driver> Accelerator<D> {
    /// # Safety
    /// - As [`Driver::launch`].
    unsafe fn launch(&self, stream: Stream, kernel: Kernel) -> Result<()> {
        self.shared.check_stream(stream)?;
        let what = || format!("run {kernel:?} on device {}", stream.device);
        self.shared.on(stream.device, what, |driver| {
            // SAFETY: this method's contract; the table's contract: a live stream.
            unsafe { driver.launch(stream.device, stream.raw, kernel) }
        })
    }
}
