//! The files by which the kernel tells about the machine, under a root that tests replace.

use std::fs;
use std::path::PathBuf;

use stepmesh_rdma::select;

/// A machine, as its files show it.
#[derive(Debug)]
pub(super) struct System {
    root: PathBuf,
}

impl System {
    /// The one that this runs on.
    pub(super) fn this() -> Self {
        Self { root: "/".into() }
    }

    #[cfg(test)]
    pub(super) fn under(root: &std::path::Path) -> Self {
        Self { root: root.into() }
    }

    /// The same machine for who chooses adapters.
    pub(super) fn for_adapters(&self) -> select::System {
        select::System::under(&self.root)
    }

    /// Where a file of this machine is; `path` is absolute.
    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// The text of a file, trimmed; `None` when it cannot be read or is empty.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        let text = fs::read_to_string(self.path(path)).ok()?;
        let text = text.trim();
        (!text.is_empty()).then(|| text.to_owned())
    }

    pub(super) fn has(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// The names in a folder, sorted; none when there is no folder.
    pub(super) fn names(&self, dir: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(dir)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    /// The last part of what a link points to.
    pub(super) fn link_name(&self, path: &str) -> Option<String> {
        let target = fs::read_link(self.path(path)).ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    }

    /// The number after `key` in a file of lines `key: number unit`.
    pub(super) fn number_of(&self, path: &str, key: &str) -> Option<u64> {
        let text = self.text(path)?;
        let value = text.lines().find_map(|line| {
            let rest = line.strip_prefix(key)?;
            rest.trim_start().strip_prefix(':')
        })?;
        value.split_whitespace().next()?.parse().ok()
    }
}
