//! The table of an instance's memory: what is at which address, found by any address within it. It
//! makes no calls and touches no memory.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use stepmesh_abi::{Code, SmPtrAttr};

use crate::error::{Error, Result};

/// All memory that a backend answers for, by first address: what it allocated, what was registered
/// with it, what it imported. `O` is what the backend itself has to know of each, for example how it
/// is given back.
///
/// Any thread may use it. Closures are called with the table locked: they are short, and do not come
/// back to it.
#[derive(Debug)]
pub struct Allocations<O>(RwLock<BTreeMap<u64, Allocation<O>>>);

/// One piece of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation<O> {
    /// Its length in bytes, as it was asked for.
    pub len_bytes: u64,
    /// Whose it is; of no device if it was registered.
    pub device: Option<u32>,
    /// `SM_MEMORY_*`.
    pub kind: u32,
    /// `SM_PTR_*`.
    pub flags: u64,
    /// A number that no other allocation of this plugin had in this process; see
    /// [`SmPtrAttr::alloc_id`].
    pub alloc_id: u64,
    /// What the backend knows of it.
    pub origin: O,
}

impl<O> Allocation<O> {
    /// A new one, with a number of its own.
    #[must_use]
    pub fn new(len_bytes: u64, device: Option<u32>, kind: u32, flags: u64, origin: O) -> Self {
        Self {
            len_bytes,
            device,
            kind,
            flags,
            alloc_id: ALLOC_ID.fetch_add(1, Ordering::Relaxed),
            origin,
        }
    }

    /// What `pointer_attributes` answers for an address in it; `base` is its first.
    #[must_use]
    pub fn attributes(&self, base: u64) -> SmPtrAttr {
        SmPtrAttr {
            kind: self.kind,
            device: (self.device).map_or(-1, |device| i32::try_from(device).unwrap_or(-1)),
            base,
            size: self.len_bytes,
            alloc_id: self.alloc_id,
            flags: self.flags,
            ..SmPtrAttr::new()
        }
    }
}

impl<O> Allocations<O> {
    /// Notes what begins at an address.
    pub fn insert(&self, ptr: u64, allocation: Allocation<O>) {
        self.write().insert(ptr, allocation);
    }

    /// Notes host memory that is registered, if nothing of it is known yet; `make` is called if so.
    ///
    /// # Errors
    /// `SM_ALREADY_EXISTS` if it overlaps what is known, `SM_INVALID_ARGUMENT` if it goes beyond the
    /// last address.
    pub fn insert_apart(
        &self,
        ptr: u64,
        len_bytes: u64,
        make: impl FnOnce() -> Allocation<O>,
    ) -> Result<()> {
        let Some(end) = ptr.checked_add(len_bytes) else {
            let message = format!("cannot register {len_bytes} bytes at {ptr:#x}: past the end");
            return Err(Error::invalid_argument(message));
        };
        let mut table = self.write();
        if let Some((base, before)) = table.range(..end).next_back()
            && base.saturating_add(before.len_bytes) > ptr
        {
            let message = format!("memory at {ptr:#x} overlaps what is known at {base:#x}");
            return Err(Error::new(Code::AlreadyExists, message));
        }
        table.insert(ptr, make());
        Ok(())
    }

    /// Looks at the allocation that holds all of a range; `look` gets its first address too.
    pub fn find<R>(
        &self,
        ptr: u64,
        len_bytes: u64,
        look: impl FnOnce(u64, &Allocation<O>) -> R,
    ) -> Option<R> {
        let table = self.read();
        let (&base, allocation) = table.range(..=ptr).next_back()?;
        let end = (ptr - base).checked_add(len_bytes)?;
        (end <= allocation.len_bytes).then(|| look(base, allocation))
    }

    /// What is known of an address.
    pub fn attributes(&self, ptr: u64) -> Option<SmPtrAttr> {
        self.find(ptr, 1, |base, allocation| allocation.attributes(base))
    }

    /// Refuses a range that starts in memory of this table and ends behind it.
    ///
    /// # Errors
    /// `SM_INVALID_ARGUMENT`, which names both.
    pub fn check_range(&self, ptr: u64, len_bytes: u64) -> Result<()> {
        let beyond = self.find(ptr, 1, |base, allocation| {
            let end = (ptr - base).checked_add(len_bytes);
            let fits = end.is_some_and(|end| end <= allocation.len_bytes);
            (!fits).then_some((base, allocation.len_bytes))
        });
        let Some((base, known_len)) = beyond.flatten() else {
            return Ok(());
        };
        Err(Error::invalid_argument(format!(
            "{len_bytes} bytes at {ptr:#x} go beyond the {known_len} bytes that were allocated at \
             {base:#x}"
        )))
    }

    /// Takes out an allocation that is to be freed; `is_own` tells the backend's from what was
    /// registered with it or imported.
    ///
    /// # Errors
    /// `SM_INVALID_ARGUMENT`, which says what is there instead.
    pub fn take_allocation(
        &self,
        device: u32,
        ptr: u64,
        is_own: impl FnOnce(&O) -> bool,
    ) -> Result<Allocation<O>> {
        let refuse = |what: &str| {
            Err(Error::invalid_argument(format!(
                "cannot free {ptr:#x} on device {device}: {what}"
            )))
        };
        let mut table = self.write();
        let before = table.range(..=ptr).next_back();
        let Some((&base, found)) = before.filter(|(base, at)| ptr - **base < at.len_bytes) else {
            return refuse("no allocation is there");
        };
        if base != ptr {
            return refuse(&format!("it lies within the allocation at {base:#x}"));
        }
        if !is_own(&found.origin) {
            return refuse("it was imported or registered, not allocated");
        }
        if found.device != Some(device) {
            return refuse("it belongs to another device");
        }
        match table.remove(&ptr) {
            Some(allocation) => Ok(allocation),
            None => refuse("no allocation is there"),
        }
    }

    /// Takes out what begins at an address, if it is what is looked for.
    pub fn take_if(
        &self,
        ptr: u64,
        is_it: impl FnOnce(&Allocation<O>) -> bool,
    ) -> Option<Allocation<O>> {
        let mut table = self.write();
        table.get(&ptr).filter(|allocation| is_it(allocation))?;
        table.remove(&ptr)
    }

    /// Changes what begins at an address: `None` is nothing, before and after.
    pub fn update<R>(&self, ptr: u64, change: impl FnOnce(&mut Option<Allocation<O>>) -> R) -> R {
        let mut table = self.write();
        let mut slot = table.remove(&ptr);
        let answer = change(&mut slot);
        if let Some(allocation) = slot {
            table.insert(ptr, allocation);
        }
        answer
    }

    /// Takes out everything, with the first address of each.
    pub fn drain(&self) -> Vec<(u64, Allocation<O>)> {
        std::mem::take(&mut *self.write()).into_iter().collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<u64, Allocation<O>>> {
        // Each change is one insert or remove, so the table is whole after a panic.
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<u64, Allocation<O>>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<O> Default for Allocations<O> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

#[cfg(test)]
mod tests;

/// Counts allocations, so that no number comes twice, whatever the instance.
static ALLOC_ID: AtomicU64 = AtomicU64::new(1);
