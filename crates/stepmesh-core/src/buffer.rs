//! Memory of a device, given back when dropped.
#![expect(
    unsafe_code,
    reason = "loads and stores through addresses that a plugin gave"
)]

use std::any::Any;
use std::fs::File;
use std::ops::BitOr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use stepmesh_abi::Code;
use stepmesh_abi::extension::{SM_EXTENSION_IPC_V1, SM_IPC_FD, SM_IPC_MAPPABLE};
use stepmesh_abi::memory::{SM_ALLOC_RDMA, SM_ALLOC_SHAREABLE, SM_COPY_D2H, SM_COPY_H2D};

use crate::instance::Copy;
use crate::{Device, Error, MemoryKind, PointerAttributes, cleanup};

/// Memory of a device. Users wrap it in an `Arc` to share it; work in flight on streams of this
/// crate keeps it alive, work submitted by other means is the caller's to wait for.
///
/// # Views and writers
/// [`Buffer::host_bytes`] is a view on memory that other parties may write to: peers of a mesh write
/// straight into registered memory, devices write from their streams, and
/// [`Buffer::write_bytes`] takes `&self`. Rust cannot order those writes, the mesh's protocol does:
/// a slot is written only while nobody was told that it is full, and read only after. A view taken
/// or kept against the protocol may show old, new or mixed bytes, and code that compares two loads
/// may see them differ. Views are therefore of `u8`, for which every bit pattern is valid, so no
/// such race can make an invalid value; decode what you need once, into values of your own, before
/// you check it.
#[derive(Debug)]
pub struct Buffer {
    device: Device,
    at: u64,
    len_bytes: u64,
    kind: MemoryKind,
    alloc_id: u64,
    is_host_accessible: bool,
    /// Who owns the memory, if that is not the buffer.
    owner: Option<Arc<dyn Any + Send + Sync>>,
}

/// How memory is to be allocated. The default is device memory, aligned as the backend likes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AllocOptions {
    /// What kind of memory.
    pub kind: MemoryKind,
    /// Alignment in bytes, a power of two; 0 is the backend's choice.
    pub align_bytes: u64,
    /// What it is for.
    pub flags: AllocFlags,
}

/// What memory is for. Combine with `|`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AllocFlags(u32);

/// A range of memory that another process of this host can map, or that a NIC can register.
#[derive(Debug)]
#[non_exhaustive]
pub struct ExportedFd {
    /// The descriptor; the memory stays alive through it and through its mappings.
    pub fd: OwnedFd,
    /// Where the range starts in the file.
    pub offset: u64,
    /// Bytes of the range; at least those of the buffer.
    pub len_bytes: u64,
    /// The host can map it for reading and writing.
    pub is_mappable: bool,
}

impl Buffer {
    pub(crate) fn new(
        device: Device,
        len_bytes: u64,
        options: AllocOptions,
    ) -> Result<Self, Error> {
        let AllocOptions {
            kind,
            align_bytes,
            flags,
        } = options;
        if align_bytes != 0 && !align_bytes.is_power_of_two() {
            let fault = format!("alignment {align_bytes} is not a power of two");
            return Err(Error::InvalidArgument {
                operation: "alloc",
                fault,
            });
        }
        let instance = device.backend().instance();
        let at = instance.alloc(
            device.ordinal(),
            len_bytes,
            align_bytes,
            kind.raw(),
            flags.0,
        )?;
        // From here on dropping frees.
        let mut buffer = Self {
            device,
            at,
            len_bytes,
            kind,
            alloc_id: 0,
            is_host_accessible: false,
            owner: None,
        };
        if len_bytes > 0 {
            let facts = buffer.device.pointer_attributes(at)?;
            buffer.check(&facts)?;
            buffer.kind = facts.kind;
            buffer.alloc_id = facts.alloc_id;
            // A slice of the host's cannot be longer than this.
            let fits = isize::try_from(len_bytes).is_ok();
            buffer.is_host_accessible = facts.is_host_accessible && fits;
        }
        Ok(buffer)
    }

    /// A view of memory that somebody else allocated, such as a framework's tensor.
    ///
    /// # Safety
    /// - `len_bytes` bytes at `at` stay allocated as long as `owner` is.
    /// - Unless the backend knows the memory as its own, it is ordinary memory of the host, which
    ///   any thread may read and write.
    pub(crate) unsafe fn foreign(
        device: Device,
        at: u64,
        len_bytes: u64,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Self, Error> {
        let operation = "wrap";
        let end = at.checked_add(len_bytes);
        if end.is_none() || (at == 0) != (len_bytes == 0) {
            let fault = format!("{len_bytes} bytes at {at:#x}");
            return Err(Error::InvalidArgument { operation, fault });
        }
        let mut buffer = Self {
            device,
            at,
            len_bytes,
            kind: MemoryKind::HostPageable,
            alloc_id: 0,
            is_host_accessible: isize::try_from(len_bytes).is_ok(),
            owner: Some(owner),
        };
        if len_bytes == 0 {
            return Ok(buffer);
        }
        let facts = buffer.device.pointer_attributes(at)?;
        if matches!(facts.kind, MemoryKind::Unknown | MemoryKind::HostPageable) {
            return Ok(buffer);
        }
        if Some(facts.base.saturating_add(facts.len_bytes)) < end {
            let fault = format!(
                "{len_bytes} bytes at {at:#x} reach out of an allocation of {} bytes at {:#x}",
                facts.len_bytes, facts.base
            );
            return Err(Error::InvalidArgument { operation, fault });
        }
        let ordinal = buffer.device.ordinal();
        if facts.kind == MemoryKind::Device && facts.device != Some(ordinal) {
            let fault = format!(
                "{at:#x} is memory of device {:?}, not {ordinal}",
                facts.device
            );
            return Err(Error::InvalidArgument { operation, fault });
        }
        buffer.kind = facts.kind;
        buffer.alloc_id = facts.alloc_id;
        buffer.is_host_accessible &= facts.is_host_accessible;
        Ok(buffer)
    }

    /// Address on the device; 0 when the length is 0.
    #[must_use]
    pub fn device_ptr(&self) -> u64 {
        self.at
    }

    /// Length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// The device it belongs to.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// What kind of memory it is.
    #[must_use]
    pub fn kind(&self) -> MemoryKind {
        self.kind
    }

    /// Names the allocation; no other allocation of this process ever has the same, so that
    /// registrations can be cached by it. 0 when the length is 0, and for memory that somebody else
    /// allocated and the backend does not know.
    #[must_use]
    pub fn alloc_id(&self) -> u64 {
        self.alloc_id
    }

    /// Whether the host may load and store through the address.
    #[must_use]
    pub fn is_host_accessible(&self) -> bool {
        self.is_host_accessible
    }

    /// First byte for the host; `None` for memory that only the device reaches, and for length 0.
    #[must_use]
    pub fn host_ptr(&self) -> Option<NonNull<u8>> {
        let at = usize::try_from(self.at)
            .ok()
            .filter(|_| self.is_host_accessible)?;
        NonNull::new(ptr::with_exposed_provenance_mut(at))
    }

    /// A view of the bytes; `None` for memory that only the device reaches. See the type about
    /// those who may write meanwhile.
    #[must_use]
    pub fn host_bytes(&self) -> Option<&[u8]> {
        if self.len_bytes == 0 {
            return Some(&[]);
        }
        let (at, len) = (self.host_ptr()?, usize::try_from(self.len_bytes).ok()?);
        // SAFETY: the backend says that the host may load from this allocation, which covers
        // `len` bytes (checked in `new`, as is that they fit in an isize) and lives as long as
        // `self`. Writers are discussed at the type: any bytes are valid `u8`s.
        Some(unsafe { std::slice::from_raw_parts(at.as_ptr(), len) })
    }

    /// Copies bytes out, from any kind of memory: a plain copy or a synchronous one by the backend.
    ///
    /// # Errors
    /// `OutOfRange`, `Backend`.
    pub fn read_bytes(&self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        let from = self.range("read_bytes", offset, out.len() as u64)?;
        if out.is_empty() {
            return Ok(());
        }
        if self.is_host_accessible {
            let from = ptr::with_exposed_provenance::<u8>(host_address(from));
            // SAFETY: the range lies within the allocation (`range`), which the host may load
            // from; `out` is a live slice of Rust's, so the two do not overlap unless the caller
            // made one from this very memory, which `ptr::copy` allows.
            unsafe { ptr::copy(from, out.as_mut_ptr(), out.len()) };
            return Ok(());
        }
        let staging = self.staged(vec![0; out.len()], |staging| Copy {
            dst: staging,
            src: from,
            direction: SM_COPY_D2H,
            ..self.copy_of(out.len())
        })?;
        out.copy_from_slice(&staging);
        Ok(())
    }

    /// Copies bytes in, to any kind of memory: a plain copy or a synchronous one by the backend.
    ///
    /// # Errors
    /// `OutOfRange`, `Backend`.
    pub fn write_bytes(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let to = self.range("write_bytes", offset, bytes.len() as u64)?;
        if bytes.is_empty() {
            return Ok(());
        }
        if self.is_host_accessible {
            let to = ptr::with_exposed_provenance_mut::<u8>(host_address(to));
            // SAFETY: the range lies within the allocation (`range`), which the host may store to;
            // `bytes` may be a view of this very memory, which `ptr::copy` allows.
            unsafe { ptr::copy(bytes.as_ptr(), to, bytes.len()) };
            return Ok(());
        }
        self.staged(bytes.to_vec(), |staging| Copy {
            dst: to,
            src: staging,
            direction: SM_COPY_H2D,
            ..self.copy_of(bytes.len())
        })?;
        Ok(())
    }

    /// A descriptor by which other processes of this host can map the memory.
    ///
    /// # Errors
    /// `Unsupported` when the backend has no `stepmesh.ipc.v1`, exports handles of another kind, or
    /// this memory was not allocated with [`AllocFlags::SHAREABLE`]; `InvalidArgument` for length 0;
    /// `Backend`, `BadAnswer`.
    pub fn export_fd(&self) -> Result<ExportedFd, Error> {
        if self.len_bytes == 0 {
            let fault = "the buffer has no bytes".into();
            return Err(Error::InvalidArgument {
                operation: "export_fd",
                fault,
            });
        }
        let instance = self.device.backend().instance();
        let handle = instance.ipc_export(self.device.ordinal(), self.at, self.len_bytes)?;
        if handle.kind != SM_IPC_FD {
            return Err(Error::Unsupported {
                operation: SM_EXTENSION_IPC_V1,
                backend: instance.name(),
                device: Some(self.device.ordinal()),
                message: "the memory has an opaque handle, not a descriptor".into(),
            });
        }
        let bad = |fault: String| instance.bad_answer("export_memory", fault);
        // SAFETY: fcntl takes any number and says whether it is an open descriptor.
        let flags = unsafe { libc::fcntl(handle.fd, libc::F_GETFD) };
        if flags < 0 {
            return Err(bad(format!("{} is not an open descriptor", handle.fd)));
        }
        // SAFETY: the descriptor is open (checked above), and the plugin gave it away.
        let fd = unsafe { OwnedFd::from_raw_fd(handle.fd) };
        if flags & libc::FD_CLOEXEC == 0 {
            return Err(bad(
                "the descriptor would be inherited by child processes".into()
            ));
        }
        let file = File::from(fd);
        let end = handle.offset.saturating_add(handle.len);
        // Only files have a length to check against; a dma-buf has none here.
        match file.metadata() {
            Ok(metadata) if metadata.is_file() && metadata.len() < end => {
                let len = metadata.len();
                Err(bad(format!(
                    "{end} bytes of a file of {len} (fd {})",
                    file.as_raw_fd()
                )))
            }
            _ => Ok(ExportedFd {
                fd: file.into(),
                offset: handle.offset,
                len_bytes: handle.len,
                is_mappable: handle.flags & SM_IPC_MAPPABLE != 0,
            }),
        }
    }

    /// Gives it back and says whether that worked; dropping only logs. Work in flight on it must be
    /// done.
    ///
    /// # Errors
    /// `Backend`.
    pub fn release(mut self) -> Result<(), Error> {
        self.free()
    }

    /// The address of a range, which must lie within the buffer.
    pub(crate) fn range(
        &self,
        operation: &'static str,
        offset: u64,
        len_bytes: u64,
    ) -> Result<u64, Error> {
        match offset.checked_add(len_bytes) {
            // Does not overflow: `new` checked that the whole buffer does not.
            Some(end) if end <= self.len_bytes => Ok(self.at + offset),
            _ => {
                let buffer_len_bytes = self.len_bytes;
                Err(Error::OutOfRange {
                    operation,
                    offset,
                    len_bytes,
                    buffer_len_bytes,
                })
            }
        }
    }

    /// What the backend says of the new allocation must agree with what was asked for.
    fn check(&self, facts: &PointerAttributes) -> Result<(), Error> {
        let covers = facts.base <= self.at
            && facts.base.saturating_add(facts.len_bytes) >= self.at.saturating_add(self.len_bytes);
        if covers && facts.kind == self.kind && facts.alloc_id != 0 {
            return Ok(());
        }
        let fault = format!(
            "{} bytes of {:?} at {:#x} were allocated, it knows {facts:?} there",
            self.len_bytes, self.kind, self.at
        );
        Err(self
            .device
            .backend()
            .instance()
            .bad_answer("pointer_attributes", fault))
    }

    fn copy_of(&self, len: usize) -> Copy {
        let ordinal = self.device.ordinal();
        Copy {
            dst: 0,
            src: 0,
            len_bytes: len as u64,
            direction: 0,
            dst_device: ordinal,
            src_device: ordinal,
        }
    }

    /// A synchronous copy to or from host memory of our own. If the copy may still be running when
    /// the backend gives up waiting, that memory is left to it for ever.
    fn staged(
        &self,
        mut staging: Vec<u8>,
        copy: impl FnOnce(u64) -> Copy,
    ) -> Result<Vec<u8>, Error> {
        let copy = copy(staging.as_mut_ptr().expose_provenance() as u64);
        // SAFETY: the device side lies within this live buffer (`range` was asked), the host side
        // is `staging`, which is as long as the copy and not given back below if the copy is not
        // known to be over.
        let copied = unsafe { self.device.backend().instance().memcpy_sync(copy) };
        match copied {
            Ok(()) => Ok(staging),
            Err(error) => {
                let gave_up = matches!(
                    &error,
                    Error::Backend {
                        code: Code::DeadlineExceeded,
                        ..
                    }
                );
                if gave_up {
                    cleanup::failed("memcpy_sync", &error);
                    std::mem::forget(staging);
                }
                Err(error)
            }
        }
    }

    fn free(&mut self) -> Result<(), Error> {
        let at = std::mem::take(&mut self.at);
        if at == 0 || self.owner.take().is_some() {
            return Ok(());
        }
        let instance = self.device.backend().instance();
        // SAFETY: `at` came from `alloc` and is given back only here, because it is 0 afterwards;
        // streams hold the buffers of their work, and views borrow it.
        unsafe { instance.free(self.device.ordinal(), at) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Err(error) = self.free() {
            cleanup::failed("free", &error);
        }
    }
}

impl Default for AllocOptions {
    fn default() -> Self {
        Self {
            kind: MemoryKind::Device,
            align_bytes: 0,
            flags: AllocFlags::default(),
        }
    }
}

impl AllocFlags {
    /// A NIC will read and write it.
    pub const RDMA: Self = Self(SM_ALLOC_RDMA);
    /// Other processes will map it, see [`Buffer::export_fd`].
    pub const SHAREABLE: Self = Self(SM_ALLOC_SHAREABLE);
}

impl BitOr for AllocFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

fn host_address(at: u64) -> usize {
    usize::try_from(at).expect("invariant: host-accessible addresses are the host's")
}

#[cfg(test)]
mod tests;
