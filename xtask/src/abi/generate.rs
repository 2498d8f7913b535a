//! Runs cbindgen on the source of `stepmesh-abi` and compares or writes the header.

use std::{fs, io};

use anyhow::{Context, Result, bail};
use cbindgen::{Builder, Config};

use super::{HEADER, Options};
use crate::workspace::{Workspace, shown};

pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let path = workspace.path(HEADER);
    let generated = generate(workspace)?;
    let committed = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    if committed == generated {
        println!("{HEADER} is current");
        return Ok(());
    }
    if options.check {
        print_difference(workspace, &generated)?;
        bail!("{HEADER} is stale: run `cargo xtask abi` and commit the result");
    }
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    }
    fs::write(&path, generated).with_context(|| format!("cannot write {}", path.display()))?;
    println!("{HEADER} is written");
    Ok(())
}

fn generate(workspace: &Workspace) -> Result<Vec<u8>> {
    let source = workspace.path("crates/stepmesh-abi");
    let config = Config::from_file(source.join("cbindgen.toml"))
        .map_err(|reason| anyhow::anyhow!("crates/stepmesh-abi/cbindgen.toml: {reason}"))?;
    let bindings = Builder::new()
        .with_crate(source)
        .with_config(config)
        .generate()
        .context("cbindgen cannot read stepmesh-abi")?;
    let mut header = Vec::new();
    bindings.write(&mut header);
    Ok(header)
}

/// Shows what a new header would change, with the tool that every checkout has.
fn print_difference(workspace: &Workspace, generated: &[u8]) -> Result<()> {
    let dir = workspace.metadata()?.target_dir()?.join("xtask-abi");
    let new = dir.join("stepmesh_backend.h");
    fs::write(&new, generated).with_context(|| format!("cannot write {}", new.display()))?;
    let mut command = workspace.program("git");
    command.args(["--no-pager", "diff", "--no-index", "--"]);
    // Ends with 1 when there is a difference, so its status says nothing new.
    let status = command.arg(HEADER).arg(new).status();
    status.with_context(|| format!("cannot start `{}`", shown(&command)))?;
    Ok(())
}
