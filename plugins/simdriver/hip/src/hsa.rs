//! HSA's dma-buf export. `libhsa-runtime64.so.1` is a link to this library, so that both names are one.
//! Statuses are HSA's, 0 being success.

use std::os::fd::IntoRawFd as _;

use stepmesh_simdriver::{Answer, Out, Status, api};

use crate::current::hip;

api! {
    fn hsa_system_get_info(attribute: i32, value: Out<u8>) {
        if attribute != DMABUF_SUPPORTED {
            return Err(INVALID_ARGUMENT);
        }
        value.set(u8::from(hip()?.has_dmabufs(true)))
    }

    fn hsa_amd_portable_export_dmabuf(ptr: u64, len: usize, fd: Out<i32>, offset: Out<u64>) {
        export(ptr, len, fd, offset)
    }

    fn hsa_amd_portable_export_dmabuf_v2(
        ptr: u64, len: usize, fd: Out<i32>, offset: Out<u64>, flags: u64,
    ) {
        if flags > MAPPING_PCIE {
            return Err(INVALID_ARGUMENT);
        }
        export(ptr, len, fd, offset)
    }

    fn hsa_amd_portable_close_dmabuf(fd: i32) {
        if fd < 0 {
            return Err(INVALID_ARGUMENT);
        }
        stepmesh_simdriver::close(fd);
        Ok(())
    }
}

fn export(ptr: u64, len: usize, fd: Out<i32>, offset: Out<u64>) -> Answer<()> {
    let exported = hip()?.export_dmabuf((ptr, len as u64), true);
    let (file, at) = exported.map_err(|status| match status {
        Status::INVALID_VALUE => INVALID_ARGUMENT,
        _ => ERROR,
    })?;
    offset.set(at)?;
    fd.set(file.into_raw_fd())
}

/// `HSA_AMD_SYSTEM_INFO_DMABUF_SUPPORTED`.
const DMABUF_SUPPORTED: i32 = 0x204;
/// `HSA_AMD_DMABUF_MAPPING_TYPE_PCIE`.
const MAPPING_PCIE: u64 = 1;
/// `HSA_STATUS_ERROR`.
const ERROR: Status = Status(0x1000);
/// `HSA_STATUS_ERROR_INVALID_ARGUMENT`.
const INVALID_ARGUMENT: Status = Status(0x1001);
