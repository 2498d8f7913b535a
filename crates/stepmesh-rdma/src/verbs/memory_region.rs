//! Registered memory. How it is registered is in `protection_domain`; which way suits which memory is
//! told in `registration`.
#![expect(unsafe_code, reason = "holds a memory region of libibverbs")]

use std::any::Any;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_sys::ibv_mr;

use super::ledger::Kind;
use super::protection_domain::ProtectionDomain;
use super::result;
use crate::VerbsError;

/// Memory that the device may access. It keeps the memory allocated; when it is dropped, the device
/// forgets the memory first.
pub struct MemoryRegion {
    raw: NonNull<ibv_mr>,
    lkey: u32,
    rkey: u32,
    address: u64,
    len_bytes: u64,
    // Leaked when the device would not let go of the memory.
    memory: ManuallyDrop<Arc<dyn Any + Send + Sync>>,
    // Dropped after `drop` ran.
    domain: Arc<ProtectionDomain>,
}

impl MemoryRegion {
    /// # Safety
    /// `raw` is a region of `domain` that nobody else deregisters.
    pub(super) unsafe fn adopt(
        raw: NonNull<ibv_mr>,
        domain: &Arc<ProtectionDomain>,
        address: u64,
        len_bytes: u64,
        memory: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        Kind::MemoryRegion.made();
        // SAFETY: the caller's promise; the keys never change.
        let ibv_mr { lkey, rkey, .. } = *unsafe { raw.as_ref() };
        Self {
            raw,
            lkey,
            rkey,
            address,
            len_bytes,
            memory: ManuallyDrop::new(memory),
            domain: Arc::clone(domain),
        }
    }

    /// The key for work requests of this side.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    /// The key for peers.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// The address by which its first byte is named in work requests.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// The domain that it belongs to.
    #[must_use]
    pub fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }

    /// Deregisters it, as dropping does, and says whether that worked.
    ///
    /// # Errors
    /// `ibv_dereg_mr` failed: the device may still access the memory, which therefore stays
    /// allocated for the life of the process.
    pub fn close(self) -> Result<(), VerbsError> {
        let mut region = ManuallyDrop::new(self);
        let closed = region.deregister();
        // SAFETY: the value is not dropped, so the field is read once.
        drop(unsafe { std::ptr::read(&raw const region.domain) });
        closed
    }

    /// Called once.
    fn deregister(&mut self) -> Result<(), VerbsError> {
        let context = self.domain.context();
        // SAFETY: the region is alive, and deregistered only here.
        match unsafe { result::dereg_mr(context.functions(), self.raw) } {
            Ok(()) => {}
            // The kernel let go of the memory when it took the device down.
            Err(failure) if context.took_it_down(failure) => {}
            Err(failure) => {
                let device = context.device_name();
                let Self {
                    address, len_bytes, ..
                } = self;
                return Err(failure.on(format!("{len_bytes} bytes at {address:#x} on {device}")));
            }
        }
        Kind::MemoryRegion.destroyed();
        // SAFETY: dropped once, because this is called once.
        unsafe { ManuallyDrop::drop(&mut self.memory) };
        Ok(())
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        if let Err(error) = self.deregister() {
            tracing::warn!(%error, "memory stays allocated, for the device would not let go of it");
        }
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion")
            .field("address", &format_args!("{:#x}", self.address))
            .field("len_bytes", &self.len_bytes)
            .field("lkey", &self.lkey)
            .field("rkey", &self.rkey)
            .finish_non_exhaustive()
    }
}

// SAFETY: verbs are thread safe, and the fields never change until it is dropped.
unsafe impl Send for MemoryRegion {}
// SAFETY: as for `Send`.
unsafe impl Sync for MemoryRegion {}
