//! Finds plugin files and judges them without running any of their code.
//!
//! `search` lists the files, `trust` says whether their owner and mode are fit for loading code,
//! `elf` reads the note. The result is a list of [`Candidate`]s, each with a reason when it is not
//! taken. Loading is the registry's business.
#![forbid(unsafe_code)]

mod elf;
mod reason;
mod search;
mod trust;

use std::cmp::{Ordering, Reverse};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::config::PluginsConfig;

pub use elf::Note;
pub use reason::Reason;
pub(crate) use search::{directories, matches_glob};
pub(crate) use trust::FileId;

/// A plugin file whose note was read and found compatible.
#[derive(Debug)]
pub(crate) struct Found {
    /// Absolute, without links.
    pub(crate) path: PathBuf,
    /// Kept open until the file is loaded, so that the loaded one can be compared with it.
    pub(crate) file: File,
    pub(crate) id: FileId,
    pub(crate) note: Note,
    pub(crate) build_id: Vec<u8>,
    /// Position of the directory in the search order.
    pub(crate) rank: usize,
}

/// One file of the search: what is known of it and whether it may be loaded.
#[derive(Debug)]
pub(crate) struct Judged {
    /// As it was found, or without links when that could be told.
    pub(crate) path: PathBuf,
    pub(crate) note: Option<Note>,
    pub(crate) verdict: Result<Found, Reason>,
}

/// Every plugin file in the directories, judged; duplicates are refused, equal names are not.
pub(crate) fn judge_all(config: &PluginsConfig, directories: &[PathBuf]) -> Vec<Judged> {
    judge_all_as(config, directories, crate::secure::is_secure_process())
}

/// The same for a process that has rights which its user has not, or for one that has not.
fn judge_all_as(
    config: &PluginsConfig,
    directories: &[PathBuf],
    is_secure_process: bool,
) -> Vec<Judged> {
    let trusts_all = config.trust && !is_secure_process;
    let mut seen = Seen::default();
    let mut judged = Vec::new();
    for (rank, directory) in directories.iter().enumerate() {
        let is_configured = config.path.contains(directory);
        for listed in search::plugin_files(directory, is_configured) {
            judged.push(match listed {
                Ok(path) => judge(&path, rank, config, trusts_all, &mut seen),
                Err((path, reason)) => Judged {
                    path,
                    note: None,
                    verdict: Err(reason),
                },
            });
        }
    }
    judged
}

/// What is wrong with the bytes of a plugin file, and how many bytes its build id has.
#[cfg(any(test, fuzzing))]
pub(crate) fn judge_bytes(bytes: &[u8]) -> Result<(Note, usize), Reason> {
    let image = elf::read_from(bytes)?;
    let note = image.note?;
    note.check()?;
    Ok((note, image.build_id.len()))
}

/// Which of two plugins of one name is better; the better one sorts first.
pub(crate) fn by_preference(a: &Found, b: &Found) -> Ordering {
    let key = |found: &Found| {
        (
            Reverse(found.note.priority),
            Reverse(version_key(&found.note.version)),
        )
    };
    key(a)
        .cmp(&key(b))
        .then(a.rank.cmp(&b.rank))
        .then_with(|| a.path.cmp(&b.path))
}

/// Files that were judged good, so that the same plugin is not taken twice.
#[derive(Default)]
struct Seen {
    files: HashMap<FileId, PathBuf>,
    builds: HashMap<(String, Vec<u8>), PathBuf>,
}

impl Seen {
    fn note(&mut self, found: &Found) -> Result<(), Reason> {
        if let Some(first) = self.files.get(&found.id) {
            return Err(Reason::SameFile {
                first: first.clone(),
            });
        }
        self.files.insert(found.id, found.path.clone());
        if found.build_id.is_empty() {
            return Ok(());
        }
        let build = (found.note.name.clone(), found.build_id.clone());
        match self.builds.get(&build) {
            Some(first) => Err(Reason::SameBuild {
                first: first.clone(),
            }),
            None => {
                self.builds.insert(build, found.path.clone());
                Ok(())
            }
        }
    }
}

fn judge(
    path: &Path,
    rank: usize,
    config: &PluginsConfig,
    trusts_all: bool,
    seen: &mut Seen,
) -> Judged {
    let mut note = None;
    let verdict = examine(path, rank, config, trusts_all, &mut note);
    let verdict = verdict.and_then(|found| seen.note(&found).map(|()| found));
    let path = verdict
        .as_ref()
        .map_or_else(|_| path.into(), |found| found.path.clone());
    Judged {
        path,
        note,
        verdict,
    }
}

/// All checks of one file; `note` is filled as soon as it is known, so that a refusal has a name.
fn examine(
    path: &Path,
    rank: usize,
    config: &PluginsConfig,
    trusts_all: bool,
    note: &mut Option<Note>,
) -> Result<Found, Reason> {
    let disabled = |name: &str| config.disable.iter().find(|glob| matches_glob(glob, name));
    let file_name = path.file_name().unwrap_or_default().to_string_lossy();
    if let Some(glob) = disabled(&file_name) {
        return Err(Reason::Disabled { glob: glob.clone() });
    }
    let real = path.canonicalize().map_err(unreadable)?;
    let (file, id) = trust::open(&real)
        .map_err(unreadable)?
        .ok_or(Reason::NotAFile)?;
    if !trusts_all {
        trust::check(&file, &real)?;
    }
    let image = elf::read(&file)?;
    let found_note = note.insert(image.note?).clone();
    if let Some(glob) = disabled(&found_note.name) {
        return Err(Reason::Disabled { glob: glob.clone() });
    }
    found_note.check()?;
    Ok(Found {
        path: real,
        file,
        id,
        note: found_note,
        build_id: image.build_id,
        rank,
    })
}

#[expect(clippy::needless_pass_by_value, reason = "the shape of map_err")]
fn unreadable(error: io::Error) -> Reason {
    Reason::Unreadable {
        error: error.to_string(),
    }
}

/// `1.10.2` as numbers, so that 1.10 is newer than 1.9; a suffix makes a version older.
fn version_key(version: &str) -> (Vec<u64>, bool) {
    let (core, suffix) = match version.find(['-', '+']) {
        Some(at) => version.split_at(at),
        None => (version, ""),
    };
    let numbers = core
        .split('.')
        .map(|part| part.parse().unwrap_or(0))
        .collect();
    (numbers, !suffix.starts_with('-'))
}

#[cfg(test)]
mod tests;
