//! Where `unsafe` may be written. The list is closed: a new entry needs a reason that a reviewer can
//! judge, and an entry whose file has no `unsafe` left must go.

use super::{Violation, files::File, mask};

pub(super) fn check(file: &File) -> Vec<Violation> {
    if !file.is_rust() || is_allowed(&file.path) {
        return Vec::new();
    }
    let code = mask::code_only(file.text.as_deref().unwrap_or_default());
    let lines = code.lines().enumerate();
    let unsafe_lines = lines.filter(|(_, line)| mask::has_word(line, "unsafe"));
    unsafe_lines
        .map(|(index, _)| {
            let message = "`unsafe` outside the modules that may have it, which \
                           xtask/src/tidy/unsafe_code.rs lists with the reason";
            Violation::at(&file.path, index + 1, message)
        })
        .collect()
}

/// Entries of the list that no file needs.
pub(super) fn check_list(files: &[File]) -> Vec<Violation> {
    let is_needed = |place: &&Place| {
        files
            .iter()
            .filter(|file| file.is_rust() && place.covers(&file.path))
            .any(|file| {
                let code = mask::code_only(file.text.as_deref().unwrap_or_default());
                mask::has_word(&code, "unsafe")
            })
    };
    let unneeded = ALLOWED.iter().filter(|place| !is_needed(place));
    unneeded
        .map(|place| {
            let message = format!(
                "may hold `unsafe` ({}), but has none: take it off",
                place.reason
            );
            Violation::new(place.path, message)
        })
        .collect()
}

fn is_allowed(path: &str) -> bool {
    ALLOWED.iter().any(|place| place.covers(path))
}

/// A file, or a folder with all that is below it.
struct Place {
    /// A folder ends with `/`.
    path: &'static str,
    reason: &'static str,
}

impl Place {
    const fn new(path: &'static str, reason: &'static str) -> Self {
        Self { path, reason }
    }

    fn covers(&self, path: &str) -> bool {
        if self.path.ends_with('/') {
            path.starts_with(self.path)
        } else {
            path == self.path
        }
    }
}

const ALLOWED: &[Place] = &[
    Place::new(
        "crates/stepmesh-abi/",
        "types and function pointers of the C ABI",
    ),
    Place::new("crates/stepmesh-plugin/", "the C side of the vtable"),
    Place::new(
        "crates/stepmesh-core/src/secure.rs",
        "asks libc whether the process is set-uid",
    ),
    Place::new(
        "crates/stepmesh-core/src/loader.rs",
        "dlopen and foreign tables",
    ),
    Place::new(
        "crates/stepmesh-core/src/loader/",
        "dlopen and foreign tables",
    ),
    Place::new(
        "crates/stepmesh-core/src/device.rs",
        "calls through the table",
    ),
    Place::new(
        "crates/stepmesh-core/src/buffer.rs",
        "calls through the table, host views",
    ),
    Place::new(
        "crates/stepmesh-core/src/stream.rs",
        "calls through the table",
    ),
    Place::new(
        "crates/stepmesh-transport/src/doorbell/",
        "futex words in shared memory",
    ),
    Place::new(
        "crates/stepmesh-transport/src/memory.rs",
        "views on memory that peers write",
    ),
    Place::new(
        "crates/stepmesh-transport/src/segment.rs",
        "maps memory of other processes",
    ),
    Place::new(
        "crates/stepmesh-transport/src/shm/",
        "rings and slots in shared memory",
    ),
    Place::new(
        "crates/stepmesh-transport/src/tcp/",
        "reads and writes of registered memory",
    ),
    Place::new(
        "crates/stepmesh/src/memory.rs",
        "registered tensors of the caller",
    ),
    Place::new(
        "plugins/cpu/src/",
        "allocates and copies raw memory for the host",
    ),
    Place::new(
        "xtask/src/plugins/load.rs",
        "calls the C entry of each built plugin",
    ),
];
