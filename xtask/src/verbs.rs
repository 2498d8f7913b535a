//! Whether the verbs fabric can be built here. Cargo's feature `rdma` of our crates needs the headers
//! of libibverbs and a libclang to read them; where they are missing, everything else is built.

use std::{
    env, fs,
    path::Path,
    process::{Command, Stdio},
    sync::OnceLock,
};

use anyhow::Result;

use crate::{needs::Presence, workspace::Workspace};

/// Adds the feature `rdma` of every crate that has it, or of `package` alone, to a cargo command
/// that builds them, when it can be built; says once if it cannot.
pub(crate) fn add_feature(
    workspace: &Workspace,
    command: &mut Command,
    package: Option<&str>,
) -> Result<()> {
    static PRESENCE: OnceLock<Presence> = OnceLock::new();
    let presence = PRESENCE.get_or_init(|| {
        let presence = headers();
        if let Presence::Absent(reason) | Presence::Broken(reason) = &presence {
            println!("built without the verbs fabric: {reason}");
        }
        presence
    });
    if *presence == Presence::Present {
        for owner in workspace
            .metadata()?
            .packages()
            .filter(|p| p.has_feature(FEATURE))
        {
            if package.is_none_or(|package| package == owner.name()) {
                command.args(["--features", &format!("{}/{FEATURE}", owner.name())]);
            }
        }
    }
    Ok(())
}

/// Looks for what the build of the bindings looks for.
pub(crate) fn headers() -> Presence {
    let mut pkg_config = Command::new("pkg-config");
    pkg_config.args(["--exists", "libibverbs", "librdmacm"]);
    match pkg_config.stderr(Stdio::null()).status() {
        Err(error) => return absent(&format!("`pkg-config`: {error}")),
        Ok(status) if !status.success() => {
            return absent("pkg-config knows no libibverbs and librdmacm");
        }
        Ok(_) => {}
    }
    if env::var_os("LIBCLANG_PATH").is_some() || has_libclang() {
        Presence::Present
    } else {
        absent("no libclang below /usr/lib")
    }
}

fn absent(reason: &str) -> Presence {
    Presence::Absent(format!("{reason} (`cargo xtask setup` installs it)"))
}

/// Debian has it in a folder for each version of LLVM, others in the folder of libraries.
fn has_libclang() -> bool {
    let entries = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten();
    let has_library = |dir: &Path| {
        entries(dir).any(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name.starts_with("libclang.so") || name.starts_with("libclang-")
        })
    };
    LIBRARY_DIRS.iter().any(|dir| has_library(Path::new(dir)))
        || entries(Path::new("/usr/lib")).any(|entry| {
            let is_llvm = entry.file_name().to_string_lossy().starts_with("llvm");
            is_llvm && has_library(&entry.path().join("lib"))
        })
}

const FEATURE: &str = "rdma";

const LIBRARY_DIRS: [&str; 4] = [
    "/usr/lib",
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
];
