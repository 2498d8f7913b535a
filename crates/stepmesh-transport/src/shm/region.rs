//! Regions of this process and of peers, and the copy between mapped ones.

use std::ptr;
use std::sync::Arc;

use crate::fabric::PeerId;
use crate::memory::Memory;
use crate::segment::Segment;

/// A registered region of this process.
#[derive(Debug)]
pub(super) struct Local {
    pub(super) memory: Memory,
    /// The file that peers can map to reach it.
    pub(super) file: Option<FileRange>,
    pub(super) shared_with: Vec<PeerId>,
}

/// Where in which of our files a region lies.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileRange {
    pub(super) file: u32,
    pub(super) offset: u64,
}

/// A region of a peer.
#[derive(Debug)]
pub(super) struct Remote {
    /// Its owner's number for it.
    pub(super) region: u32,
    pub(super) len_bytes: u64,
    pub(super) target: Target,
}

/// How a region of a peer is written.
#[derive(Clone, Debug)]
pub(super) enum Target {
    /// By a copy into our mapping of its file.
    Mapped { segment: Arc<Segment>, offset: u64 },
    /// By the kernel, at this address of its owner's.
    Process(u64),
    /// By its owner, from chunks in the ring.
    Bounce,
}

impl Remote {
    /// Whether `offset .. offset + len_bytes` lies inside.
    #[inline]
    pub(super) fn contains(&self, offset: u64, len_bytes: u64) -> bool {
        offset
            .checked_add(len_bytes)
            .is_some_and(|end| end <= self.len_bytes)
    }
}

/// Copies into a mapped segment; false when one of the ranges is not inside.
#[inline]
pub(super) fn copy_mapped(
    source: &Memory,
    source_offset: u64,
    target: &Segment,
    target_offset: u64,
    len_bytes: u64,
) -> bool {
    let from = source.host_range(source_offset, len_bytes);
    let to = target.range(target_offset, len_bytes);
    let (Some(from), Some(to), Ok(len)) = (from, to, usize::try_from(len_bytes)) else {
        return false;
    };
    // SAFETY: both ranges were checked to be inside of live memory of `len` bytes; a mapping made
    // by this crate does not overlap memory that anyone else registers. Peers may look at the
    // target meanwhile, and no reference to it exists here.
    unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to.as_ptr(), len) };
    true
}
