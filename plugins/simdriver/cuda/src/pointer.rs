//! What is said of an address.

use stepmesh_simdriver::{BlockFacts, MemoryKind, Out, Status, Values, api, driver};

use crate::Answer;

api! {
    fn cuPointerGetAttribute(data: Out<u64>, attribute: i32, ptr: u64) {
        let block = driver()?.block_at(ptr).ok_or(Status::INVALID_VALUE)?;
        write(data, attribute, ptr, Some(&block))
    }

    fn cuPointerGetAttributes(
        count: u32, attributes: Values<i32>, data: Values<Out<u64>>, ptr: u64,
    ) {
        let block = driver()?.block_at(ptr);
        let count = usize::try_from(count).unwrap_or(0);
        // Of memory that is not known, the answer is success, and nothing in each place.
        (0..count).try_for_each(|idx| {
            write(data.get(idx)?, attributes.get(idx)?, ptr, block.as_ref())
        })
    }
}

/// Writes an attribute, whose size is its own.
fn write(data: Out<u64>, attribute: i32, ptr: u64, block: Option<&BlockFacts>) -> Answer {
    let kind = block.map(|block| block.kind);
    let is_device = matches!(
        kind,
        Some(MemoryKind::Device | MemoryKind::Pool | MemoryKind::Imported | MemoryKind::Managed)
    );
    match attribute {
        MEMORY_TYPE => data.cast::<u32>().set(match kind {
            None => 0,
            Some(_) if is_device => TYPE_DEVICE,
            Some(_) => TYPE_HOST,
        }),
        DEVICE_POINTER => data.set(if block.is_some() { ptr } else { 0 }),
        HOST_POINTER => data.set(match kind {
            Some(MemoryKind::Pinned | MemoryKind::Registered | MemoryKind::Managed) => ptr,
            _ => 0,
        }),
        BUFFER_ID => data.set(block.map_or(0, |block| block.id)),
        IS_MANAGED => data
            .cast::<u8>()
            .set(u8::from(kind == Some(MemoryKind::Managed))),
        DEVICE_ORDINAL => {
            let ordinal = block.map_or(NO_DEVICE, |block| block.device.cast_signed());
            data.cast::<i32>().set(ordinal)
        }
        IS_LEGACY_IPC_CAPABLE => data
            .cast::<u8>()
            .set(u8::from(kind == Some(MemoryKind::Device))),
        RANGE_START_ADDR => data.set(block.map_or(0, |block| block.base)),
        RANGE_SIZE => data.set(block.map_or(0, |block| block.len_bytes)),
        MAPPED => data.cast::<u8>().set(u8::from(block.is_some())),
        SYNC_MEMOPS => data.cast::<u8>().set(0),
        _ => Err(Status::NOT_SUPPORTED),
    }
}

const MEMORY_TYPE: i32 = 2;
const DEVICE_POINTER: i32 = 3;
const HOST_POINTER: i32 = 4;
const SYNC_MEMOPS: i32 = 6;
const BUFFER_ID: i32 = 7;
const IS_MANAGED: i32 = 8;
const DEVICE_ORDINAL: i32 = 9;
const IS_LEGACY_IPC_CAPABLE: i32 = 10;
const RANGE_START_ADDR: i32 = 11;
const RANGE_SIZE: i32 = 12;
const MAPPED: i32 = 13;
const TYPE_HOST: u32 = 1;
const TYPE_DEVICE: u32 = 2;
/// The driver's answer for memory that is no device's.
const NO_DEVICE: i32 = -2;
