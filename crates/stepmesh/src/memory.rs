//! Backend memory in the form in which a fabric takes it: the one place of this crate where a raw
//! address changes hands.

use std::any::Any;
use std::sync::{Arc, Weak};

use stepmesh_core::{Buffer, DmabufMapping, MemoryKind, Rdma};
use stepmesh_transport::memory::{self, Allocation, Dmabuf, ExportDmabuf, MappableFd, Memory};

/// Describes a buffer to a fabric, which keeps it allocated from then on.
pub(crate) fn describe(buffer: &Arc<Buffer>) -> Memory {
    let mappable = match buffer.export_fd() {
        Ok(exported) if exported.is_mappable => Some(MappableFd {
            fd: Arc::new(exported.fd),
            offset: exported.offset,
        }),
        Ok(_) => None,
        // Not every backend can; the fabric then finds another way or says that it has none.
        Err(error) => {
            tracing::debug!(%error, "the buffer cannot be mapped by other processes");
            None
        }
    };
    // Wrapped, so that the buffer's reference count does not depend on how often a fabric clones
    // what it holds; see the region cache.
    let keep_alive: Arc<dyn Any + Send + Sync> = Arc::new(Holder(Arc::clone(buffer)));
    // SAFETY: a `Buffer` owns `len_bytes` bytes from `device_ptr` until it is dropped, which
    // `keep_alive` prevents; `is_host_accessible` says that the CPU reaches all of them;
    // `export_fd` describes the same bytes; and `Buffer::host_bytes` documents that the bytes of
    // a registered buffer may change.
    let memory = unsafe {
        Memory::new(
            buffer.device_ptr(),
            buffer.len_bytes(),
            buffer.is_host_accessible(),
            mappable,
            keep_alive,
        )
    };
    memory.with_allocation(allocation(buffer))
}

/// What network adapters need to know about a buffer.
fn allocation(buffer: &Arc<Buffer>) -> Allocation {
    let info = buffer.device().info();
    let kind = match buffer.kind() {
        MemoryKind::Device if !buffer.is_host_accessible() => memory::MemoryKind::Device,
        MemoryKind::Managed => memory::MemoryKind::Managed,
        _ if buffer.is_host_accessible() => memory::MemoryKind::Host,
        // Unknown memory that the host cannot touch is never taken for the host's.
        _ => memory::MemoryKind::Device,
    };
    let dmabuf = buffer.device().rdma().map(|rdma| -> Box<dyn ExportDmabuf> {
        // Weak: a registration holds its exporter, and must not keep the buffer alive by it.
        let buffer = Arc::downgrade(buffer);
        Box::new(Exporter { rdma, buffer })
    });
    Allocation {
        base: buffer.device_ptr(),
        len_bytes: buffer.len_bytes(),
        id: buffer.alloc_id(),
        kind,
        pci_address: info.pci_bdf.clone(),
        numa_node: info.numa_node,
        dmabuf,
    }
}

/// Makes dma-bufs of one buffer.
#[derive(Debug)]
struct Exporter {
    rdma: Rdma,
    buffer: Weak<Buffer>,
}

impl ExportDmabuf for Exporter {
    fn export(
        &self,
        offset: u64,
        len_bytes: u64,
        mapping: memory::DmabufMapping,
    ) -> Result<Dmabuf, String> {
        let Some(buffer) = self.buffer.upgrade() else {
            return Err("the buffer was freed".into());
        };
        let mapping = match mapping {
            memory::DmabufMapping::Default => DmabufMapping::Default,
            memory::DmabufMapping::Pcie => DmabufMapping::Pcie,
            other => return Err(format!("the mapping {other:?} is not known")),
        };
        let exported = self.rdma.export(&buffer, offset, len_bytes, mapping);
        let dmabuf = exported.map_err(|error| error.to_string())?;
        Ok(Dmabuf {
            offset: dmabuf.offset(),
            len_bytes: dmabuf.len_bytes(),
            fd: Box::new(dmabuf),
        })
    }
}

/// Keeps a buffer allocated on behalf of a fabric.
struct Holder(#[expect(dead_code, reason = "held for its drop")] Arc<Buffer>);
