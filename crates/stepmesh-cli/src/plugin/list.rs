//! `stepmesh plugin list`: every candidate and its reason, as the files alone tell.

use anyhow::Result;
use serde_json::{Value, json};
use stepmesh_core::config::LoadPolicy;
use stepmesh_core::{Candidate, Registry};

use crate::args::Global;
use crate::exit::Exit;
use crate::{backends, config, report};

/// What `stepmesh plugin list` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Prints JSON: an array of candidates
    #[arg(long)]
    json: bool,
}

/// Prints every candidate. Unlike `stepmesh backends` nothing is loaded, so that a plugin that
/// crashes can be found.
pub(super) fn run(global: &Global, options: &Options) -> Result<Exit> {
    let mut plugins = config::load_quietly(global)?.config.plugins;
    plugins.load = LoadPolicy::Selected;
    let registry = Registry::discover(&plugins);
    if options.json {
        report::print_json(&registry.candidates().iter().map(as_json).collect())?;
        return Ok(Exit::Done);
    }
    let mut table = report::table(["file", "name", "version", "ABI", "state", "reason"]);
    for candidate in registry.candidates() {
        table.add_row(cells(candidate));
    }
    report::print(&table)?;
    for place in registry.searched() {
        report::print(format!("searched {}", place.display()))?;
    }
    Ok(Exit::Done)
}

fn cells(candidate: &Candidate) -> [String; 6] {
    let text = |field: Option<String>| field.unwrap_or_else(|| "-".into());
    [
        file(candidate).unwrap_or_else(|| "(built in)".into()),
        text(candidate.name().map(str::to_owned)),
        text(candidate.version().map(str::to_owned)),
        text(candidate.abi().map(version)),
        backends::name_of(candidate.state()).into(),
        reason(candidate).unwrap_or_default(),
    ]
}

fn as_json(candidate: &Candidate) -> Value {
    json!({
        "file": file(candidate),
        "name": candidate.name(),
        "version": candidate.version(),
        "abi": candidate.abi().map(version),
        "state": backends::name_of(candidate.state()),
        "reason": reason(candidate),
    })
}

fn file(candidate: &Candidate) -> Option<String> {
    candidate.path().map(|path| path.display().to_string())
}

fn version((major, minor): (u16, u16)) -> String {
    format!("{major}.{minor}")
}

fn reason(candidate: &Candidate) -> Option<String> {
    candidate.reason().map(ToString::to_string)
}
