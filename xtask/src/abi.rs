//! `abi`: the C header of the backend ABI, generated from `stepmesh-abi` and committed.
//!
//! The generator is a program of its own, `abi/generate.rs`: it takes longer to build than all tasks
//! together, so it is built for this task only.

#[cfg(test)]
mod tests;

use anyhow::Result;

use crate::workspace::{self, Workspace};

/// What is done with the generated header.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Writes nothing; fails with the difference when the committed header is stale
    #[arg(long)]
    pub(crate) check: bool,
}

pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let mut command = workspace.cargo("run");
    command.args(["--quiet", "--package", "xtask"]);
    command.args(["--features", "abi", "--bin", "xtask-abi", "--"]);
    command.args(options.check.then_some("--check"));
    workspace::run(&mut command)
}
