//! `tidy`: the rules of the repository that no compiler keeps. Each rule is a function from files
//! or metadata to violations, lives in a module below, and has a good and a bad example in its
//! tests. The same check runs as a test of this crate.

mod abi_doc;
mod arrows;
mod commands;
mod files;
mod layout;
mod licences;
mod mask;
mod source;
#[cfg(test)]
mod tests;
mod unsafe_code;

use std::fmt;

use anyhow::{Result, bail};

use crate::workspace::{self, Workspace};

/// One thing to repair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Violation {
    /// A file, a line of a file, or a package.
    place: String,
    /// What is wrong and what to do.
    message: String,
}

impl Violation {
    fn new(place: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            place: place.into(),
            message: message.into(),
        }
    }

    fn at(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self::new(format!("{path}:{line}"), message)
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message)
    }
}

/// Runs every rule. An error means that the rules could not be run, not that one is broken.
pub(crate) fn check(workspace: &Workspace) -> Result<Vec<Violation>> {
    let files = files::tracked(workspace)?;
    let deny = licences::DenyConfig::read(workspace)?;
    let members = workspace.metadata()?;
    let dependencies = workspace.metadata_of_dependencies(&deny.target)?;

    let mut violations = Vec::new();
    for file in &files {
        violations.extend(source::check(file));
        violations.extend(unsafe_code::check(file));
        violations.extend(layout::check_text(file));
        violations.extend(commands::check(file));
    }
    violations.extend(unsafe_code::check_list(&files));
    violations.extend(layout::check_top_level(&files));
    violations.extend(abi_doc::check(&files));
    violations.extend(arrows::check(&members));
    violations.extend(licences::check(&dependencies, &deny));
    Ok(violations)
}

/// The task: prints what [`check`] finds, and asks cargo-deny where it is installed.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let violations = check(workspace)?;
    for violation in &violations {
        eprintln!("{violation}");
    }
    if !violations.is_empty() {
        bail!("tidy: {} places to repair", violations.len());
    }
    println!("tidy: every rule holds");
    check_with_cargo_deny(workspace)
}

/// cargo-deny looks at more than licences, but is not installed everywhere.
fn check_with_cargo_deny(workspace: &Workspace) -> Result<()> {
    let version = workspace.cargo("deny").arg("--version").output();
    if !version.is_ok_and(|output| output.status.success()) {
        println!("cargo-deny is not installed: bans, sources and advisories were not checked");
        return Ok(());
    }
    // Advisories need a network; they are checked where releases are made.
    workspace::run(
        workspace
            .cargo("deny")
            .args(["check", "licenses", "bans", "sources"]),
    )
}
