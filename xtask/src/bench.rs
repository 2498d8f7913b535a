//! `bench`: the optimised program and plugins, measured by the program itself. What is measured,
//! and beside what, lives in `stepmesh bench`.

use anyhow::{Context, Result};

use crate::{
    demo, plugins,
    workspace::{self, Profile, Workspace},
};

/// How much is measured.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Fewer rounds: ends within 50 seconds
    #[arg(long)]
    quick: bool,

    /// Goes to `stepmesh bench`
    #[arg(last = true)]
    args: Vec<String>,
}

pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let plugin_options = plugins::Options {
        only: Vec::new(),
        release: true,
    };
    plugins::print(workspace, &plugins::build(workspace, &plugin_options)?);
    let program = demo::build_program(workspace, Profile::Release)?;
    let out_dir = workspace.metadata()?.target_dir()?.join("bench");
    std::fs::create_dir_all(&out_dir)
        .with_context(|| format!("cannot create {}", out_dir.display()))?;
    let mut command = workspace.program(program);
    command.args(["bench", "--out"]).arg(&out_dir);
    command
        .args(options.quick.then_some("--quick"))
        .args(&options.args);
    workspace::run(&mut command)?;
    println!("results: {}", out_dir.join("summary.json").display());
    Ok(())
}
