//! `stepmesh plugin check`: the rules that a plugin file keeps or breaks, found by reading it.

use std::path::PathBuf;

use anyhow::Result;
use stepmesh_conformance::inspect;

use crate::exit::Exit;
use crate::report;

/// What `stepmesh plugin check` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The plugin
    file: PathBuf,
}

/// Prints each rule and whether the file keeps it; fails if one is broken.
pub(super) fn run(options: &Options) -> Result<Exit> {
    let inspection = inspect(&options.file)?;
    let mut table = report::table(["rule", "", "found"]);
    for finding in &inspection.findings {
        let kept = if finding.is_kept { "ok" } else { "BROKEN" };
        table.add_row([finding.rule, kept, &finding.detail]);
    }
    report::print(inspection.path.display())?;
    report::print(&table)?;
    Ok(if inspection.is_good() {
        Exit::Done
    } else {
        Exit::Failed
    })
}
