//! A protection domain as what registers memory.
#![expect(
    unsafe_code,
    reason = "registers memory whose description was vouched for"
)]

use std::sync::Arc;

use stepmesh_transport::memory::{Dmabuf, DmabufMapping};

use super::plan::{Registrar, Target};
use crate::VerbsError;
use crate::verbs::{DmabufSlice, MemoryRegion, ProtectionDomain};

impl Registrar for Arc<ProtectionDomain> {
    type Region = MemoryRegion;

    fn adapter(&self) -> &str {
        self.context().device_name()
    }

    fn has_direct_dmabuf(&self) -> bool {
        self.context().has_direct_dmabuf()
    }

    fn register(&self, target: &Target) -> Result<MemoryRegion, VerbsError> {
        let Target {
            address,
            len_bytes,
            access,
            ref keep_alive,
        } = *target;
        // SAFETY: a target is a range of a `Memory` or of its allocation, which `Memory::new` was
        // promised to stay allocated with its keep-alive, and to be free of references where peers
        // write; without the keep-alive it is registered for sending only.
        unsafe { ProtectionDomain::register(self, address, len_bytes, access, keep_alive.clone()) }
    }

    fn register_dmabuf(
        &self,
        dmabuf: &Dmabuf,
        mapping: DmabufMapping,
        target: &Target,
    ) -> Result<MemoryRegion, VerbsError> {
        let slice = DmabufSlice {
            fd: dmabuf.fd.as_fd(),
            offset: dmabuf.offset,
            len_bytes: target.len_bytes,
            iova: target.address,
            is_direct: mapping == DmabufMapping::Pcie,
        };
        let keep_alive = Arc::clone(&target.keep_alive);
        // SAFETY: as for `register`; the exporter promises that the dma-buf is of that memory.
        unsafe { ProtectionDomain::register_dmabuf(self, slice, target.access, keep_alive) }
    }
}
