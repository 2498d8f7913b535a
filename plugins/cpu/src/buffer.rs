//! All memory of an instance: allocations, registered host memory and imports, found by any address
//! within them. What the kernel is asked for beyond mappings lives in sys.
#![forbid(unsafe_code)]

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stepmesh_plugin::abi::SmPtrAttr;
use stepmesh_plugin::abi::memory::{
    SM_MEMORY_DEVICE, SM_MEMORY_HOST_PINNED, SM_MEMORY_HOST_REGISTERED, SM_PTR_HOST_ACCESSIBLE,
    SM_PTR_IMPORTED, SM_PTR_LOCKED, SM_PTR_SHAREABLE,
};
use stepmesh_plugin::software::{
    FreeRanges, Mapping, OsContext as _, file_len, memory_file, page_len, seal_size, to_addr,
    to_u64,
};
use stepmesh_plugin::{
    AllocKind, AllocRequest, Allocation, Allocations, Error, Host, Invalidation, IpcExport,
    LogLevel, Result,
};

use crate::device::Topology;
use crate::sys;

/// All memory of an instance.
#[derive(Debug)]
pub(crate) struct Memory {
    host: Host,
    topology: Arc<Topology>,
    dir: Option<PathBuf>,
    allocations: Allocations<Backing>,
    chunks: Mutex<Chunks>,
    lock_failure_logged: AtomicBool,
    invalidation: Invalidation,
}

/// Files whose pages small allocations share.
#[derive(Debug, Default)]
struct Chunks(Vec<Chunk>);

#[derive(Debug)]
enum Backing {
    /// A file of its own.
    File(Arc<FileMemory>),
    /// A range of a file shared with others, of whole pages.
    Chunk {
        memory: Arc<FileMemory>,
        offset: usize,
        len_bytes: usize,
    },
    /// Someone else's memory: registered.
    Registered,
    /// Another process's memory, mapped here. Starts `skip` bytes into the mapping.
    Imported { _mapping: Mapping },
}

#[derive(Debug)]
struct Chunk {
    device: u32,
    memory: Arc<FileMemory>,
    free: FreeRanges,
}

/// A file and its mapping.
#[derive(Debug)]
struct FileMemory {
    mapping: Mapping,
    file: OwnedFd,
}

impl Memory {
    pub(crate) fn new(host: Host, topology: Arc<Topology>) -> Self {
        let dir = host
            .config("shm.dir")
            .filter(|dir| !dir.is_empty())
            .map(PathBuf::from);
        Self {
            host,
            topology,
            dir,
            allocations: Allocations::default(),
            chunks: Mutex::default(),
            lock_failure_logged: AtomicBool::new(false),
            invalidation: Invalidation::default(),
        }
    }

    /// Who is told of memory that ends.
    pub(crate) fn invalidation(&self) -> &Invalidation {
        &self.invalidation
    }

    pub(crate) fn alloc(&self, device: u32, request: &AllocRequest) -> Result<u64> {
        let kind = match request.kind {
            AllocKind::Device => SM_MEMORY_DEVICE,
            AllocKind::HostPinned => SM_MEMORY_HOST_PINNED,
            _ => {
                let message =
                    "the cpu backend has no managed memory; its device memory is the host's";
                return Err(Error::unimplemented(message));
            }
        };
        let too_large = || {
            Error::out_of_memory(format!(
                "cannot allocate {} bytes on device {device}: more than the address space has",
                request.len_bytes
            ))
        };
        let len = usize::try_from(request.len_bytes).ok();
        let len = len
            .filter(|len| *len <= ALLOC_LEN_MAX)
            .ok_or_else(too_large)?;
        let align = usize::try_from(request.align_bytes).ok();
        let align = align
            .filter(|align| *align <= ALIGN_MAX)
            .ok_or_else(too_large)?;
        let whole = len.next_multiple_of(page_len());
        let small = whole <= SMALL_LEN_MAX && align <= SMALL_LEN_MAX;
        let (addr, backing) = if small && !request.shareable && kind == SM_MEMORY_DEVICE {
            self.alloc_small(device, whole, align)?
        } else {
            let memory = Arc::new(self.file_memory(device, whole, align)?);
            (memory.mapping.addr(), Backing::File(memory))
        };
        let mut flags = SM_PTR_HOST_ACCESSIBLE | SM_PTR_SHAREABLE;
        if kind == SM_MEMORY_HOST_PINNED && self.lock_pages(&backing) {
            flags |= SM_PTR_LOCKED;
        }
        let ptr = to_u64(addr);
        let allocation = Allocation::new(request.len_bytes, Some(device), kind, flags, backing);
        self.allocations.insert(ptr, allocation);
        Ok(ptr)
    }

    pub(crate) fn free(&self, device: u32, ptr: u64) -> Result<()> {
        let is_own =
            |backing: &Backing| matches!(backing, Backing::File(_) | Backing::Chunk { .. });
        let freed = self.allocations.take_allocation(device, ptr, is_own)?;
        // Before anyone can get the range again.
        self.invalidation.notify(freed.alloc_id);
        let emptied = self.chunks().give(&freed.origin);
        // Unmapping takes its time; no one need wait for it.
        drop((freed, emptied));
        Ok(())
    }

    pub(crate) fn attributes(&self, ptr: u64) -> SmPtrAttr {
        self.allocations.attributes(ptr).unwrap_or_default()
    }

    pub(crate) fn register(&self, ptr: u64, len_bytes: u64) -> Result<u64> {
        self.allocations.insert_apart(ptr, len_bytes, || {
            let mut flags = SM_PTR_HOST_ACCESSIBLE;
            match sys::lock_range(to_addr(ptr), to_addr(len_bytes)) {
                Ok(()) => flags |= SM_PTR_LOCKED,
                Err(error) => self.log_lock_failure(&error),
            }
            let kind = SM_MEMORY_HOST_REGISTERED;
            Allocation::new(len_bytes, None, kind, flags, Backing::Registered)
        })?;
        Ok(ptr)
    }

    pub(crate) fn unregister(&self, ptr: u64) -> Result<()> {
        let unregistered = self.allocations.take_if(ptr, |known| {
            let is_registered = matches!(known.origin, Backing::Registered);
            // While nobody can register it anew.
            if is_registered && known.flags & SM_PTR_LOCKED != 0 {
                sys::unlock_range(to_addr(ptr), to_addr(known.len_bytes));
            }
            is_registered
        });
        let unregistered =
            unregistered.ok_or_else(|| Error::not_found(format!("{ptr:#x} is not registered")))?;
        self.invalidation.notify(unregistered.alloc_id);
        Ok(())
    }

    pub(crate) fn export(&self, device: u32, ptr: u64, len_bytes: u64) -> Result<IpcExport> {
        let what = || format!("cannot export {len_bytes} bytes at {ptr:#x} of device {device}");
        let found = self.allocations.find(ptr, len_bytes, |base, known| {
            let (memory, start) = match &known.origin {
                Backing::File(memory) => (memory, 0),
                Backing::Chunk { memory, offset, .. } => (memory, *offset),
                Backing::Registered | Backing::Imported { .. } => {
                    let message = format!("{}: not allocated here", what());
                    return Err(Error::unimplemented(message));
                }
            };
            if known.device != Some(device) {
                let message = format!("{}: another device's", what());
                return Err(Error::invalid_argument(message));
            }
            Ok((Arc::clone(memory), to_u64(start) + (ptr - base)))
        });
        let (memory, offset_bytes) = found.unwrap_or_else(|| {
            let message = format!("{}: not in one allocation", what());
            Err(Error::invalid_argument(message))
        })?;
        let fd = memory.file.try_clone().context(|| {
            format!("export {len_bytes} bytes at {ptr:#x} of device {device}: duplicate the file")
        })?;
        Ok(IpcExport::Fd {
            fd,
            offset_bytes,
            len_bytes,
            mappable: true,
        })
    }

    pub(crate) fn import(
        &self,
        device: u32,
        fd: BorrowedFd<'_>,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> Result<u64> {
        let what = || format!("import {len_bytes} bytes at offset {offset_bytes} of a file");
        let file_len = file_len(fd).context(what)?;
        let end = offset_bytes
            .checked_add(len_bytes)
            .filter(|end| *end <= file_len);
        if end.is_none() {
            return Err(Error::invalid_argument(format!(
                "cannot {}: it has {file_len} bytes only",
                what()
            )));
        }
        let skip = offset_bytes % to_u64(page_len());
        let mapped_len = to_addr(len_bytes + skip).next_multiple_of(page_len());
        let mapping = Mapping::shared(fd, offset_bytes - skip, mapped_len, 1).context(what)?;
        let ptr = to_u64(mapping.addr()) + skip;
        let flags = SM_PTR_HOST_ACCESSIBLE | SM_PTR_IMPORTED;
        let backing = Backing::Imported { _mapping: mapping };
        let imported = Allocation::new(len_bytes, Some(device), SM_MEMORY_DEVICE, flags, backing);
        self.allocations.insert(ptr, imported);
        Ok(ptr)
    }

    pub(crate) fn close_import(&self, ptr: u64) -> Result<()> {
        let is_import =
            |known: &Allocation<Backing>| matches!(known.origin, Backing::Imported { .. });
        let closed = (self.allocations.take_if(ptr, is_import))
            .ok_or_else(|| Error::not_found(format!("{ptr:#x} is no import")))?;
        // Unmapped at the end of this, with no lock held.
        self.invalidation.notify(closed.alloc_id);
        Ok(())
    }

    fn alloc_small(&self, device: u32, len: usize, align: usize) -> Result<(usize, Backing)> {
        let align = align.max(page_len());
        if let Some(found) = self.chunks().take(device, len, align) {
            return Ok(found);
        }
        // The lock is not held while pages come; should two threads do this at once there is one
        // chunk more than need be.
        let memory = Arc::new(self.file_memory(device, CHUNK_LEN, SMALL_LEN_MAX)?);
        let mut chunks = self.chunks();
        chunks.0.push(Chunk {
            device,
            memory,
            free: FreeRanges::new(CHUNK_LEN),
        });
        chunks
            .take(device, len, align)
            .ok_or_else(|| Error::internal(format!("a new chunk has no room for {len} bytes")))
    }

    fn file_memory(&self, device: u32, len: usize, align: usize) -> Result<FileMemory> {
        let len_u64 = to_u64(len);
        let dir = self.dir.as_deref();
        let what = || {
            let place = dir.map_or(String::new(), |dir| format!(" in {}", dir.display()));
            format!("allocate {len} bytes on device {device}{place}")
        };
        let file = match dir {
            Some(dir) => sys::directory_file(dir, len_u64).context(what)?,
            None => {
                // The kernel would hand out pages until it kills someone.
                let (free, _) = self.topology.memory(device);
                if free != 0 && len_u64 > free {
                    let message = format!("cannot {}: {free} bytes are free", what());
                    return Err(Error::out_of_memory(message));
                }
                memory_file("stepmesh-cpu", len_u64).context(what)?
            }
        };
        let mapping = Mapping::shared(&file, 0, len, align).context(what)?;
        if let Some(node) = self.topology.node_to_bind(device)
            && let Err(error) = sys::prefer_node(&mapping, node)
        {
            self.host.log(
                LogLevel::Debug,
                LOG_TARGET,
                format_args!("memory of device {device} is not bound to node {node}: {error}"),
            );
        }
        sys::allocate_pages(&file, len_u64).context(what)?;
        // Page tables filled now spare the first copy a fault a page; an old kernel cannot.
        let _ = mapping.populate();
        if dir.is_none() {
            seal_size(&file).context(what)?;
        }
        Ok(FileMemory { mapping, file })
    }

    fn lock_pages(&self, backing: &Backing) -> bool {
        let Backing::File(memory) = backing else {
            return false;
        };
        let mapping = &memory.mapping;
        match sys::lock_range(mapping.addr(), mapping.len_bytes()) {
            Ok(()) => true,
            Err(error) => {
                self.log_lock_failure(&error);
                false
            }
        }
    }

    fn log_lock_failure(&self, error: &io::Error) {
        if !self.lock_failure_logged.swap(true, Ordering::Relaxed) {
            self.host.log(
                LogLevel::Warn,
                LOG_TARGET,
                format_args!(
                    "pinned memory is not locked: {error}; raise `ulimit -l` if pages may be \
                     swapped out here (said once)"
                ),
            );
        }
    }

    fn chunks(&self) -> MutexGuard<'_, Chunks> {
        // Nothing in it panics between two changes that belong together.
        self.chunks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Chunks {
    fn take(&mut self, device: u32, len_bytes: usize, align: usize) -> Option<(usize, Backing)> {
        let chunks = self.0.iter_mut().filter(|chunk| chunk.device == device);
        for chunk in chunks {
            if let Some(offset) = chunk.free.take(len_bytes, align) {
                let memory = Arc::clone(&chunk.memory);
                let addr = memory.mapping.addr() + offset;
                return Some((
                    addr,
                    Backing::Chunk {
                        memory,
                        offset,
                        len_bytes,
                    },
                ));
            }
        }
        None
    }

    /// Gives the pages of a small block back; answers the chunk if that was its last and it is not
    /// the only one of its device.
    fn give(&mut self, backing: &Backing) -> Option<Chunk> {
        let Backing::Chunk {
            memory,
            offset,
            len_bytes,
        } = backing
        else {
            return None;
        };
        let is_it = |chunk: &Chunk| Arc::ptr_eq(&chunk.memory, memory);
        let idx = self.0.iter().position(is_it)?;
        let chunk = &mut self.0[idx];
        chunk.free.give(*offset, *len_bytes);
        let device = chunk.device;
        let is_spare = chunk.free.is_whole()
            && self.0.iter().filter(|chunk| chunk.device == device).count() > 1;
        is_spare.then(|| self.0.swap_remove(idx))
    }
}

/// Largest allocation: half of the address space that a process has on any machine of today.
const ALLOC_LEN_MAX: usize = 1 << 46;
/// Largest alignment: a huge page of the largest kind.
const ALIGN_MAX: usize = 1 << 30;
/// Allocations up to this size share files: beyond it a descriptor each is no burden.
const SMALL_LEN_MAX: usize = 64 << 10;
/// Bytes of a shared file: sixteen of the largest small allocations.
const CHUNK_LEN: usize = 1 << 20;
/// Target of this module's log messages.
const LOG_TARGET: &str = "stepmesh::cpu::memory";
