//! Names of devices. A virtual one is what a framework calls `lazy:0`; a concrete one computes. The
//! two are different types, so that one is never taken for the other.

use std::fmt;

/// Type of a concrete device: the number that DLPack has for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct BackendDeviceType(pub i8);

/// A concrete device of a backend. Ordered by type, then ordinal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct BackendDevice {
    device_type: BackendDeviceType,
    ordinal: u32,
}

/// A device as a framework names it, `lazy:0`; see
/// [`LazyBackend::get_backend_device`](super::LazyBackend::get_backend_device) for the concrete one
/// behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct VirtualDevice(pub u32);

impl BackendDeviceType {
    /// The host's processor.
    pub const CPU: Self = Self(1);
    /// CUDA.
    pub const CUDA: Self = Self(2);
    /// ROCm.
    pub const ROCM: Self = Self(10);
    /// Some other kind of device.
    pub const EXT_DEV: Self = Self(12);
}

impl fmt::Display for BackendDeviceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::CPU => f.write_str("CPU"),
            Self::CUDA => f.write_str("CUDA"),
            Self::ROCM => f.write_str("ROCM"),
            Self::EXT_DEV => f.write_str("EXT_DEV"),
            Self(other) => write!(f, "TYPE_{other}_"),
        }
    }
}

impl BackendDevice {
    /// A device.
    #[must_use]
    pub fn new(device_type: BackendDeviceType, ordinal: u32) -> Self {
        Self {
            device_type,
            ordinal,
        }
    }

    /// Its type.
    #[must_use]
    pub fn device_type(&self) -> BackendDeviceType {
        self.device_type
    }

    /// Its index in the backend.
    #[must_use]
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }
}

/// As `CPU0`.
impl fmt::Display for BackendDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.device_type, self.ordinal)
    }
}

/// As `lazy:0`.
impl fmt::Display for VirtualDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lazy:{}", self.0)
    }
}
