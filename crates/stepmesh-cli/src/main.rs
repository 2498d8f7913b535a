//! The `stepmesh` program: each subcommand is a module, what they share is in `args`, `config`,
//! `exit`, `input`, `report` and `signals`. What a mesh does is in the `stepmesh` library.
#![deny(unsafe_code)]

mod args;
mod backends;
mod bench;
mod config;
mod doctor;
mod exit;
mod handler;
mod input;
mod job;
mod latency;
mod logging;
mod member;
mod plugin;
mod rdma;
mod report;
mod scheduler;
mod server;
mod signals;
mod worker;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

use crate::args::{Cli, Command};
use crate::exit::Exit;

fn main() -> ExitCode {
    // Judging a plugin starts this program again, for each check.
    if let Some(code) = stepmesh_conformance::run_child_if_asked(&[]) {
        return code;
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(usage) => return exit::usage(&usage),
    };
    match run(&cli) {
        Ok(exit) => exit.into(),
        Err(error) => exit::report(&error),
    }
}

fn run(cli: &Cli) -> Result<Exit> {
    let global = &cli.global;
    match &cli.command {
        Command::Backends(options) => backends::run(global, options),
        Command::Bench(options) => bench::run(global, options),
        Command::Config(options) => config::run(global, options),
        Command::Doctor(options) => doctor::run(global, options),
        Command::Plugin(args) => plugin::run(global, args),
        Command::Rdma(args) => rdma::run(global, args),
        Command::Scheduler(options) => scheduler::run(global, options),
        Command::Server(options) => server::run(global, options),
        Command::Worker(options) => worker::run(global, options),
    }
}
