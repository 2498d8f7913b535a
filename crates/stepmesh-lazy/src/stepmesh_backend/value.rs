//! Values: memory and whether it holds what it is to hold.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use stepmesh_graph::TensorType;

use super::lane::{Completion, Lane, Source};
use super::memory::Memory;
use crate::element::ElementBytes;
use crate::{BackendData, BackendDevice, DeviceDataInfo, Error};

/// A value of [`StepMeshBackend`](super::StepMeshBackend).
#[derive(Debug)]
pub(crate) struct Value {
    device: BackendDevice,
    ty: TensorType,
    handle: u64,
    state: Mutex<ValueState>,
    info: Mutex<Option<DeviceDataInfo>>,
    lane: Weak<Lane>,
}

#[derive(Clone, Debug)]
pub(crate) enum ValueState {
    /// A placeholder.
    Empty,
    /// A placeholder whose memory is there.
    Reserved(Arc<Memory>),
    /// A number that travels with the launches that use it.
    Immediate(ElementBytes),
    /// Memory, and the launch that fills it.
    Ready(Arc<Memory>, Option<Arc<Completion>>),
    /// The memory went to a result of a later launch.
    Donated,
    /// Its graph could not be launched.
    Failed(Error),
}

impl Value {
    pub(crate) fn new(
        device: BackendDevice,
        ty: TensorType,
        lane: &Arc<Lane>,
        state: ValueState,
    ) -> Self {
        Self {
            device,
            ty,
            handle: NEXT_HANDLE.fetch_add(1, Ordering::Relaxed),
            state: Mutex::new(state),
            info: Mutex::new(None),
            lane: Arc::downgrade(lane),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, ValueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, state: ValueState) {
        // What it was is dropped outside of the lock: that may give memory back.
        let before = std::mem::replace(&mut *self.state(), state);
        drop(before);
    }

    /// Where a launch finds it.
    pub(crate) fn source(&self) -> Result<Source, Error> {
        match &*self.state() {
            ValueState::Immediate(element) => Ok(Source::Immediate(*element)),
            ValueState::Ready(memory, completion) => {
                Ok(Source::Memory(Arc::clone(memory), completion.clone()))
            }
            other => Err(self.missing(other)),
        }
    }

    /// Its memory, once it is there; or the number that it is.
    pub(crate) fn fetch(&self) -> Result<Fetched, Error> {
        let state = self.state().clone();
        match state {
            ValueState::Immediate(element) => Ok(Fetched::Number(element)),
            ValueState::Ready(memory, completion) => {
                if let Some(completion) = completion {
                    self.lane()?.wait(&completion)?;
                }
                Ok(Fetched::Memory(memory))
            }
            other => Err(self.missing(&other)),
        }
    }

    /// Waits for it and copies it to the host.
    pub(crate) fn read(&self) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; self.ty.len_bytes()];
        self.read_into(&mut bytes)?;
        Ok(bytes)
    }

    /// The same, to where there is room for it.
    pub(crate) fn read_into(&self, bytes: &mut [u8]) -> Result<(), Error> {
        let ty = self.ty;
        if bytes.len() != ty.len_bytes() {
            let fault = format!("{ty} has {} bytes, not {}", ty.len_bytes(), bytes.len());
            return Err(Error::elements("read", fault));
        }
        match self.fetch()? {
            Fetched::Number(element) => {
                bytes.copy_from_slice(element.as_slice());
                Ok(())
            }
            Fetched::Memory(memory) => memory
                .buffer()
                .read_bytes(memory.offset(), bytes)
                .map_err(Error::backend("reading device memory")),
        }
    }

    fn lane(&self) -> Result<Arc<Lane>, Error> {
        self.lane.upgrade().ok_or(Error::Exiting {
            operation: "waiting for a value",
        })
    }

    fn missing(&self, state: &ValueState) -> Error {
        let ty = self.ty;
        match state {
            ValueState::Donated => Error::Donated { ty },
            ValueState::Failed(error) => error.clone(),
            _ => Error::NoValue { ty },
        }
    }
}

/// A value that is there.
#[derive(Debug)]
pub(crate) enum Fetched {
    Number(ElementBytes),
    Memory(Arc<Memory>),
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
        if other.device != self.device || !Weak::ptr_eq(&self.lane, &other.lane) {
            return Err(Error::ForeignValue {
                operation,
                found: other.device.to_string(),
                expected: self.device.to_string(),
            });
        }
        if other.ty != self.ty {
            let fault = format!("{} cannot take over {}", self.ty, other.ty);
            return Err(Error::elements(operation, fault));
        }
        let state = other.state().clone();
        self.set(state);
        Ok(())
    }

    fn has_value(&self) -> bool {
        matches!(
            *self.state(),
            ValueState::Immediate(_) | ValueState::Ready(..)
        )
    }

    fn wait(&self) -> Result<(), Error> {
        self.fetch().map(drop)
    }

    fn is_donatable(&self) -> bool {
        match &*self.state() {
            // The count: another value may have taken this one over.
            ValueState::Ready(memory, _) => memory.is_own() && Arc::strong_count(memory) == 1,
            _ => false,
        }
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
