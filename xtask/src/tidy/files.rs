//! The files that git tracks, read once for all rules.

use std::{fs, io};

use anyhow::{Context, Result};

use crate::workspace::{Workspace, output_of};

/// A tracked file.
#[derive(Debug)]
pub(super) struct File {
    /// Relative to the root of the workspace, with `/`.
    pub(super) path: String,
    /// `None`: not UTF-8, so no text.
    pub(super) text: Option<String>,
}

impl File {
    pub(super) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// The lines with their numbers, which start at 1. A carriage return belongs to its line.
    pub(super) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        let text = self.text.as_deref().unwrap_or_default();
        let lines = text.split_terminator('\n').enumerate();
        lines.map(|(index, line)| (index + 1, line))
    }
}

pub(super) fn tracked(workspace: &Workspace) -> Result<Vec<File>> {
    let listing = output_of(workspace.program("git").args(["ls-files", "-z"]))?;
    let listing = String::from_utf8(listing).context("a tracked path is not UTF-8")?;
    let mut files = Vec::new();
    for path in listing.split_terminator('\0') {
        match fs::read(workspace.path(path)) {
            Ok(bytes) => {
                files.push(File {
                    path: path.into(),
                    text: String::from_utf8(bytes).ok(),
                });
            }
            // Removed in the working tree, but not yet in git.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("cannot read {path}")),
        }
    }
    Ok(files)
}
