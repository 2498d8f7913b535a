//! `vm`: a small virtual machine with a real RDMA device, on any machine. The device is the Linux
//! kernel's own in software (Soft-RoCE): real queue pairs, completions, retries and errors, only
//! slow. How the machine is made and watched, and what is done with it, lives in the modules below.

mod bench;
mod guest;
mod image;
mod pair;
mod programs;
mod report;
mod script;
mod steps;
mod suites;

use std::{
    env,
    ffi::OsString,
    io,
    process::{Command, ExitCode},
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use anyhow::{Context, Result};

use self::{
    guest::{Guest, Machine, Network, Output, Site},
    image::Image,
};
use crate::{
    needs::{self, Presence},
    processes,
    workspace::Workspace,
};

/// What is done with the guest.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Runs a command in a guest, in the same folder, and ends with its exit status
    ///
    /// The guest sees this machine's files, and may write to target/vm/out and /tmp (its own).
    /// STEPMESH_* and DMLC_* variables, PATH, HOME, RUST_LOG and their like are carried over.
    Run(RunOptions),

    /// Runs the tests that need an RDMA device, and the demo over it
    ///
    /// What they printed stays in target/vm/out/test.
    Test(suites::Options),

    /// Measures push_pull over verbs beside perftest, in one boot; writes target/bench/vm.json
    Bench(bench::Options),

    /// Opens a shell in a guest, on this terminal
    Shell(MachineOptions),
}

/// What the machine is like.
#[derive(Debug, Clone, Copy, clap::Args)]
struct MachineOptions {
    /// Virtual processors; more than the machine has real ones make it slower
    #[arg(long, value_name = "COUNT", default_value_t = CPUS)]
    cpus: u32,

    /// Memory of the guest
    #[arg(long, value_name = "MIB", default_value_t = MEMORY_MIB)]
    memory_mib: u32,
}

impl Default for MachineOptions {
    fn default() -> Self {
        Self {
            cpus: CPUS,
            memory_mib: MEMORY_MIB,
        }
    }
}

#[derive(Debug, clap::Args)]
struct RunOptions {
    #[command(flatten)]
    machine: MachineOptions,

    /// Ends the guest when the command has not ended by then
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout_s: u64,

    /// The command and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<ExitCode> {
    match &options.action {
        Action::Run(options) => {
            let (program, args) = options.command.split_first().context("no command")?;
            let mut command = Command::new(program);
            command.args(args);
            let output = Output::Streams(Box::new(io::stdout()), Box::new(io::stderr()));
            let limit = Duration::from_secs(options.timeout_s);
            run_command(workspace, options.machine, &mut command, output, limit)
        }
        Action::Test(options) => suites::run(workspace, options).map(|()| ExitCode::SUCCESS),
        Action::Bench(options) => bench::run(workspace, options).map(|()| ExitCode::SUCCESS),
        Action::Shell(machine) => {
            // An interactive shell that reads no start-up files: they are about the host.
            let mut command = Command::new("sh");
            command.env("PS1", "guest $PWD # ").arg("-i");
            run_command(
                workspace,
                *machine,
                &mut command,
                Output::Terminal,
                SHELL_LIMIT,
            )
        }
    }
}

/// Every test that needs the device, in guests, where there can be one.
pub(crate) fn test(workspace: &Workspace) -> Result<()> {
    if !needs::is_present(needs::GUEST)? {
        return Ok(());
    }
    suites::run(workspace, &suites::Options::default())
}

/// Whether guests can be made and started here.
pub(crate) fn presence() -> Presence {
    if !cfg!(target_arch = "x86_64") {
        return Presence::Absent("the guest runs programs of x86-64 only".into());
    }
    let tools = image::TOOLS.iter().chain(&guest::TOOLS);
    let missing: Vec<&str> = tools.copied().filter(|tool| !is_installed(tool)).collect();
    if !missing.is_empty() {
        let missing = missing.join(", ");
        return Presence::Absent(format!("no {missing} (`cargo xtask setup` installs them)"));
    }
    guest::emulator()
}

/// Whether a program is on the path, or among those of the administrator.
fn is_installed(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain([SBIN.into()])
        .any(|dir| dir.join(program).is_file())
}

/// Runs a command in a guest of its own, in this process's folder.
fn run_command(
    workspace: &Workspace,
    machine: MachineOptions,
    command: &mut Command,
    output: Output,
    limit: Duration,
) -> Result<ExitCode> {
    let lab = Lab::open(workspace, machine)?;
    command.current_dir(env::current_dir().context("no working directory")?);
    let mut guest = lab.boot(&lab.machine(limit), command, output)?;
    Ok(ExitCode::from(guest.wait()?))
}

/// What guests are booted from.
#[derive(Debug)]
struct Lab {
    image: Image,
    site: Site,
    machine: MachineOptions,
    is_interrupted: Arc<AtomicBool>,
}

impl Lab {
    /// Makes the image first, if need be. From here on Ctrl-C ends guests instead of this program.
    fn open(workspace: &Workspace, machine: MachineOptions) -> Result<Self> {
        let is_interrupted = processes::watch_for_interrupt()?;
        let target_dir = workspace.metadata()?.target_dir()?;
        let vm_dir = target_dir.join("vm");
        let image = image::ensure(&vm_dir)?;
        let current_dir = env::current_dir().context("no working directory")?;
        let site = Site {
            runs_dir: vm_dir.join("runs"),
            out_dir: vm_dir.join("out"),
            kept_dirs: vec![workspace.path(""), target_dir, current_dir],
        };
        Ok(Self {
            image,
            site,
            machine,
            is_interrupted,
        })
    }

    /// A machine whose network is its own.
    fn machine(&self, limit: Duration) -> Machine {
        Machine {
            cpus: self.machine.cpus,
            memory_mib: self.machine.memory_mib,
            limit,
            index: 1,
            network: Network::Own,
        }
    }

    fn boot(&self, machine: &Machine, command: &Command, output: Output) -> Result<Guest> {
        let is_interrupted = Arc::clone(&self.is_interrupted);
        Guest::boot(
            &self.image,
            &self.site,
            machine,
            command,
            output,
            is_interrupted,
        )
    }
}

/// What the machines have that this was written on.
const CPUS: u32 = 2;

/// Room for a mesh of processes, with the guest's own files.
const MEMORY_MIB: u32 = 3072;

/// Programs of the administrator, whose folder is not in every user's path.
const SBIN: &str = "/usr/sbin";

/// A shell that was forgotten ends after a day.
const SHELL_LIMIT: Duration = Duration::from_secs(24 * 60 * 60);
