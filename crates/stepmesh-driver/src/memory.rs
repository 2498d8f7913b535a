//! Where the memory of an instance is from, and how often what is imported was opened. It makes no
//! calls; the buffer module does, with the table unlocked.
#![forbid(unsafe_code)]

use stepmesh_plugin::Allocations;

/// The memory of an instance. Only imports may overlap each other.
pub(crate) type Table = Allocations<Origin>;

/// One piece of memory.
pub(crate) type Block = stepmesh_plugin::Allocation<Origin>;

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

impl Origin {
    /// Whether it was allocated here, and so may be freed.
    pub(crate) fn is_own(&self) -> bool {
        matches!(self, Self::Device { .. } | Self::Pinned { .. } | Self::Pool)
    }
}

/// An opening of an import that was counted off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClosedImport {
    /// What the driver opened.
    pub(crate) raw: u64,
    /// The import's `alloc_id`, if that was its last opening.
    pub(crate) ended: Option<u64>,
}

/// Counts one more opening of an import that is there already, which the driver gives the same
/// address; else inserts it.
pub(crate) fn insert_import(table: &Table, ptr: u64, block: Block) {
    table.update(ptr, |slot| match slot {
        Some(Block {
            len_bytes,
            origin: Origin::Imported { opened, .. },
            ..
        }) => {
            *opened += 1;
            *len_bytes = block.len_bytes.max(*len_bytes);
        }
        _ => *slot = Some(block),
    });
}

/// Counts off one opening of an import.
pub(crate) fn close_import(table: &Table, ptr: u64) -> Option<ClosedImport> {
    table.update(ptr, |slot| {
        let block = slot.as_mut()?;
        let Origin::Imported { raw, opened } = &mut block.origin else {
            return None;
        };
        *opened -= 1;
        let closed = ClosedImport {
            raw: *raw,
            ended: (*opened == 0).then_some(block.alloc_id),
        };
        if closed.ended.is_some() {
            *slot = None;
        }
        Some(closed)
    })
}

/// The number of memory that is not ours, from the driver's: apart from those of ours.
pub(crate) fn foreign_alloc_id(id: u64) -> u64 {
    if id == 0 { 0 } else { id | FOREIGN }
}

/// Set in numbers that the driver gave.
const FOREIGN: u64 = 1 << 63;
