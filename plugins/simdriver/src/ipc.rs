//! Handles by which another process of this host and user opens memory: they name the process and its
//! file. Nothing keeps the memory there, as with real drivers.
#![forbid(unsafe_code)]

use std::os::fd::{AsRawFd as _, OwnedFd};

use rustix::fs::{Mode, OFlags};

use crate::memory::{ImportKey, Memory};
use crate::{Answer, Status};

pub(crate) fn export(memory: &Memory, ptr: u64) -> Answer<[u8; 64]> {
    let block = memory.block_at(ptr).ok_or(Status::INVALID_VALUE)?;
    let (offset, file) = memory.file_of(block.base, 1)?;
    let descriptor = u64::from(file.as_raw_fd().cast_unsigned());
    let words = [
        MAGIC,
        u64::from(std::process::id()),
        descriptor,
        offset,
        block.len_bytes,
        block.id,
    ];
    let mut handle = [0; 64];
    for (bytes, word) in handle.chunks_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    Ok(handle)
}

pub(crate) fn open(memory: &Memory, device: u32, handle: &[u8; 64]) -> Answer<u64> {
    let mut words = [0_u64; 8];
    for (word, bytes) in words.iter_mut().zip(handle.chunks(8)) {
        *word = bytes
            .iter()
            .rev()
            .fold(0, |word, byte| word << 8 | u64::from(*byte));
    }
    let [magic, process, descriptor, offset, len, id, ..] = words;
    let process = u32::try_from(process).unwrap_or(0);
    if magic != MAGIC || len == 0 {
        return Err(Status::INVALID_VALUE);
    }
    if process == std::process::id() {
        return Err(Status::INVALID_CONTEXT);
    }
    let path = format!("/proc/{process}/fd/{descriptor}");
    let file = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    let file: OwnedFd = file.map_err(|_| Status::INVALID_VALUE)?;
    let key = ImportKey { process, id };
    memory.import(device, key, file, (offset, len))
}

/// So that other bytes are not taken for a handle: `SMSIMIPC`.
const MAGIC: u64 = u64::from_le_bytes(*b"SMSIMIPC");
