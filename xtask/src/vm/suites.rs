//! `vm test`: which tests run in the guest, where their programs come from, and what came of them.
//! The tests are those of the crates; here is only which of them need the device.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use super::{
    Lab, MachineOptions, pair,
    programs::{self, Program},
    report::{self, Row, judge},
    steps::{self, Ended, Step},
};
use crate::{
    demo, plugins,
    workspace::{Profile, Workspace},
};

/// Which tests run, and on what.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    machine: MachineOptions,

    /// Builds and runs only what has this in its name, for example `stepmesh-rdma` or `demo`
    #[arg(long, value_name = "NAME")]
    only: Option<String>,

    /// How long a mesh is worn by peers that come, go and die (`soak`)
    #[arg(long, value_name = "SECONDS", default_value_t = SOAK_S)]
    soak_s: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            machine: MachineOptions::default(),
            only: None,
            soak_s: SOAK_S,
        }
    }
}

impl Options {
    fn has_chosen(&self, name: &str) -> bool {
        let only = self.only.as_deref();
        only.is_none_or(|only| name.contains(only))
    }
}

pub(super) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let start = Instant::now();
    let suites = SUITES.iter().filter(|suite| options.has_chosen(suite.name));
    let suites: Vec<&Suite> = suites.collect();
    let (has_demo, has_pair) = (options.has_chosen(DEMO), options.has_chosen(PAIR));
    ensure!(
        has_demo || has_pair || !suites.is_empty(),
        "nothing of that name runs in the guest; there are {}, {DEMO} and {PAIR}",
        SUITES.map(|suite| suite.name).join(", ")
    );
    let runs_program = suites.iter().any(|suite| suite.runs_program);
    let stepmesh = match has_demo || has_pair || runs_program {
        true => Some(build_program(workspace)?),
        false => None,
    };
    let mut steps = suite_steps(workspace, &suites, stepmesh.as_deref(), options)?;
    if let Some(stepmesh) = stepmesh.as_deref().filter(|_| has_demo) {
        steps.push(demo_step(workspace, stepmesh)?);
    }
    println!("built after {:.0} s", start.elapsed().as_secs_f64());

    let lab = Lab::open(workspace, options.machine)?;
    let mut rows = Vec::new();
    if !steps.is_empty() {
        rows.extend(run_steps(&lab, &steps)?);
    }
    if let Some(stepmesh) = stepmesh.as_deref().filter(|_| has_pair) {
        println!("{PAIR}: booting both");
        let ended = pair::run(&lab, &over_verbs(stepmesh));
        rows.push(match ended {
            Ok(ended) => judge(PAIR, None, &ended),
            Err(error) => Row::failed(PAIR, format!("{error:#}")),
        });
    }
    report::print(&rows)
}

/// Builds what the demo needs: processes that compute are too slow there without optimisation.
fn build_program(workspace: &Workspace) -> Result<PathBuf> {
    let options = plugins::Options {
        only: Vec::new(),
        release: true,
    };
    plugins::build(workspace, &options)?;
    demo::build_program(workspace, Profile::Release)
}

/// Builds the chosen suites' programs, and says how each is run.
fn suite_steps(
    workspace: &Workspace,
    suites: &[&Suite],
    stepmesh: Option<&Path>,
    options: &Options,
) -> Result<Vec<Step>> {
    let mut built = Vec::new();
    // All of them are built as `cargo xtask test` builds all, and one as it builds one.
    if suites.len() == SUITES.len() {
        built.extend(programs::of_workspace(workspace)?);
    } else {
        let mut packages: Vec<&str> = suites.iter().map(|suite| suite.package).collect();
        packages.dedup();
        for package in packages {
            built.extend(programs::of_package(workspace, package)?);
        }
    }
    let mut steps = Vec::new();
    for suite in suites {
        let program = built.iter().find(|program| suite.is_of(program));
        let program = program
            .with_context(|| format!("{} has no tests `{}`", suite.package, suite.target))?;
        let stepmesh = stepmesh.filter(|_| suite.runs_program);
        steps.push(suite.step(program, stepmesh, options));
    }
    Ok(steps)
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

/// Tests of one package that need the device.
#[derive(Debug, Clone, Copy)]
struct Suite {
    /// In the table, and for `--only`.
    name: &'static str,
    package: &'static str,
    /// One of its test programs.
    target: &'static str,
    args: &'static [&'static str],
    /// Whether it runs the program `stepmesh`.
    runs_program: bool,
    limit: Duration,
    /// Whether it goes on for `--soak-s` beyond its limit.
    is_soak: bool,
}

impl Suite {
    fn is_of(&self, program: &Program) -> bool {
        self.package == program.package && self.target == program.target
    }

    fn step(&self, program: &Program, stepmesh: Option<&Path>, options: &Options) -> Step {
        let mut command = over_verbs(&program.path);
        command.args(self.args).current_dir(&program.package_dir);
        command
            .env("CARGO_MANIFEST_DIR", &program.package_dir)
            .env("RUST_BACKTRACE", "1");
        if let Some(stepmesh) = stepmesh {
            command.env(PROGRAM_VARIABLE, stepmesh);
        }
        let mut limit = self.limit;
        if self.is_soak {
            command.env(SOAK_VARIABLE, options.soak_s.to_string());
            limit += Duration::from_secs(options.soak_s);
        }
        Step {
            name: self.name.into(),
            command,
            limit,
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
        "--iterations",
        DEMO_ITERATIONS,
        "--programs",
    ]);
    command
        .arg(stepmesh.parent().unwrap_or_else(|| Path::new("/")))
        .current_dir(workspace.path(""));
    Ok(Step {
        name: DEMO.into(),
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
const SUITES: [Suite; 5] = [
    Suite {
        name: "stepmesh-rdma it",
        package: "stepmesh-rdma",
        target: "it",
        args: &[],
        runs_program: false,
        limit: SUITE_LIMIT,
        is_soak: false,
    },
    Suite {
        name: "stepmesh it",
        package: "stepmesh",
        target: "it",
        args: &["--test-threads=1"],
        runs_program: false,
        limit: SUITE_LIMIT,
        is_soak: false,
    },
    Suite {
        name: "stepmesh on_sim",
        package: "stepmesh",
        target: "on_sim",
        args: &["--test-threads=1"],
        runs_program: false,
        limit: SUITE_LIMIT,
        is_soak: false,
    },
    // One mesh of processes at a time: two processors do not carry more.
    Suite {
        name: "stepmesh-cli it",
        package: "stepmesh-cli",
        target: "it",
        args: &["over_the_network", "--skip", "soak", "--test-threads=1"],
        runs_program: true,
        limit: SUITE_LIMIT,
        is_soak: false,
    },
    Suite {
        name: "soak",
        package: "stepmesh-cli",
        target: "it",
        args: &["soak_over_the_network"],
        runs_program: true,
        limit: SUITE_LIMIT,
        is_soak: true,
    },
];

const DEMO: &str = "demo";

/// The name of the scenario in its line of the table.
const PAIR: &str = "two guests, one killed";

/// Several times what the longest takes on two cores.
const SUITE_LIMIT: Duration = Duration::from_secs(480);

/// A tenth of what it does elsewhere: of the 0.64 s that one takes there, the emulated processors compute
/// for 0.61 s.
const DEMO_ITERATIONS: &str = "20";

const DEMO_LIMIT: Duration = Duration::from_secs(120);

/// Some lives of each peer, in every run.
const SOAK_S: u64 = 20;

/// Tells the tests of stepmesh-cli which build of the program they run.
const PROGRAM_VARIABLE: &str = "STEPMESH_TEST_PROGRAM";

/// Tells them how long the soak goes on.
const SOAK_VARIABLE: &str = "STEPMESH_TEST_SOAK_S";
