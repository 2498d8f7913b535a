//! Our own plugins pass every check, linked in and loaded.

use std::path::PathBuf;

use libtest_mimic::{Completion, Failed, Trial};
use stepmesh_conformance::{Check, Options, Outcome, Scale, Subject, Tier, checks, run};

/// A trial for each check and plugin.
pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for check in checks() {
        trials.push(Trial::ignorable_test(
            format!("cpu_built_in::{}", check.id),
            || judge(&Subject::BuiltIn("cpu".into()), check),
        ));
        for name in PLUGINS.iter().copied() {
            trials.push(Trial::ignorable_test(
                format!("{name}_file::{}", check.id),
                move || judge(&Subject::File(plugin(name)?), check),
            ));
        }
    }
    trials
}

fn judge(subject: &Subject, check: &'static Check) -> Result<Completion, Failed> {
    let options = Options {
        tier: Tier::Stress,
        only: Some(check.id.into()),
        scale: Scale::Reduced,
        ..Options::default()
    };
    let report = run(subject, &options, &mut |_| {})?;
    let result = report.result(check.id).ok_or("the check did not run")?;
    match result.outcome {
        Outcome::Pass => Ok(Completion::Completed),
        Outcome::Skip => Ok(Completion::ignored_with(&result.text)),
        _ => Err(format!("{}: {}", check.name, result.text).into()),
    }
}

fn plugin(name: &str) -> Result<PathBuf, Failed> {
    let directory = std::env::var_os("STEPMESH_PLUGIN_DIR").ok_or(
        "STEPMESH_PLUGIN_DIR is not set: run `cargo xtask test`, which builds the plugins",
    )?;
    Ok(PathBuf::from(directory).join(format!("libstepmesh_backend_{name}.so")))
}

/// The plugins of this repository, by name.
const PLUGINS: &[&str] = &["cpu"];
