//! Whether owner and mode of a plugin file and of the directories above it are fit for loading
//! code from it, and the identity of files.
#![forbid(unsafe_code)]

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::Reason;

/// Device and inode: two paths with the same pair are one file. Length and time of the last change
/// are there because some file systems give the inode of a removed file out again at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct FileId {
    device: u64,
    inode: u64,
    len: u64,
    modified_ns: i128,
}

impl FileId {
    pub(crate) fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            len: metadata.len(),
            modified_ns: i128::from(metadata.mtime()) * 1_000_000_000
                + i128::from(metadata.mtime_nsec()),
        }
    }
}

/// Opens a regular file without following a link and without waiting on a pipe; `None` for
/// anything that is not a regular file.
pub(super) fn open(path: &Path) -> io::Result<Option<(File, FileId)>> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(path)?;
    let metadata = file.metadata()?;
    Ok(metadata.is_file().then(|| (file, FileId::of(&metadata))))
}

/// Whether only root and the user of this process can change the file or put another in its place.
/// `path` is absolute and without links.
pub(super) fn check(file: &File, path: &Path) -> Result<(), Reason> {
    let user = crate::secure::effective_user_id();
    let untrusted = |what, path: &Path, fault| Reason::Untrusted {
        what,
        path: path.into(),
        fault,
    };
    let unreadable = |error: io::Error| Reason::Unreadable {
        error: error.to_string(),
    };
    let metadata = file.metadata().map_err(unreadable)?;
    if let Some(fault) = fault(&Facts::of(&metadata), user) {
        return Err(untrusted("file", path, fault));
    }
    for directory in path.ancestors().skip(1) {
        let metadata = directory.metadata().map_err(unreadable)?;
        if let Some(fault) = fault(&Facts::of(&metadata), user) {
            return Err(untrusted("directory", directory, fault));
        }
    }
    Ok(())
}

/// What decides, apart from the file system so that it can be tested.
struct Facts {
    owner: u32,
    group: u32,
    mode: u32,
    is_dir: bool,
}

impl Facts {
    fn of(metadata: &Metadata) -> Self {
        Self {
            owner: metadata.uid(),
            group: metadata.gid(),
            mode: metadata.mode(),
            is_dir: metadata.is_dir(),
        }
    }
}

/// What is wrong with owner or mode.
fn fault(facts: &Facts, user: u32) -> Option<String> {
    let mode = facts.mode & 0o7777;
    if facts.owner != ROOT && facts.owner != user {
        return Some(format!("belongs to user {}", facts.owner));
    }
    // In a sticky directory such as /tmp only the owner of an entry can rename or remove it.
    if facts.is_dir && mode & STICKY != 0 {
        return None;
    }
    if mode & OTHERS_WRITE != 0 {
        return Some(format!("is writable by everybody (mode {mode:o})"));
    }
    // With a umask of 002, usual on desktops, a user's files belong to a group of his own, which
    // by convention has his number.
    let is_private_group = facts.group == facts.owner;
    if mode & GROUP_WRITE != 0 && !is_private_group {
        return Some(format!(
            "is writable by group {} (mode {mode:o})",
            facts.group
        ));
    }
    None
}

/// User number of root.
const ROOT: u32 = 0;
/// Mode bit of directories such as /tmp.
const STICKY: u32 = 0o1000;
/// Mode bit: the group may write.
const GROUP_WRITE: u32 = 0o020;
/// Mode bit: everybody may write.
const OTHERS_WRITE: u32 = 0o002;

#[cfg(test)]
mod tests {
    use super::{Facts, fault};

    fn fault_of(owner: u32, group: u32, mode: u32, is_dir: bool) -> Option<String> {
        fault(
            &Facts {
                owner,
                group,
                mode,
                is_dir,
            },
            1000,
        )
    }

    #[test]
    fn only_root_and_the_user_may_be_able_to_write() {
        assert_eq!(fault_of(1000, 100, 0o644, false), None);
        assert_eq!(fault_of(0, 0, 0o755, true), None);
        assert_eq!(
            fault_of(1000, 1000, 0o664, false),
            None,
            "a user's own group"
        );
        assert_eq!(fault_of(0, 0, 0o1777, true), None, "/tmp");
        assert!(
            fault_of(1001, 100, 0o644, false)
                .unwrap()
                .contains("belongs to user 1001")
        );
        assert!(
            fault_of(1000, 100, 0o664, false)
                .unwrap()
                .contains("group 100 (mode 664)")
        );
        assert!(
            fault_of(1000, 1000, 0o666, false)
                .unwrap()
                .contains("everybody (mode 666)")
        );
        assert!(
            fault_of(1000, 1000, 0o777, true)
                .unwrap()
                .contains("everybody (mode 777)")
        );
        assert!(
            fault_of(1000, 1000, 0o1666, false).is_some(),
            "sticky says nothing of a file"
        );
        assert!(
            fault_of(1001, 1001, 0o1777, true).is_some(),
            "a stranger's sticky directory"
        );
    }
}
