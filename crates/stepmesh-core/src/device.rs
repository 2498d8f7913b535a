//! A device of an open backend: facts, memory, streams and events.
#![expect(unsafe_code, reason = "passes on what callers vouch for")]

use std::any::Any;
use std::ffi::c_char;
use std::sync::Arc;

use stepmesh_abi::device::{SM_HEALTH_DEGRADED, SM_HEALTH_OK};
use stepmesh_abi::memory::{
    SM_MEMORY_DEVICE, SM_MEMORY_HOST_PAGEABLE, SM_MEMORY_HOST_PINNED, SM_MEMORY_HOST_REGISTERED,
    SM_MEMORY_MANAGED, SM_PTR_HOST_ACCESSIBLE, SM_PTR_SHAREABLE,
};
use stepmesh_abi::{SmDeviceInfo, SmPtrAttr};

use crate::compute::Compute;
use crate::{
    AllocFlags, AllocOptions, Backend, Buffer, Error, Event, EventOptions, Flags, MemEvent, Rdma,
    Stream, framework,
};

/// A device of an open backend. Clones are cheap; each keeps the backend open.
#[derive(Debug, Clone)]
pub struct Device {
    backend: Backend,
    ordinal: u32,
}

/// Facts about a device, checked when the backend was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Index in the backend.
    pub ordinal: u32,
    /// Index before `*_VISIBLE_DEVICES` and the like.
    pub physical_ordinal: Option<u32>,
    /// Marketing name.
    pub name: String,
    /// Architecture as compilers name it.
    pub arch: String,
    /// Type of the torch device (`cuda` for ROCm too).
    pub torch_device_type: String,
    /// Index of the torch device.
    pub torch_index: i32,
    /// PCI address, `0000:3b:00.0`.
    pub pci_bdf: Option<String>,
    /// Identity that survives reboots.
    pub uuid: Option<[u8; 16]>,
    /// NUMA node.
    pub numa_node: Option<u32>,
    /// `DLDeviceType` and `device_id` of DLPack.
    pub dlpack: (i32, i32),
    /// PCI vendor and device, 0 if not on PCI.
    pub pci_id: (u32, u32),
    /// Major and minor compute capability, 0 if it has none.
    pub compute_capability: (u32, u32),
    /// Bytes of memory.
    pub memory_len_bytes: u64,
    /// Bytes of an allocation page.
    pub page_len_bytes: u64,
    /// Alignment of an exported dma-buf in bytes, 0 if none can be exported.
    pub dmabuf_align_bytes: u64,
    /// It shares the host's memory.
    pub is_integrated: bool,
    /// `SM_RDMA_ORDERING_*`.
    pub rdma_write_ordering: u32,
    /// `SM_FLUSH_*` bits.
    pub flush_options: u32,
}

/// What a device can do: `SM_CAP_*` bits of `stepmesh_core::abi::device`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities(u64);

/// Free and total memory of a device, as its runtime says at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryInfo {
    /// Bytes that are free.
    pub free_bytes: u64,
    /// Bytes in all.
    pub total_bytes: u64,
}

/// How a device feels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Health {
    /// It works.
    Ok,
    /// It works but reports errors.
    Degraded,
    /// It is gone or must be reset.
    Lost,
}

/// What kind of memory an address is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemoryKind {
    /// The device's own.
    Device,
    /// Host memory locked in place and known to the device.
    HostPinned,
    /// Migrates between host and device.
    Managed,
    /// Ordinary host memory; cannot be allocated by a backend.
    HostPageable,
    /// Host memory that was made known to the device; cannot be allocated by a backend.
    HostRegistered,
    /// Not known to the backend.
    Unknown,
}

/// What a backend knows about an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PointerAttributes {
    /// What kind of memory it is.
    pub kind: MemoryKind,
    /// The device that owns it.
    pub device: Option<u32>,
    /// First address of the allocation.
    pub base: u64,
    /// Bytes of the allocation as they were asked for.
    pub len_bytes: u64,
    /// Names the allocation; never given out twice, so that a cache can be keyed by it. 0: unknown.
    pub alloc_id: u64,
    /// The host may load and store through the address.
    pub is_host_accessible: bool,
    /// Other processes can be given the memory, see [`Buffer::export_fd`].
    pub is_shareable: bool,
}

impl Device {
    pub(crate) fn new(backend: Backend, ordinal: u32) -> Self {
        Self { backend, ordinal }
    }

    /// The backend it belongs to.
    #[must_use]
    pub fn backend(&self) -> &Backend {
        &self.backend
    }

    /// Index in the backend.
    #[must_use]
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// Facts about it.
    #[must_use]
    pub fn info(&self) -> &DeviceInfo {
        &self.backend.instance().devices()[self.ordinal as usize]
    }

    /// What it can do.
    ///
    /// # Errors
    /// `Backend`.
    pub fn capabilities(&self) -> Result<Capabilities, Error> {
        self.backend
            .instance()
            .capabilities(self.ordinal)
            .map(Capabilities)
    }

    /// Free and total memory.
    ///
    /// # Errors
    /// `Unsupported` by some backends, `Backend`.
    pub fn memory(&self) -> Result<MemoryInfo, Error> {
        let (free_bytes, total_bytes) = self.backend.instance().mem_info(self.ordinal)?;
        Ok(MemoryInfo {
            free_bytes,
            total_bytes,
        })
    }

    /// How it feels.
    ///
    /// # Errors
    /// `Backend`, which says what is wrong with it.
    pub fn health(&self) -> Result<Health, Error> {
        Ok(match self.backend.instance().health(self.ordinal)? {
            SM_HEALTH_OK => Health::Ok,
            SM_HEALTH_DEGRADED => Health::Degraded,
            _ => Health::Lost,
        })
    }

    /// The first failure since the last call that no call was there to return, if any, and how many
    /// there were. All open instances of one plugin share this.
    #[must_use]
    pub fn take_async_error(&self) -> Option<(Error, u64)> {
        let plugin = self.backend.instance().plugin();
        let (failure, count) = plugin.host.take_async_failure(self.ordinal)?;
        let device = Some(self.ordinal);
        Some((
            Error::from_failure("asynchronous work", &plugin.name, device, failure),
            count,
        ))
    }

    /// Device memory for the mesh: aligned for NICs, and shareable with processes of this host when
    /// the device can do that. Length 0 is fine and has no address.
    ///
    /// # Errors
    /// `OutOfMemory`, after which the device is still usable, `Backend`, `BadAnswer`.
    pub fn alloc(&self, len_bytes: u64) -> Result<Buffer, Error> {
        let mut flags = AllocFlags::RDMA;
        if self
            .capabilities()?
            .contains(stepmesh_abi::device::SM_CAP_IPC)
        {
            flags = flags | AllocFlags::SHAREABLE;
        }
        self.alloc_with(
            len_bytes,
            AllocOptions {
                flags,
                ..AllocOptions::default()
            },
        )
    }

    /// Memory as the options say.
    ///
    /// # Errors
    /// As for [`Device::alloc`]; `Unsupported` or `Backend` for what the device cannot do.
    pub fn alloc_with(&self, len_bytes: u64, options: AllocOptions) -> Result<Buffer, Error> {
        Buffer::new(self.clone(), len_bytes, options)
    }

    /// Memory that somebody else allocated, such as a framework's tensor, as a buffer of this device.
    /// It is not freed: dropping the buffer drops `owner`.
    ///
    /// # Safety
    /// - `len_bytes` bytes at `address` stay allocated as long as `owner` is.
    /// - Unless the backend knows the memory as its own, it is ordinary memory of the host, which any
    ///   thread may read and write while the buffer exists.
    ///
    /// # Errors
    /// `InvalidArgument` when the range is not within one allocation, or belongs to another device;
    /// `Backend`.
    pub unsafe fn wrap(
        &self,
        address: u64,
        len_bytes: u64,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Buffer, Error> {
        // SAFETY: the caller's promises are those that are asked for.
        unsafe { Buffer::foreign(self.clone(), address, len_bytes, owner) }
    }

    /// A stream of ordinary priority.
    ///
    /// # Errors
    /// `Backend`, `BadAnswer`.
    pub fn create_stream(&self) -> Result<Stream, Error> {
        Stream::new(self.clone())
    }

    /// The stream that work without a stream of its own goes to.
    #[must_use]
    pub fn default_stream(&self) -> Stream {
        Stream::default_of(self.clone())
    }

    /// The stream that the framework beside the mesh works on at the moment, see
    /// [`set_current_stream_source`](crate::set_current_stream_source); the default stream when
    /// there is none.
    #[must_use]
    pub fn current_stream(&self) -> Stream {
        let (dlpack_type, device_id) = self.info().dlpack;
        let id = u32::try_from(device_id).unwrap_or(self.ordinal);
        match framework::current_stream(dlpack_type, id) {
            // SAFETY: whoever set the source vouched for its streams.
            Some(handle) => unsafe { Stream::from_raw(self.clone(), handle) },
            None => self.default_stream(),
        }
    }

    /// An event.
    ///
    /// # Errors
    /// `Unsupported` for options that the device lacks, `Backend`, `BadAnswer`.
    pub fn create_event(&self, mut options: EventOptions) -> Result<Event, Error> {
        options.mem_sync |= self.backend.instance().is_mem_synced() && !options.blocking;
        Event::new(self.clone(), options)
    }

    /// A number in memory that streams raise.
    ///
    /// # Errors
    /// `Unsupported` when the backend has no `stepmesh.memevent.v1`; `Backend`, `BadAnswer`.
    pub fn create_mem_event(&self) -> Result<MemEvent, Error> {
        MemEvent::new(self.clone())
    }

    /// What it offers to network adapters; `None` when the backend has no `stepmesh.rdma.v1`.
    #[must_use]
    pub fn rdma(&self) -> Option<Rdma> {
        Rdma::of(self)
    }

    /// Flags in memory for work that is captured into graphs; `None` when the backend has no
    /// `stepmesh.graph.v1`.
    #[must_use]
    pub fn flags(&self) -> Option<Flags> {
        Flags::of(self)
    }

    /// What it compiles; `None` when the backend has no `stepmesh.compute.v1`.
    #[must_use]
    pub fn compute(&self) -> Option<Compute> {
        Compute::of(self)
    }

    /// What the backend knows about an address; interior addresses resolve to their allocation.
    ///
    /// # Errors
    /// `Backend`, `BadAnswer`.
    pub fn pointer_attributes(&self, at: u64) -> Result<PointerAttributes, Error> {
        Ok(PointerAttributes::from(
            &self.backend.instance().pointer_attributes(at)?,
        ))
    }

    /// Waits for all work submitted to the device so far. Prefer [`Stream::synchronize`], which has
    /// a bound of your choice.
    ///
    /// # Errors
    /// `Backend`, also for earlier work that failed.
    pub fn synchronize(&self) -> Result<(), Error> {
        self.backend.instance().device_sync(self.ordinal)
    }
}

impl DeviceInfo {
    /// Facts from a plugin, which are hostile until checked.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(crate) fn check(ordinal: u32, raw: &SmDeviceInfo) -> Result<Self, String> {
        if u32::try_from(raw.ordinal) != Ok(ordinal) {
            return Err(format!("device {ordinal} calls itself {}", raw.ordinal));
        }
        for (what, align) in [
            ("page", raw.page_granularity),
            ("dma-buf", raw.dmabuf_granularity),
        ] {
            if align != 0 && !align.is_power_of_two() {
                return Err(format!("{what} granularity {align} is not a power of two"));
            }
        }
        let pci_bdf = text("pci_bdf", &raw.pci_bdf)?;
        Ok(Self {
            ordinal,
            physical_ordinal: u32::try_from(raw.physical_ordinal).ok(),
            name: text("name", &raw.name)?,
            arch: text("arch", &raw.arch)?,
            torch_device_type: text("torch_device_type", &raw.torch_device_type)?,
            torch_index: raw.torch_index,
            pci_bdf: Some(pci_bdf).filter(|text| !text.is_empty()),
            uuid: Some(raw.uuid).filter(|uuid| *uuid != [0; 16]),
            numa_node: u32::try_from(raw.numa_node).ok(),
            dlpack: (raw.dlpack_type, raw.dlpack_id),
            pci_id: (raw.vendor_id, raw.device_id),
            compute_capability: (raw.cc_major, raw.cc_minor),
            memory_len_bytes: raw.total_mem,
            page_len_bytes: raw.page_granularity,
            dmabuf_align_bytes: raw.dmabuf_granularity,
            is_integrated: raw.integrated != 0,
            rdma_write_ordering: raw.rdma_write_ordering,
            flush_options: raw.flush_options,
        })
    }
}

impl Capabilities {
    /// Whether all of these `SM_CAP_*` bits are there.
    #[must_use]
    pub fn contains(self, bits: u64) -> bool {
        self.0 & bits == bits
    }

    /// The bits.
    #[must_use]
    pub fn bits(self) -> u64 {
        self.0
    }
}

impl MemoryKind {
    pub(crate) fn from_raw(raw: u32) -> Self {
        match raw {
            SM_MEMORY_DEVICE => Self::Device,
            SM_MEMORY_HOST_PINNED => Self::HostPinned,
            SM_MEMORY_MANAGED => Self::Managed,
            SM_MEMORY_HOST_PAGEABLE => Self::HostPageable,
            SM_MEMORY_HOST_REGISTERED => Self::HostRegistered,
            _ => Self::Unknown,
        }
    }

    pub(crate) fn raw(self) -> u32 {
        match self {
            Self::Device => SM_MEMORY_DEVICE,
            Self::HostPinned => SM_MEMORY_HOST_PINNED,
            Self::Managed => SM_MEMORY_MANAGED,
            Self::HostPageable => SM_MEMORY_HOST_PAGEABLE,
            Self::HostRegistered => SM_MEMORY_HOST_REGISTERED,
            Self::Unknown => stepmesh_abi::memory::SM_MEMORY_UNKNOWN,
        }
    }
}

impl From<&SmPtrAttr> for PointerAttributes {
    fn from(raw: &SmPtrAttr) -> Self {
        Self {
            kind: MemoryKind::from_raw(raw.kind),
            device: u32::try_from(raw.device).ok(),
            base: raw.base,
            len_bytes: raw.size,
            alloc_id: raw.alloc_id,
            is_host_accessible: raw.flags & SM_PTR_HOST_ACCESSIBLE != 0,
            is_shareable: raw.flags & SM_PTR_SHAREABLE != 0,
        }
    }
}

/// A NUL-padded field as text.
fn text(field: &str, raw: &[c_char]) -> Result<String, String> {
    let bytes: Vec<u8> = raw
        .iter()
        .map(|c| c.to_ne_bytes()[0])
        .take_while(|byte| *byte != 0)
        .collect();
    let text = String::from_utf8(bytes).map_err(|_| format!("{field} is not UTF-8"))?;
    if text.chars().any(char::is_control) {
        return Err(format!("{field} has control characters"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests;
