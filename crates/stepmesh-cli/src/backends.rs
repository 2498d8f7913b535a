//! `stepmesh backends`: every candidate and what became of it.

use std::env;

use anyhow::Result;
use comfy_table::{ColumnConstraint, Width};
use serde_json::{Value, json};
use stepmesh_core::{Candidate, Registry, State};

use crate::args::Global;
use crate::exit::Exit;
use crate::{config, report};

/// What `stepmesh backends` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Prints JSON: an array of backends
    #[arg(long)]
    json: bool,
}

/// Prints every candidate, usable or not.
pub(crate) fn run(global: &Global, options: &Options) -> Result<Exit> {
    let loaded = config::load_quietly(global)?;
    let registry = Registry::discover(&loaded.config.plugins);
    let rows: Vec<Row> = registry.candidates().iter().map(Row::of).collect();
    if options.json {
        report::print_json(&rows.iter().map(Row::as_json).collect())?;
        return Ok(Exit::Done);
    }
    // What lies below the working directory is named from there: tables stay narrow.
    let here = env::current_dir().map(|dir| format!("{}/", dir.display()));
    let shown = |text: String| match &here {
        Ok(here) => text.replace(here, ""),
        Err(_) => text,
    };
    let mut table = report::table(HEADINGS);
    for row in &rows {
        table.add_row(row.cells().map(shown));
    }
    if let Some(reason) = table.column_mut(HEADINGS.len() - 1) {
        reason.set_constraint(ColumnConstraint::UpperBoundary(Width::Fixed(
            REASON_WIDTH_MAX,
        )));
    }
    report::print(&table)?;
    if rows.is_empty() {
        report::print("no plugin file was found")?;
    }
    for place in registry.searched() {
        report::print(format!("searched {}", shown(place.display().to_string())))?;
    }
    Ok(Exit::Done)
}

/// One candidate, ready to be shown.
struct Row {
    name: Option<String>,
    version: Option<String>,
    abi: Option<String>,
    file: Option<String>,
    devices: Option<u32>,
    state: &'static str,
    reason: Option<String>,
}

impl Row {
    fn of(candidate: &Candidate) -> Self {
        let mut row = Self {
            name: candidate.name().map(str::to_owned),
            version: candidate.version().map(str::to_owned),
            abi: candidate
                .abi()
                .map(|(major, minor)| format!("{major}.{minor}")),
            file: candidate.path().map(|path| path.display().to_string()),
            devices: None,
            state: name_of(candidate.state()),
            reason: candidate.reason().map(ToString::to_string),
        };
        // Only what is in use is asked: looking for devices runs the plugin's code.
        if candidate.state() == State::Loaded {
            match candidate.probe() {
                Ok(probe) => {
                    row.devices = Some(probe.device_count);
                    if probe.device_count == 0 {
                        row.reason = candidate.why_no_device();
                    }
                }
                Err(reason) => row.reason = Some(reason.to_string()),
            }
        }
        row
    }

    fn cells(&self) -> [String; 7] {
        let text = |field: &Option<String>| field.clone().unwrap_or_else(|| "-".into());
        [
            text(&self.name),
            text(&self.version),
            text(&self.abi),
            self.file.clone().unwrap_or_else(|| "(built in)".into()),
            text(&self.devices.map(|count| count.to_string())),
            self.state.into(),
            self.reason.clone().unwrap_or_default(),
        ]
    }

    fn as_json(&self) -> Value {
        json!({
            "name": self.name,
            "version": self.version,
            "abi": self.abi,
            "file": self.file,
            "devices": self.devices,
            "state": self.state,
            "reason": self.reason,
        })
    }
}

pub(crate) fn name_of(state: State) -> &'static str {
    match state {
        State::Loaded => "loaded",
        State::Compatible => "compatible",
        State::Shadowed => "shadowed",
        State::Disabled => "disabled",
        State::Rejected => "rejected",
        _ => "unknown",
    }
}

const HEADINGS: [&str; 7] = [
    "name", "version", "ABI", "file", "devices", "state", "reason",
];

/// Reasons are sentences: beyond this, they go on in the next line.
const REASON_WIDTH_MAX: u16 = 60;
