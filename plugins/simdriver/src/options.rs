//! What the environment asks of the driver. The grammar of faults lives in the faults module.
#![forbid(unsafe_code)]

/// What the driver is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Devices, 0 to 64.
    pub device_count: u32,
    /// Bytes of memory of each, whole pages.
    pub memory_len_bytes: u64,
    /// Whether memory files are exported in the place of dma-bufs.
    pub exports_memory_files: bool,
}

impl Options {
    /// Reads the environment; what is not understood is as if it were not set, because a driver has
    /// no way to complain.
    #[must_use]
    pub fn read() -> Self {
        let number = |name: &str| std::env::var(name).ok()?.trim().parse::<u64>().ok();
        let device_count = number("STEPMESH_SIMDRIVER_DEVICES").unwrap_or(DEVICES);
        let memory = number("STEPMESH_SIMDRIVER_MEMORY_BYTES").unwrap_or(MEMORY_LEN);
        let dmabuf = std::env::var("STEPMESH_SIMDRIVER_DMABUF");
        Self {
            device_count: u32::try_from(device_count.min(DEVICES_MAX)).unwrap_or(0),
            memory_len_bytes: memory.clamp(1, MEMORY_LEN_MAX).next_multiple_of(BIG_PAGE),
            exports_memory_files: dmabuf.is_ok_and(|dmabuf| dmabuf == "memfd"),
        }
    }
}

/// Two, so that a test finds out what mixes them up.
const DEVICES: u64 = 2;
/// More than any host has.
const DEVICES_MAX: u64 = 64;
/// Enough for tests, and small enough to run out of. Pages are taken when they are written.
const MEMORY_LEN: u64 = 1 << 30;
/// 64 devices of it fit into the address space of a process.
const MEMORY_LEN_MAX: u64 = 1 << 40;
/// Devices have memory in big pages, so that one size fits hosts of any page size.
const BIG_PAGE: u64 = 2 << 20;
