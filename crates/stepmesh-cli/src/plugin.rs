//! `stepmesh plugin`: what there is, what a file is, whether it works, whether it keeps its promises.
//! The judging is in stepmesh-conformance; here is what is asked and shown.

mod check;
mod conform;
mod list;
mod probe;

use anyhow::Result;
use clap::Subcommand;

use crate::args::Global;
use crate::exit::Exit;

/// What `stepmesh plugin` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Shows every candidate and its reason; runs no code of any
    List(list::Options),

    /// Judges a plugin file without running any of its code
    Check(check::Options),

    /// Opens a plugin in a process of its own and shows its devices
    Probe(probe::Options),

    /// Judges a plugin by the conformance checks, each in a process of its own
    Conform(conform::Options),
}

/// Runs the subcommand.
pub(crate) fn run(global: &Global, args: &Args) -> Result<Exit> {
    match &args.command {
        Command::List(options) => list::run(global, options),
        Command::Check(options) => check::run(options),
        Command::Probe(options) => probe::run(options),
        Command::Conform(options) => conform::run(options),
    }
}
