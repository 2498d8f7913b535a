//! `setup`: the packages of the system that the checks need beyond Rust and a C compiler. What each
//! check does without them is said where it stands.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use crate::{
    table::Table,
    workspace::{self, Workspace},
};

/// Whether anything is installed.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Options {
    /// Prints the line that would install what is missing, and installs nothing
    #[arg(long)]
    print: bool,
}

/// Installs what is missing. Quick when nothing is.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let Some(missing) = missing(workspace)? else {
        // Other systems have other names for these, and other ways to ask.
        println!(
            "no dpkg here; by the names of Debian, the checks need\n{}",
            table(&PACKAGES)
        );
        return Ok(());
    };
    if missing.is_empty() {
        println!("setup: all {} packages are installed", PACKAGES.len());
        return Ok(());
    }
    let names: Vec<&str> = missing.iter().map(|package| package.name).collect();
    let line = format!("{} {}", INSTALL.join(" "), names.join(" "));
    if options.print {
        println!("{line}");
        return Ok(());
    }
    println!("missing:\n{}", table(&missing));
    let Some(apt) = Apt::find(workspace)? else {
        bail!(
            "packages are missing, and neither root nor sudo without a password is there to \
               install them; run as root: {line}"
        );
    };
    apt.install(names)
}

/// Something to install.
#[derive(Debug, Clone, Copy)]
struct Package {
    /// As Debian calls it.
    name: &'static str,
    purpose: &'static str,
}

/// Which packages are not installed; `None` on a system without dpkg.
fn missing(workspace: &Workspace) -> Result<Option<Vec<Package>>> {
    let mut query = workspace.program("dpkg-query");
    query.args(["--show", "--showformat", "${db:Status-Abbrev} ${Package}\n"]);
    query.args(PACKAGES.iter().map(|package| package.name));
    // It complains about those that it does not know, and fails: what it knows is printed anyway.
    match query.stderr(Stdio::null()).output() {
        Ok(output) => Ok(Some(not_installed(&String::from_utf8_lossy(
            &output.stdout,
        )))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).context("cannot start `dpkg-query`"),
    }
}

/// Those of [`PACKAGES`] that a listing does not have as installed, `ii`.
fn not_installed(listing: &str) -> Vec<Package> {
    let is_installed = |package: &&Package| {
        listing.lines().any(|line| {
            let mut words = line.split_whitespace();
            words.next().is_some_and(|state| state.ends_with('i'))
                && words.next() == Some(package.name)
        })
    };
    PACKAGES
        .iter()
        .filter(|package| !is_installed(package))
        .copied()
        .collect()
}

fn table(packages: &[Package]) -> Table<2> {
    let mut table = Table::new(["package", "for"]);
    for package in packages {
        table.row([package.name, package.purpose].map(str::to_owned));
    }
    table
}

/// apt with the right to install.
#[derive(Debug)]
struct Apt<'w> {
    workspace: &'w Workspace,
    needs_sudo: bool,
}

impl<'w> Apt<'w> {
    /// `None`: not root, and sudo would ask for a password.
    fn find(workspace: &'w Workspace) -> Result<Option<Self>> {
        let uid = fs::metadata("/proc/self")
            .context("cannot read /proc/self")?
            .uid();
        if uid == 0 {
            return Ok(Some(Self {
                workspace,
                needs_sudo: false,
            }));
        }
        let mut sudo = workspace.program("sudo");
        let asked = sudo.args(["-n", "true"]).stderr(Stdio::null()).status();
        let is_allowed = asked.is_ok_and(|status| status.success());
        Ok(is_allowed.then_some(Self {
            workspace,
            needs_sudo: true,
        }))
    }

    /// Installs what apt knows of `names`. Lists of packages age: those that are too old to know or
    /// to find a package are fetched anew, once.
    fn install(&self, names: Vec<&str>) -> Result<()> {
        let mut is_fresh = false;
        if !names.iter().all(|name| self.knows(name)) {
            workspace::run(&mut self.command(&UPDATE))?;
            is_fresh = true;
        }
        let (known, unknown): (Vec<_>, Vec<_>) = names.into_iter().partition(|n| self.knows(n));
        if !unknown.is_empty() {
            println!("this system has no package {}", unknown.join(", "));
        }
        if known.is_empty() {
            return Ok(());
        }
        let mut install = self.command(&INSTALL);
        install.args(known);
        match workspace::run(&mut install) {
            Err(_) if !is_fresh => {
                workspace::run(&mut self.command(&UPDATE))?;
                workspace::run(&mut install)
            }
            result => result,
        }
    }

    fn knows(&self, name: &str) -> bool {
        let mut show = self.workspace.program("apt-cache");
        show.args(["show", "--no-all-versions", name]);
        show.stdout(Stdio::null()).stderr(Stdio::null());
        show.status().is_ok_and(|status| status.success())
    }

    fn command(&self, words: &[&str]) -> Command {
        // By `env`, because sudo passes no variables on.
        let env = ["env", "DEBIAN_FRONTEND=noninteractive"];
        let sudo = if self.needs_sudo {
            &["sudo", "-n"][..]
        } else {
            &[]
        };
        let mut words = sudo.iter().chain(&env).chain(words);
        let program = words.next().unwrap_or(&"env");
        let mut command = self.workspace.program(program);
        command.args(words);
        command
    }
}

const INSTALL: [&str; 5] = [
    "apt-get",
    "install",
    "--yes",
    "-qq",
    "--no-install-recommends",
];

const UPDATE: [&str; 3] = ["apt-get", "update", "-qq"];

/// A new need is a line here; its absence is told by `needs.rs` or by the check itself.
const PACKAGES: [Package; 14] = [
    Package {
        name: "pkg-config",
        purpose: BINDINGS,
    },
    Package {
        name: "libibverbs-dev",
        purpose: BINDINGS,
    },
    Package {
        name: "librdmacm-dev",
        purpose: BINDINGS,
    },
    Package {
        name: "libclang-dev",
        purpose: BINDINGS,
    },
    Package {
        name: "qemu-system-x86",
        purpose: GUEST,
    },
    Package {
        name: "busybox-static",
        purpose: GUEST,
    },
    Package {
        name: "cpio",
        purpose: GUEST,
    },
    Package {
        name: "kmod",
        purpose: GUEST,
    },
    Package {
        name: "iproute2",
        purpose: GUEST,
    },
    Package {
        name: "rdma-core",
        purpose: VERBS,
    },
    Package {
        name: "ibverbs-providers",
        purpose: VERBS,
    },
    Package {
        name: "libibverbs1",
        purpose: VERBS,
    },
    Package {
        name: "ibverbs-utils",
        purpose: "looking at network adapters by hand",
    },
    Package {
        name: "perftest",
        purpose: "the floor beside which `cargo xtask vm bench` measures",
    },
];

const BINDINGS: &str = "building the verbs fabric (cargo feature `rdma`)";
const GUEST: &str = "the guest of `cargo xtask vm`";
const VERBS: &str = "network adapters, on this machine and in the guest";

#[cfg(test)]
mod tests {
    //! The reading of dpkg's listing, and the lists themselves.

    use super::{PACKAGES, not_installed};

    #[test]
    fn removed_and_unknown_packages_are_missing() {
        let mut listing = String::new();
        for package in PACKAGES {
            let state = if package.name == "cpio" { "rc" } else { "ii" };
            if package.name != "kmod" {
                listing.push_str(&format!("{state}  {}\n", package.name));
            }
        }
        let missing: Vec<&str> = not_installed(&listing).iter().map(|p| p.name).collect();
        assert_eq!(missing, ["cpio", "kmod"]);
    }

    #[test]
    fn no_package_is_listed_twice() {
        let mut names = PACKAGES.map(|package| package.name);
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
    }
}
