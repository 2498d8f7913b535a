//! `cargo xtask <task>`: builds, runs, tests and judges the workspace. Each task is a module; what
//! they share is in [`workspace`] and [`table`]. Nothing here is part of what users link.
#![deny(unsafe_code)]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program for the terminal: printing is its purpose"
)]

mod abi;
mod bench;
mod ci;
mod demo;
mod gpu_check;
mod needs;
mod new_plugin;
mod plugins;
mod processes;
mod setup;
mod simdriver;
mod table;
mod test;
mod tidy;
mod torch;
mod verbs;
mod vm;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

/// Builds, runs, tests and judges the StepMesh workspace
#[derive(Debug, Parser)]
#[command(
    name = "xtask",
    bin_name = "cargo xtask",
    disable_help_subcommand = true
)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Installs the packages of the system that the checks need, or says which they are
    ///
    /// By apt, as root or with sudo. Without either, it prints the line to run. Nothing here is
    /// needed to build and use the library on one host.
    Setup(setup::Options),

    /// Builds the backends under plugins/ and installs them where the loader looks
    ///
    /// Each library is copied to target/<profile>/stepmesh-plugins, loaded back through its C
    /// entry, and refused when it exports anything but that entry.
    BuildPlugins(plugins::Options),

    /// Builds the stand-ins for the GPU vendors' libraries, for tests without a GPU
    ///
    /// They go to target/<profile>/simdriver; LD_LIBRARY_PATH with that folder makes the plugins
    /// load them. They simulate a driver on host memory and prove nothing about hardware.
    BuildSimdriver(simdriver::Options),

    /// Writes the skeleton of a backend that already works, to plugins/<NAME>
    NewPlugin(new_plugin::Options),

    /// Runs a scheduler, two servers and two workers on this host, and prints what they measured
    ///
    /// The workers push the hidden states of a real layer, the servers compute its FFN, and the
    /// workers compare the answers with the reference.
    Demo(demo::Options),

    /// Runs every test, with the plugins that they load
    ///
    /// At its end it says what could not be checked on this machine, and why. STEPMESH_REQUIRE, a
    /// comma-separated list such as `cxx,cuda`, turns that absence into a failure.
    Test(test::Options),

    /// Runs the tests of stepmesh-torch, with a libtorch for the CPU that it fetches once
    ///
    /// LIBTORCH names another one of the same version. Needs Python 3 with pip to fetch.
    TorchTest(torch::Options),

    /// Measures PyTorch beside us, and writes target/bench/torch.json
    TorchBench(torch::BenchOptions),

    /// Measures round trips beside the floor that they stand on
    ///
    /// Writes a table, a picture and target/bench/summary.json.
    Bench(bench::Options),

    /// Judges and measures the cuda backend on the card of this machine, in one table
    ///
    /// Builds target/gpu-check, a folder below 60 MiB that can be carried to a machine with a card, and
    /// runs what is in it. docs/hardware.md has what was seen.
    GpuCheck(gpu_check::Options),

    /// Runs things in a small virtual machine that has a real RDMA device, in software
    ///
    /// The kernel is Debian's, unpacked below target/vm and not installed; QEMU boots it within
    /// seconds. `cargo xtask setup` installs what this needs.
    Vm(vm::Options),

    /// Generates the C header of the backend ABI from the source of stepmesh-abi
    Abi(abi::Options),

    /// Checks the rules of the repository that no compiler keeps
    Tidy,

    /// Runs all that must hold before a change lands: format, lints, header, tests, docs and demo
    Ci,
}

fn main() -> ExitCode {
    match Workspace::locate().and_then(|workspace| run(&workspace, Cli::parse().task)) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The exit status is that of what ran where a task runs a program of the caller's.
fn run(workspace: &Workspace, task: Task) -> Result<ExitCode> {
    match task {
        Task::Setup(options) => setup::run(workspace, &options)?,
        Task::BuildPlugins(options) => {
            plugins::print(workspace, &plugins::build(workspace, &options)?);
        }
        Task::BuildSimdriver(options) => {
            let dir = simdriver::build(workspace, options)?;
            println!("LD_LIBRARY_PATH={}", dir.display());
        }
        Task::NewPlugin(options) => new_plugin::run(workspace, &options)?,
        Task::Demo(options) => demo::run(workspace, &options)?,
        Task::Test(options) => test::run(workspace, &options)?,
        Task::TorchTest(options) => torch::run(workspace, &options)?,
        Task::TorchBench(options) => torch::bench(workspace, &options)?,
        Task::Bench(options) => bench::run(workspace, &options)?,
        Task::GpuCheck(options) => gpu_check::run(workspace, &options)?,
        Task::Vm(options) => return vm::run(workspace, &options),
        Task::Abi(options) => abi::run(workspace, &options)?,
        Task::Tidy => tidy::run(workspace)?,
        Task::Ci => ci::run(workspace)?,
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    //! The command line holds together; what the tasks do is tested where they are.

    use clap::CommandFactory as _;

    use super::Cli;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_task_says_what_it_does() {
        for task in Cli::command().get_subcommands() {
            assert!(task.get_about().is_some(), "{}", task.get_name());
        }
    }
}
