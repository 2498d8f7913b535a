//! The program `xtask-abi`: runs cbindgen on the source of `stepmesh-abi` and writes the header, or
//! with `--check` compares it with the committed one. `cargo xtask abi` is the way to run it.
#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program for the terminal: printing is its purpose"
)]

use std::{
    env, fs, io,
    path::Path,
    process::{Command, ExitCode},
};

use anyhow::{Context, Result, anyhow, bail};
use cbindgen::{Builder, Config};

fn main() -> ExitCode {
    match run(env::args().any(|arg| arg == "--check")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(is_check: bool) -> Result<()> {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/stepmesh-abi");
    let crate_dir = crate_dir
        .canonicalize()
        .context("cannot find crates/stepmesh-abi")?;
    let header = crate_dir.join(HEADER);
    let generated = generate(&crate_dir)?;
    let committed = match fs::read(&header) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error).context(format!("cannot read {HEADER}")),
    };
    if committed == generated {
        println!("{HEADER} is current");
    } else if is_check {
        print_difference(&header, &generated)?;
        bail!("{HEADER} is stale: run `cargo xtask abi` and commit the result");
    } else {
        fs::create_dir_all(crate_dir.join("include")).context("cannot create include/")?;
        fs::write(&header, generated).with_context(|| format!("cannot write {HEADER}"))?;
        println!("{HEADER} is written");
    }
    Ok(())
}

fn generate(crate_dir: &Path) -> Result<Vec<u8>> {
    let config = Config::from_file(crate_dir.join("cbindgen.toml"))
        .map_err(|reason| anyhow!("crates/stepmesh-abi/cbindgen.toml: {reason}"))?;
    let bindings = Builder::new()
        .with_crate(crate_dir)
        .with_config(config)
        .generate()
        .context("cbindgen cannot read stepmesh-abi")?;
    let mut header = Vec::new();
    bindings.write(&mut header);
    Ok(header)
}

/// Shows what a new header would change, with the tool that every checkout has.
fn print_difference(header: &Path, generated: &[u8]) -> Result<()> {
    let new = tempfile::Builder::new()
        .suffix(".h")
        .tempfile()
        .context("no temporary file")?;
    fs::write(new.path(), generated).context("cannot write a temporary file")?;
    let mut command = Command::new("git");
    command.args(["--no-pager", "diff", "--no-index", "--"]);
    // It ends with 1 when there is a difference, so its status says nothing new.
    command
        .args([header, new.path()])
        .status()
        .context("cannot start git")?;
    Ok(())
}

/// The committed header, relative to the crate.
const HEADER: &str = "include/stepmesh_backend.h";
