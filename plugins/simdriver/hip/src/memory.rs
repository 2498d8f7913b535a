//! Memory, copies, fills, what is exported of it, and what is said of an address.

use stepmesh_simdriver::{MemoryKind, Out, Sides, Status, Work};

use crate::Answer;
use crate::current::{current, device, functions, hip};

functions! {
    fn hipMemGetInfo(free: Out<usize>, total: Out<usize>) {
        let (driver, device) = current()?;
        let (free_bytes, total_bytes) = driver.memory_info(device)?;
        free.set_if_wanted(usize::try_from(free_bytes).unwrap_or(usize::MAX));
        total.set_if_wanted(usize::try_from(total_bytes).unwrap_or(usize::MAX));
        Ok(())
    }

    fn hipMalloc(ptr: Out<u64>, len: usize) {
        alloc(ptr, len, MemoryKind::Device)
    }

    fn hipFree(ptr: u64) {
        let (driver, device) = current()?;
        driver.check(device)?;
        driver.free(ptr, &[MemoryKind::Device, MemoryKind::Pool, MemoryKind::Managed])
    }

    fn hipHostMalloc(ptr: Out<u64>, len: usize, _flags: u32) {
        alloc(ptr, len, MemoryKind::Pinned)
    }

    fn hipHostFree(ptr: u64) {
        let (driver, device) = current()?;
        driver.check(device)?;
        driver.free(ptr, &[MemoryKind::Pinned])
    }

    fn hipMallocManaged(ptr: Out<u64>, len: usize, _flags: u32) {
        alloc(ptr, len, MemoryKind::Managed)
    }

    fn hipMallocAsync(ptr: Out<u64>, len: usize, stream: u64) {
        let (driver, device) = current()?;
        let of_stream = driver.stream(device, stream)?.device();
        ptr.set(driver.alloc(of_stream, len as u64, MemoryKind::Pool)?)
    }

    fn hipFreeAsync(ptr: u64, stream: u64) {
        let (driver, device) = current()?;
        let block = driver.block_at(ptr).ok_or(Status::INVALID_VALUE)?;
        if block.base != ptr || block.kind != MemoryKind::Pool {
            return Err(Status::INVALID_VALUE);
        }
        driver.submit(device, stream, Work::Free(ptr))
    }

    fn hipHostRegister(ptr: u64, len: usize, _flags: u32) {
        let (driver, device) = current()?;
        driver.register(device, ptr, len as u64)
    }

    fn hipHostUnregister(ptr: u64) {
        let (driver, device) = current()?;
        driver.check(device)?;
        driver.unregister(ptr)
    }

    fn hipHostGetDevicePointer(out: Out<u64>, ptr: u64, flags: u32) {
        let (driver, _) = current()?;
        let is_host = |kind| matches!(kind, MemoryKind::Pinned | MemoryKind::Registered);
        let known = driver.block_at(ptr).is_some_and(|block| is_host(block.kind));
        if !known || flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        // One address for all, as with unified addressing.
        out.set(ptr)
    }

    fn hipMemcpyAsync(dst: u64, src: u64, len: usize, kind: i32, stream: u64) {
        let sides = match kind {
            0 | DEFAULT => Sides::Any,
            1 => Sides::ToDevice,
            2 => Sides::FromDevice,
            3 => Sides::Both,
            _ => return Err(Status::INVALID_VALUE),
        };
        copy(stream, (dst, src, len), sides)
    }

    fn hipMemcpy(dst: u64, src: u64, len: usize, kind: i32) {
        if !(0..=DEFAULT).contains(&kind) {
            return Err(Status::INVALID_VALUE);
        }
        copy(NULL_STREAM, (dst, src, len), Sides::Any)?;
        let (driver, device) = current()?;
        driver.synchronize(device, NULL_STREAM)
    }

    fn hipMemcpyPeerAsync(
        dst: u64, dst_device: i32, src: u64, src_device: i32, len: usize, stream: u64,
    ) {
        let (driver, _) = current()?;
        for (ptr, ordinal) in [(dst, dst_device), (src, src_device)] {
            let device = device(driver, ordinal)?;
            let owner = driver.block_at(ptr).map(|block| block.device);
            if len != 0 && owner != Some(device) {
                return Err(Status::INVALID_VALUE);
            }
        }
        copy(stream, (dst, src, len), Sides::Both)
    }

    fn hipMemsetD8Async(dst: u64, value: u8, count: usize, stream: u64) {
        fill(stream, dst, (u32::from(value), 1), count)
    }

    fn hipMemsetD16Async(dst: u64, value: u16, count: usize, stream: u64) {
        fill(stream, dst, (u32::from(value), 2), count)
    }

    fn hipMemsetD32Async(dst: u64, value: i32, count: usize, stream: u64) {
        fill(stream, dst, (value.cast_unsigned(), 4), count)
    }

    fn hipIpcGetMemHandle(handle: Out<[u8; 64]>, ptr: u64) {
        let (driver, _) = current()?;
        handle.set(driver.export_ipc(ptr)?)
    }

    fn hipIpcOpenMemHandle(ptr: Out<u64>, handle: IpcHandle, flags: u32) {
        let (driver, device) = current()?;
        if flags != LAZY_ENABLE_PEER_ACCESS {
            return Err(Status::INVALID_VALUE);
        }
        ptr.set(driver.open_ipc(device, &handle.0)?)
    }

    fn hipIpcCloseMemHandle(ptr: u64) {
        let (driver, _) = current()?;
        driver.close_ipc(ptr)
    }

    fn hipMemGetAddressRange(base: Out<u64>, len: Out<usize>, ptr: u64) {
        let block = hip()?.block_at(ptr).ok_or(Status::NOT_FOUND)?;
        base.set_if_wanted(block.base);
        len.set_if_wanted(usize::try_from(block.len_bytes).unwrap_or(usize::MAX));
        Ok(())
    }

    fn hipPointerGetAttributes(attributes: Out<PointerAttributes>, ptr: u64) {
        let Some(block) = hip()?.block_at(ptr) else {
            return attributes.set(PointerAttributes {
                kind: TYPE_UNREGISTERED,
                device: NO_DEVICE,
                device_pointer: 0,
                host_pointer: 0,
                is_managed: 0,
                flags: 0,
            });
        };
        let kind = match block.kind {
            MemoryKind::Device | MemoryKind::Pool | MemoryKind::Imported => TYPE_DEVICE,
            MemoryKind::Pinned | MemoryKind::Registered => TYPE_HOST,
            MemoryKind::Managed => TYPE_MANAGED,
        };
        attributes.set(PointerAttributes {
            kind,
            device: block.device.cast_signed(),
            device_pointer: ptr,
            host_pointer: if kind == TYPE_DEVICE { 0 } else { ptr },
            is_managed: i32::from(kind == TYPE_MANAGED),
            flags: 0,
        })
    }

    fn hipPointerGetAttribute(data: Out<u64>, attribute: i32, ptr: u64) {
        let block = hip()?.block_at(ptr).ok_or(Status::INVALID_VALUE)?;
        match attribute {
            BUFFER_ID => data.set(block.id),
            RANGE_START_ADDR => data.set(block.base),
            RANGE_SIZE => data.set(block.len_bytes),
            _ => Err(Status::NOT_SUPPORTED),
        }
    }
}

/// `hipIpcMemHandle_t`, which is passed by value.
#[repr(C)]
struct IpcHandle([u8; 64]);

/// `hipPointerAttribute_t`.
#[repr(C)]
struct PointerAttributes {
    kind: u32,
    device: i32,
    device_pointer: u64,
    host_pointer: u64,
    is_managed: i32,
    flags: u32,
}

/// No bytes are no memory, and no failure.
fn alloc(ptr: Out<u64>, len: usize, kind: MemoryKind) -> Answer {
    let (driver, device) = current()?;
    if len == 0 {
        return ptr.set(0);
    }
    ptr.set(driver.alloc(device, len as u64, kind)?)
}

fn copy(stream: u64, (dst, src, len): (u64, u64, usize), sides: Sides) -> Answer {
    let (driver, device) = current()?;
    driver.copy(device, stream, (dst, src, len as u64), sides)
}

fn fill(stream: u64, dst: u64, (value, width): (u32, u32), count: usize) -> Answer {
    let (driver, device) = current()?;
    driver.fill(device, stream, (dst, value, width, count as u64))
}

const NULL_STREAM: u64 = 0;
/// `hipMemcpyDefault`.
const DEFAULT: i32 = 4;
/// `hipIpcMemLazyEnablePeerAccess`, since HIP 6.
const LAZY_ENABLE_PEER_ACCESS: u32 = 1;
const TYPE_UNREGISTERED: u32 = 0;
const TYPE_HOST: u32 = 1;
const TYPE_DEVICE: u32 = 2;
const TYPE_MANAGED: u32 = 3;
const NO_DEVICE: i32 = -2;
const BUFFER_ID: i32 = 7;
const RANGE_START_ADDR: i32 = 11;
const RANGE_SIZE: i32 = 12;
