//! `vm test`: which tests run in the guest, where their programs come from, and what came of them.
//! The tests are those of the crates; here is only which of them need the device.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::{
    Lab, MachineOptions, pair,
    steps::{self, Ended, Step},
};
use crate::{
    demo, plugins,
    table::Table,
    test::PLUGIN_DIR_VARIABLE,
    verbs,
    workspace::{self, Profile, Workspace},
};

/// Which tests run, and on what.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    machine: MachineOptions,

    /// Runs only what has this in its name, for example `stepmesh-rdma` or `demo`
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
}

pub(super) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let start = Instant::now();
    let is_chosen = |name: &str| {
        let only = options.only.as_deref();
        only.is_none_or(|only| name.contains(only))
    };
    let Built {
        stepmesh,
        mut steps,
    } = build(workspace)?;
    steps.retain(|step| is_chosen(&step.name));
    println!("built after {:.0} s", start.elapsed().as_secs_f64());

    let lab = Lab::open(workspace, options.machine)?;
    let mut rows = Vec::new();
    if !steps.is_empty() {
        rows.extend(run_steps(&lab, &steps)?);
    }
    if is_chosen(PAIR) {
        println!("{PAIR}: booting both");
        let ended = pair::run(&lab, &over_verbs(&stepmesh));
        rows.push(match ended {
            Ok(ended) => judge(PAIR, None, &ended),
            Err(error) => Row::failed(PAIR, format!("{error:#}")),
        });
    }
    report(&rows)
}

/// Runs the steps in one guest; those that did not come to their end have the guest's as theirs.
fn run_steps(lab: &Lab, steps: &[Step]) -> Result<Vec<Row>> {
    println!("booting a guest for {} steps", steps.len());
    let (ended, guest) = steps::run(lab, "test", steps, |step, ended| {
        println!("{:>8.1} s  {}", ended.took.as_secs_f64(), step.name);
    })?;
    let mut reason = guest.err().map(|error| format!("{error:#}"));
    let row = |(step, ended): (&Step, &Option<Ended>)| match ended {
        Some(ended) => judge(&step.name, Some(step.limit), ended),
        // Told in full once: the rest was not begun.
        None => Row::failed(
            &step.name,
            reason.take().unwrap_or_else(|| "not run".into()),
        ),
    };
    Ok(steps.iter().zip(&ended).map(row).collect())
}

/// What one line of the closing table says.
#[derive(Debug)]
struct Row {
    name: String,
    passed: u32,
    took: Option<Duration>,
    /// Why it is not a success.
    problem: Option<String>,
    log: String,
}

impl Row {
    /// Something that did not even end; `reason` may have several lines.
    fn failed(name: &str, reason: String) -> Self {
        Self {
            name: name.into(),
            passed: 0,
            took: None,
            problem: Some(reason.lines().next().unwrap_or_default().into()),
            log: reason,
        }
    }
}

fn judge(name: &str, limit: Option<Duration>, ended: &Ended) -> Row {
    let log = ended.log_text();
    let counts = counts(&log);
    let problem = match (ended.status, limit) {
        (0, _) if counts.has_summary && counts.passed == 0 => Some("no test ran".into()),
        (0, _) => None,
        (124 | 137, Some(limit)) => Some(format!("not done after {} s", limit.as_secs())),
        _ if counts.failed > 0 => Some(format!("{} failed", counts.failed)),
        (status, _) => Some(format!("exit status {status}")),
    };
    Row {
        name: name.into(),
        passed: counts.passed,
        took: Some(ended.took),
        problem,
        log,
    }
}

fn report(rows: &[Row]) -> Result<()> {
    let failed = || rows.iter().filter(|row| row.problem.is_some());
    for row in failed() {
        println!(
            "\n=== {} ===\n{}",
            row.name,
            last_lines(&row.log, LOG_LINES)
        );
    }
    let mut table = Table::new(["in the guest", "passed", "seconds", "result"]);
    for row in rows {
        let count = |count: u32| (count > 0).then(|| count.to_string());
        let seconds = row.took.map(|took| format!("{:.1}", took.as_secs_f64()));
        let failed = |problem| format!("FAILED: {problem}");
        table.row([
            row.name.clone(),
            count(row.passed).unwrap_or_default(),
            seconds.unwrap_or_default(),
            row.problem.as_ref().map_or_else(|| "passed".into(), failed),
        ]);
    }
    println!("\n{table}");
    let failed: Vec<&str> = failed().map(|row| row.name.as_str()).collect();
    ensure!(!rows.is_empty(), "nothing of that name runs in the guest");
    ensure!(
        failed.is_empty(),
        "failed in the guest: {}",
        failed.join(", ")
    );
    Ok(())
}

/// The sums of libtest's closing lines.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    passed: u32,
    failed: u32,
    has_summary: bool,
}

fn counts(log: &str) -> Counts {
    let mut counts = Counts::default();
    for line in log.lines().filter(|line| line.starts_with("test result: ")) {
        counts.has_summary = true;
        let words: Vec<&str> = line.split_whitespace().collect();
        for pair in words.windows(2) {
            let count = pair[0].parse().unwrap_or(0);
            match pair[1] {
                "passed;" => counts.passed += count,
                "failed;" => counts.failed += count,
                _ => {}
            }
        }
    }
    counts
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// What runs in guests.
#[derive(Debug)]
struct Built {
    stepmesh: PathBuf,
    steps: Vec<Step>,
}

/// Builds the programs, and says how each is run.
fn build(workspace: &Workspace) -> Result<Built> {
    for release in [false, true] {
        let plugin_options = plugins::Options {
            only: Vec::new(),
            release,
        };
        plugins::build(workspace, &plugin_options)?;
    }
    let stepmesh = demo::build_program(workspace, Profile::Release)?;
    // The same commands as those of `cargo xtask test`, so that both build once.
    let mut libraries = workspace.cargo("test");
    libraries.arg("--workspace");
    verbs::add_feature(workspace, &mut libraries, None)?;
    let mut programs = built(workspace, &mut libraries, Profile::Dev)?;
    // Processes that compute are too slow there without optimisation: the program is that of the
    // demo, and its tests are built to find it.
    let mut processes = workspace.cargo("test");
    processes.args(["--package", "stepmesh-cli", "--test", "it"]);
    verbs::add_feature(workspace, &mut processes, Some("stepmesh-cli"))?;
    programs.extend(built(workspace, &mut processes, Profile::Release)?);

    let plugin_dir = plugins::plugins_dir(&workspace.metadata()?.target_dir()?, Profile::Dev);
    let mut steps = Vec::new();
    for suite in SUITES {
        let mut is_built = false;
        for program in programs.iter().filter(|program| suite.is_of(program)) {
            is_built = true;
            steps.push(suite.step(program, &plugin_dir));
        }
        if !is_built {
            bail!(
                "{} has no test program `{}`",
                suite.package,
                suite.target.unwrap_or("*")
            );
        }
    }
    steps.push(demo_step(workspace, &stepmesh)?);
    Ok(Built { stepmesh, steps })
}

/// A program of tests that cargo built.
#[derive(Debug)]
struct Program {
    package: String,
    package_dir: PathBuf,
    target: String,
    profile: Profile,
    path: PathBuf,
}

fn built(workspace: &Workspace, command: &mut Command, profile: Profile) -> Result<Vec<Program>> {
    command.args(profile.cargo_args());
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
            profile,
            path: path.into(),
        });
    }
    Ok(programs)
}

/// Tests of one package that need the device.
#[derive(Debug)]
struct Suite {
    package: &'static str,
    /// One of its test programs; all of them when there is none.
    target: Option<&'static str>,
    profile: Profile,
    args: &'static [&'static str],
}

impl Suite {
    fn is_of(&self, program: &Program) -> bool {
        self.package == program.package
            && self.profile == program.profile
            && self.target.is_none_or(|target| target == program.target)
    }

    fn step(&self, program: &Program, plugin_dir: &Path) -> Step {
        let mut command = over_verbs(&program.path);
        command.args(self.args).current_dir(&program.package_dir);
        command
            .env(PLUGIN_DIR_VARIABLE, plugin_dir)
            .env("RUST_BACKTRACE", "1");
        command.env("CARGO_MANIFEST_DIR", &program.package_dir);
        Step {
            name: format!("{} {}", program.package, program.target),
            command,
            limit: SUITE_LIMIT,
        }
    }
}

/// The README's first command, with the programs that it built here.
fn demo_step(workspace: &Workspace, stepmesh: &Path) -> Result<Step> {
    let this_program = env::current_exe().context("cannot find this program")?;
    let mut command = over_verbs(&this_program);
    command.args([
        "demo",
        "--limit-s",
        &DEMO_LIMIT.as_secs().to_string(),
        "--programs",
    ]);
    command
        .arg(stepmesh.parent().unwrap_or_else(|| Path::new("/")))
        .current_dir(workspace.path(""));
    Ok(Step {
        name: "demo".into(),
        command,
        limit: DEMO_LIMIT + Duration::from_secs(10),
    })
}

/// A command that uses the device, and fails without it.
fn over_verbs(program: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env("STEPMESH_TRANSPORT_KIND", "rdma")
        .env("STEPMESH_REQUIRE", "rdma");
    command
}

/// What runs in the guest, in this order.
const SUITES: [Suite; 4] = [
    Suite {
        package: "stepmesh-rdma",
        target: Some("it"),
        profile: Profile::Dev,
        args: &[],
    },
    Suite {
        package: "stepmesh",
        target: Some("it"),
        profile: Profile::Dev,
        args: &["--test-threads=1"],
    },
    Suite {
        package: "stepmesh",
        target: Some("on_sim"),
        profile: Profile::Dev,
        args: &["--test-threads=1"],
    },
    // One mesh of processes at a time: two processors do not carry more.
    Suite {
        package: "stepmesh-cli",
        target: Some("it"),
        profile: Profile::Release,
        args: &["over_the_network", "--test-threads=1"],
    },
];

/// The name of the scenario in its line of the table.
const PAIR: &str = "two guests, one killed";

/// Several times what the longest takes on two cores.
const SUITE_LIMIT: Duration = Duration::from_secs(240);

const DEMO_LIMIT: Duration = Duration::from_secs(120);

/// The failures of a few tests with their reasons.
const LOG_LINES: usize = 80;

#[cfg(test)]
mod tests {
    //! How a step is judged.

    use super::{Counts, Duration, Ended, counts, judge};

    #[test]
    fn counts_are_summed() {
        let log = "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured\nx\n\
                   test result: FAILED. 4 passed; 2 failed; 1 ignored; 0 measured\n";
        let sums = Counts {
            passed: 7,
            failed: 2,
            has_summary: true,
        };
        assert_eq!(counts(log), sums);
        assert_eq!(counts("no tests"), Counts::default());
    }

    #[test]
    fn a_success_without_a_test_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let problem = |status, log: &str| {
            let path = dir.path().join("log");
            std::fs::write(&path, log).unwrap();
            let took = Duration::from_secs(1);
            let ended = Ended {
                status,
                took,
                log: path,
            };
            judge("a", Some(Duration::from_secs(9)), &ended).problem
        };
        let none = "test result: ok. 0 passed; 0 failed; 0 ignored;";
        assert_eq!(problem(0, none).as_deref(), Some("no test ran"));
        assert_eq!(problem(0, "test result: ok. 1 passed; 0 failed;"), None);
        assert_eq!(problem(0, "a table"), None);
        assert_eq!(
            problem(101, "1 failed; no summary").as_deref(),
            Some("exit status 101")
        );
        assert_eq!(problem(124, none).as_deref(), Some("not done after 9 s"));
    }
}
