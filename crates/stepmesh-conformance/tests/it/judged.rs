//! Our own plugins pass every check, linked in and loaded.

use std::io;
use std::path::{Path, PathBuf};

use crate::spoiled::{compile_with, plugin_path};
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
    for (name, variable, compiler, source, options) in EXAMPLES {
        let with = if options.is_empty() { "" } else { "_computing" };
        trials.push(Trial::ignorable_test(
            format!("{name}{with}_passes_all"),
            move || example(name, variable, compiler, source, options),
        ));
    }
    trials
}

/// The examples for authors in other languages pass what they must. No C++ compiler is told; no C
/// compiler is a failure.
fn example(
    name: &str,
    variable: &str,
    compiler: &str,
    source: &str,
    options: &[&str],
) -> Result<Completion, Failed> {
    let directory = tempfile::tempdir()?;
    let path = plugin_path(directory.path(), name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    let options = [&["-O2", "-Wall", "-Wextra", "-Werror"], options].concat();
    match compile_with(variable, compiler, &source, &path, &options) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && compiler != "cc" => {
            return Ok(Completion::ignored_with(format!("{compiler}: {error}")));
        }
        compiled => compiled?,
    }
    let options = Options {
        tier: Tier::Capability,
        scale: Scale::Reduced,
        ..Options::default()
    };
    let report = run(&Subject::file(&path), &options, &mut |_| {})?;
    if !report.is_good() {
        return Err(report.to_string().into());
    }
    Ok(Completion::Completed)
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

/// An example: name, variable with the compiler, its usual name, source, and options of its own.
type Example = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    &'static [&'static str],
);

const EXAMPLES: [Example; 3] = [
    (
        "example-c",
        "CC",
        "cc",
        "../../plugins/example-c/example.c",
        &[],
    ),
    (
        "example-c",
        "CC",
        "cc",
        "../../plugins/example-c/example.c",
        &["-DEXAMPLE_COMPUTE"],
    ),
    (
        "example-cpp",
        "CXX",
        "c++",
        "../../plugins/example-cpp/example.cc",
        &[],
    ),
];
/// The plugins of this repository, by name.
const PLUGINS: &[&str] = &["cpu", "sim"];
