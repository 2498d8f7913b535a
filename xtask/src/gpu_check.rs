//! `gpu-check`: builds one folder with all that judges and measures the cuda backend on a card, and runs
//! it. The folder can be built where there is no card and carried to one; what is measured lives in
//! crates/stepmesh-gpu-check.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};

use crate::{
    plugins, simdriver,
    workspace::{self, Profile, Workspace},
};

/// What is built and run.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Builds the folder only, to be carried to a machine with a card
    #[arg(long)]
    build_only: bool,

    /// Runs over the simulated driver: what it prints then says nothing of any hardware
    #[arg(long, conflicts_with = "build_only")]
    simulated: bool,

    /// Goes to the program, for example `-- --no-conformance`
    #[arg(last = true)]
    args: Vec<String>,
}

pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let dir = build(workspace)?;
    let len = len_bytes(&dir)?;
    println!(
        "{}: {:.1} MiB; copy it to a machine with a card and start {PROGRAM} there",
        workspace.relative(&dir).display(),
        mebibytes(len)
    );
    ensure!(
        len <= LEN_MAX,
        "the folder must be at most {} MiB, so that it can be carried",
        LEN_MAX >> 20
    );
    if options.build_only {
        return Ok(());
    }
    let mut command = workspace.program(dir.join(PROGRAM));
    command.args(&options.args);
    if options.simulated {
        let driver = simdriver::build(workspace, simdriver::Options { release: true })?;
        command.env("LD_LIBRARY_PATH", driver);
    }
    workspace::run(&mut command).context(
        "`--simulated` runs it over the simulated driver; `--build-only` builds what can be carried \
         to a card",
    )
}

/// Builds program and plugin, optimised, and puts them into a folder of their own.
fn build(workspace: &Workspace) -> Result<PathBuf> {
    let plugin_options = plugins::Options {
        only: vec!["cuda".into()],
        release: true,
    };
    plugins::print(workspace, &plugins::build(workspace, &plugin_options)?);
    let mut command = workspace.cargo("build");
    command.args(["--release", "--package", PROGRAM]);
    workspace::run(&mut command)?;

    let target = workspace.metadata()?.target_dir()?;
    let built = target.join(Profile::Release.dir_name());
    let dir = target.join(DIR_NAME);
    let plugins_dir = dir.join(plugins::PLUGINS_DIR_NAME);
    fs::create_dir_all(&plugins_dir)
        .with_context(|| format!("cannot create {}", plugins_dir.display()))?;
    let files = [
        (built.join(PROGRAM), dir.join(PROGRAM)),
        (
            plugins::plugins_dir(&target, Profile::Release).join(PLUGIN),
            plugins_dir.join(PLUGIN),
        ),
    ];
    for (from, to) in files {
        fs::copy(&from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
    }
    Ok(dir)
}

/// Bytes of all files below a folder.
fn len_bytes(dir: &Path) -> Result<u64> {
    let mut len = 0;
    let entries = fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    for entry in entries {
        let entry = entry?;
        let metadata = entry.metadata()?;
        len += if metadata.is_dir() {
            len_bytes(&entry.path())?
        } else {
            metadata.len()
        };
    }
    Ok(len)
}

fn mebibytes(len: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "one digit is shown")]
    let len = len as f64;
    len / f64::from(1 << 20)
}

const PROGRAM: &str = "stepmesh-gpu-check";
const PLUGIN: &str = "libstepmesh_backend_cuda.so";
const DIR_NAME: &str = "gpu-check";
/// What can be copied to another machine without thinking.
const LEN_MAX: u64 = 60 << 20;
