//! The backend that the process uses when none is named.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{BackendPtr, Error};

/// Registers a backend for as long as it lives.
///
/// The registry holds one backend. A second one is refused, not put in its place: code that took the
/// first would go on with it, and tensors of the two would meet.
#[derive(Debug)]
pub struct BackendRegistrar {
    backend: BackendPtr,
}

impl BackendRegistrar {
    /// Registers a backend and lets it initialise its bindings.
    ///
    /// # Errors
    /// `AlreadyRegistered`.
    pub fn new(backend: BackendPtr) -> Result<Self, Error> {
        let mut registered = lock();
        if let Some(other) = &*registered {
            return Err(Error::AlreadyRegistered {
                registered: other.name().to_owned(),
                refused: backend.name().to_owned(),
            });
        }
        *registered = Some(BackendPtr::clone(&backend));
        drop(registered);
        backend.initialize_aten_bindings();
        Ok(Self { backend })
    }

    /// The backend.
    #[must_use]
    pub fn backend(&self) -> &BackendPtr {
        &self.backend
    }
}

impl Drop for BackendRegistrar {
    fn drop(&mut self) {
        let gone = lock().take();
        // Outside of the lock: the last handle may close a plugin.
        drop(gone);
    }
}

/// Whether a backend is registered.
#[must_use]
pub fn has_backend() -> bool {
    lock().is_some()
}

/// The backend that is registered.
///
/// # Errors
/// `NotRegistered`.
pub fn get_backend() -> Result<BackendPtr, Error> {
    lock().clone().ok_or(Error::NotRegistered)
}

fn lock() -> MutexGuard<'static, Option<BackendPtr>> {
    REGISTERED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One for the process, as in the reference.
static REGISTERED: Mutex<Option<BackendPtr>> = Mutex::new(None);
