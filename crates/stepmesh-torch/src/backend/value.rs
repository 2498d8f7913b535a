//! Values: torch tensors that nobody writes to, and the places of those that are to come.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use stepmesh_graph::TensorType;
use stepmesh_lazy::{BackendData, BackendDevice, DeviceDataInfo, Error};
use tch::Tensor;

/// A value of [`TorchBackend`](super::TorchBackend).
#[derive(Debug)]
pub(super) struct Value {
    /// Number of its backend.
    backend: u64,
    device: BackendDevice,
    ty: TensorType,
    handle: u64,
    // In a lock also because a tensor is not `Sync`.
    state: Mutex<ValueState>,
    info: Mutex<Option<DeviceDataInfo>>,
}

#[derive(Debug)]
pub(super) enum ValueState {
    /// A placeholder.
    Empty,
    /// The value. Others may share its memory.
    Ready(Tensor),
    /// It went to a result of a later execution.
    Donated,
    /// Its graph could not be executed.
    Failed(Error),
}

impl Value {
    pub(super) fn new(
        backend: u64,
        device: BackendDevice,
        ty: TensorType,
        state: ValueState,
    ) -> Self {
        Self {
            backend,
            device,
            ty,
            handle: NEXT_HANDLE.fetch_add(1, Ordering::Relaxed),
            state: Mutex::new(state),
            info: Mutex::new(None),
        }
    }

    pub(super) fn is_of(&self, backend: u64) -> bool {
        self.backend == backend
    }

    pub(super) fn shape_and_type(&self) -> TensorType {
        self.ty
    }

    pub(super) fn set(&self, state: ValueState) {
        // What it was is dropped outside of the lock: that may give memory back.
        let before = std::mem::replace(&mut *self.state(), state);
        drop(before);
    }

    pub(super) fn tensor(&self) -> Result<Tensor, Error> {
        match &*self.state() {
            ValueState::Ready(tensor) => Ok(tensor.shallow_clone()),
            ValueState::Empty => Err(Error::NoValue { ty: self.ty }),
            ValueState::Donated => Err(Error::Donated { ty: self.ty }),
            ValueState::Failed(error) => Err(error.clone()),
        }
    }

    fn state(&self) -> MutexGuard<'_, ValueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BackendData for Value {
    fn device(&self) -> BackendDevice {
        self.device
    }

    fn ty(&self) -> TensorType {
        self.ty
    }

    fn get_handle(&self) -> u64 {
        self.handle
    }

    fn assign(&self, other: &dyn BackendData) -> Result<(), Error> {
        let operation = "assign";
        let Some(other) = other.as_any().downcast_ref::<Self>() else {
            return Err(Error::ForeignObject { operation });
        };
        if (other.backend, other.device) != (self.backend, self.device) {
            return Err(Error::ForeignValue {
                operation,
                found: other.device.to_string(),
                expected: self.device.to_string(),
            });
        }
        if other.ty != self.ty {
            let fault = format!("{} cannot take over {}", self.ty, other.ty);
            return Err(Error::Elements { operation, fault });
        }
        let state = match &*other.state() {
            ValueState::Empty => ValueState::Empty,
            ValueState::Ready(tensor) => ValueState::Ready(tensor.shallow_clone()),
            ValueState::Donated => ValueState::Donated,
            ValueState::Failed(error) => ValueState::Failed(error.clone()),
        };
        self.set(state);
        Ok(())
    }

    fn has_value(&self) -> bool {
        matches!(*self.state(), ValueState::Ready(_))
    }

    fn wait(&self) -> Result<(), Error> {
        // Torch waits by itself where a value is read.
        self.tensor().map(drop)
    }

    fn is_donatable(&self) -> bool {
        false
    }

    fn info(&self) -> Option<DeviceDataInfo> {
        *self.info.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_info(&self, info: DeviceDataInfo) {
        *self.info.lock().unwrap_or_else(PoisonError::into_inner) = Some(info);
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// One for the process: handles of two backends differ too.
static NEXT_HANDLE: AtomicU64 = AtomicU64::new(1);
