//! Which directories and files are looked at. Reads directory listings only.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::{env, fs};

use super::Reason;

/// The search order: the configured paths, then the plugins beside the program.
pub(crate) fn directories(configured: &[PathBuf]) -> Vec<PathBuf> {
    let beside = env::current_exe()
        .map(|exe| beside_program(&exe))
        .unwrap_or_default();
    let mut directories: Vec<PathBuf> = Vec::new();
    for directory in configured.iter().cloned().chain(beside) {
        if !directories.contains(&directory) {
            directories.push(directory);
        }
    }
    directories
}

/// `stepmesh-plugins` beside the program; test programs of cargo lie one directory deeper.
fn beside_program(exe: &Path) -> Vec<PathBuf> {
    let Some(directory) = exe.parent() else {
        return Vec::new();
    };
    let mut found = vec![directory.join(PLUGINS_BESIDE_PROGRAM)];
    if directory.file_name().is_some_and(|name| name == "deps")
        && let Some(parent) = directory.parent()
    {
        found.push(parent.join(PLUGINS_BESIDE_PROGRAM));
    }
    found
}

/// The plugin files of an entry of the search path, by name. A configured entry may be a file, and
/// must exist.
pub(super) fn plugin_files(
    entry: &Path,
    is_configured: bool,
) -> Vec<Result<PathBuf, (PathBuf, Reason)>> {
    let failed = |error: std::io::Error| {
        (
            entry.to_owned(),
            Reason::Unreadable {
                error: error.to_string(),
            },
        )
    };
    let metadata = match fs::metadata(entry) {
        Ok(metadata) => metadata,
        Err(error) if is_configured => return vec![Err(failed(error))],
        Err(_) => return Vec::new(),
    };
    if !metadata.is_dir() {
        return vec![Ok(entry.to_owned())];
    }
    match fs::read_dir(entry) {
        Ok(listing) => {
            let names = listing
                .flatten()
                .take(FILES_MAX)
                .map(|file| file.file_name());
            let mut names: Vec<_> = names
                .filter(|name| is_plugin_name(&name.to_string_lossy()))
                .collect();
            names.sort();
            names.into_iter().map(|name| Ok(entry.join(name))).collect()
        }
        Err(error) => vec![Err(failed(error))],
    }
}

fn is_plugin_name(name: &str) -> bool {
    matches_glob(PLUGIN_GLOB, name)
}

/// Whether a glob of `*` (any text) and `?` (any character) matches, without regard to case.
pub(crate) fn matches_glob(glob: &str, text: &str) -> bool {
    let glob: Vec<char> = glob.to_lowercase().chars().collect();
    let text: Vec<char> = text.to_lowercase().chars().collect();
    // The usual two-pointer match: after a mismatch, go back to the last star and let it eat more.
    let (mut g, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if glob.get(g) == Some(&'*') {
            star = Some((g, t));
            g += 1;
        } else if glob.get(g).is_some_and(|c| *c == '?' || *c == text[t]) {
            g += 1;
            t += 1;
        } else if let Some((star_at, eaten)) = star {
            star = Some((star_at, eaten + 1));
            g = star_at + 1;
            t = eaten + 1;
        } else {
            return false;
        }
    }
    glob[g..].iter().all(|c| *c == '*')
}

/// Below the directory of the program, so that an installation can be moved as a whole. Not
/// `stepmesh/plugins`: the program itself is called `stepmesh`.
const PLUGINS_BESIDE_PROGRAM: &str = "stepmesh-plugins";
/// The names that plugins must have in a directory; an explicit file may have any.
const PLUGIN_GLOB: &str = "libstepmesh_backend_*.so";
/// A directory with more entries is not a plugins directory.
const FILES_MAX: usize = 4096;
