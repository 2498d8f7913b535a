//! `build-simdriver`: the stand-ins for the libraries of GPU vendors, which tests load in their place.
//! They go to a folder of their own and never beside the plugins: nothing that is installed may find
//! them by accident.

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process,
};

use anyhow::{Context, Result};

use crate::workspace::{self, Profile, Workspace};

/// How they are built.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct Options {
    /// Optimises, and installs below target/release instead of target/debug
    #[arg(long)]
    pub(crate) release: bool,
}

/// Builds the libraries and returns the folder where they are.
pub(crate) fn build(workspace: &Workspace, options: Options) -> Result<PathBuf> {
    let profile = Profile::of(options.release);
    let mut command = workspace.cargo("build");
    command.arg("--lib").args(profile.cargo_args());
    for (package, _, _) in LIBRARIES {
        command.args(["--package", package]);
    }
    workspace::run(&mut command)?;
    let built = workspace.metadata()?.target_dir()?.join(profile.dir_name());
    let dir = built.join(DIR_NAME);
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    for (_, file, name) in LIBRARIES {
        install(&built.join(file), &dir.join(name))?;
    }
    for (link, name) in LINKS {
        match symlink(name, dir.join(link)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(error).with_context(|| format!("cannot link {link}"));
            }
            _ => {}
        }
    }
    Ok(dir)
}

/// Puts a copy in place in one step, so that a process that has the old one mapped keeps it.
fn install(from: &Path, to: &Path) -> Result<()> {
    let staged = to.with_extension(format!("{}.part", process::id()));
    fs::copy(from, &staged).with_context(|| format!("cannot copy {}", from.display()))?;
    fs::rename(&staged, to).with_context(|| format!("cannot write {}", to.display()))
}

/// Package, the file that cargo makes of it, and the name by which plugins look for it.
const LIBRARIES: [(&str, &str, &str); 2] = [
    (
        "stepmesh-simdriver-cuda",
        "libstepmesh_simdriver_cuda.so",
        "libcuda.so.1",
    ),
    (
        "stepmesh-simdriver-hip",
        "libstepmesh_simdriver_hip.so",
        "libamdhip64.so.6",
    ),
];

/// Other names of the same library: what the vendors have in libraries of their own shares the memory and
/// the streams of the driver's.
const LINKS: [(&str, &str); 4] = [
    ("libcublas.so.12", "libcuda.so.1"),
    ("libhsa-runtime64.so.1", "libamdhip64.so.6"),
    ("libnvrtc.so.12", "libcuda.so.1"),
    ("librocblas.so.4", "libamdhip64.so.6"),
];

const DIR_NAME: &str = "simdriver";

/// Where tests find the folder. Without it such a test fails and names this task.
pub(crate) const DIR_VARIABLE: &str = "STEPMESH_SIMDRIVER_DIR";
