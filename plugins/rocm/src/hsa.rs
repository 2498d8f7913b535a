//! dma-bufs of device memory, by the layer below HIP.
#![expect(unsafe_code, reason = "calls HSA")]

use std::ffi::{c_int, c_void};
use std::os::fd::{FromRawFd as _, IntoRawFd as _, OwnedFd};

use stepmesh_driver::{Answer, Exported, Failure, Library};
use stepmesh_plugin::DmabufMapping;

use crate::functions::HsaFunctions;
use crate::handles::{handle, to_usize};

/// HSA, where its library is. HIP has loaded and initialised it.
#[derive(Debug)]
pub(crate) struct Hsa(Option<HsaFunctions>);

impl Hsa {
    pub(crate) fn load() -> Self {
        let library = Library::open(LIBRARIES).ok();
        Self(library.as_ref().map(HsaFunctions::of))
    }

    /// Whether the kernel and the library export dma-bufs.
    pub(crate) fn has_dmabuf(&self) -> bool {
        let Some(functions) = self.0.as_ref().filter(|functions| functions.has(EXPORT)) else {
            return false;
        };
        let mut is_supported = 0_u64;
        let value = (&raw mut is_supported).cast();
        // SAFETY: the attribute's value is a bool, for which there is more than enough room.
        let asked = unsafe { functions.hsa_system_get_info(DMABUF_SUPPORTED, value) };
        asked.is_ok() && is_supported & 0xff != 0
    }

    /// Whether it can be asked for the way through the PCIe window.
    pub(crate) fn has_pcie_mapping(&self) -> bool {
        let functions = self.0.as_ref();
        functions.is_some_and(|functions| functions.has(EXPORT_MAPPED)) && self.has_dmabuf()
    }

    /// Exports a range of an allocation.
    ///
    /// # Safety
    /// - The range is within one live allocation of HIP's.
    pub(crate) unsafe fn export(
        &self,
        ptr: u64,
        len_bytes: u64,
        mapping: DmabufMapping,
    ) -> Answer<Exported> {
        let functions = self.functions(EXPORT)?;
        let (mut fd, mut offset_bytes): (c_int, u64) = (-1, 0);
        let (ptr, len) = (handle::<c_void>(ptr), to_usize(len_bytes));
        if mapping == DmabufMapping::Pcie {
            // SAFETY: both outputs are locals; this function's contract for the range.
            unsafe {
                functions.hsa_amd_portable_export_dmabuf_v2(
                    ptr,
                    len,
                    &raw mut fd,
                    &raw mut offset_bytes,
                    MAPPING_PCIE,
                )?;
            };
        } else {
            // SAFETY: both outputs are locals; this function's contract for the range.
            unsafe {
                functions.hsa_amd_portable_export_dmabuf(
                    ptr,
                    len,
                    &raw mut fd,
                    &raw mut offset_bytes,
                )?;
            };
        }
        // SAFETY: the call succeeded, so it is a descriptor that is nobody's yet.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // The documentation does not say that the library does. Nothing can be done if it fails.
        let _ = rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC);
        Ok(Exported { fd, offset_bytes })
    }

    /// Closes what [`Hsa::export`] gave.
    pub(crate) fn close(&self, fd: OwnedFd) -> Answer<()> {
        let functions = match self.functions(CLOSE) {
            Ok(functions) if functions.has(CLOSE) => functions,
            // The descriptor is all that there is then.
            _ => return Ok(()),
        };
        // SAFETY: a descriptor of HSA's, given back once.
        unsafe { functions.hsa_amd_portable_close_dmabuf(fd.into_raw_fd()) }
    }

    fn functions(&self, call: &'static str) -> Answer<&HsaFunctions> {
        self.0.as_ref().ok_or(Failure::Missing { call })
    }
}

/// The library that HIP of every version uses.
const LIBRARIES: &[&str] = &["libhsa-runtime64.so.1", "libhsa-runtime64.so"];
const EXPORT: &str = "hsa_amd_portable_export_dmabuf";
/// With ROCm 7.1.
const EXPORT_MAPPED: &str = "hsa_amd_portable_export_dmabuf_v2";
const CLOSE: &str = "hsa_amd_portable_close_dmabuf";
/// `HSA_AMD_SYSTEM_INFO_DMABUF_SUPPORTED`.
const DMABUF_SUPPORTED: u32 = 0x204;
/// `HSA_AMD_DMABUF_MAPPING_TYPE_PCIE`.
const MAPPING_PCIE: u64 = 1;
