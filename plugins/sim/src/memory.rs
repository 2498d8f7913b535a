//! All memory of an instance: the devices' own behind addresses that no one may touch, pinned and
//! registered host memory, and imports. Copies go through here, because only this module knows where
//! a device's bytes really are.
#![expect(unsafe_code, reason = "copies memory that submitters vouched for")]

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::FallocateFlags;
use stepmesh_plugin::abi::SmPtrAttr;
use stepmesh_plugin::abi::memory::{
    SM_MEMORY_DEVICE, SM_MEMORY_HOST_PINNED, SM_MEMORY_HOST_REGISTERED, SM_PTR_HOST_ACCESSIBLE,
    SM_PTR_IMPORTED, SM_PTR_SHAREABLE,
};
use stepmesh_plugin::software::{
    FreeRanges, Mapping, OsContext as _, copy, file_len, fill, memory_file, page_len, seal_size,
    to_addr, to_u64,
};
use stepmesh_plugin::{
    AllocKind, AllocRequest, Allocation, Allocations, CopyRequest, Direction, DmabufExport, Error,
    FillRequest, Invalidation, IpcExport, Result,
};

use crate::dmabuf::Driver;

/// All memory of an instance.
#[derive(Debug)]
pub(crate) struct Memory {
    devices: Vec<DeviceMemory>,
    allocations: Allocations<Backing>,
    pub(crate) dmabufs: Driver,
    pub(crate) invalidation: Invalidation,
    /// Writes of adapters that the devices do not see yet; none where they see all at once.
    unseen: Option<Mutex<Vec<Unseen>>>,
}

/// What an adapter wrote.
#[derive(Debug)]
struct Unseen {
    ptr: u64,
    bytes: Vec<u8>,
    device: Option<u32>,
}

/// The memory of a device.
#[derive(Debug)]
struct DeviceMemory {
    /// What the host is told.
    address: Mapping,
    /// The same bytes, for this backend alone.
    alias: Mapping,
    file: OwnedFd,
    free: Mutex<Free>,
}

#[derive(Debug)]
struct Free {
    ranges: FreeRanges,
    len_bytes: u64,
}

#[derive(Debug)]
enum Backing {
    /// A range of its device's memory, of whole pages.
    Device { offset: usize, len_bytes: usize },
    /// A file of its own.
    Pinned { _mapping: Mapping, file: OwnedFd },
    /// Someone else's memory.
    Registered,
    /// Another process's pinned memory, mapped here.
    Imported { _mapping: Mapping },
}

/// Where bytes really are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    addr: u64,
    /// Whose memory it is; the host's if none.
    device: Option<u32>,
}

impl Memory {
    pub(crate) fn new(device_count: u32, len_bytes: u64, is_unordered: bool) -> Result<Self> {
        let devices = (0..device_count).map(|device| {
            let what = || format!("make {len_bytes} bytes of memory for simulated device {device}");
            let file = memory_file("stepmesh-sim-device", len_bytes).context(what)?;
            seal_size(&file).context(what)?;
            let len = to_addr(len_bytes);
            Ok(DeviceMemory {
                address: Mapping::untouchable(&file, 0, len, ALIGN_MAX).context(what)?,
                alias: Mapping::shared(&file, 0, len, 1).context(what)?,
                file,
                free: Mutex::new(Free {
                    ranges: FreeRanges::new(len),
                    len_bytes,
                }),
            })
        });
        Ok(Self {
            devices: devices.collect::<Result<_>>()?,
            allocations: Allocations::default(),
            dmabufs: Driver::open(),
            invalidation: Invalidation::default(),
            unseen: is_unordered.then(Mutex::default),
        })
    }

    /// Free and total bytes of a device.
    pub(crate) fn info(&self, device: u32) -> Result<(u64, u64)> {
        let memory = self.device(device)?;
        let free = memory.lock().len_bytes;
        Ok((free, to_u64(memory.address.len_bytes())))
    }

    pub(crate) fn alloc(&self, device: u32, request: &AllocRequest) -> Result<u64> {
        let (ptr, kind, flags, backing) = match request.kind {
            AllocKind::Device if request.shareable => {
                return Err(Error::unimplemented(
                    "memory of a simulated device cannot be shared with other processes",
                ));
            }
            AllocKind::Device => {
                let (ptr, backing) = self.alloc_device(device, request)?;
                (ptr, SM_MEMORY_DEVICE, 0, backing)
            }
            AllocKind::HostPinned => {
                let (ptr, backing) = alloc_pinned(request)?;
                let flags = SM_PTR_HOST_ACCESSIBLE | SM_PTR_SHAREABLE;
                (ptr, SM_MEMORY_HOST_PINNED, flags, backing)
            }
            _ => {
                return Err(Error::unimplemented(
                    "the sim backend has no managed memory",
                ));
            }
        };
        let allocation = Allocation::new(request.len_bytes, Some(device), kind, flags, backing);
        self.allocations.insert(ptr, allocation);
        Ok(ptr)
    }

    /// Gives an allocation back.
    pub(crate) fn free(&self, device: u32, ptr: u64) -> Result<()> {
        let is_own =
            |backing: &Backing| matches!(backing, Backing::Device { .. } | Backing::Pinned { .. });
        let freed = self.allocations.take_allocation(device, ptr, is_own)?;
        self.invalidation.notify(freed.alloc_id);
        if let Backing::Device { offset, len_bytes } = freed.origin {
            self.device(device)?.give(offset, len_bytes);
        }
        Ok(())
    }

    pub(crate) fn attributes(&self, ptr: u64) -> SmPtrAttr {
        self.allocations.attributes(ptr).unwrap_or_default()
    }

    pub(crate) fn register(&self, ptr: u64, len_bytes: u64) -> Result<u64> {
        let (kind, flags) = (SM_MEMORY_HOST_REGISTERED, SM_PTR_HOST_ACCESSIBLE);
        let registered = || Allocation::new(len_bytes, None, kind, flags, Backing::Registered);
        self.allocations.insert_apart(ptr, len_bytes, registered)?;
        Ok(ptr)
    }

    pub(crate) fn unregister(&self, ptr: u64) -> Result<()> {
        let is_registered = |backing: &Backing| matches!(backing, Backing::Registered);
        self.end(ptr, is_registered)
            .ok_or_else(|| Error::not_found(format!("{ptr:#x} is not registered")))
    }

    pub(crate) fn export(&self, device: u32, ptr: u64, len_bytes: u64) -> Result<IpcExport> {
        let what = || format!("export {len_bytes} bytes at {ptr:#x} of device {device}");
        let found = self.allocations.find(ptr, len_bytes, |base, known| {
            if known.device != Some(device) {
                let message = format!("cannot {}: another device's", what());
                return Err(Error::invalid_argument(message));
            }
            let Backing::Pinned { file, .. } = &known.origin else {
                let message = format!("cannot {}: only pinned memory can be shared", what());
                return Err(Error::unimplemented(message));
            };
            Ok(IpcExport::Fd {
                fd: file.try_clone().context(what)?,
                offset_bytes: ptr - base,
                len_bytes,
                mappable: true,
            })
        });
        found.unwrap_or_else(|| {
            let message = format!("cannot {}: not in one allocation", what());
            Err(Error::invalid_argument(message))
        })
    }

    /// Exports device or pinned memory as a dma-buf.
    pub(crate) fn export_dmabuf(
        &self,
        device: u32,
        ptr: u64,
        len_bytes: u64,
    ) -> Result<DmabufExport> {
        let refuse = |what: &str| {
            format!("cannot export {len_bytes} bytes at {ptr:#x} of device {device}: {what}")
        };
        let found = self.allocations.find(ptr, len_bytes, |base, known| {
            let (file, offset) = match &known.origin {
                Backing::Registered | Backing::Imported { .. } => {
                    return Err(Error::unimplemented(refuse("not allocated here")));
                }
                _ if known.device != Some(device) => {
                    return Err(Error::invalid_argument(refuse("another device's")));
                }
                Backing::Device { offset, .. } => (&self.device(device)?.file, to_u64(*offset)),
                Backing::Pinned { file, .. } => (file, 0),
            };
            // Both kinds start at a page and have whole pages, so those of a part are not another's.
            let page_len = to_u64(page_len());
            self.dmabufs
                .export(file, offset + (ptr - base), len_bytes, page_len)
        });
        found.unwrap_or_else(|| Err(Error::invalid_argument(refuse("not in one allocation"))))
    }

    /// Maps memory that another process exported: pinned, and so here.
    pub(crate) fn import(
        &self,
        device: u32,
        file: BorrowedFd<'_>,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> Result<u64> {
        let what = || format!("import {len_bytes} bytes at offset {offset_bytes} of a file");
        let file_len = file_len(file).context(what)?;
        let end = offset_bytes.checked_add(len_bytes);
        if end.is_none_or(|end| end > file_len) {
            let message = format!("cannot {}: it has {file_len} bytes only", what());
            return Err(Error::invalid_argument(message));
        }
        let skip = offset_bytes % to_u64(page_len());
        let mapped_len = to_addr(len_bytes + skip).next_multiple_of(page_len());
        let mapping = Mapping::shared(file, offset_bytes - skip, mapped_len, 1).context(what)?;
        let ptr = to_u64(mapping.addr()) + skip;
        let (kind, flags) = (
            SM_MEMORY_HOST_PINNED,
            SM_PTR_HOST_ACCESSIBLE | SM_PTR_IMPORTED,
        );
        let backing = Backing::Imported { _mapping: mapping };
        let imported = Allocation::new(len_bytes, Some(device), kind, flags, backing);
        self.allocations.insert(ptr, imported);
        Ok(ptr)
    }

    pub(crate) fn close_import(&self, ptr: u64) -> Result<()> {
        let is_import = |backing: &Backing| matches!(backing, Backing::Imported { .. });
        self.end(ptr, is_import)
            .ok_or_else(|| Error::not_found(format!("{ptr:#x} is no import")))
    }

    /// Whose memory a copy touches: the written side's, else the read side's, else no one's.
    pub(crate) fn device_of_copy(&self, request: &CopyRequest) -> Option<u32> {
        let device = |ptr| (self.allocations.find(ptr, 1, |_, known| known.device)).flatten();
        device(request.dst).or_else(|| device(request.src))
    }

    /// Refuses a copy that a real device could only get wrong.
    pub(crate) fn check_copy(&self, request: &CopyRequest) -> Result<()> {
        self.places(request).map(drop)
    }

    /// Refuses a fill that a real device could only get wrong.
    pub(crate) fn check_fill(&self, request: &FillRequest) -> Result<()> {
        self.place(request.dst, request.len_bytes).map(drop)
    }

    /// Where a range is that kernels of a device read or write: its own memory, or host memory that it
    /// reaches. What a real device would fault on is refused.
    pub(crate) fn reachable(&self, device: u32, ptr: u64, len_bytes: u64) -> Result<u64> {
        if len_bytes == 0 {
            return Ok(ptr);
        }
        let place = self.place(ptr, len_bytes)?;
        let reaches = self.allocations.find(ptr, len_bytes, |_, known| {
            known.kind != SM_MEMORY_DEVICE || known.device == Some(device)
        });
        if reaches == Some(true) {
            return Ok(place.addr);
        }
        Err(Error::invalid_argument(format!(
            "kernels of simulated device {device} do not reach {len_bytes} bytes at {ptr:#x}: \
             allocate them on it, or pin or register them"
        )))
    }

    /// # Safety
    /// - What is host memory of both ranges is valid until this returns, for reading and for
    ///   writing, and no one uses it otherwise meanwhile. Device memory is found out.
    pub(crate) unsafe fn copy(&self, request: &CopyRequest) -> Result<()> {
        let (dst, src) = self.places(request)?;
        // SAFETY: a place of a device lies within its alias, which lives as long as `self`; one of
        // the host is valid by this method's contract.
        unsafe { copy(dst.addr, src.addr, request.len_bytes) };
        Ok(())
    }

    /// # Safety
    /// - As [`Memory::copy`], for the written range.
    /// - `dst` and `len_bytes` are multiples of `width_bytes`, which is 1, 2 or 4.
    pub(crate) unsafe fn fill(&self, request: &FillRequest) -> Result<()> {
        let place = self.place(request.dst, request.len_bytes)?;
        let (width, len) = (request.width_bytes, request.len_bytes);
        // SAFETY: as in `copy`; aliases are aligned like addresses, to pages at least.
        unsafe { fill(place.addr, request.value, width, len) };
        Ok(())
    }

    /// An adapter writes to device memory. False when it is no live allocation of this instance.
    pub(crate) fn adapter_write(&self, ptr: u64, bytes: &[u8]) -> bool {
        let place = self.place(ptr, to_u64(bytes.len()));
        let Some(device) = place.ok().and_then(|place| place.device) else {
            return false;
        };
        let write = Unseen {
            ptr,
            bytes: bytes.into(),
            device: Some(device),
        };
        match &self.unseen {
            Some(unseen) => unseen
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(write),
            None => self.see(&write),
        }
        true
    }

    /// From here on the device sees what adapters wrote.
    pub(crate) fn flush_adapter_writes(&self, device: u32) {
        let Some(unseen) = &self.unseen else { return };
        let mut unseen = unseen.lock().unwrap_or_else(PoisonError::into_inner);
        for write in unseen.extract_if(.., |write| write.device == Some(device)) {
            self.see(&write);
        }
    }

    fn see(&self, write: &Unseen) {
        let len_bytes = to_u64(write.bytes.len());
        // It may have been freed meanwhile; then nobody looks.
        let Ok(place) = self.place(write.ptr, len_bytes) else {
            return;
        };
        if place.device == write.device {
            let bytes = to_u64(write.bytes.as_ptr().expose_provenance());
            // SAFETY: a place of a device lies within its alias, which lives as long as `self`, and the
            // bytes are the write's own.
            unsafe { copy(place.addr, bytes, len_bytes) };
        }
    }

    fn places(&self, request: &CopyRequest) -> Result<(Place, Place)> {
        let dst = self.place(request.dst, request.len_bytes)?;
        let src = self.place(request.src, request.len_bytes)?;
        // What the caller says of a side, if anything: whose memory it is.
        let (to, from) = match request.direction {
            Direction::HostToDevice => (Some(Some(request.dst_device)), Some(None)),
            Direction::DeviceToHost => (Some(None), Some(Some(request.src_device))),
            Direction::DeviceToDevice | Direction::PeerToPeer => (
                Some(Some(request.dst_device)),
                Some(Some(request.src_device)),
            ),
            _ => (None, None),
        };
        for (said, place, ptr) in [(to, dst, request.dst), (from, src, request.src)] {
            if said.is_some_and(|said| said != place.device) {
                return Err(Error::invalid_argument(format!(
                    "a copy {:?} says that {ptr:#x} is memory of {}, but it is of {}",
                    request.direction,
                    owner(said.flatten()),
                    owner(place.device)
                )));
            }
        }
        if request.direction == Direction::DeviceToDevice && dst.device != src.device {
            return Err(Error::invalid_argument(format!(
                "a copy within one device goes from {} to {}; say that it is from peer to peer",
                owner(src.device),
                owner(dst.device)
            )));
        }
        Ok((dst, src))
    }

    /// Where a range is. One that touches a device's addresses must lie within a live allocation;
    /// anything else is the host's.
    fn place(&self, ptr: u64, len_bytes: u64) -> Result<Place> {
        let end = ptr.checked_add(len_bytes).ok_or_else(|| {
            Error::invalid_argument(format!("{len_bytes} bytes at {ptr:#x}: past the end"))
        })?;
        let touches = |memory: &&DeviceMemory| {
            let first = to_u64(memory.address.addr());
            ptr < first + to_u64(memory.address.len_bytes()) && end > first
        };
        let Some(memory) = self.devices.iter().find(touches) else {
            let addr = ptr;
            return Ok(Place { addr, device: None });
        };
        let device = self
            .allocations
            .find(ptr, len_bytes, |_, known| known.device);
        let Some(device) = device else {
            return Err(Error::invalid_argument(format!(
                "{len_bytes} bytes at {ptr:#x} are not within a live allocation of a simulated \
                 device"
            )));
        };
        let addr = to_u64(memory.alias.addr()) + (ptr - to_u64(memory.address.addr()));
        Ok(Place { addr, device })
    }

    fn alloc_device(&self, device: u32, request: &AllocRequest) -> Result<(u64, Backing)> {
        let memory = self.device(device)?;
        let mut free = memory.lock();
        let pages = request
            .len_bytes
            .checked_next_multiple_of(to_u64(page_len()));
        let taken = pages
            .filter(|len| *len <= free.len_bytes && request.align_bytes <= to_u64(ALIGN_MAX))
            .and_then(|len| {
                let align = to_addr(request.align_bytes).max(page_len());
                let offset = free.ranges.take(to_addr(len), align)?;
                free.len_bytes -= len;
                Some((offset, to_addr(len)))
            });
        let Some((offset, len_bytes)) = taken else {
            return Err(Error::out_of_memory(format!(
                "cannot allocate {} bytes aligned to {} on simulated device {device}: {} of {} \
                 bytes are free",
                request.len_bytes,
                request.align_bytes,
                free.len_bytes,
                memory.address.len_bytes()
            )));
        };
        let ptr = to_u64(memory.address.addr() + offset);
        Ok((ptr, Backing::Device { offset, len_bytes }))
    }

    fn device(&self, device: u32) -> Result<&DeviceMemory> {
        let memory = usize::try_from(device)
            .ok()
            .and_then(|idx| self.devices.get(idx));
        memory.ok_or_else(|| Error::invalid_argument(format!("device {device} does not exist")))
    }

    fn end(&self, ptr: u64, is_it: impl Fn(&Backing) -> bool) -> Option<()> {
        let ended = (self.allocations).take_if(ptr, |known| is_it(&known.origin))?;
        // Unmapped at the end of this, with no lock held.
        self.invalidation.notify(ended.alloc_id);
        Some(())
    }
}

impl DeviceMemory {
    fn give(&self, offset: usize, len_bytes: usize) {
        // The pages go back to the machine, and who gets the range next finds zeros. If the kernel
        // will not, they stay until the instance is closed.
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let _ = rustix::fs::fallocate(&self.file, flags, to_u64(offset), to_u64(len_bytes));
        let mut free = self.lock();
        free.ranges.give(offset, len_bytes);
        free.len_bytes += to_u64(len_bytes);
    }

    fn lock(&self) -> MutexGuard<'_, Free> {
        // No code that can panic runs between the two changes.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn alloc_pinned(request: &AllocRequest) -> Result<(u64, Backing)> {
    let what = || format!("allocate {} bytes of pinned memory", request.len_bytes);
    let too_large = || Error::out_of_memory(format!("cannot {}: too much", what()));
    let pages = request
        .len_bytes
        .checked_next_multiple_of(to_u64(page_len()));
    let pages = pages
        .filter(|len| *len <= PINNED_LEN_MAX && request.align_bytes <= to_u64(ALIGN_MAX))
        .ok_or_else(too_large)?;
    let file = memory_file("stepmesh-sim-pinned", pages).context(what)?;
    seal_size(&file).context(what)?;
    let align = to_addr(request.align_bytes);
    let mapping = Mapping::shared(&file, 0, to_addr(pages), align).context(what)?;
    let ptr = to_u64(mapping.addr());
    Ok((
        ptr,
        Backing::Pinned {
            _mapping: mapping,
            file,
        },
    ))
}

fn owner(device: Option<u32>) -> String {
    device.map_or_else(|| "the host".into(), |device| format!("device {device}"))
}

/// Largest alignment: a huge page of the largest kind. A device's first address has it.
const ALIGN_MAX: usize = 1 << 30;
/// Largest pinned allocation: pages are taken when they are written, so that this is no more than a
/// check of sanity.
const PINNED_LEN_MAX: u64 = 1 << 40;
