//! Copies between bytes that this fabric owns and registered memory. Which region is meant, and who
//! may write to it, is decided in `regions`.

use crate::memory::Memory;

/// Appends `len_bytes` of the memory, from `offset`, to `out`; `false`, and nothing appended, when
/// they reach outside or the CPU cannot read them.
pub(super) fn read(memory: &Memory, offset: u64, len_bytes: u64, out: &mut Vec<u8>) -> bool {
    let Some((address, len)) = range(memory, offset, len_bytes) else {
        return false;
    };
    let start = out.len();
    out.resize(start + len, 0);
    if len == 0 {
        return true;
    }
    let target = out[start..].as_mut_ptr();
    // SAFETY:
    // - `address` is valid for reading `len` bytes: `range` has checked that they lie inside of
    //   `memory`, which is allocated while `memory` holds its keep-alive, and that the CPU may read
    //   it, both by the contract of `Memory::new`.
    // - `target` is valid for writing `len` bytes: the line above takes it from a slice of `out`
    //   which `resize` made that long.
    // - They do not overlap: `out` is an allocation of its own, exclusively borrowed here.
    // - Bytes have alignment 1, and any value is a `u8`.
    unsafe { std::ptr::copy_nonoverlapping(address.cast_const(), target, len) };
    true
}

/// Copies `bytes` into the memory at `offset`; `false`, and nothing copied, when they reach outside
/// or the CPU cannot write there.
pub(super) fn write(memory: &Memory, offset: u64, bytes: &[u8]) -> bool {
    let Some((address, len)) = range(memory, offset, bytes.len() as u64) else {
        return false;
    };
    if len == 0 {
        return true;
    }
    // SAFETY:
    // - `bytes` is a slice, valid for reading its `len` bytes.
    // - `address` is valid for writing `len` bytes: as in `read`; and no reference to them is held,
    //   as peers may write, by the contract of `Memory::new`.
    // - They do not overlap: `bytes` is part of a datagram, an allocation of its own, to which no
    //   region leads.
    // - Bytes have alignment 1.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address, len) };
    true
}

fn range(memory: &Memory, offset: u64, len_bytes: u64) -> Option<(*mut u8, usize)> {
    if !memory.is_host_accessible() || !memory.contains(offset, len_bytes) {
        return None;
    }
    let address = usize::try_from(memory.address().checked_add(offset)?).ok()?;
    let len = usize::try_from(len_bytes).ok()?;
    Some((std::ptr::with_exposed_provenance_mut(address), len))
}
