//! `vm`: a small virtual machine with a real RDMA device, on any machine. The device is the Linux
//! kernel's own in software (Soft-RoCE): real queue pairs, completions, retries and errors, only
//! slow. How the machine is made and watched lives in the modules below.

mod guest;
mod image;
mod script;

use std::{
    env,
    ffi::OsString,
    io,
    process::{Command, ExitCode},
    time::Duration,
};

use anyhow::{Context, Result};

use self::guest::{Guest, Machine, Network, Output, Site};
use crate::{processes, workspace::Workspace};

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

    /// Opens a shell in a guest, on this terminal
    Shell(MachineOptions),
}

/// What the machine is like.
#[derive(Debug, clap::Args)]
struct MachineOptions {
    /// Virtual processors; more than the machine has real ones make it slower
    #[arg(long, value_name = "COUNT", default_value_t = 2)]
    cpus: u32,

    /// Memory of the guest
    #[arg(long, value_name = "MIB", default_value_t = 3072)]
    memory_mib: u32,
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
            run_command(workspace, &options.machine, &mut command, output, limit)
        }
        Action::Shell(machine) => {
            // An interactive shell that reads no start-up files: they are about the host.
            let mut command = Command::new("sh");
            command.env("PS1", "guest $PWD # ").arg("-i");
            run_command(
                workspace,
                machine,
                &mut command,
                Output::Terminal,
                SHELL_LIMIT,
            )
        }
    }
}

/// Runs a command in a guest of its own, in this process's folder.
fn run_command(
    workspace: &Workspace,
    machine: &MachineOptions,
    command: &mut Command,
    output: Output,
    limit: Duration,
) -> Result<ExitCode> {
    let is_interrupted = processes::watch_for_interrupt()?;
    let current_dir = env::current_dir().context("no working directory")?;
    let target_dir = workspace.metadata()?.target_dir()?;
    let vm_dir = target_dir.join("vm");
    let image = image::ensure(&vm_dir)?;
    let site = Site {
        runs_dir: vm_dir.join("runs"),
        out_dir: vm_dir.join("out"),
        kept_dirs: vec![workspace.path(""), target_dir, current_dir.clone()],
    };
    let machine = Machine {
        cpus: machine.cpus,
        memory_mib: machine.memory_mib,
        limit,
        index: 1,
        network: Network::Own,
    };
    command.current_dir(current_dir);
    let mut guest = Guest::boot(&image, &site, &machine, command, output, is_interrupted)?;
    Ok(ExitCode::from(guest.wait()?))
}

/// A shell that was forgotten ends after a day.
const SHELL_LIMIT: Duration = Duration::from_secs(24 * 60 * 60);
