//! `test`: every test of the workspace, with the plugins that they load.

use anyhow::{Result, anyhow};

use crate::{
    needs,
    plugins::{self, plugins_dir},
    simdriver, verbs,
    workspace::{self, Profile, Workspace},
};

/// Which tests run.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Options {
    /// Runs only the tests whose name contains this
    filter: Option<String>,

    /// Runs only the tests of this package, for example `stepmesh-core`
    #[arg(long, short, value_name = "PACKAGE")]
    package: Option<String>,

    /// Goes to the test programs, for example `-- --nocapture`
    #[arg(last = true)]
    args: Vec<String>,
}

/// Runs unit, integration and documentation tests; all of them, even when one fails.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let plugin_options = plugins::Options {
        only: Vec::new(),
        release: false,
    };
    plugins::print(workspace, &plugins::build(workspace, &plugin_options)?);
    let simdriver_dir = simdriver::build(workspace, simdriver::Options { release: false })?;
    let target_dir = workspace.metadata()?.target_dir()?;

    let mut command = workspace.cargo("test");
    command.arg("--no-fail-fast");
    match &options.package {
        Some(package) => command.args(["--package", package]),
        None => command.arg("--workspace"),
    };
    verbs::add_feature(workspace, &mut command, options.package.as_deref())?;
    command.args(&options.filter).arg("--").args(&options.args);
    command.env(PLUGIN_DIR_VARIABLE, plugins_dir(&target_dir, Profile::Dev));
    command.env(simdriver::DIR_VARIABLE, simdriver_dir);
    let tested = workspace::run(&mut command);

    // After the tests, so that what could not be checked is the last thing that one reads.
    println!("\nWhat this machine has:");
    match (tested, needs::report()) {
        (tested, Ok(())) => tested,
        (Ok(()), Err(absent)) => Err(absent),
        (Err(failed), Err(absent)) => Err(anyhow!("{failed:#}; {absent:#}")),
    }
}

/// Where tests find the plugins that they load. Without it such a test fails and names this task.
pub(crate) const PLUGIN_DIR_VARIABLE: &str = "STEPMESH_PLUGIN_DIR";
