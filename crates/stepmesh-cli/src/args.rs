//! The command line: what every subcommand takes, and the list of subcommands. The options of a
//! subcommand are in its module.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::{backends, bench, config, doctor, plugin, rdma, scheduler, server, worker};

/// Push and pull tensors between accelerators
#[derive(Debug, Parser)]
#[command(name = "stepmesh", version, after_help = EXIT_CODES)]
#[command(disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every subcommand takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Global {
    /// The configuration file [default: config/stepmesh.toml where there is one]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Overrides one configuration key, for example `-o transport.kind=tcp`; repeatable
    #[arg(short = 'o', long = "set", global = true, value_name = "KEY=VALUE")]
    #[arg(value_parser = pair)]
    pub(crate) set: Vec<(String, String)>,

    /// What is logged to standard error: `off`, `error`, `warn`, `info`, `debug`, `trace`, or a
    /// filter such as `info,stepmesh_core=debug`
    #[arg(long, global = true, value_name = "LEVEL")]
    pub(crate) log: Option<String>,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Shows every backend that was found, and why it is used or not
    Backends(backends::Options),

    /// Measures round trips beside the floor that they stand on
    ///
    /// Prints a table, and writes a picture and summary.json. What is measured runs in processes of
    /// its own, on two cores.
    Bench(bench::Options),

    /// Shows the effective configuration and where each value came from
    Config(config::Options),

    /// Looks at this machine and says what is missing, with the line that mends it
    ///
    /// Plugins, accelerators, network adapters, limits and the kernel. Needs no privilege, changes
    /// nothing.
    Doctor(doctor::Options),

    /// Shows, judges and probes backend plugins
    Plugin(plugin::Args),

    /// Shows network adapters with RDMA, and why which of them is used
    Rdma(rdma::Args),

    /// Brings workers and servers together, and ends when they have gone
    Scheduler(scheduler::Options),

    /// Takes what the workers push, computes, and answers; ends when they have gone
    Server(server::Options),

    /// Pushes tensors to every server, checks the answers, and shows where the time went
    Worker(worker::Options),
}

/// `KEY=VALUE`; the value may be empty.
fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().into(), value.into())),
        _ => Err("write it as KEY=VALUE, for example transport.kind=tcp".into()),
    }
}

/// Of `exit`, in words.
const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    failed
  2    the command line is wrong
  3    a peer or the scheduler was lost, did not come, or took too long
  4    an input file or the configuration is wrong
  5    doctor found something to mend, though all works
  130  ended cleanly by SIGINT (Ctrl-C)
  143  ended cleanly by SIGTERM";

#[cfg(test)]
mod tests {
    use super::{Cli, EXIT_CODES, pair};
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_document_has_the_exit_codes_and_every_command() {
        let document = include_str!("../../../docs/program.md");
        let (_, codes) = EXIT_CODES.split_once('\n').unwrap();
        assert!(document.contains(codes));
        for command in Cli::command().get_subcommands() {
            let shown = format!("| `stepmesh {}` |", command.get_name());
            assert!(document.contains(&shown), "{shown}");
        }
    }

    #[test]
    fn a_pair_has_a_key_and_may_have_an_empty_value() {
        assert_eq!(pair("a.b=c=d"), Ok(("a.b".into(), "c=d".into())));
        assert_eq!(pair("a="), Ok(("a".into(), String::new())));
        assert!(pair("a").unwrap_err().contains("KEY=VALUE"));
        assert!(pair("=b").unwrap_err().contains("KEY=VALUE"));
    }
}
