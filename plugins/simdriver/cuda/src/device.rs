//! What is said of a device.

use stepmesh_simdriver::{Out, OutText, Status, api, driver};

use crate::context::device;

api! {
    fn cuDeviceGetCount(count: Out<i32>) {
        count.set(driver()?.device_count().cast_signed())
    }

    fn cuDeviceGet(device_out: Out<i32>, ordinal: i32) {
        let device = device(driver()?, ordinal)?;
        device_out.set(device.cast_signed())
    }

    fn cuDeviceGetName(name: OutText, len: i32, ordinal: i32) {
        let driver = driver()?;
        let physical = driver.physical(device(driver, ordinal)?)?;
        name.set(&format!("StepMesh simulated CUDA device {physical}"), len)
    }

    fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, ordinal: i32) {
        let driver = driver()?;
        let physical = driver.physical(device(driver, ordinal)?)?;
        uuid.set(uuid_of(physical))
    }

    fn cuDeviceGetUuid(uuid: Out<[u8; 16]>, ordinal: i32) {
        let driver = driver()?;
        let physical = driver.physical(device(driver, ordinal)?)?;
        uuid.set(uuid_of(physical))
    }

    fn cuDeviceGetPCIBusId(bus_id: OutText, len: i32, ordinal: i32) {
        // A simulated device is on no bus, and an address that does not exist helps no one.
        device(driver()?, ordinal)?;
        let _ = (bus_id, len);
        Err(Status::NOT_SUPPORTED)
    }

    fn cuDeviceTotalMem_v2(bytes: Out<usize>, ordinal: i32) {
        let driver = driver()?;
        device(driver, ordinal)?;
        bytes.set(usize::try_from(driver.memory_len_bytes()).unwrap_or(usize::MAX))
    }

    fn cuDeviceCanAccessPeer(can: Out<i32>, ordinal: i32, peer: i32) {
        let driver = driver()?;
        let (device, peer) = (device(driver, ordinal)?, device(driver, peer)?);
        can.set(i32::from(device != peer))
    }

    fn cuDeviceGetAttribute(value: Out<i32>, attribute: i32, ordinal: i32) {
        let driver = driver()?;
        device(driver, ordinal)?;
        let has_dmabufs = i32::from(driver.has_dmabufs(false));
        value.set(match attribute {
            // The architecture of the kernels' oldest card.
            COMPUTE_CAPABILITY_MAJOR => 7,
            DMA_BUF_SUPPORTED => has_dmabufs,
            UNIFIED_ADDRESSING | CAN_MAP_HOST_MEMORY | CONCURRENT_KERNELS | MANAGED_MEMORY
            | MEMORY_POOLS_SUPPORTED | CAN_USE_64_BIT_STREAM_MEM_OPS | IPC_EVENT_SUPPORTED
            | GPU_DIRECT_RDMA_SUPPORTED
            | CONCURRENT_MANAGED_ACCESS | CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM => 1,
            GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS => 1,
            // Writes to host memory are seen in order, by all devices.
            GPU_DIRECT_RDMA_WRITES_ORDERING => 200,
            MAX_THREADS_PER_BLOCK => 1024,
            MULTIPROCESSOR_COUNT | ASYNC_ENGINE_COUNT => 2,
            WARP_SIZE => 32,
            known if (1..=LAST).contains(&known) => 0,
            _ => return Err(Status::INVALID_VALUE),
        })
    }
}

/// Says what it is when it is read as text.
fn uuid_of(physical: u32) -> [u8; 16] {
    let mut uuid = *b"stepmesh-sim\0\0\0\0";
    for (byte, number) in uuid.iter_mut().skip(12).zip(physical.to_be_bytes()) {
        *byte = number;
    }
    uuid
}

const MAX_THREADS_PER_BLOCK: i32 = 1;
const WARP_SIZE: i32 = 10;
const MULTIPROCESSOR_COUNT: i32 = 16;
const CAN_MAP_HOST_MEMORY: i32 = 19;
const CONCURRENT_KERNELS: i32 = 31;
const ASYNC_ENGINE_COUNT: i32 = 40;
const UNIFIED_ADDRESSING: i32 = 41;
const COMPUTE_CAPABILITY_MAJOR: i32 = 75;
const MANAGED_MEMORY: i32 = 83;
const CONCURRENT_MANAGED_ACCESS: i32 = 89;
const CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM: i32 = 91;
const CAN_USE_64_BIT_STREAM_MEM_OPS: i32 = 93;
const MEMORY_POOLS_SUPPORTED: i32 = 115;
const GPU_DIRECT_RDMA_SUPPORTED: i32 = 116;
const GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS: i32 = 117;
const GPU_DIRECT_RDMA_WRITES_ORDERING: i32 = 118;
const IPC_EVENT_SUPPORTED: i32 = 125;
const DMA_BUF_SUPPORTED: i32 = 124;
/// The last attribute of CUDA 12.8.
const LAST: i32 = 145;
