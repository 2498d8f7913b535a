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
    let is_needed = |place: &Place| {
        files
            .iter()
            .filter(|file| file.is_rust() && place.covers(&file.path))
            .any(|file| {
                let code = mask::code_only(file.text.as_deref().unwrap_or_default());
                mask::has_word(&code, "unsafe")
            })
    };
    let unneeded = places().filter(|place| !is_needed(place));
    unneeded
        .map(|Place { path, reason }| {
            let message =
                format!("may hold `unsafe` ({reason}), but has none: take it off the list");
            Violation::new(path, message)
        })
        .collect()
}

fn is_allowed(path: &str) -> bool {
    places().any(|place| place.covers(path))
}

fn places() -> impl Iterator<Item = Place> {
    ALLOWED
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(path, reason)| {
            let reason = reason.trim_start();
            Place { path, reason }
        })
}

struct Place {
    /// A file, or a folder with all that is below it, which ends with `/`.
    path: &'static str,
    reason: &'static str,
}

impl Place {
    fn covers(&self, path: &str) -> bool {
        if self.path.ends_with('/') {
            path.starts_with(self.path)
        } else {
            path == self.path
        }
    }
}

/// A path and the reason on each line.
const ALLOWED: &str = "\
crates/stepmesh-abi/                            types and function pointers of the C ABI
crates/stepmesh-plugin/                         the C side of the table
crates/stepmesh-core/src/secure.rs              asks libc whether the process is set-user-id
crates/stepmesh-core/src/loader.rs              dlopen and tables of foreign code
crates/stepmesh-core/src/loader/                dlopen and tables of foreign code
crates/stepmesh-core/src/device.rs              calls through the table
crates/stepmesh-core/src/buffer.rs              calls through the table, views on host memory
crates/stepmesh-core/src/stream.rs              calls through the table
crates/stepmesh-transport/examples/             maps the memory that it measures
crates/stepmesh-transport/src/memory.rs         views on memory that peers write
crates/stepmesh-transport/src/segment.rs        maps memory of other processes
crates/stepmesh-transport/src/shm/              rings and slots in shared memory
crates/stepmesh-transport/src/sim/placement.rs  writes of simulated transfers
crates/stepmesh-transport/src/tcp/              reads and writes of registered memory
crates/stepmesh-transport/tests/                promises about the memory of a test
crates/stepmesh/src/memory.rs                   registered tensors of the caller
plugins/cpu/src/                                allocates and copies raw memory for the host
xtask/src/plugins/load.rs                       calls the C entry of each built plugin
";
