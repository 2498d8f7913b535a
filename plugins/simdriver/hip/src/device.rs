//! What is said of a device.

use stepmesh_simdriver::{Out, OutText, Status};

use crate::current::{device, functions, hip};

functions! {
    fn hipGetDeviceCount(count: Out<i32>) {
        match hip() {
            Err(Status::NO_DEVICE) => {
                count.set(0)?;
                Err(Status::NO_DEVICE)
            }
            found => count.set(found?.device_count().cast_signed()),
        }
    }

    fn hipDeviceGet(device_out: Out<i32>, ordinal: i32) {
        let device = device(hip()?, ordinal)?;
        device_out.set(device.cast_signed())
    }

    fn hipDeviceGetName(name: OutText, len: i32, ordinal: i32) {
        let driver = hip()?;
        let physical = driver.physical(device(driver, ordinal)?)?;
        name.set(&format!("StepMesh simulated HIP device {physical}"), len)
    }

    fn hipDeviceGetUuid(uuid: Out<[u8; 16]>, ordinal: i32) {
        let driver = hip()?;
        let physical = driver.physical(device(driver, ordinal)?)?;
        // As the real ones: text.
        let mut bytes = *b"stepmesh-sim0000";
        for (byte, digit) in bytes.iter_mut().skip(12).zip(format!("{physical:04}").bytes()) {
            *byte = digit;
        }
        uuid.set(bytes)
    }

    fn hipDeviceGetPCIBusId(bus_id: OutText, len: i32, ordinal: i32) {
        // A simulated device is on no bus, and an address that does not exist helps no one.
        device(hip()?, ordinal)?;
        let _ = (bus_id, len);
        Err(Status::NOT_SUPPORTED)
    }

    fn hipDeviceTotalMem(bytes: Out<usize>, ordinal: i32) {
        let driver = hip()?;
        device(driver, ordinal)?;
        bytes.set(usize::try_from(driver.memory_len_bytes()).unwrap_or(usize::MAX))
    }

    fn hipDeviceCanAccessPeer(can: Out<i32>, ordinal: i32, peer: i32) {
        let driver = hip()?;
        let (device, peer) = (device(driver, ordinal)?, device(driver, peer)?);
        can.set(i32::from(device != peer))
    }

    fn hipDeviceGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) {
        hip()?;
        least.set_if_wanted(1);
        greatest.set_if_wanted(-1);
        Ok(())
    }

    fn hipGetDevicePropertiesR0600(properties: Out<Properties>, ordinal: i32) {
        let driver = hip()?;
        let physical = driver.physical(device(driver, ordinal)?)?;
        let mut bytes = [0; PROPERTIES_LEN];
        let name = format!("StepMesh simulated HIP device {physical}");
        put(&mut bytes, 0, name.as_bytes());
        put(&mut bytes, ARCH_AT, b"gfx90a:sramecc+:xnack-");
        properties.set(Properties(bytes))
    }

    fn hipDeviceGetAttribute(value: Out<i32>, attribute: i32, ordinal: i32) {
        device(hip()?, ordinal)?;
        value.set(match attribute {
            COMPUTE_CAPABILITY_MAJOR => 9,
            CAN_MAP_HOST_MEMORY | CONCURRENT_KERNELS | MANAGED_MEMORY | UNIFIED_ADDRESSING
            | MEMORY_POOLS_SUPPORTED | CAN_USE_STREAM_WAIT_VALUE | IS_LARGE_BAR => 1,
            MULTIPROCESSOR_COUNT => 2,
            WARP_SIZE => 64,
            // Kilohertz; kernels are not run, so that only being known matters.
            WALL_CLOCK_RATE => 100_000,
            known if (0..=LAST_COMMON).contains(&known) => 0,
            known if (FIRST_OF_AMD..=LAST_OF_AMD).contains(&known) => 0,
            _ => return Err(Status::INVALID_VALUE),
        })
    }
}

/// `hipDeviceProp_tR0600`.
#[repr(C, align(8))]
struct Properties([u8; PROPERTIES_LEN]);

fn put(bytes: &mut [u8], at: usize, text: &[u8]) {
    for (byte, text) in bytes.iter_mut().skip(at).zip(text) {
        *byte = *text;
    }
}

const PROPERTIES_LEN: usize = 1472;
/// Where the struct has the architecture, as the header of 6.2 lays it out.
const ARCH_AT: usize = 1160;
const CAN_MAP_HOST_MEMORY: i32 = 3;
const CONCURRENT_KERNELS: i32 = 8;
const COMPUTE_CAPABILITY_MAJOR: i32 = 23;
const MANAGED_MEMORY: i32 = 24;
const MULTIPROCESSOR_COUNT: i32 = 63;
const UNIFIED_ADDRESSING: i32 = 85;
const WARP_SIZE: i32 = 87;
const MEMORY_POOLS_SUPPORTED: i32 = 88;
const LAST_COMMON: i32 = 92;
const FIRST_OF_AMD: i32 = 10_000;
const IS_LARGE_BAR: i32 = 10_011;
const CAN_USE_STREAM_WAIT_VALUE: i32 = 10_013;
const WALL_CLOCK_RATE: i32 = 10_017;
const LAST_OF_AMD: i32 = 10_020;
