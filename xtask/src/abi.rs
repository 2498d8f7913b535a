//! `abi`: the C header of the backend ABI, generated from `stepmesh-abi` and committed.
//!
//! The generator, cbindgen, takes longer to build than all other tasks together. It is behind the
//! feature `abi` of this crate, and the task without that feature runs the task with it.

#[cfg(feature = "abi")]
mod generate;
#[cfg(test)]
mod tests;

#[cfg(not(feature = "abi"))]
use anyhow::Result;

#[cfg(not(feature = "abi"))]
use crate::workspace::{self, Workspace};
#[cfg(feature = "abi")]
pub(crate) use generate::run;

/// What is done with the generated header.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Writes nothing; fails with the difference when the committed header is stale
    #[arg(long)]
    pub(crate) check: bool,
}

#[cfg(not(feature = "abi"))]
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let mut command = workspace.cargo("run");
    command.args([
        "--quiet",
        "--package",
        "xtask",
        "--features",
        "abi",
        "--target-dir",
    ]);
    // A target directory of its own: in the shared one, the two forms of this program would
    // replace each other, and each task after this one would build anew.
    command.arg(workspace.metadata()?.target_dir()?.join("xtask-abi"));
    command
        .args(["--", "abi"])
        .args(options.check.then_some("--check"));
    workspace::run(&mut command)
}

/// The generated header, relative to the workspace.
#[cfg(any(feature = "abi", test))]
const HEADER: &str = "crates/stepmesh-abi/include/stepmesh_backend.h";
