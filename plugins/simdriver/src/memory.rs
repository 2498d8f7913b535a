//! All memory that the driver knows: of devices, pinned, managed, registered and imported. Only this
//! module knows where a device's bytes really are, so copies and words go through here.
#![expect(
    unsafe_code,
    reason = "maps memory, and touches what callers vouched for"
)]

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::ranges::Ranges;
use crate::{Answer, Status};

/// All memory.
#[derive(Debug)]
pub(crate) struct Memory {
    devices: Vec<DeviceMemory>,
    /// By first address. Ranges do not overlap.
    blocks: RwLock<BTreeMap<u64, Block>>,
    next_id: AtomicU64,
}

/// What kind of memory a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// A device's own.
    Device,
    /// A device's own, from a pool.
    Pool,
    /// Allocated host memory that devices reach.
    Pinned,
    /// Host memory that migrates.
    Managed,
    /// The caller's, registered.
    Registered,
    /// A device's own, of another process.
    Imported,
}

/// What is known of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockFacts {
    /// First address.
    pub base: u64,
    /// Bytes.
    pub len_bytes: u64,
    /// Kind.
    pub kind: MemoryKind,
    /// Device for which it was allocated.
    pub device: u32,
    /// Number of the allocation, never given twice.
    pub id: u64,
}

/// Where bytes really are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    addr: u64,
    /// What it is, `None` if the driver does not know the memory.
    pub(crate) kind: Option<MemoryKind>,
    /// The number of the allocation, 0 if it is not known.
    pub(crate) id: u64,
    pub(crate) device: Option<u32>,
}

#[derive(Debug)]
struct DeviceMemory {
    /// What callers are told; may not be touched.
    address: Mapping,
    /// The same bytes.
    alias: Mapping,
    file: OwnedFd,
    ranges: Mutex<Ranges>,
}

#[derive(Debug)]
struct Block {
    len_bytes: u64,
    kind: MemoryKind,
    device: u32,
    id: u64,
    /// Where the bytes are.
    alias: u64,
    backing: Backing,
}

#[derive(Debug)]
enum Backing {
    Device {
        offset: u64,
        len_bytes: u64,
    },
    Own {
        _mapping: Mapping,
    },
    Registered,
    Imported {
        key: ImportKey,
        opened: u32,
        _mappings: [Mapping; 2],
    },
}

/// What tells imports apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ImportKey {
    pub(crate) process: u32,
    pub(crate) id: u64,
}

impl Memory {
    pub(crate) fn new(device_count: u32, len_bytes: u64) -> Answer<Self> {
        let device = |_| {
            let file = memory_file(len_bytes)?;
            Ok(DeviceMemory {
                address: Mapping::of(&file, 0, len_bytes, ProtFlags::empty())?,
                alias: Mapping::of(&file, 0, len_bytes, BOTH)?,
                ranges: Mutex::new(Ranges::new(len_bytes)),
                file,
            })
        };
        Ok(Self {
            devices: (0..device_count).map(device).collect::<Answer<_>>()?,
            blocks: RwLock::default(),
            next_id: AtomicU64::new(1),
        })
    }

    /// Free and total bytes of a device.
    pub(crate) fn info(&self, device: u32) -> Answer<(u64, u64)> {
        let memory = self.device(device)?;
        Ok((memory.lock().left(), memory.address.len_bytes))
    }

    pub(crate) fn alloc_device(&self, device: u32, len: u64, kind: MemoryKind) -> Answer<u64> {
        if len == 0 {
            return Err(Status::INVALID_VALUE);
        }
        let memory = self.device(device)?;
        // Big ones start at a big page and small ones share pages, as with real drivers: a caller
        // that needs whole pages must see to it.
        let align = if len >= BIG_LEN {
            BIG_ALIGN
        } else {
            SMALL_ALIGN
        };
        let taken = len
            .checked_next_multiple_of(SMALL_ALIGN)
            .ok_or(Status::OUT_OF_MEMORY)?;
        let offset = memory.lock().take(taken, align);
        let offset = offset.ok_or(Status::OUT_OF_MEMORY)?;
        let backing = Backing::Device {
            offset,
            len_bytes: taken,
        };
        let alias = memory.alias.addr + offset;
        let ptr = memory.address.addr + offset;
        self.insert(ptr, len, kind, device, alias, backing);
        Ok(ptr)
    }

    pub(crate) fn alloc_host(&self, device: u32, len: u64, kind: MemoryKind) -> Answer<u64> {
        if len == 0 {
            return Err(Status::INVALID_VALUE);
        }
        if len > HOST_LEN_MAX {
            return Err(Status::OUT_OF_MEMORY);
        }
        let mapping = Mapping::of(&memory_file(len)?, 0, len, BOTH)?;
        let ptr = mapping.addr;
        let backing = Backing::Own { _mapping: mapping };
        self.insert(ptr, len, kind, device, ptr, backing);
        Ok(ptr)
    }

    /// Gives memory back. Only whole blocks of these kinds.
    pub(crate) fn free(&self, ptr: u64, kinds: &[MemoryKind]) -> Answer<()> {
        let mut blocks = self.write();
        let block = blocks.get(&ptr).filter(|block| kinds.contains(&block.kind));
        block.ok_or(Status::INVALID_VALUE)?;
        let block = blocks.remove(&ptr);
        drop(blocks);
        if let Some(block) = block {
            self.give(&block);
        }
        Ok(())
    }

    fn give(&self, block: &Block) {
        if let Backing::Device { offset, len_bytes } = block.backing
            && let Ok(memory) = self.device(block.device)
        {
            // Whole pages go back to the system. That they cannot is no one's loss but memory's.
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _ = rustix::fs::fallocate(&memory.file, flags, offset, len_bytes);
            memory.lock().give(offset, len_bytes);
        }
    }

    pub(crate) fn register(&self, device: u32, ptr: u64, len: u64) -> Answer<()> {
        let end = ptr.checked_add(len).ok_or(Status::INVALID_VALUE)?;
        if ptr == 0 || len == 0 {
            return Err(Status::INVALID_VALUE);
        }
        let before = {
            let blocks = self.read();
            let before = blocks.range(..end).next_back();
            before.is_some_and(|(base, block)| base + block.len_bytes > ptr)
        };
        if before {
            return Err(Status::ALREADY_REGISTERED);
        }
        self.insert(
            ptr,
            len,
            MemoryKind::Registered,
            device,
            ptr,
            Backing::Registered,
        );
        Ok(())
    }

    pub(crate) fn unregister(&self, ptr: u64) -> Answer<()> {
        let freed = self.free(ptr, &[MemoryKind::Registered]);
        freed.map_err(|_| Status::NOT_REGISTERED)
    }

    /// The block at an address.
    pub(crate) fn block_at(&self, ptr: u64) -> Option<BlockFacts> {
        let blocks = self.read();
        let (base, block) = find(&blocks, ptr)?;
        Some(BlockFacts {
            base,
            len_bytes: block.len_bytes,
            kind: block.kind,
            device: block.device,
            id: block.id,
        })
    }

    /// Where a range is. Memory that the driver does not know is the host's; a range that leaves its
    /// block, or is a device's but in none, is refused.
    pub(crate) fn place(&self, ptr: u64, len: u64) -> Answer<Place> {
        let blocks = self.read();
        if let Some((base, block)) = find(&blocks, ptr) {
            let end = (ptr - base).checked_add(len);
            if end.is_none_or(|end| end > block.len_bytes) {
                return Err(Status::INVALID_VALUE);
            }
            return Ok(Place {
                addr: block.alias + (ptr - base),
                kind: Some(block.kind),
                id: block.id,
                device: Some(block.device),
            });
        }
        if ptr == 0 || self.devices.iter().any(|memory| memory.address.holds(ptr)) {
            return Err(Status::INVALID_VALUE);
        }
        Ok(Place {
            addr: ptr,
            kind: None,
            id: 0,
            device: None,
        })
    }

    /// A device's file, and where an address of its memory is in it.
    pub(crate) fn file_of(&self, ptr: u64, len: u64) -> Answer<(u64, &OwnedFd)> {
        let block = self.block_at(ptr).ok_or(Status::INVALID_VALUE)?;
        if block.kind != MemoryKind::Device {
            return Err(Status::NOT_SUPPORTED);
        }
        let memory = self.device(block.device)?;
        let offset = ptr - memory.address.addr;
        // Rounded to whole pages, and so possibly beyond its end, but not to another one's.
        let end = block.base + block.len_bytes.next_multiple_of(SMALL_ALIGN);
        if ptr + len > end.next_multiple_of(PAGE) {
            return Err(Status::INVALID_VALUE);
        }
        Ok((offset, &memory.file))
    }

    /// Maps another process's memory; once more the same if it is here already.
    pub(crate) fn import(
        &self,
        device: u32,
        key: ImportKey,
        file: impl AsFd,
        (offset, len): (u64, u64),
    ) -> Answer<u64> {
        let mut blocks = self.write();
        for (ptr, block) in blocks.iter_mut() {
            if let Backing::Imported {
                key: known, opened, ..
            } = &mut block.backing
                && *known == key
            {
                *opened += 1;
                return Ok(*ptr);
            }
        }
        drop(blocks);
        let skip = offset % PAGE;
        let mapped = (len + skip).next_multiple_of(PAGE);
        let address = Mapping::of(&file, offset - skip, mapped, ProtFlags::empty())?;
        let alias = Mapping::of(&file, offset - skip, mapped, BOTH)?;
        let (ptr, touchable) = (address.addr + skip, alias.addr + skip);
        let backing = Backing::Imported {
            key,
            opened: 1,
            _mappings: [address, alias],
        };
        self.insert(ptr, len, MemoryKind::Imported, device, touchable, backing);
        Ok(ptr)
    }

    pub(crate) fn close_import(&self, ptr: u64) -> Answer<()> {
        let mut blocks = self.write();
        let block = blocks.get_mut(&ptr).ok_or(Status::INVALID_VALUE)?;
        let Backing::Imported { opened, .. } = &mut block.backing else {
            return Err(Status::INVALID_VALUE);
        };
        *opened -= 1;
        if *opened == 0 {
            blocks.remove(&ptr);
        }
        Ok(())
    }

    /// Everything of a device goes, as with its context.
    pub(crate) fn drop_all_of(&self, device: u32) {
        let mut blocks = self.write();
        let of_device = |block: &Block| block.device == device;
        let gone: Vec<u64> = blocks
            .iter()
            .filter(|(_, block)| of_device(block))
            .map(|(ptr, _)| *ptr)
            .collect();
        let gone: Vec<Block> = gone.iter().filter_map(|ptr| blocks.remove(ptr)).collect();
        drop(blocks);
        for block in &gone {
            self.give(block);
        }
    }

    fn insert(
        &self,
        ptr: u64,
        len_bytes: u64,
        kind: MemoryKind,
        device: u32,
        alias: u64,
        backing: Backing,
    ) {
        let block = Block {
            len_bytes,
            kind,
            device,
            id: self.next_id.fetch_add(1, Ordering::Relaxed),
            alias,
            backing,
        };
        self.write().insert(ptr, block);
    }

    fn device(&self, device: u32) -> Answer<&DeviceMemory> {
        let idx = usize::try_from(device).map_err(|_| Status::INVALID_DEVICE)?;
        self.devices.get(idx).ok_or(Status::INVALID_DEVICE)
    }

    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<u64, Block>> {
        self.blocks.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<u64, Block>> {
        self.blocks.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DeviceMemory {
    fn lock(&self) -> MutexGuard<'_, Ranges> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// Copies from another place; they may overlap.
    pub(crate) fn copy_from(self, src: Self, len: u64) {
        let (dst, src) = (pointer(self.addr), pointer(src.addr));
        let len = usize::try_from(len).unwrap_or(0);
        // SAFETY: the caller of the driver vouches for host memory until the work is done, and for
        // known memory the range was found to be within a live block.
        unsafe { std::ptr::copy(src.cast::<u8>(), dst.cast::<u8>(), len) };
    }

    /// Writes a value of `width` bytes again and again.
    pub(crate) fn fill(self, value: u32, width: u32, count: u64) {
        let bytes = value.to_le_bytes();
        let width = usize::try_from(width).unwrap_or(1).clamp(1, bytes.len());
        let len = usize::try_from(count).unwrap_or(0) * width;
        // SAFETY: as in `copy_from`: the range is valid, and no one else uses it meanwhile.
        let all = unsafe { std::slice::from_raw_parts_mut(pointer(self.addr).cast::<u8>(), len) };
        for piece in all.chunks_mut(width) {
            piece.copy_from_slice(bytes.get(..piece.len()).unwrap_or_default());
        }
    }

    /// A copy of the first bytes.
    pub(crate) fn read(self, len: usize) -> Vec<u8> {
        // SAFETY: as in `copy_from`: the range is valid, and no one writes to it meanwhile.
        unsafe { std::slice::from_raw_parts(pointer(self.addr).cast::<u8>(), len) }.to_vec()
    }

    /// Writes bytes behind an offset, within what was asked for.
    pub(crate) fn write(self, offset: u64, bytes: &[u8]) {
        let at = pointer(self.addr + offset).cast::<u8>();
        // SAFETY: as in `fill`: the range is valid, and no one else uses it meanwhile.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len()) };
    }

    /// The address through which the bytes can be touched.
    pub(crate) fn touchable(self) -> u64 {
        self.addr
    }

    /// The bytes as a word that others change too.
    pub(crate) fn word(&self) -> &AtomicU64 {
        // SAFETY: the place is 8 aligned bytes of a live block, checked by who asks; whoever shares
        // it uses atomic operations or copies in stream order.
        unsafe { AtomicU64::from_ptr(pointer(self.addr).cast()) }
    }
}

/// Mapped memory; unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    addr: u64,
    len_bytes: u64,
}

impl Mapping {
    fn of(file: impl AsFd, offset: u64, len_bytes: u64, access: ProtFlags) -> Answer<Self> {
        let len = usize::try_from(len_bytes).map_err(|_| Status::OUT_OF_MEMORY)?;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses, so that none is replaced.
        let mapped =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, access, flags, file, offset) };
        let mapped = mapped.map_err(|_| Status::OUT_OF_MEMORY)?;
        Ok(Self {
            addr: mapped.expose_provenance() as u64,
            len_bytes,
        })
    }

    fn holds(&self, ptr: u64) -> bool {
        ptr >= self.addr && ptr - self.addr < self.len_bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let len = usize::try_from(self.len_bytes).unwrap_or(0);
        // SAFETY: mapped by `of` and unmapped once; the driver's blocks on it are gone, and callers
        // may not use memory that they gave back.
        let _ = unsafe { rustix::mm::munmap(pointer(self.addr), len) };
    }
}

fn memory_file(len: u64) -> Answer<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("stepmesh-simdriver", flags);
    let file = file.map_err(|_| Status::OUT_OF_MEMORY)?;
    let sized = rustix::fs::ftruncate(&file, len.next_multiple_of(PAGE));
    sized.map_err(|_| Status::OUT_OF_MEMORY)?;
    // dma-bufs are made only of files that cannot shrink.
    let sealed = rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK);
    sealed.map_err(|_| Status::UNKNOWN)?;
    Ok(file)
}

fn find(blocks: &BTreeMap<u64, Block>, ptr: u64) -> Option<(u64, &Block)> {
    let (&base, block) = blocks.range(..=ptr).next_back()?;
    (ptr - base < block.len_bytes).then_some((base, block))
}

fn pointer(addr: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(usize::try_from(addr).unwrap_or(0))
}

const BOTH: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);
/// Alignment of small allocations: real drivers give no more.
const SMALL_ALIGN: u64 = 512;
/// From here on an allocation has pages of its own.
const BIG_LEN: u64 = 1 << 20;
/// Alignment of such.
const BIG_ALIGN: u64 = 2 << 20;
/// The host's pages on the machines where tests run; big pages are a multiple of all.
const PAGE: u64 = 4096;
/// No host has more, and beyond that sums would overflow.
const HOST_LEN_MAX: u64 = 1 << 46;
