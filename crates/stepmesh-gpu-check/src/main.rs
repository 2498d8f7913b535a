//! `stepmesh-gpu-check`: what the cuda backend does on the card of this machine, in one table. Made to be
//! carried there with its plugins: `cargo xtask gpu-check` builds the folder. The measurements live in
//! their modules, the calls of the driver that they are compared with in `bare`.
#![deny(unsafe_code)]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program for the terminal: printing is its purpose"
)]

mod bare;
mod compute;
mod copies;
mod costs;
mod events;
mod flags;
mod judge;
mod rows;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use stepmesh_conformance::run_child_if_asked;
use stepmesh_core::config::Config;
use stepmesh_core::{Backend, Device};

use crate::bare::Bare;
use crate::rows::Rows;

/// Judges and measures the cuda backend on the card of this machine
#[derive(Debug, Parser)]
struct Options {
    /// Folder of the plugins; beside this program when left out
    #[arg(long, value_name = "DIR")]
    plugins: Option<PathBuf>,

    /// Device to measure on
    #[arg(long, default_value_t = 0)]
    device: u32,

    /// Leaves out the conformance checks, which take minutes
    #[arg(long)]
    no_conformance: bool,

    /// A hundredth of the conformance checks' work
    #[arg(long)]
    reduced: bool,
}

fn main() -> ExitCode {
    // The program runs itself again for each conformance check.
    if let Some(code) = run_child_if_asked(&[]) {
        return code;
    }
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether all is as it should be.
fn run(options: &Options) -> Result<bool> {
    let plugin = plugin_file(options.plugins.as_deref())?;
    let backend = open(&plugin)?;
    let device = backend.device(options.device)?;
    let bare = Bare::load().context("the calls that the backend is compared with")?;
    let mut rows = Rows::default();
    copies::measure(&device, &bare, &mut rows).context("copies")?;
    events::measure(&backend, &device, &mut rows).context("events")?;
    costs::measure(&device, &bare, &mut rows).context("costs")?;
    flags::measure(&device, &bare, &mut rows).context("flags")?;
    compute::measure(&device, is_simulated(&device), &mut rows).context("graphs")?;
    let title = title(&device, &bare);
    drop((device, backend));
    if !options.no_conformance {
        judge::judge(&plugin, options.reduced, &mut rows).context("conformance")?;
    }
    println!("{title}\n{rows}");
    Ok(rows.is_good())
}

fn plugin_file(dir: Option<&Path>) -> Result<PathBuf> {
    let dir = match dir {
        Some(dir) => dir.to_owned(),
        None => std::env::current_exe()
            .context("where this program is")?
            .with_file_name(PLUGINS_DIR_NAME),
    };
    let file = dir.join(PLUGIN_FILE_NAME);
    ensure!(
        file.is_file(),
        "{} is not there; `cargo xtask gpu-check` builds it",
        file.display()
    );
    Ok(file)
}

fn open(plugin: &Path) -> Result<Backend> {
    let mut config = Config {
        backend: "cuda".into(),
        ..Config::default()
    };
    config.plugins.path = vec![plugin.to_owned()];
    // What is measured asks for its own kind of event.
    config.transport.mem_sync = false;
    Ok(Backend::open(&config)?)
}

/// What was measured, and on what: a simulated driver is named as such, for it proves our code and not
/// the hardware.
fn title(device: &Device, bare: &Bare) -> String {
    let info = device.info();
    let (name, arch, driver) = (&info.name, &info.arch, bare.version_text());
    if is_simulated(device) {
        return format!(
            "gpu-check over the SIMULATED driver ({name}): it proves our code, not the hardware; \
             speeds are those of this machine's memory"
        );
    }
    format!("gpu-check on {name} ({arch}), driver of CUDA {driver}")
}

fn is_simulated(device: &Device) -> bool {
    device.info().name.to_lowercase().contains("simulated")
}

/// As the loader has it, beside the program.
const PLUGINS_DIR_NAME: &str = "stepmesh-plugins";
const PLUGIN_FILE_NAME: &str = "libstepmesh_backend_cuda.so";
