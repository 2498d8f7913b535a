//! The test programs that run in guests: built here by cargo, found by what it says it made.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Result;
use serde_json::Value;

use crate::{
    verbs,
    workspace::{self, Workspace},
};

/// A program of tests.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) package: String,
    pub(super) package_dir: PathBuf,
    pub(super) target: String,
    pub(super) path: PathBuf,
}

/// Builds the test programs of every package, by the command of `cargo xtask test`, so that both build
/// once.
pub(super) fn of_workspace(workspace: &Workspace) -> Result<Vec<Program>> {
    let mut command = workspace.cargo("test");
    command.arg("--workspace");
    verbs::add_feature(workspace, &mut command, None)?;
    built(workspace, &mut command)
}

/// Builds those of one package, by the command of `cargo xtask test -p`.
pub(super) fn of_package(workspace: &Workspace, package: &str) -> Result<Vec<Program>> {
    let mut command = workspace.cargo("test");
    command.args(["--package", package]);
    verbs::add_feature(workspace, &mut command, Some(package))?;
    built(workspace, &mut command)
}

fn built(workspace: &Workspace, command: &mut Command) -> Result<Vec<Program>> {
    command.args(["--no-run", "--message-format", "json-render-diagnostics"]);
    let metadata = workspace.metadata()?;
    let mut programs = Vec::new();
    for artifact in workspace::artifacts_of(command)? {
        let manifest = artifact["manifest_path"].as_str().map(Path::new);
        let package = metadata
            .packages()
            .find(|p| Some(p.manifest_path()) == manifest);
        let path = artifact["executable"].as_str();
        let is_test = artifact["profile"]["test"] == Value::Bool(true);
        let (Some(package), Some(path), true) = (package, path, is_test) else {
            continue;
        };
        programs.push(Program {
            package: package.name().into(),
            package_dir: package
                .manifest_path()
                .parent()
                .unwrap_or_else(|| Path::new("/"))
                .into(),
            target: artifact["target"]["name"]
                .as_str()
                .unwrap_or_default()
                .into(),
            path: path.into(),
        });
    }
    Ok(programs)
}
