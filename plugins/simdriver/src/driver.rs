//! The driver as the libraries call it, under neutral names: what exists, by handle, and what each call
//! checks before its work goes to a stream.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::code::{Function, Module};
use crate::device::Device;
use crate::handles::Handles;
use crate::memory::{Memory, MemoryKind};
use crate::product::Library;
use crate::{Answer, BlockFacts, Capture, Event, Graph, Options, Status, Stream, dmabuf, ipc};

/// The driver of the process.
#[derive(Debug)]
pub struct Driver {
    options: Options,
    /// What each device that can be seen is of those that there are.
    visible: Vec<u32>,
    pub(crate) devices: Vec<Arc<Device>>,
    pub(crate) memory: Arc<Memory>,
    pub(crate) streams: Handles<Arc<Stream>>,
    pub(crate) events: Handles<Arc<Event>>,
    pub(crate) modules: Handles<Module>,
    pub(crate) functions: Handles<Function>,
    pub(crate) libraries: Handles<Library>,
    pub(crate) graphs: Handles<Graph>,
    /// The legacy default streams, made when they are first used.
    legacy: Mutex<BTreeMap<u32, Arc<Stream>>>,
    captures: Mutex<Vec<Arc<Capture>>>,
    /// A fork's child has no threads of ours.
    process: u32,
}

/// Initialises the driver of the process.
///
/// # Errors
/// `NO_DEVICE` if no device can be seen.
pub fn init(visibility_variable: &str) -> Answer<()> {
    let made = DRIVER.get_or_init(|| {
        let options = Options::read();
        let asked = std::env::var(visibility_variable).ok();
        let visible = visible(asked.as_deref(), options.device_count);
        Driver::new(options, visible)
    });
    match made {
        Ok(driver) if driver.devices.is_empty() => Err(Status::NO_DEVICE),
        Ok(driver) if driver.process != std::process::id() => Err(Status::NOT_INITIALIZED),
        Ok(_) => Ok(()),
        Err(status) => Err(*status),
    }
}

/// The driver, if [`init`] made one in this process.
///
/// # Errors
/// `NOT_INITIALIZED`.
pub fn driver() -> Answer<&'static Driver> {
    let driver = existing().ok_or(Status::NOT_INITIALIZED)?;
    if driver.process != std::process::id() || driver.devices.is_empty() {
        return Err(Status::NOT_INITIALIZED);
    }
    Ok(driver)
}

pub(crate) fn existing() -> Option<&'static Driver> {
    DRIVER.get()?.as_ref().ok()
}

/// Which devices a `*_VISIBLE_DEVICES` lets through: those before the first that does not exist.
#[must_use]
pub fn visible(asked: Option<&str>, device_count: u32) -> Vec<u32> {
    let Some(asked) = asked else {
        return (0..device_count).collect();
    };
    let numbers = asked.split(',').map(|item| item.trim().parse::<u32>());
    let exist = numbers.map_while(|number| number.ok().filter(|number| *number < device_count));
    exist.collect()
}

impl Driver {
    fn new(options: Options, visible: Vec<u32>) -> Answer<Self> {
        let count = u32::try_from(visible.len()).unwrap_or(0);
        Ok(Self {
            options,
            visible,
            devices: (0..count)
                .map(|ordinal| Arc::new(Device::new(ordinal)))
                .collect(),
            memory: Arc::new(Memory::new(count, options.memory_len_bytes)?),
            streams: Handles::default(),
            events: Handles::default(),
            modules: Handles::default(),
            functions: Handles::default(),
            libraries: Handles::default(),
            graphs: Handles::default(),
            legacy: Mutex::default(),
            captures: Mutex::default(),
            process: std::process::id(),
        })
    }

    /// Devices that can be seen.
    #[must_use]
    pub fn device_count(&self) -> u32 {
        u32::try_from(self.devices.len()).unwrap_or(0)
    }

    /// Which of the existing devices this one is.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub fn physical(&self, device: u32) -> Answer<u32> {
        let idx = usize::try_from(device).map_err(|_| Status::INVALID_DEVICE)?;
        self.visible.get(idx).copied().ok_or(Status::INVALID_DEVICE)
    }

    /// Whether dma-bufs can be exported. A library whose call tells where in its file the memory is may
    /// do with memory files, where they were asked for.
    #[must_use]
    pub fn has_dmabufs(&self, takes_memory_files: bool) -> bool {
        (takes_memory_files && self.options.exports_memory_files) || dmabuf::is_there()
    }

    /// Total memory of a device in bytes.
    #[must_use]
    pub fn memory_len_bytes(&self) -> u64 {
        self.options.memory_len_bytes
    }

    /// Refuses a device that does not exist or is broken.
    ///
    /// # Errors
    /// `INVALID_DEVICE`; what broke it.
    pub fn check(&self, device: u32) -> Answer<()> {
        self.device(device)?.check()
    }

    pub(crate) fn break_all(&self, status: Status) {
        for device in &self.devices {
            device.break_with(status);
        }
    }

    /// Retains the primary context of a device.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub fn retain(&self, device: u32) -> Answer<()> {
        self.device(device)?.lock().retained += 1;
        Ok(())
    }

    /// Releases it; with the last release all that is the device's goes.
    ///
    /// # Errors
    /// `INVALID_CONTEXT` if it was not retained.
    pub fn release(&self, device: u32) -> Answer<()> {
        let state = self.device(device)?;
        let left = {
            let mut state = state.lock();
            state.retained = state
                .retained
                .checked_sub(1)
                .ok_or(Status::INVALID_CONTEXT)?;
            state.retained
        };
        if left == 0 {
            self.reset(device)?;
        }
        Ok(())
    }

    /// How often the primary context is retained.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub fn retained(&self, device: u32) -> Answer<u32> {
        Ok(self.device(device)?.lock().retained)
    }

    fn reset(&self, device: u32) -> Answer<()> {
        let state = self.device(device)?;
        state.set_ending(true);
        let of_device = |stream: &Arc<Stream>| stream.device() == device;
        let mut streams = self.streams.take_if(of_device);
        streams.extend(self.lock_legacy().remove(&device));
        for stream in &streams {
            stream.end(true);
        }
        self.events.take_if(|event| event.device == device);
        self.memory.drop_all_of(device);
        state.lock().peers.clear();
        state.set_ending(false);
        Ok(())
    }

    /// Lets a device map a peer's memory.
    ///
    /// # Errors
    /// `PEER_ACCESS_ALREADY_ENABLED`; `INVALID_DEVICE`.
    pub fn enable_peer(&self, device: u32, peer: u32) -> Answer<()> {
        self.device(peer)?;
        if device == peer {
            return Err(Status::INVALID_DEVICE);
        }
        if self.device(device)?.lock().peers.insert(peer) {
            Ok(())
        } else {
            Err(Status::PEER_ACCESS_ALREADY_ENABLED)
        }
    }

    /// Free and total bytes.
    ///
    /// # Errors
    /// `INVALID_DEVICE`; what broke it.
    pub fn memory_info(&self, device: u32) -> Answer<(u64, u64)> {
        self.check(device)?;
        self.memory.info(device)
    }

    /// Memory of a device, or of the host for it.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`; `CAPTURE_UNSUPPORTED` while a capture forbids it.
    pub fn alloc(&self, device: u32, len: u64, kind: MemoryKind) -> Answer<u64> {
        self.check(device)?;
        if kind != MemoryKind::Pool {
            self.check_captures()?;
        }
        match kind {
            MemoryKind::Device | MemoryKind::Pool => self.memory.alloc_device(device, len, kind),
            _ => self.memory.alloc_host(device, len, kind),
        }
    }

    /// Frees memory of some kinds. 0 is nothing. It does not wait for work, as real drivers mostly do and
    /// do not promise: work that comes too late breaks the device.
    ///
    /// # Errors
    /// `INVALID_VALUE` if there is none.
    pub fn free(&self, ptr: u64, kinds: &[MemoryKind]) -> Answer<()> {
        self.check_captures()?;
        if ptr == 0 {
            return Ok(());
        }
        let block = self.memory.block_at(ptr).ok_or(Status::INVALID_VALUE)?;
        self.check(block.device)?;
        self.memory.free(ptr, kinds)
    }

    /// Registers host memory.
    ///
    /// # Errors
    /// `ALREADY_REGISTERED`; `INVALID_VALUE`.
    pub fn register(&self, device: u32, ptr: u64, len: u64) -> Answer<()> {
        self.check(device)?;
        self.memory.register(device, ptr, len)
    }

    /// Undoes it.
    ///
    /// # Errors
    /// `NOT_REGISTERED`.
    pub fn unregister(&self, ptr: u64) -> Answer<()> {
        self.memory.unregister(ptr)
    }

    /// What is known of an address.
    #[must_use]
    pub fn block_at(&self, ptr: u64) -> Option<BlockFacts> {
        self.memory.block_at(ptr)
    }

    /// Exports whole pages of device memory, with the offset of the first.
    ///
    /// # Errors
    /// `INVALID_VALUE` for a range that is not whole pages of one block; `NOT_SUPPORTED`.
    pub fn export_dmabuf(
        &self,
        (ptr, len): (u64, u64),
        takes_memory_files: bool,
    ) -> Answer<(OwnedFd, u64)> {
        if len == 0 || !ptr.is_multiple_of(PAGE) || !len.is_multiple_of(PAGE) {
            return Err(Status::INVALID_VALUE);
        }
        let (offset, file) = self.memory.file_of(ptr, len)?;
        if takes_memory_files && self.options.exports_memory_files {
            let file = file.try_clone().map_err(|_| Status::OUT_OF_MEMORY)?;
            return Ok((file, offset));
        }
        Ok((dmabuf::export(file, offset, len)?, 0))
    }

    /// The handle of a block for other processes.
    ///
    /// # Errors
    /// `INVALID_VALUE`; `NOT_SUPPORTED` for memory that is not a device's.
    pub fn export_ipc(&self, ptr: u64) -> Answer<[u8; 64]> {
        ipc::export(&self.memory, ptr)
    }

    /// Opens another process's block.
    ///
    /// # Errors
    /// `INVALID_VALUE`; `INVALID_CONTEXT` for one of this process.
    pub fn open_ipc(&self, device: u32, handle: &[u8; 64]) -> Answer<u64> {
        self.check(device)?;
        ipc::open(&self.memory, device, handle)
    }

    /// Closes it.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn close_ipc(&self, ptr: u64) -> Answer<()> {
        self.memory.close_import(ptr)
    }

    /// Refuses what a capture somewhere forbids this thread, and ends that capture.
    pub(crate) fn check_captures(&self) -> Answer<()> {
        let captures = self.lock_captures();
        let mut forbidding = captures
            .iter()
            .filter(|capture| capture.forbids())
            .peekable();
        if forbidding.peek().is_none() {
            return Ok(());
        }
        forbidding.for_each(|capture| capture.invalidate());
        Err(Status::CAPTURE_UNSUPPORTED)
    }

    pub(crate) fn device(&self, device: u32) -> Answer<&Arc<Device>> {
        let idx = usize::try_from(device).map_err(|_| Status::INVALID_DEVICE)?;
        self.devices.get(idx).ok_or(Status::INVALID_DEVICE)
    }

    pub(crate) fn lock_legacy(&self) -> MutexGuard<'_, BTreeMap<u32, Arc<Stream>>> {
        self.legacy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn lock_captures(&self) -> MutexGuard<'_, Vec<Arc<Capture>>> {
        self.captures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

static DRIVER: OnceLock<Answer<Driver>> = OnceLock::new();
/// dma-bufs are whole pages of the host.
const PAGE: u64 = 4096;

#[cfg(test)]
mod tests {
    //! What a list of visible devices lets through.

    use super::visible;

    #[test]
    fn devices_end_with_the_first_that_does_not_exist() {
        assert_eq!(visible(None, 2), [0, 1]);
        assert_eq!(visible(Some(""), 2), [0_u32; 0]);
        assert_eq!(visible(Some("1,0"), 2), [1, 0]);
        assert_eq!(visible(Some("1,7,0"), 2), [1]);
        assert_eq!(visible(Some("-1"), 2), [0_u32; 0]);
    }
}
