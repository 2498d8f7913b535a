//! What every backend keeps of its devices, whatever they are: their names, which one is taken when
//! none is named, and where each one's random numbers are.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::{BackendDevice, BackendDeviceType, VirtualDevice};
use crate::Error;

/// The devices of a backend, from which [`LazyBackend`](super::LazyBackend) answers what it is asked
/// about devices. It may be used from any thread.
#[derive(Debug)]
pub struct BackendDevices {
    /// Name of the backend, for errors.
    backend: String,
    devices: Vec<Entry>,
    /// Position of the device that is taken when none is named.
    default: AtomicUsize,
    seed: AtomicU64,
}

#[derive(Debug)]
struct Entry {
    name: BackendDevice,
    /// Blocks of random numbers that were given out since the seed was set.
    rng_blocks: AtomicU64,
}

impl BackendDevices {
    /// Devices of these types, numbered from 0 on; the first is the default. `backend` is the name of
    /// theirs.
    pub fn new(
        backend: impl Into<String>,
        types: impl IntoIterator<Item = BackendDeviceType>,
    ) -> Self {
        let entry = |(ordinal, device_type)| Entry {
            name: BackendDevice::new(device_type, ordinal),
            rng_blocks: AtomicU64::new(0),
        };
        Self {
            backend: backend.into(),
            devices: (0..).zip(types).map(entry).collect(),
            default: AtomicUsize::new(0),
            seed: AtomicU64::new(SEED_DEFAULT),
        }
    }

    /// The names, in the order of their ordinals.
    pub fn names(&self) -> impl Iterator<Item = BackendDevice> {
        self.devices.iter().map(|entry| entry.name)
    }

    /// The device behind a virtual one.
    ///
    /// # Errors
    /// `UnknownDevice`.
    pub fn at(&self, device: VirtualDevice) -> Result<BackendDevice, Error> {
        let found = self.devices.get(device.0 as usize);
        found
            .map(|entry| entry.name)
            .ok_or_else(|| self.unknown(device.to_string()))
    }

    /// Where a device is among [`BackendDevices::names`].
    ///
    /// # Errors
    /// `UnknownDevice`.
    pub fn position(&self, device: &BackendDevice) -> Result<usize, Error> {
        let position = device.ordinal() as usize;
        let found = self.devices.get(position);
        if found.is_some_and(|entry| entry.name == *device) {
            return Ok(position);
        }
        Err(self.unknown(device.to_string()))
    }

    pub(super) fn default(&self) -> BackendDevice {
        let default = self.devices.get(self.default.load(Ordering::Acquire));
        default.map(|entry| entry.name).unwrap_or_default()
    }

    pub(super) fn set_default(&self, device: BackendDevice) -> Result<(), Error> {
        let position = self.position(&device)?;
        self.default.store(position, Ordering::Release);
        Ok(())
    }

    pub(super) fn set_default_type(&self, device_type: BackendDeviceType) -> Result<(), Error> {
        let mut all = self.names();
        let found = all.find(|name| name.device_type() == device_type);
        match found {
            Some(name) => self.set_default(name),
            None => Err(self.unknown(format!("of type {device_type}"))),
        }
    }

    pub(super) fn set_seed(&self, seed: u64) {
        self.seed.store(seed, Ordering::Release);
        for entry in &self.devices {
            entry.rng_blocks.store(0, Ordering::Release);
        }
    }

    pub(super) fn take_rng_blocks(
        &self,
        device: &BackendDevice,
        blocks: u64,
    ) -> Result<(u64, u64), Error> {
        let entry = &self.devices[self.position(device)?];
        // Wraps after 2^64 blocks.
        let first = entry.rng_blocks.fetch_add(blocks, Ordering::AcqRel);
        Ok((self.seed.load(Ordering::Acquire), first))
    }

    fn unknown(&self, device: String) -> Error {
        Error::UnknownDevice {
            backend: self.backend.clone(),
            device,
            count: self.devices.len(),
        }
    }
}

/// The reference's: runs are reproducible unless a seed is set.
const SEED_DEFAULT: u64 = 101;

#[cfg(test)]
mod tests;
