//! What exists, by number.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::{Answer, Status};

/// What exists, by number. Numbers of all kinds are different, so that one kind is not taken for
/// another.
#[derive(Debug)]
pub(crate) struct Handles<T>(RwLock<BTreeMap<u64, T>>);

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<T: Clone> Handles<T> {
    pub(crate) fn insert(&self, value: T) -> u64 {
        let handle = NEXT_HANDLE.fetch_add(HANDLE_STEP, Ordering::Relaxed);
        self.write().insert(handle, value);
        handle
    }

    pub(crate) fn get(&self, handle: u64) -> Answer<T> {
        self.read()
            .get(&handle)
            .cloned()
            .ok_or(Status::INVALID_HANDLE)
    }

    pub(crate) fn update(&self, handle: u64, change: impl FnOnce(&mut T)) -> Answer<()> {
        let mut all = self.write();
        change(all.get_mut(&handle).ok_or(Status::INVALID_HANDLE)?);
        Ok(())
    }

    pub(crate) fn remove(&self, handle: u64) -> Answer<T> {
        self.write().remove(&handle).ok_or(Status::INVALID_HANDLE)
    }

    pub(crate) fn all(&self, is_it: impl Fn(&T) -> bool) -> Vec<T> {
        let all = self.read();
        all.values().filter(|value| is_it(value)).cloned().collect()
    }

    pub(crate) fn take_if(&self, is_it: impl Fn(&T) -> bool) -> Vec<T> {
        let mut all = self.write();
        let (taken, kept) = std::mem::take(&mut *all)
            .into_iter()
            .partition::<BTreeMap<_, _>, _>(|(_, value)| is_it(value));
        *all = kept;
        taken.into_values().collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<u64, T>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<u64, T>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where no memory is mapped, so that what takes a handle for an address finds out.
static NEXT_HANDLE: AtomicU64 = AtomicU64::new(0x5e00_0000_0000_0010);
/// Handles look like addresses of structs.
const HANDLE_STEP: u64 = 16;
