//! `stepmesh doctor`: one page on whether this machine is ready, each finding with the line that
//! mends it. What is looked at is in the modules below; here is how it is shown and judged.

mod accelerators;
mod adapters;
mod host;
mod plugins;
mod system;

use anyhow::Result;
use comfy_table::{ColumnConstraint, Width};
use serde::Serialize;
use serde_json::json;
use stepmesh_core::config::Config;

use crate::args::Global;
use crate::doctor::system::System;
use crate::exit::Exit;
use crate::{config, report};

/// What `stepmesh doctor` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Prints JSON: the findings and how many there are of each state
    #[arg(long)]
    json: bool,
}

/// Looks at everything, shows it, and ends by the worst of it.
pub(crate) fn run(global: &Global, options: &Options) -> Result<Exit> {
    let loaded = config::load_quietly(global)?;
    let findings = examine(&System::this(), &loaded.config);
    let tally = Tally::of(&findings);
    if options.json {
        report::print_json(&json!({ "findings": findings, "tally": tally }))?;
    } else {
        show(&findings, &tally)?;
    }
    Ok(tally.exit())
}

fn examine(system: &System, config: &Config) -> Vec<Finding> {
    let mut findings = host::examine(system, config);
    findings.extend(plugins::examine(config));
    findings.extend(accelerators::examine(system));
    findings.extend(adapters::examine(system, config));
    findings
}

fn show(findings: &[Finding], tally: &Tally) -> Result<()> {
    let mut table = report::table(HEADINGS);
    let mut last_area = "";
    for finding in findings {
        let mut text = finding.found.clone();
        if let Some(mend) = &finding.mend {
            text.push_str("\n-> ");
            text.push_str(mend);
        }
        // The area is named once, as in a page of paragraphs.
        let area = Some(finding.area).filter(|area| *area != last_area);
        last_area = finding.area;
        table.add_row([
            finding.state.as_str(),
            area.unwrap_or_default(),
            &finding.what,
            &text,
        ]);
    }
    for (column, width) in WIDTHS_MAX {
        if let Some(column) = table.column_mut(column) {
            column.set_constraint(ColumnConstraint::UpperBoundary(Width::Fixed(width)));
        }
    }
    report::print(&table)?;
    let Tally { ok, warn, bad } = tally;
    report::print(format_args!("{ok} ok, {warn} warn, {bad} bad"))
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Finding {
    state: State,
    /// The part of the machine.
    area: &'static str,
    what: String,
    /// What is there.
    found: String,
    /// The line that mends it.
    mend: Option<String>,
}

/// How good a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// As it should be, or nothing that this machine needs.
    Ok,
    /// It works, but slower or for less than it could.
    Warn,
    /// What is there, or what the configuration asks for, does not work.
    Bad,
}

impl State {
    fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Bad => "bad",
        }
    }
}

impl Finding {
    fn ok(area: &'static str, what: impl Into<String>, found: impl Into<String>) -> Self {
        Self {
            state: State::Ok,
            area,
            what: what.into(),
            found: found.into(),
            mend: None,
        }
    }

    /// The same, not as good, and mended by this line.
    fn at(self, state: State, mend: impl Into<String>) -> Self {
        Self {
            state,
            mend: Some(mend.into()),
            ..self
        }
    }
}

/// How many findings there are of each state.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct Tally {
    ok: usize,
    warn: usize,
    bad: usize,
}

impl Tally {
    fn of(findings: &[Finding]) -> Self {
        let mut tally = Self::default();
        for finding in findings {
            match finding.state {
                State::Ok => tally.ok += 1,
                State::Warn => tally.warn += 1,
                State::Bad => tally.bad += 1,
            }
        }
        tally
    }

    fn exit(&self) -> Exit {
        match self {
            Self { bad: 1.., .. } => Exit::Failed,
            Self { warn: 1.., .. } => Exit::Warned,
            _ => Exit::Done,
        }
    }
}

const HEADINGS: [&str; 4] = ["state", "area", "what", "finding"];
/// Columns with sentences go on in the next line beyond this, so that the page fits a terminal.
const WIDTHS_MAX: [(usize, u16); 2] = [(2, 24), (3, 90)];

#[cfg(test)]
mod tests;
