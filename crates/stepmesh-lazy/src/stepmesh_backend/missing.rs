//! The place of a value that cannot be: asking for it says why.

use std::any::Any;

use stepmesh_graph::TensorType;

use crate::{BackendData, BackendDevice, DeviceDataInfo, Error};

/// The place of a value on a device that there is not, or that has no stream.
#[derive(Debug)]
pub(crate) struct Missing {
    device: BackendDevice,
    ty: TensorType,
    error: Error,
}

impl Missing {
    pub(crate) fn new(device: BackendDevice, ty: TensorType, error: Error) -> Self {
        Self { device, ty, error }
    }

    pub(crate) fn error(&self) -> Error {
        self.error.clone()
    }
}

impl BackendData for Missing {
    fn device(&self) -> BackendDevice {
        self.device
    }

    fn ty(&self) -> TensorType {
        self.ty
    }

    fn get_handle(&self) -> u64 {
        0
    }

    fn assign(&self, _other: &dyn BackendData) -> Result<(), Error> {
        Err(self.error.clone())
    }

    fn has_value(&self) -> bool {
        false
    }

    fn wait(&self) -> Result<(), Error> {
        Err(self.error.clone())
    }

    fn is_donatable(&self) -> bool {
        false
    }

    fn info(&self) -> Option<DeviceDataInfo> {
        None
    }

    fn set_info(&self, _info: DeviceDataInfo) {}

    fn as_any(&self) -> &dyn Any {
        self
    }
}
