//! The conformance checks of all tiers over the simulated driver. They prove our code, not the hardware.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::{Completion, Failed, Trial};
use stepmesh_conformance::{Check, Group, Options, Outcome, Scale, Subject, Tier, checks, run};

use crate::graphs;

/// A trial for each check.
pub(crate) fn trials() -> Vec<Trial> {
    let trial = |check: &'static Check| {
        let name = format!("over_the_simulated_driver::{}", check.id);
        Trial::ignorable_test(name, move || judge(check))
    };
    checks().map(trial).collect()
}

fn judge(check: &'static Check) -> Result<Completion, Failed> {
    if check.group == Group::Compute
        && let Some(reason) = graphs::lacks_compiler()
    {
        return Ok(Completion::ignored_with(reason));
    }
    let options = Options {
        tier: Tier::Stress,
        only: Some(check.id.into()),
        scale: Scale::Reduced,
        ..Options::default()
    };
    let report = run(&Subject::File(plugin()?), &options, &mut |_| {})?;
    let result = report.result(check.id).ok_or("the check did not run")?;
    match result.outcome {
        Outcome::Pass => Ok(Completion::Completed),
        Outcome::Skip => Ok(Completion::ignored_with(&result.text)),
        _ => Err(format!("{}: {}", check.name, result.text).into()),
    }
}

/// Replaces this process by one that finds the simulated driver, unless it does already.
pub(crate) fn start_again_over_the_simulated_driver() -> Result<(), Failed> {
    if std::env::var_os(STARTED_AGAIN).is_some() {
        return Ok(());
    }
    let error = Command::new(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(STARTED_AGAIN, "1")
        .env("LD_LIBRARY_PATH", search_path(&simulated_driver()?))
        .exec();
    Err(error.into())
}

/// A folder before those where the loader looks otherwise.
pub(crate) fn search_path(folder: &Path) -> OsString {
    let mut path = folder.as_os_str().to_owned();
    if let Some(others) = std::env::var_os("LD_LIBRARY_PATH") {
        path.push(":");
        path.push(others);
    }
    path
}

/// The folder of the simulated driver.
pub(crate) fn simulated_driver() -> Result<PathBuf, Failed> {
    folder("STEPMESH_SIMDRIVER_DIR")
}

/// The folder of the plugins.
pub(crate) fn plugins() -> Result<PathBuf, Failed> {
    folder("STEPMESH_PLUGIN_DIR")
}

/// The plugin under test.
pub(crate) fn plugin() -> Result<PathBuf, Failed> {
    Ok(plugins()?.join("libstepmesh_backend_cuda.so"))
}

fn folder(variable: &str) -> Result<PathBuf, Failed> {
    let folder = std::env::var_os(variable)
        .ok_or_else(|| format!("{variable} is not set: run `cargo xtask test`, which builds it"))?;
    Ok(PathBuf::from(folder))
}

/// Set in the process that finds the simulated driver.
const STARTED_AGAIN: &str = "STEPMESH_TEST_STARTED_AGAIN";
