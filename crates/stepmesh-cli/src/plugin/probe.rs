//! `stepmesh plugin probe`: what a plugin says of its devices; a crash is a line of text.

use std::path::PathBuf;

use anyhow::Result;
use stepmesh_conformance::{ProbeReport, probe};

use crate::exit::Exit;
use crate::report;

/// What `stepmesh plugin probe` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The plugin
    file: PathBuf,
}

/// Opens the plugin in a process of its own and prints its devices; fails if it cannot be opened.
pub(super) fn run(options: &Options) -> Result<Exit> {
    match probe(&options.file)? {
        Ok(found) => {
            show(&found)?;
            Ok(Exit::Done)
        }
        Err(why) => {
            report::print(format!("{}: {why}", options.file.display()))?;
            Ok(Exit::Failed)
        }
    }
}

fn show(found: &ProbeReport) -> Result<()> {
    let devices = report::count(found.devices.len(), "device");
    let (name, version, score) = (&found.name, &found.version, found.score);
    report::print(format!("{name} {version}: {devices}, score {score}"))?;
    if found.devices.is_empty() {
        return Ok(());
    }
    let mut table = report::table([
        "device",
        "name",
        "architecture",
        "PCI",
        "memory",
        "abilities",
    ]);
    for (ordinal, device) in found.devices.iter().enumerate() {
        table.add_row([
            ordinal.to_string(),
            device.name.clone(),
            device.arch.clone(),
            device.pci_bdf.clone(),
            format!("{} MiB", device.total_memory_bytes >> 20),
            format!("{:#x}", device.capabilities),
        ]);
    }
    report::print(&table)
}
