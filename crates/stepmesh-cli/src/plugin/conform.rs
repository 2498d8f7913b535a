//! `stepmesh plugin conform`: the verdict on a plugin, as a table, as JSON, as JUnit XML.

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use anyhow::{Context, Result};
use stepmesh_conformance::{CheckResult, Expectations, Subject, Tier, run as judge};

use crate::exit::Exit;
use crate::report;

/// What `stepmesh plugin conform` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The plugin
    file: PathBuf,

    /// Up to which tier: 1 is required, 2 by capability, 3 under stress (takes minutes)
    #[arg(long, default_value = "2", value_name = "1|2|3", value_parser = tier)]
    tier: Tier,

    /// Only checks whose identity or group matches, such as `M3`, `M*` or `ME`
    #[arg(long, value_name = "GLOB")]
    only: Option<String>,

    /// What the plugin is known not to do: a TOML file with `[unsupported]` and
    /// `[expected_failures]`, each entry with its reason
    #[arg(long, value_name = "FILE")]
    expect: Option<PathBuf>,

    /// Writes JUnit XML to this file, too
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,

    /// Prints JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// Runs the checks and prints what became of them; fails if one failed.
pub(super) fn run(options: &Options) -> Result<Exit> {
    let expectations = match &options.expect {
        Some(path) => Expectations::read(path)?,
        None => Expectations::default(),
    };
    let judging = stepmesh_conformance::Options {
        tier: options.tier,
        only: options.only.clone(),
        expectations,
        ..stepmesh_conformance::Options::default()
    };
    let shows_progress = io::stderr().is_terminal();
    let mut on_result = |result: &CheckResult| {
        if shows_progress {
            let (id, outcome) = (result.check.id, result.outcome.as_str());
            // Without a standard error there is nobody to tell.
            write!(io::stderr(), "\r{id} {outcome}        ").ok();
        }
    };
    let verdict = judge(&Subject::file(&options.file), &judging, &mut on_result)?;
    if shows_progress {
        write!(io::stderr(), "\r                    \r").ok();
    }
    if let Some(path) = &options.junit {
        fs::write(path, verdict.to_junit())
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if options.json {
        report::print_json(&verdict.to_json())?;
    } else {
        report::print(&verdict)?;
    }
    Ok(if verdict.is_good() {
        Exit::Done
    } else {
        Exit::Failed
    })
}

fn tier(text: &str) -> Result<Tier, String> {
    let number = text.parse().ok().and_then(Tier::of);
    number.ok_or_else(|| "the tiers are 1, 2 and 3".into())
}
