//! Allocating, registering, importing and giving back. What is where is kept by the memory module.
#![expect(unsafe_code, reason = "gives memory back that the table knows")]

use stepmesh_plugin::abi::SmPtrAttr;
use stepmesh_plugin::abi::memory::{
    SM_MEMORY_DEVICE, SM_MEMORY_HOST_PINNED, SM_MEMORY_HOST_REGISTERED, SM_MEMORY_MANAGED,
    SM_PTR_HOST_ACCESSIBLE, SM_PTR_IMPORTED, SM_PTR_LOCKED, SM_PTR_SHAREABLE, SM_RDMA_ALIGN_BYTES,
};
use stepmesh_plugin::{AllocKind, AllocRequest, Error, Result, Stream};

use crate::memory::{Block, Origin, close_import, foreign_alloc_id, insert_import};
use crate::shared::Shared;
use crate::{Answer, Driver, Kind};

impl<D: Driver> Shared<D> {
    pub(crate) fn alloc(&self, device: u32, request: &AllocRequest) -> Result<u64> {
        let facts = &self.device(device)?.facts;
        let (kind, flags) = match request.kind {
            AllocKind::Device if facts.has_ipc => (SM_MEMORY_DEVICE, SM_PTR_SHAREABLE),
            AllocKind::Device if request.shareable => {
                return Err(Error::unimplemented(format!(
                    "memory of device {device} cannot be shared with other processes"
                )));
            }
            AllocKind::Device => (SM_MEMORY_DEVICE, 0),
            _ if request.shareable => {
                return Err(Error::unimplemented(
                    "only memory of a device can be shared with other processes",
                ));
            }
            AllocKind::HostPinned => (
                SM_MEMORY_HOST_PINNED,
                SM_PTR_HOST_ACCESSIBLE | SM_PTR_LOCKED,
            ),
            AllocKind::Managed if facts.has_managed => (SM_MEMORY_MANAGED, SM_PTR_HOST_ACCESSIBLE),
            _ => {
                return Err(Error::unimplemented(format!(
                    "device {device} has no memory of the kind {:?}",
                    request.kind
                )));
            }
        };
        let (raw, ptr) = self.alloc_aligned(device, request)?;
        let origin = match request.kind {
            AllocKind::HostPinned => Origin::Pinned { raw },
            _ => Origin::Device { raw },
        };
        let block = Block::new(request.len_bytes, Some(device), kind, flags, origin);
        if request.rdma && request.kind == AllocKind::Device && facts.has_sync_memops {
            let what = || format!("make copies of {ptr:#x} synchronous for network adapters");
            // SAFETY: the allocation was made above.
            let set = self.on(device, what, |driver| unsafe {
                driver.set_sync_memops(raw)
            });
            if let Err(error) = set {
                self.give_back(device, &block)?;
                return Err(error);
            }
        }
        self.table.insert(ptr, block);
        Ok(ptr)
    }

    /// An allocation of the driver's, and the aligned address in it.
    fn alloc_aligned(&self, device: u32, request: &AllocRequest) -> Result<(u64, u64)> {
        let what = || {
            format!(
                "allocate {} bytes aligned to {} on device {device}",
                request.len_bytes, request.align_bytes
            )
        };
        let too_large = || Error::out_of_memory(format!("cannot {}: too large", what()));
        // Pages that others hold too would be exported with ours.
        let unit = match request {
            AllocRequest {
                kind: AllocKind::Device,
                shareable: true,
                ..
            } => SHAREABLE_LEN_UNIT,
            AllocRequest { rdma: true, .. } => SM_RDMA_ALIGN_BYTES,
            _ => 1,
        };
        let align = request.align_bytes;
        let len = request
            .len_bytes
            .checked_next_multiple_of(unit)
            .ok_or_else(too_large)?;
        let padded_len = len.checked_add(align).ok_or_else(too_large)?;
        let lanes = &self.device(device)?.lanes;
        let alloc = |driver: &D, len| match alloc_raw(driver, request.kind, len) {
            // What executions of graphs hold and do not use may be enough.
            Err(failure) if failure.kind::<D>() == Kind::OutOfMemory && lanes.trim(driver)? => {
                alloc_raw(driver, request.kind, len)
            }
            answer => answer,
        };
        self.on_relaxed(device, what, |driver| {
            let raw = alloc(driver, len)?;
            if raw.is_multiple_of(align) {
                return Ok((raw, raw));
            }
            // Large allocations are aligned by chance; for others there is room for the aligned one.
            free_raw(driver, request.kind, raw)?;
            let raw = alloc(driver, padded_len)?;
            Ok((raw, raw.next_multiple_of(align)))
        })
    }

    /// Gives an allocation back.
    pub(crate) fn free(&self, device: u32, ptr: u64) -> Result<()> {
        let block = self.table.take_allocation(device, ptr, Origin::is_own)?;
        self.invalidation.notify(block.alloc_id);
        self.give_back(device, &block)
    }

    /// Gives a block back to the driver, which is not in the table any more.
    pub(crate) fn give_back(&self, device: u32, block: &Block) -> Result<()> {
        let what = || {
            format!(
                "free an allocation of {} bytes on device {device}",
                block.len_bytes
            )
        };
        match block.origin {
            Origin::Device { raw } => self.on_ending(device, what, |driver| {
                free_raw(driver, AllocKind::Device, raw)
            }),
            Origin::Pinned { raw } => self.on_ending(device, what, |driver| {
                free_raw(driver, AllocKind::HostPinned, raw)
            }),
            Origin::Pool | Origin::Registered | Origin::Imported { .. } => Ok(()),
        }
    }

    /// Gives back whatever it is, when the instance ends.
    pub(crate) fn give_back_any(&self, ptr: u64, block: &Block) -> Result<()> {
        let device = block.device.or_else(|| self.ready_device()).unwrap_or(0);
        let what = || format!("give back {} bytes at {ptr:#x}", block.len_bytes);
        match block.origin {
            Origin::Device { .. } | Origin::Pinned { .. } => self.give_back(device, block),
            // Memory of a pool may be freed as any other once its streams are done.
            Origin::Pool => self.on_ending(device, what, |driver| {
                free_raw(driver, AllocKind::Device, ptr)
            }),
            Origin::Registered => self.on_ending(device, what, |driver| {
                // SAFETY: it was registered, and is in the table no more.
                unsafe { driver.unregister_host(ptr) }
            }),
            Origin::Imported { raw, opened } => (0..opened).try_for_each(|_| {
                self.on_ending(device, what, |driver| {
                    // SAFETY: opened as often as this is called, and in the table no more.
                    unsafe { driver.close_ipc(raw) }
                })
            }),
        }
    }

    /// Frees words for mem-events, when the instance ends.
    pub(crate) fn free_words(&self, chunk: u64, device: u32) -> Result<()> {
        let what = || format!("free words for mem-events of device {device}");
        self.on_ending(device, what, |driver| {
            free_raw(driver, AllocKind::HostPinned, chunk)
        })
    }

    pub(crate) fn alloc_async(&self, device: u32, len_bytes: u64, stream: Stream) -> Result<u64> {
        if !self.device(device)?.facts.has_pools {
            // No pool: memory that is there at once is there when the stream gets there.
            let request = AllocRequest {
                len_bytes,
                align_bytes: 1,
                kind: AllocKind::Device,
                rdma: false,
                shareable: false,
            };
            return self.alloc(device, &request);
        }
        if stream.device != device {
            return Err(Error::invalid_argument(format!(
                "memory of device {device} cannot be allocated on a stream of device {}",
                stream.device
            )));
        }
        let what = || format!("allocate {len_bytes} bytes of the pool of device {device}");
        let ptr = self.on(device, what, |driver| {
            // SAFETY: the table's contract: a live stream.
            unsafe { driver.alloc_async(len_bytes, stream.raw) }
        })?;
        let block = Block::new(len_bytes, Some(device), SM_MEMORY_DEVICE, 0, Origin::Pool);
        self.table.insert(ptr, block);
        Ok(ptr)
    }

    /// Whether an address is in memory of a pool.
    pub(crate) fn is_pooled(&self, ptr: u64) -> bool {
        let is_pooled = |_, known: &Block| known.origin == Origin::Pool;
        self.table.find(ptr, 1, is_pooled).unwrap_or(false)
    }

    pub(crate) fn free_async(&self, device: u32, ptr: u64, stream: Stream) -> Result<()> {
        if !self.is_pooled(ptr) {
            self.synchronize_stream(stream, FREE_ASYNC_NS_MAX)?;
            return self.free(device, ptr);
        }
        let block = self.table.take_allocation(device, ptr, Origin::is_own)?;
        self.invalidation.notify(block.alloc_id);
        let what = || format!("free {ptr:#x} in the order of a stream of device {device}");
        self.on_ending(stream.device, what, |driver| {
            // SAFETY: taken out of the table above, so it is freed once; the table's contract: a live
            // stream.
            unsafe { driver.free_async(ptr, stream.raw) }
        })
    }

    /// # Safety
    /// - The range is mapped until it is unregistered.
    pub(crate) unsafe fn register(&self, ptr: u64, len: u64, read_only: bool) -> Result<u64> {
        let what = || format!("register {len} bytes of host memory at {ptr:#x}");
        if self.table.find(ptr, 1, |_, _| ()).is_some() {
            let message = format!("cannot {}: it is known already", what());
            return Err(Error::new(
                stepmesh_plugin::abi::Code::AlreadyExists,
                message,
            ));
        }
        let device = self.ready_device().unwrap_or(0);
        let address = self.on_relaxed(device, what, |driver| {
            // SAFETY: this method's contract.
            unsafe { driver.register_host(ptr, len, read_only) }
        })?;
        let block = Block::new(
            len,
            None,
            SM_MEMORY_HOST_REGISTERED,
            SM_PTR_HOST_ACCESSIBLE | SM_PTR_LOCKED,
            Origin::Registered,
        );
        self.table.insert(ptr, block);
        Ok(address)
    }

    pub(crate) fn unregister(&self, ptr: u64) -> Result<()> {
        let is_it = |known: &Block| known.origin == Origin::Registered;
        let block = self
            .table
            .take_if(ptr, is_it)
            .ok_or_else(|| Error::not_found(format!("{ptr:#x} is not registered")))?;
        self.invalidation.notify(block.alloc_id);
        let device = self.ready_device().unwrap_or(0);
        let what = || format!("unregister host memory at {ptr:#x}");
        self.on_ending(device, what, |driver| {
            // SAFETY: it was registered, and was taken out of the table above.
            unsafe { driver.unregister_host(ptr) }
        })
    }

    pub(crate) fn import(
        &self,
        device: u32,
        handle: [u8; 64],
        offset: u64,
        len: u64,
    ) -> Result<u64> {
        let what = || format!("open another process's memory for device {device}");
        let raw = self.on_relaxed(device, what, |driver| driver.open_ipc(handle))?;
        let close = || {
            self.on_ending(device, what, |driver| {
                // SAFETY: opened above, and given to nobody.
                unsafe { driver.close_ipc(raw) }
            })
        };
        let known = self.on(device, what, |driver| driver.pointer(raw))?;
        let end = offset.checked_add(len);
        let fits = known.is_some_and(|known| {
            let room = known
                .base
                .saturating_add(known.len_bytes)
                .saturating_sub(raw);
            end.is_some_and(|end| end <= room)
        });
        if !fits {
            close()?;
            return Err(Error::invalid_argument(format!(
                "{len} bytes at {offset} are not within the allocation of the handle"
            )));
        }
        let block = Block::new(
            len,
            Some(device),
            SM_MEMORY_DEVICE,
            SM_PTR_IMPORTED,
            Origin::Imported { raw, opened: 1 },
        );
        insert_import(&self.table, raw + offset, block);
        Ok(raw + offset)
    }

    pub(crate) fn close_import(&self, device: u32, ptr: u64) -> Result<()> {
        let closed = close_import(&self.table, ptr)
            .ok_or_else(|| Error::not_found(format!("{ptr:#x} is no import")))?;
        if let Some(alloc_id) = closed.ended {
            self.invalidation.notify(alloc_id);
        }
        let what = || format!("close another process's memory at {ptr:#x}");
        self.on_ending(device, what, |driver| {
            // SAFETY: each import opened it once, and the table counted this one off.
            unsafe { driver.close_ipc(closed.raw) }
        })
    }

    pub(crate) fn attributes(&self, ptr: u64) -> Result<SmPtrAttr> {
        if let Some(own) = self.table.attributes(ptr) {
            return Ok(own);
        }
        let what = || format!("ask about address {ptr:#x}");
        let known = match self.ready_device() {
            Some(device) => self.on_relaxed(device, what, |driver| driver.pointer(ptr))?,
            // Without a context of ours there may still be one of a framework's.
            None => self.driver.pointer(ptr).unwrap_or(None),
        };
        Ok(known.map_or_else(SmPtrAttr::new, |known| {
            let is_host = matches!(
                known.kind,
                SM_MEMORY_HOST_PINNED | SM_MEMORY_HOST_REGISTERED | SM_MEMORY_MANAGED
            );
            SmPtrAttr {
                kind: known.kind,
                device: (known.device).map_or(-1, |device| i32::try_from(device).unwrap_or(-1)),
                base: known.base,
                size: known.len_bytes,
                alloc_id: foreign_alloc_id(known.id),
                flags: if is_host { SM_PTR_HOST_ACCESSIBLE } else { 0 },
                ..SmPtrAttr::new()
            }
        }))
    }
}

fn alloc_raw<D: Driver>(driver: &D, kind: AllocKind, len_bytes: u64) -> Answer<u64> {
    match kind {
        AllocKind::HostPinned => driver.alloc_pinned(len_bytes),
        AllocKind::Managed => driver.alloc_managed(len_bytes),
        _ => driver.alloc_device(len_bytes),
    }
}

fn free_raw<D: Driver>(driver: &D, kind: AllocKind, raw: u64) -> Answer<()> {
    let freed = match kind {
        // SAFETY: an allocation of this driver and kind, which its one owner gives back.
        AllocKind::HostPinned => unsafe { driver.free_pinned(raw) },
        // SAFETY: as above.
        _ => unsafe { driver.free_device(raw) },
    };
    match freed {
        Err(failure) if failure.kind::<D>() == Kind::Ended => Ok(()),
        answer => answer,
    }
}

/// Drivers cut small allocations out of blocks of this many bytes, and an exported handle opens the
/// whole block: memory that is to be shared takes whole ones.
const SHAREABLE_LEN_UNIT: u64 = 2 << 20;
/// How long `free_async` waits for a stream where there is no pool.
const FREE_ASYNC_NS_MAX: u64 = 60_000_000_000;
