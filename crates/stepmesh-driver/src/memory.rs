//! The table of an instance's memory: what was asked for, from the first address to the last. It makes
//! no calls; the buffer module does, with this table unlocked.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use stepmesh_plugin::abi::SmPtrAttr;
use stepmesh_plugin::{Error, Result};

/// The memory of an instance, by first address. Only imports may overlap each other.
#[derive(Debug, Default)]
pub(crate) struct Table(RwLock<BTreeMap<u64, Block>>);

/// One piece of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) len_bytes: u64,
    pub(crate) device: Option<u32>,
    /// `SM_MEMORY_*`.
    pub(crate) kind: u32,
    /// `SM_PTR_*`.
    pub(crate) flags: u64,
    pub(crate) alloc_id: u64,
    pub(crate) origin: Origin,
}

/// Where memory is from, and so how it is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The driver's allocation, which may start before ours.
    Device { raw: u64 },
    /// The same for pinned memory.
    Pinned { raw: u64 },
    /// The device's stream-ordered pool.
    Pool,
    /// Someone else's memory that was registered.
    Registered,
    /// Another process's allocation, opened this often.
    Imported { raw: u64, opened: u32 },
}

/// An opening of an import that was counted off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClosedImport {
    /// What the driver opened.
    pub(crate) raw: u64,
    /// The import's `alloc_id`, if that was its last opening.
    pub(crate) ended: Option<u64>,
}

impl Table {
    pub(crate) fn insert(&self, ptr: u64, block: Block) {
        self.write().insert(ptr, block);
    }

    /// Counts one more opening of an import that is there already, which the driver gives the same
    /// address; else inserts it.
    pub(crate) fn insert_import(&self, ptr: u64, block: Block) {
        let mut blocks = self.write();
        if let Some(known) = blocks.get_mut(&ptr)
            && let Origin::Imported { opened, .. } = &mut known.origin
        {
            *opened += 1;
            known.len_bytes = known.len_bytes.max(block.len_bytes);
            return;
        }
        blocks.insert(ptr, block);
    }

    /// The piece that holds all of a range, with its first address.
    pub(crate) fn find(&self, ptr: u64, len_bytes: u64) -> Option<(u64, Block)> {
        let blocks = self.read();
        let (&base, block) = blocks.range(..=ptr).next_back()?;
        let end = (ptr - base).checked_add(len_bytes)?;
        (end <= block.len_bytes).then_some((base, *block))
    }

    /// What is known of an address, if it is ours.
    pub(crate) fn attributes(&self, ptr: u64) -> Option<SmPtrAttr> {
        let (base, block) = self.find(ptr, 1)?;
        Some(SmPtrAttr {
            kind: block.kind,
            device: signed(block.device),
            base,
            size: block.len_bytes,
            alloc_id: block.alloc_id,
            flags: block.flags,
            ..SmPtrAttr::new()
        })
    }

    /// Refuses a range that starts in our memory and ends behind it.
    pub(crate) fn check_range(&self, ptr: u64, len_bytes: u64) -> Result<()> {
        let Some((base, block)) = self.find(ptr, 1) else {
            return Ok(());
        };
        let end = (ptr - base).checked_add(len_bytes);
        if end.is_some_and(|end| end <= block.len_bytes) {
            return Ok(());
        }
        Err(Error::invalid_argument(format!(
            "{len_bytes} bytes at {ptr:#x} go beyond the {} bytes that were allocated at {base:#x}",
            block.len_bytes
        )))
    }

    /// Takes out an allocation that is to be freed; refuses what is none.
    pub(crate) fn take_allocation(&self, device: u32, ptr: u64) -> Result<Block> {
        let refuse = |what: &str| {
            Err(Error::invalid_argument(format!(
                "cannot free {ptr:#x} on device {device}: {what}"
            )))
        };
        let mut blocks = self.write();
        let at = blocks
            .range(..=ptr)
            .next_back()
            .map(|(base, block)| (*base, *block));
        match at {
            Some((base, block)) if ptr - base < block.len_bytes => match block.origin {
                _ if base != ptr => refuse(&format!("it lies within the allocation at {base:#x}")),
                Origin::Registered | Origin::Imported { .. } => {
                    refuse("it was registered or imported, not allocated")
                }
                _ if block.device != Some(device) => refuse("it belongs to another device"),
                _ => {
                    blocks.remove(&ptr);
                    Ok(block)
                }
            },
            _ => refuse("no allocation of this instance is there"),
        }
    }

    /// Takes out what starts at an address if it is what is looked for.
    pub(crate) fn take_if(&self, ptr: u64, is_it: impl Fn(&Origin) -> bool) -> Option<Block> {
        let mut blocks = self.write();
        blocks.get(&ptr).filter(|block| is_it(&block.origin))?;
        blocks.remove(&ptr)
    }

    /// Counts off one opening of an import.
    pub(crate) fn close_import(&self, ptr: u64) -> Option<ClosedImport> {
        let mut blocks = self.write();
        let block = blocks.get_mut(&ptr)?;
        let Origin::Imported { raw, opened } = &mut block.origin else {
            return None;
        };
        let (raw, alloc_id) = (*raw, block.alloc_id);
        *opened -= 1;
        let is_last = *opened == 0;
        if is_last {
            blocks.remove(&ptr);
        }
        Some(ClosedImport {
            raw,
            ended: is_last.then_some(alloc_id),
        })
    }

    /// Takes out everything.
    pub(crate) fn drain(&self) -> BTreeMap<u64, Block> {
        std::mem::take(&mut *self.write())
    }

    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<u64, Block>> {
        // Each change is one insert or remove, so the table is whole after a panic.
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<u64, Block>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A device as the ABI's structs have it.
pub(crate) fn signed(device: Option<u32>) -> i32 {
    device.map_or(-1, |device| i32::try_from(device).unwrap_or(-1))
}

/// A number that no other allocation of this process had.
pub(crate) fn next_alloc_id() -> u64 {
    ALLOC_ID.fetch_add(1, Ordering::Relaxed)
}

/// The number of memory that is not ours, from the driver's: apart from those of ours.
pub(crate) fn foreign_alloc_id(id: u64) -> u64 {
    if id == 0 { 0 } else { id | FOREIGN }
}

/// Counts allocations of the process, so that no number comes twice, whatever the instance.
static ALLOC_ID: AtomicU64 = AtomicU64::new(1);
/// Set in numbers that the driver gave.
const FOREIGN: u64 = 1 << 63;
