//! Values on a device.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use stepmesh_graph::TensorType;

use crate::{BackendDevice, Error, Shape};

/// A shared value.
pub type BackendDataPtr = Arc<dyn BackendData>;

/// A value on a device, or the place of one that is on its way. Methods may be called from any
/// thread.
pub trait BackendData: Any + Debug + Send + Sync {
    /// The device it lies on.
    fn device(&self) -> BackendDevice;

    /// Type and sizes.
    fn ty(&self) -> TensorType;

    /// Type and sizes, as the trait's other methods take them.
    fn shape(&self) -> Shape {
        Shape::new(self.ty())
    }

    /// Identity: no other value of the process has the same.
    fn get_handle(&self) -> u64;

    /// Takes over another value, which fills a placeholder.
    ///
    /// # Errors
    /// `ForeignObject`, `ForeignValue`, `Elements` when the types differ.
    fn assign(&self, other: &dyn BackendData) -> Result<(), Error>;

    /// Whether there is a value, be it still on its way.
    fn has_value(&self) -> bool;

    /// Waits until the value is there.
    ///
    /// # Errors
    /// `Execution`, `Poisoned`, `Donated`, `NoValue`, `Timeout`.
    fn wait(&self) -> Result<(), Error>;

    /// Whether the value is the engine's own, so that a result may take over its memory.
    fn is_donatable(&self) -> bool;

    /// Bytes of device memory.
    fn len_bytes(&self) -> usize {
        self.ty().len_bytes()
    }

    /// What the engine noted about it.
    fn info(&self) -> Option<DeviceDataInfo>;

    /// Notes something about it.
    fn set_info(&self, info: DeviceDataInfo);

    /// For the implementation to find its own type.
    fn as_any(&self) -> &dyn Any;
}

/// What the engine notes about a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceDataInfo {
    /// The tensor it belongs to.
    pub tensor_id: u64,
    /// It must not be overwritten.
    pub read_only: bool,
}
