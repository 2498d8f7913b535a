//! The files by which the kernel tells about the machine, under a root that tests replace.

use std::fs;
use std::path::{Path, PathBuf};

/// A machine, as its files show it.
#[derive(Clone, Debug)]
pub struct System {
    root: PathBuf,
}

impl System {
    /// The one that this runs on.
    #[must_use]
    pub fn this() -> Self {
        Self::under(Path::new("/"))
    }

    /// One whose files are below a folder.
    #[must_use]
    pub fn under(root: &Path) -> Self {
        Self { root: root.into() }
    }

    /// The text of a file, trimmed; nothing when it cannot be read or is empty. `path` is absolute.
    pub(crate) fn text(&self, path: &str) -> Option<String> {
        let text = fs::read_to_string(self.path(path)).ok()?;
        let text = text.trim();
        (!text.is_empty()).then(|| text.to_owned())
    }

    /// The names in a folder, in the order in which people count; none when there is no folder.
    pub(crate) fn names(&self, dir: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(dir)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort_by_cached_key(|name| counting_key(name));
        names
    }

    /// Where a path leads when all links are followed, as an absolute path of the machine.
    pub(super) fn resolved(&self, path: &str) -> Option<PathBuf> {
        let root = fs::canonicalize(&self.root).ok()?;
        let target = fs::canonicalize(self.path(path)).ok()?;
        let inside = target.strip_prefix(root).ok()?;
        Some(Path::new("/").join(inside))
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }
}

/// `mlx5_10` after `mlx5_9`: the number at the end counts as one.
pub(super) fn counting_key(name: &str) -> (String, u64) {
    let stem = name.trim_end_matches(|char: char| char.is_ascii_digit());
    let number = name[stem.len()..].parse().unwrap_or(0);
    (stem.to_owned(), number)
}
