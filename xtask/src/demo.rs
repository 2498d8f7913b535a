//! `demo`: a scheduler, two servers and two workers as processes of this host, which do the job of
//! the README. The programs are those that users run; nothing here is known to them.

#[cfg(test)]
mod tests;

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process::{self, Command},
    time::Duration,
};

use anyhow::{Context, Result, ensure};

use crate::{
    plugins,
    processes::Processes,
    verbs,
    workspace::{self, Profile, Workspace},
};

/// What the demo works on, and how many take part.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The layer: a safetensors file with w1, b1, w2, b2, `ffn_in` and `ffn_out` (default: the first
    /// layer of all-MiniLM-L6-v2, which comes with the source)
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,

    /// How many processes push tensors and compare the answers
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = count())]
    workers: u32,

    /// How many processes compute
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = count())]
    servers: u32,

    /// How often each worker pushes; without it, as often as `stepmesh worker` does
    #[arg(long, value_name = "COUNT")]
    iterations: Option<u64>,

    /// Builds without optimisation: sooner there, but slower
    #[arg(long)]
    debug: bool,

    /// Builds nothing and runs what lies in this folder: `stepmesh`, and its plugins beside it
    #[arg(long, value_name = "DIR", conflicts_with = "debug")]
    programs: Option<PathBuf>,

    /// Ends everything after this time
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    limit_s: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            input: None,
            workers: 2,
            servers: 2,
            iterations: None,
            debug: false,
            programs: None,
            limit_s: 60,
        }
    }
}

/// Builds what is needed, runs the mesh, and prints what its workers found.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let input = input_path(workspace, options)?;
    let (program, scratch_dir) = match &options.programs {
        // Where it lies may be read-only.
        Some(dir) => (
            dir.join(PROGRAM_NAME),
            env::temp_dir().join("stepmesh-demo"),
        ),
        None => build_all(workspace, options)?,
    };
    let program_dir = program.parent().unwrap_or_else(|| Path::new("."));
    show_backends(
        workspace,
        &program,
        &program_dir.join(plugins::PLUGINS_DIR_NAME),
    )?;

    let dir = scratch_dir.join(process::id().to_string());
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let result = run_mesh(workspace, options, &program, &input, &dir);
    // The output has been shown, in full or as an error; what is left is of no use.
    fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
    result
}

/// Builds the plugins and the program, and returns where that and the demo's own files lie.
fn build_all(workspace: &Workspace, options: &Options) -> Result<(PathBuf, PathBuf)> {
    let plugin_options = plugins::Options {
        only: Vec::new(),
        release: !options.debug,
    };
    plugins::build(workspace, &plugin_options)?;
    let program = build_program(workspace, Profile::of(!options.debug))?;
    Ok((program, workspace.metadata()?.target_dir()?.join("demo")))
}

/// Builds the `stepmesh` program and returns where it lies.
pub(crate) fn build_program(workspace: &Workspace, profile: Profile) -> Result<PathBuf> {
    let mut command = workspace.cargo("build");
    command
        .args(["--package", "stepmesh-cli"])
        .args(profile.cargo_args());
    verbs::add_feature(workspace, &mut command, Some("stepmesh-cli"))?;
    workspace::run(&mut command)?;
    Ok(workspace
        .metadata()?
        .target_dir()?
        .join(profile.dir_name())
        .join(PROGRAM_NAME))
}

/// Prints the backends that the program finds by itself. The program also has the cpu backend built
/// in, so a plugin that it overlooks must not go unnoticed.
fn show_backends(workspace: &Workspace, program: &Path, plugins_dir: &Path) -> Result<()> {
    let table = workspace::output_of(workspace.program(program).arg("backends"))?;
    let table = String::from_utf8(table).context("`stepmesh backends` printed no UTF-8")?;
    println!("{table}");
    let dir_name = plugins_dir
        .file_name()
        .unwrap_or_default()
        .to_string_lossy();
    ensure!(
        table.contains(&format!("{dir_name}/libstepmesh_backend_cpu.so")),
        "`stepmesh backends` does not show the cpu plugin in {}",
        plugins_dir.display()
    );
    Ok(())
}

fn run_mesh(
    workspace: &Workspace,
    options: &Options,
    program: &Path,
    input: &Path,
    dir: &Path,
) -> Result<()> {
    let port_file = dir.join("port");
    let (workers, servers) = (options.workers.to_string(), options.servers.to_string());
    // From its .so, whatever accelerators this machine has: the demo shows the same everywhere.
    let stepmesh = || {
        let mut command = workspace.program(program);
        command.env("STEPMESH_BACKEND", "cpu");
        command
    };
    let mut mesh = Processes::new(dir.into(), Duration::from_secs(options.limit_s))?;

    let mut scheduler = stepmesh();
    scheduler.args([
        "scheduler",
        "--port",
        "0",
        "--workers",
        &workers,
        "--servers",
        &servers,
    ]);
    mesh.start("scheduler", scheduler.arg("--port-file").arg(&port_file))?;
    let port = mesh.wait_until("the scheduler's port", || read_port(&port_file))?;
    println!("scheduler listens on port {port}; starting {servers} servers, {workers} workers\n");

    let member = |mut command: Command| {
        command
            .env("STEPMESH_MESH_SCHEDULER_PORT", &port)
            .arg("--input")
            .arg(input);
        command
    };
    for index in 0..options.servers {
        let mut server = stepmesh();
        server.args(["server", "--handler", "ffn"]);
        mesh.start(&format!("server-{index}"), &mut member(server))?;
    }
    let worker_names: Vec<_> = (0..options.workers)
        .map(|index| format!("worker-{index}"))
        .collect();
    for name in &worker_names {
        let mut worker = stepmesh();
        worker.arg("worker");
        if let Some(iterations) = options.iterations {
            worker.args(["--iterations", &iterations.to_string()]);
        }
        mesh.start(name, &mut member(worker))?;
    }
    mesh.wait_for_end()?;

    let mut tables = Vec::new();
    for name in &worker_names {
        let table = mesh.stdout_of(name)?;
        ensure!(
            !table.trim().is_empty(),
            "{name} ended well but printed nothing"
        );
        tables.push(table);
    }
    // Each begins with its worker's rank, which the scheduler gave in the order of arrival.
    tables.sort_unstable();
    println!("{}", tables.join("\n"));
    Ok(())
}

fn input_path(workspace: &Workspace, options: &Options) -> Result<PathBuf> {
    let path = match &options.input {
        // As the user's shell means it, though the processes start in the workspace.
        Some(path) => env::current_dir()
            .context("no working directory")?
            .join(path),
        None => workspace.path(DEFAULT_INPUT),
    };
    ensure!(path.is_file(), "no input: {} is not a file", path.display());
    Ok(path)
}

/// The port once the scheduler has written it, with a line break to say that it is complete.
fn read_port(path: &Path) -> Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(text.strip_suffix('\n').map(str::to_owned)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// More would only wait for each other on one host.
fn count() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=16)
}

const PROGRAM_NAME: &str = "stepmesh";

/// A layer of a real model; its licence lies beside it.
const DEFAULT_INPUT: &str = "crates/stepmesh/examples/data/minilm-ffn0.safetensors";
