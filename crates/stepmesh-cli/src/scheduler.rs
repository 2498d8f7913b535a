//! `stepmesh scheduler`: runs the scheduler of a mesh and says where it listens.

use std::path::{Path, PathBuf};
use std::{fs, io, process};

use anyhow::{Context, Result};
use stepmesh::Scheduler;

use crate::args::Global;
use crate::config::{self, Overrides};
use crate::exit::Exit;
use crate::report;
use crate::signals::Watch;

/// What `stepmesh scheduler` takes. Each overrides a configuration key.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Address or host name to listen on [mesh.scheduler_host]
    #[arg(long)]
    host: Option<String>,

    /// Port to listen on; 0: a free one [mesh.scheduler_port]
    #[arg(long)]
    port: Option<u16>,

    /// Writes the port to this file once it listens
    #[arg(long, value_name = "FILE")]
    port_file: Option<PathBuf>,

    /// Worker groups to wait for [mesh.workers]
    #[arg(long, value_name = "COUNT")]
    workers: Option<u32>,

    /// Server groups to wait for [mesh.servers]
    #[arg(long, value_name = "COUNT")]
    servers: Option<u32>,

    /// Processes in each group [mesh.group_size]
    #[arg(long, value_name = "COUNT")]
    group_size: Option<u32>,
}

/// Serves until the mesh is over.
pub(crate) fn run(global: &Global, options: &Options) -> Result<Exit> {
    let overrides = Overrides::default()
        .with("mesh.scheduler_host", options.host.as_ref())
        .with("mesh.scheduler_port", options.port)
        .with("mesh.workers", options.workers)
        .with("mesh.servers", options.servers)
        .with("mesh.group_size", options.group_size);
    let config = config::load(global, overrides)?;
    let watch = Watch::start()?;
    let mut scheduler = Scheduler::start(&config)?;
    watch.will_close(scheduler.closer());
    let address = scheduler.address();
    report::print(format!("scheduler listens on {address}"))?;
    if let Some(path) = &options.port_file {
        write_port(path, address.port())
            .with_context(|| format!("cannot write the port to {}", path.display()))?;
    }
    scheduler.run()?;
    Ok(watch.exit())
}

/// Whoever waits for the file finds all of it or nothing.
fn write_port(path: &Path, port: u16) -> io::Result<()> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(format!(".{}", process::id()));
    fs::write(&unfinished, format!("{port}\n"))?;
    fs::rename(&unfinished, path)
}
