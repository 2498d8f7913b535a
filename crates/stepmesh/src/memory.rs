//! Backend memory in the form in which a fabric takes it: the one place of this crate where a raw
//! address changes hands.

use std::any::Any;
use std::sync::Arc;

use stepmesh_core::Buffer;
use stepmesh_transport::memory::{MappableFd, Memory};

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
    unsafe {
        Memory::new(
            buffer.device_ptr(),
            buffer.len_bytes(),
            buffer.is_host_accessible(),
            mappable,
            keep_alive,
        )
    }
}

/// Keeps a buffer allocated on behalf of a fabric.
struct Holder(#[expect(dead_code, reason = "held for its drop")] Arc<Buffer>);
