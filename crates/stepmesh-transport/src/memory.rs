//! Memory that a backend allocated, in the form in which a fabric takes it.

use std::any::Any;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// A range of memory together with what keeps it allocated.
///
/// The transport knows no backend: it sees an address, a length, whether the CPU can reach it,
/// a descriptor that other processes could map, and an owner to hold on to.
#[derive(Clone)]
pub struct Memory {
    address: u64,
    len_bytes: u64,
    host_accessible: bool,
    mappable: Option<MappableFd>,
    allocation: Option<Arc<Allocation>>,
    keep_alive: Arc<dyn Any + Send + Sync>,
}

/// What a backend knows about the allocation that a range lies in: what a network adapter needs
/// besides the address.
#[derive(Debug)]
pub struct Allocation {
    /// First address.
    pub base: u64,
    /// Length in bytes.
    pub len_bytes: u64,
    /// Its name: never given out twice in this process, so that a registration can be cached by it
    /// though addresses are used again. 0: it has none.
    pub id: u64,
    /// What kind of memory it is.
    pub kind: MemoryKind,
    /// PCI address of the device that it belongs to, `0000:3b:00.0`.
    pub pci_address: Option<String>,
    /// NUMA node of that device.
    pub numa_node: Option<u32>,
    /// Makes dma-bufs of it, if the backend can.
    pub dmabuf: Option<Box<dyn ExportDmabuf>>,
}

/// Kinds of memory that adapters reach in different ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemoryKind {
    /// The host's, pinned or not.
    Host,
    /// A device's.
    Device,
    /// It migrates between host and device, so that no adapter may hold on to its pages.
    Managed,
}

/// Makes dma-bufs of an allocation.
pub trait ExportDmabuf: fmt::Debug + Send + Sync {
    /// A dma-buf that covers `len_bytes` at `offset` of the allocation's range.
    ///
    /// # Errors
    /// Why there is none, in the backend's words.
    fn export(&self, offset: u64, len_bytes: u64, mapping: DmabufMapping)
    -> Result<Dmabuf, String>;
}

/// Which way an adapter is to reach a dma-buf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DmabufMapping {
    /// As the driver likes.
    Default,
    /// Through the device's PCIe window; the importer must be told.
    Pcie,
}

/// A dma-buf; dropping it closes it, which is for after the last registration made from it.
pub struct Dmabuf {
    /// The descriptor.
    pub fd: Box<dyn AsFd + Send + Sync>,
    /// Where in it the range starts, in bytes.
    pub offset: u64,
    /// Bytes from there that may be used.
    pub len_bytes: u64,
}

/// A descriptor (memfd, dma-buf) behind a range of memory, mappable by other processes.
#[derive(Clone, Debug)]
pub struct MappableFd {
    /// The descriptor.
    pub fd: Arc<OwnedFd>,
    /// Where in it the range starts, in bytes.
    pub offset: u64,
}

impl Memory {
    /// Describes a range of memory.
    ///
    /// # Safety
    /// - `address .. address + len_bytes` is allocated as long as `keep_alive` is, and does not
    ///   wrap around.
    /// - If `host_accessible`, the CPU may read and write every byte of it from any thread at any
    ///   time, and no Rust reference to its bytes is held across a point where a peer may write
    ///   (as for memory shared between processes).
    /// - If `mappable` is given, mapping `len_bytes` of it from its offset shows the same bytes.
    pub unsafe fn new(
        address: u64,
        len_bytes: u64,
        host_accessible: bool,
        mappable: Option<MappableFd>,
        keep_alive: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        Self {
            address,
            len_bytes,
            host_accessible,
            mappable,
            allocation: None,
            keep_alive,
        }
    }

    /// The same with what the backend knows about its allocation.
    #[must_use]
    pub fn with_allocation(self, allocation: Allocation) -> Self {
        Self {
            allocation: Some(Arc::new(allocation)),
            ..self
        }
    }

    /// The address of the first byte, in the device's address space.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The length in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Whether the CPU can read and write it.
    pub fn is_host_accessible(&self) -> bool {
        self.host_accessible
    }

    /// A descriptor that other processes can map, if there is one.
    pub fn mappable(&self) -> Option<&MappableFd> {
        self.mappable.as_ref()
    }

    /// What the backend knows about its allocation, if it was said.
    pub fn allocation(&self) -> Option<&Arc<Allocation>> {
        self.allocation.as_ref()
    }

    /// What keeps it allocated.
    pub fn keep_alive(&self) -> &Arc<dyn Any + Send + Sync> {
        &self.keep_alive
    }

    /// Whether `offset .. offset + len_bytes` lies inside.
    pub fn contains(&self, offset: u64, len_bytes: u64) -> bool {
        offset
            .checked_add(len_bytes)
            .is_some_and(|end| end <= self.len_bytes)
    }

    /// The address of a range that lies inside and that the CPU can reach.
    #[inline]
    pub(crate) fn host_range(&self, offset: u64, len_bytes: u64) -> Option<NonNull<u8>> {
        if !self.host_accessible || !self.contains(offset, len_bytes) {
            return None;
        }
        let address = usize::try_from(self.address.checked_add(offset)?).ok()?;
        NonNull::new(ptr::with_exposed_provenance_mut(address))
    }

    /// Copies `bytes` to `offset`; false when that is not inside or not reachable.
    pub(crate) fn copy_in(&self, offset: u64, bytes: &[u8]) -> bool {
        let Some(target) = self.host_range(offset, bytes.len() as u64) else {
            return false;
        };
        // SAFETY: `host_range` checked that the target is inside of memory that is allocated and
        // reachable while `self` holds its owner; `bytes` is a slice of this process, which by
        // the contract of `new` does not overlap it.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), target.as_ptr(), bytes.len()) };
        true
    }

    /// Copies from `offset` into `bytes`; false when that is not inside or not reachable.
    pub(crate) fn copy_out(&self, offset: u64, bytes: &mut [u8]) -> bool {
        let Some(source) = self.host_range(offset, bytes.len() as u64) else {
            return false;
        };
        // SAFETY: as in `copy_in`, with the directions exchanged.
        unsafe { ptr::copy_nonoverlapping(source.as_ptr(), bytes.as_mut_ptr(), bytes.len()) };
        true
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory")
            .field("address", &format_args!("{:#x}", self.address))
            .field("len_bytes", &self.len_bytes)
            .field("host_accessible", &self.host_accessible)
            .field("mappable", &self.mappable)
            .field("allocation", &self.allocation)
            .field("owners", &Arc::strong_count(&self.keep_alive))
            .finish()
    }
}

impl fmt::Debug for Dmabuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dmabuf")
            .field("fd", &self.fd.as_fd())
            .field("offset", &self.offset)
            .field("len_bytes", &self.len_bytes)
            .finish()
    }
}
