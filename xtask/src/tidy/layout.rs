//! Rules for the tree as a whole: what may lie at its top, and that no text names a place that
//! exists on one machine only.

use std::collections::BTreeSet;

use super::{Violation, files::File};

pub(super) fn check_top_level(files: &[File]) -> Vec<Violation> {
    let first_part = |file: &File| file.path.split('/').next().map(str::to_owned);
    let entries: BTreeSet<String> = files.iter().filter_map(first_part).collect();
    entries
        .into_iter()
        .filter(|entry| !entry.starts_with('.') && !TOP_LEVEL.contains(&entry.as_str()))
        .map(|entry| {
            let message = "not one of the entries of the top level: crates/, plugins/, config/, \
                           docs/ and xtask/ hold everything";
            Violation::new(entry, message)
        })
        .collect()
}

pub(super) fn check_text(file: &File) -> Vec<Violation> {
    file.lines()
        .filter(|(_, line)| names_machine_path(line))
        .map(|(number, _)| {
            let message = "an absolute path of one machine: make it relative";
            Violation::at(&file.path, number, message)
        })
        .collect()
}

/// Whether `line` holds one of [`MACHINE_PATHS`] as the start of a path.
fn names_machine_path(line: &str) -> bool {
    MACHINE_PATHS.iter().any(|path| {
        line.match_indices(path).any(|(index, _)| {
            let before = line[..index].chars().next_back();
            !before.is_some_and(|c| c.is_alphanumeric() || "_-./~}>$*".contains(c))
        })
    })
}

/// Dot-files are allowed without being named: tools look for them at the top only.
const TOP_LEVEL: [&str; 16] = [
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "README.md",
    "clippy.toml",
    "config",
    "crates",
    "deny.toml",
    "docs",
    "plugins",
    "rust-toolchain.toml",
    "rustfmt.toml",
    "xtask",
];

/// Written in two parts, so that this file does not break its own rule.
const MACHINE_PATHS: [&str; 3] = [
    concat!("/", "work/"),
    concat!("/", "root/"),
    concat!("/", "home/"),
];
