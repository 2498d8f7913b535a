//! `ci`: everything that must hold before a change lands, in one command. A step that fails does
//! not stop the others, so that one run tells all; the closing table tells what each took.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::{
    abi, demo, setup,
    table::Table,
    test, tidy, torch, verbs, vm,
    workspace::{self, Workspace},
};

pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let mut outcomes = Vec::new();
    for step in STEPS {
        println!("\n=== {} ===", step.name);
        let start = Instant::now();
        let result = (step.run)(workspace);
        if let Err(error) = &result {
            eprintln!("error: {error:#}");
        }
        outcomes.push(Outcome {
            name: step.name,
            has_passed: result.is_ok(),
            took: start.elapsed(),
        });
    }
    println!("\n{}", summary(&outcomes));
    let failed: Vec<&str> = outcomes
        .iter()
        .filter(|outcome| !outcome.has_passed)
        .map(|outcome| outcome.name)
        .collect();
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

struct Step {
    name: &'static str,
    run: fn(&Workspace) -> Result<()>,
}

#[derive(Debug)]
struct Outcome {
    name: &'static str,
    has_passed: bool,
    took: Duration,
}

fn summary(outcomes: &[Outcome]) -> Table<3> {
    let mut table = Table::new(["step", "result", "seconds"]);
    let mut row = |name: &str, has_passed: bool, took: Duration| {
        let result = if has_passed { "passed" } else { "FAILED" };
        table.row([
            name.into(),
            result.into(),
            format!("{:.1}", took.as_secs_f64()),
        ]);
    };
    for outcome in outcomes {
        row(outcome.name, outcome.has_passed, outcome.took);
    }
    let has_passed = outcomes.iter().all(|outcome| outcome.has_passed);
    row(
        "all",
        has_passed,
        outcomes.iter().map(|outcome| outcome.took).sum(),
    );
    table
}

fn packages(workspace: &Workspace) -> Result<()> {
    setup::run(workspace, &setup::Options::default())
}

fn fmt(workspace: &Workspace) -> Result<()> {
    workspace::run(workspace.cargo("fmt").args(["--all", "--check"]))
}

fn clippy(workspace: &Workspace) -> Result<()> {
    let mut command = workspace.cargo("clippy");
    // With the feature that `cargo xtask abi` builds its generator with, so that it is judged too.
    command.args(["--workspace", "--all-targets", "--features", "xtask/abi"]);
    // Without libtorch, which linting does not need.
    command.args(["--features", "stepmesh-torch/doc-only"]);
    verbs::add_feature(workspace, &mut command, None)?;
    workspace::run(command.args(["--", "-D", "warnings"]))
}

fn doc(workspace: &Workspace) -> Result<()> {
    let mut command = workspace.cargo("doc");
    // Libraries only: the program `stepmesh` and the library of that name would share a folder.
    command.args(["--workspace", "--no-deps", "--lib"]);
    verbs::add_feature(workspace, &mut command, None)?;
    workspace::run(command.env("RUSTDOCFLAGS", "-D warnings"))
}

fn abi_is_current(workspace: &Workspace) -> Result<()> {
    abi::run(workspace, &abi::Options { check: true })
}

/// The README's test command, with everything that it does for a user.
fn every_test(workspace: &Workspace) -> Result<()> {
    test::run(workspace, &test::Options::default())
}

/// What needs libtorch.
fn torch_tests(workspace: &Workspace) -> Result<()> {
    torch::run(workspace, &torch::Options::default())
}

/// What needs an RDMA device, in a guest that has one.
fn tests_over_verbs(workspace: &Workspace) -> Result<()> {
    vm::test(workspace)
}

/// The README's first command.
fn demonstration(workspace: &Workspace) -> Result<()> {
    demo::run(workspace, &demo::Options::default())
}

/// Cheap ones first, so that a slip is told within seconds.
const STEPS: [Step; 10] = [
    Step {
        name: "setup",
        run: packages,
    },
    Step {
        name: "fmt",
        run: fmt,
    },
    Step {
        name: "tidy",
        run: tidy::run,
    },
    Step {
        name: "clippy",
        run: clippy,
    },
    Step {
        name: "abi",
        run: abi_is_current,
    },
    Step {
        name: "test",
        run: every_test,
    },
    Step {
        name: "torch-test",
        run: torch_tests,
    },
    Step {
        name: "vm-test",
        run: tests_over_verbs,
    },
    Step {
        name: "doc",
        run: doc,
    },
    Step {
        name: "demo",
        run: demonstration,
    },
];

#[cfg(test)]
mod tests {
    //! The closing table.

    use super::{Duration, Outcome, summary};

    #[test]
    fn the_total_fails_with_one_step() {
        let outcomes = [
            Outcome {
                name: "fmt",
                has_passed: true,
                took: Duration::from_millis(500),
            },
            Outcome {
                name: "test",
                has_passed: false,
                took: Duration::from_secs(2),
            },
        ];
        let text = summary(&outcomes).to_string();
        assert!(text.ends_with("all   FAILED  2.5"), "{text}");
    }
}
