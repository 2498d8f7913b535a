//! Which slot is being called, in a file that outlives the process: tells where a plugin died.
#![expect(unsafe_code, reason = "maps the file")]

use std::fs::File;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fs, io};

use rustix::mm::{MapFlags, ProtFlags};

/// The words of the file.
type Words = [AtomicU64; WORDS];

/// Makes the file and writes to it from here on.
pub(crate) fn start(path: &Path) -> io::Result<()> {
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)?;
    file.set_len(LEN_BYTES)?;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let (null, len) = (std::ptr::null_mut(), size_of::<Words>());
    // SAFETY: a new shared mapping of a file of our own that is as long.
    let at = unsafe { rustix::mm::mmap(null, len, protection, MapFlags::SHARED, &file, 0) }?;
    // SAFETY: page-aligned, zeroed by the kernel, never unmapped, and only used as atomics.
    let words = unsafe { &*at.cast::<Words>() };
    let _ = WORDS_AT.set(words);
    Ok(())
}

/// A slot, or a step such as `dlopen`, begins.
pub(crate) fn enter(what: &str) {
    let Some((state, name)) = WORDS_AT.get().and_then(|words| words.split_first()) else {
        return;
    };
    for (idx, word) in name.iter().enumerate() {
        let bytes = what.as_bytes().iter().skip(idx * WORD_LEN).take(WORD_LEN);
        let value = bytes
            .rev()
            .fold(0, |value, byte| value << 8 | u64::from(*byte));
        word.store(value, Ordering::Relaxed);
    }
    state.store(INSIDE, Ordering::Relaxed);
}

/// It came back.
pub(crate) fn leave() {
    if let Some((state, _)) = WORDS_AT.get().and_then(|words| words.split_first()) {
        state.store(AFTER, Ordering::Relaxed);
    }
}

/// Where the process was, as it left the file: `in alloc`, `after alloc`, or nothing.
pub(crate) fn read(path: &Path) -> Option<String> {
    let bytes = fs::read(path).ok()?;
    let (state, name) = bytes.split_first_chunk::<WORD_LEN>()?;
    let name: Vec<u8> = name.iter().copied().take_while(|byte| *byte != 0).collect();
    let name = String::from_utf8(name).ok()?;
    match u64::from_le_bytes(*state) {
        INSIDE => Some(format!("in {name}")),
        AFTER => Some(format!("after {name}")),
        _ => None,
    }
}

static WORDS_AT: OnceLock<&'static Words> = OnceLock::new();

/// A state and a name of up to 56 bytes: longer than any slot's.
const WORDS: usize = 8;
/// Bytes of a word.
const WORD_LEN: usize = 8;
/// Length of the file.
const LEN_BYTES: u64 = 64;
/// State: in the call.
const INSIDE: u64 = 1;
/// State: the call came back.
const AFTER: u64 = 2;

const _: () = assert!(size_of::<Words>() == 64 && cfg!(target_endian = "little"));
