//! Memory, copies, fills and what is exported of it.

use std::os::fd::IntoRawFd as _;

use stepmesh_simdriver::{MemoryKind, Out, Sides, Status, Values, api, driver};

use crate::Answer;
use crate::context::current;

api! {
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let (driver, device) = current()?;
        let (free_bytes, total_bytes) = driver.memory_info(device)?;
        free.set_if_wanted(usize::try_from(free_bytes).unwrap_or(usize::MAX));
        total.set_if_wanted(usize::try_from(total_bytes).unwrap_or(usize::MAX));
        Ok(())
    }

    fn cuMemAlloc_v2(ptr: Out<u64>, len: usize) {
        let (driver, device) = current()?;
        ptr.set(driver.alloc(device, len as u64, MemoryKind::Device)?)
    }

    fn cuMemFree_v2(ptr: u64) {
        let (driver, device) = current()?;
        driver.check(device)?;
        driver.free(ptr, &[MemoryKind::Device, MemoryKind::Pool, MemoryKind::Managed])
    }

    fn cuMemHostAlloc(ptr: Out<u64>, len: usize, _flags: u32) {
        let (driver, device) = current()?;
        ptr.set(driver.alloc(device, len as u64, MemoryKind::Pinned)?)
    }

    fn cuMemAllocHost_v2(ptr: Out<u64>, len: usize) {
        let (driver, device) = current()?;
        ptr.set(driver.alloc(device, len as u64, MemoryKind::Pinned)?)
    }

    fn cuMemFreeHost(ptr: u64) {
        let (driver, device) = current()?;
        driver.check(device)?;
        driver.free(ptr, &[MemoryKind::Pinned])
    }

    fn cuMemAllocManaged(ptr: Out<u64>, len: usize, _flags: u32) {
        let (driver, device) = current()?;
        ptr.set(driver.alloc(device, len as u64, MemoryKind::Managed)?)
    }

    fn cuMemAllocAsync(ptr: Out<u64>, len: usize, stream: u64) {
        let (driver, device) = current()?;
        let of_stream = driver.stream(device, stream)?.device();
        ptr.set(driver.alloc(of_stream, len as u64, MemoryKind::Pool)?)
    }

    fn cuMemFreeAsync(ptr: u64, stream: u64) {
        let (driver, device) = current()?;
        let block = driver.block_at(ptr).ok_or(Status::INVALID_VALUE)?;
        if block.base != ptr || block.kind != MemoryKind::Pool {
            return Err(Status::INVALID_VALUE);
        }
        driver.submit(device, stream, stepmesh_simdriver::Work::Free(ptr))
    }

    fn cuMemHostRegister_v2(ptr: u64, len: usize, _flags: u32) {
        let (driver, device) = current()?;
        driver.register(device, ptr, len as u64)
    }

    fn cuMemHostUnregister(ptr: u64) {
        let (driver, device) = current()?;
        driver.check(device)?;
        driver.unregister(ptr)
    }

    fn cuMemHostGetDevicePointer_v2(out: Out<u64>, ptr: u64, flags: u32) {
        let (driver, _) = current()?;
        let is_host = |kind| matches!(kind, MemoryKind::Pinned | MemoryKind::Registered);
        let known = driver.block_at(ptr).is_some_and(|block| is_host(block.kind));
        if !known || flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        // One address for all, as with unified addressing.
        out.set(ptr)
    }

    fn cuMemcpyAsync(dst: u64, src: u64, len: usize, stream: u64) {
        copy(stream, (dst, src, len), Sides::Any)
    }

    fn cuMemcpy(dst: u64, src: u64, len: usize) {
        copy_now((dst, src, len), Sides::Any)
    }

    fn cuMemcpyHtoDAsync_v2(dst: u64, src: u64, len: usize, stream: u64) {
        copy(stream, (dst, src, len), Sides::ToDevice)
    }

    fn cuMemcpyHtoD_v2(dst: u64, src: u64, len: usize) {
        copy_now((dst, src, len), Sides::ToDevice)
    }

    fn cuMemcpyDtoHAsync_v2(dst: u64, src: u64, len: usize, stream: u64) {
        copy(stream, (dst, src, len), Sides::FromDevice)
    }

    fn cuMemcpyDtoH_v2(dst: u64, src: u64, len: usize) {
        copy_now((dst, src, len), Sides::FromDevice)
    }

    fn cuMemcpyDtoDAsync_v2(dst: u64, src: u64, len: usize, stream: u64) {
        copy(stream, (dst, src, len), Sides::Both)
    }

    fn cuMemcpyDtoD_v2(dst: u64, src: u64, len: usize) {
        copy_now((dst, src, len), Sides::Both)
    }

    fn cuMemcpyPeerAsync(
        dst: u64, dst_context: u64, src: u64, src_context: u64, len: usize, stream: u64,
    ) {
        let (driver, _) = current()?;
        for (ptr, context) in [(dst, dst_context), (src, src_context)] {
            let device = crate::context::device_of(driver, context)?;
            let owner = driver.block_at(ptr).map(|block| block.device);
            if device.is_none() || (len != 0 && owner != device) {
                return Err(Status::INVALID_VALUE);
            }
        }
        copy(stream, (dst, src, len), Sides::Both)
    }

    fn cuMemsetD8Async(dst: u64, value: u8, count: usize, stream: u64) {
        fill(stream, dst, (u32::from(value), 1), count)
    }

    fn cuMemsetD16Async(dst: u64, value: u16, count: usize, stream: u64) {
        fill(stream, dst, (u32::from(value), 2), count)
    }

    fn cuMemsetD32Async(dst: u64, value: u32, count: usize, stream: u64) {
        fill(stream, dst, (value, 4), count)
    }

    fn cuMemsetD8_v2(dst: u64, value: u8, count: usize) {
        fill(LEGACY, dst, (u32::from(value), 1), count)?;
        let (driver, device) = current()?;
        driver.synchronize(device, LEGACY)
    }

    fn cuMemGetHandleForAddressRange(
        handle: Out<i32>, ptr: u64, len: usize, kind: u32, flags: u64,
    ) {
        let (driver, _) = current()?;
        if kind != HANDLE_DMA_BUF || flags > MAPPING_PCIE {
            return Err(Status::INVALID_VALUE);
        }
        // The call has no offset to give, so that a memory file cannot stand in for a dma-buf.
        let (fd, _) = driver.export_dmabuf((ptr, len as u64), false)?;
        handle.set(fd.into_raw_fd())
    }

    fn cuFlushGPUDirectRDMAWrites(target: u32, scope: u32) {
        current()?;
        if target != 0 || !matches!(scope, FLUSH_TO_OWNER | FLUSH_TO_ALL_DEVICES) {
            return Err(Status::INVALID_VALUE);
        }
        // What an adapter wrote is in the host's memory, which is coherent.
        Ok(())
    }

    fn cuIpcGetMemHandle(handle: Out<[u8; 64]>, ptr: u64) {
        let (driver, _) = current()?;
        handle.set(driver.export_ipc(ptr)?)
    }

    fn cuIpcOpenMemHandle_v2(ptr: Out<u64>, handle: IpcHandle, flags: u32) {
        let (driver, device) = current()?;
        if flags != LAZY_ENABLE_PEER_ACCESS {
            return Err(Status::INVALID_VALUE);
        }
        ptr.set(driver.open_ipc(device, &handle.0)?)
    }

    fn cuIpcCloseMemHandle(ptr: u64) {
        let (driver, _) = current()?;
        driver.close_ipc(ptr)
    }

    fn cuMemGetAddressRange_v2(base: Out<u64>, len: Out<usize>, ptr: u64) {
        let block = driver()?.block_at(ptr).ok_or(Status::NOT_FOUND)?;
        base.set_if_wanted(block.base);
        len.set_if_wanted(usize::try_from(block.len_bytes).unwrap_or(usize::MAX));
        Ok(())
    }

    fn cuMemHostGetFlags(flags: Out<u32>, ptr: u64) {
        let block = driver()?.block_at(ptr).ok_or(Status::INVALID_VALUE)?;
        if block.kind != MemoryKind::Pinned {
            return Err(Status::INVALID_VALUE);
        }
        flags.set(PORTABLE_AND_MAPPED)
    }

    fn cuPointerSetAttribute(value: Values<u32>, attribute: i32, ptr: u64) {
        let block = driver()?.block_at(ptr).ok_or(Status::INVALID_VALUE)?;
        let is_device = matches!(block.kind, MemoryKind::Device | MemoryKind::Pool);
        if attribute != SYNC_MEMOPS || !is_device || value.get(0)? > 1 {
            return Err(Status::INVALID_VALUE);
        }
        Ok(())
    }
}

/// `CUipcMemHandle`, which is passed by value.
#[repr(C)]
struct IpcHandle([u8; 64]);

fn copy(stream: u64, (dst, src, len): (u64, u64, usize), sides: Sides) -> Answer {
    let (driver, device) = current()?;
    driver.copy(device, stream, (dst, src, len as u64), sides)
}

fn copy_now(range: (u64, u64, usize), sides: Sides) -> Answer {
    copy(LEGACY, range, sides)?;
    let (driver, device) = current()?;
    driver.synchronize(device, LEGACY)
}

fn fill(stream: u64, dst: u64, (value, width): (u32, u32), count: usize) -> Answer {
    let (driver, device) = current()?;
    driver.fill(device, stream, (dst, value, width, count as u64))
}

/// `CU_STREAM_LEGACY`.
const LEGACY: u64 = 1;
/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
const HANDLE_DMA_BUF: u32 = 1;
/// `CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE`.
const MAPPING_PCIE: u64 = 1;
const FLUSH_TO_OWNER: u32 = 100;
const FLUSH_TO_ALL_DEVICES: u32 = 200;
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
const LAZY_ENABLE_PEER_ACCESS: u32 = 1;
/// `CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP`.
const PORTABLE_AND_MAPPED: u32 = 3;
/// `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`.
const SYNC_MEMOPS: i32 = 6;
