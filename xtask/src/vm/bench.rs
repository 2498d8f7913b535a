//! `vm bench`: push_pull over real verbs beside perftest, in one boot of one guest. What is run is
//! written in bench.sh; what its numbers mean is in `rows`.

mod rows;

use std::{fs, path::Path, process, process::Command, time::Duration};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use self::rows::Row;
use super::{
    Lab, MachineOptions,
    steps::{self, Step},
};
use crate::{
    demo, plugins,
    workspace::{self, Profile, Workspace},
};

/// How much is measured.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    machine: MachineOptions,

    /// How often everything is measured; the least disturbed round of each counts
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    rounds: u32,

    /// Lets the guest run before everything else of this machine; for root
    ///
    /// A virtual processor that has to wait for its turn makes the other one wait as well, for as
    /// long as a time slice of this machine: some milliseconds in each message.
    #[arg(long)]
    realtime: bool,
}

/// Builds, measures, prints the table, and writes target/bench/vm.json.
pub(super) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let plugin_options = plugins::Options {
        only: Vec::new(),
        release: true,
    };
    plugins::build(workspace, &plugin_options)?;
    let stepmesh = demo::build_program(workspace, Profile::Release)?;
    let lab = Lab::open(workspace, options.machine)?;
    if options.realtime {
        // What this process starts from here on has it too.
        let pid = process::id().to_string();
        workspace::run(Command::new("chrt").args(["--rr", "--pid", "1", &pid]))?;
    }
    let dir = lab.site.out_dir.join("bench-results");
    prepare(&dir).with_context(|| format!("cannot write {}", dir.display()))?;
    let mut command = Command::new("sh");
    command.arg("bench.sh").arg(&stepmesh);
    command.arg(options.rounds.to_string()).current_dir(&dir);
    let steps = [Step {
        name: "bench".into(),
        command,
        limit: LIMIT_PER_ROUND * options.rounds,
    }];
    let (ended, guest) = steps::run(&lab, "bench", &steps, |_, _| {})?;
    guest?;
    for end in ended.into_iter().flatten() {
        let log = end.log_text();
        ensure!(
            end.status == 0 && !log.contains("failed"),
            "in the guest: {log}"
        );
    }
    // Pure computing, which the guest's emulated processors do ten times slower.
    let mut hit = Command::new(&stepmesh);
    let hit = workspace::output_of(hit.args(["rdma", "bench", "--only", "hit"]))?;
    fs::write(dir.join("host-hit.json"), hit)
        .with_context(|| format!("cannot write {}", dir.display()))?;
    let rows = rows::read(&dir, options.rounds)?;
    println!("{}", rows::table(&rows));
    if let Some(spread) = rows::disturbance(&rows) {
        println!(
            "perftest's own times differ {spread:.0}-fold between rounds: other work wanted this \
             machine's processors (see --realtime)"
        );
    }
    let out = workspace.metadata()?.target_dir()?.join("bench");
    fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    let out = out.join("vm.json");
    let page = json!({ "rows": rows.iter().map(Row::as_json).collect::<Vec<_>>() });
    fs::write(&out, format!("{page:#}\n"))
        .with_context(|| format!("cannot write {}", out.display()))?;
    println!("results: {}", workspace.relative(&out).display());
    Ok(())
}

fn prepare(dir: &Path) -> std::io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => fs::create_dir_all(dir)?,
    }
    fs::write(dir.join("bench.sh"), SCRIPT)
}

const SCRIPT: &str = include_str!("bench.sh");

/// Several times what a round takes on a machine that does nothing else.
const LIMIT_PER_ROUND: Duration = Duration::from_secs(180);
