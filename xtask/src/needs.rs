//! What some checks need beyond Rust and Linux: another compiler, a device, more than one NUMA
//! node. A check whose need is absent has not passed, so absence is found here once and reported;
//! the checks themselves live with what they check.

use std::{env, fs, path::Path, process::Command};

use anyhow::{Result, bail};

use crate::{table::Table, verbs, vm};

/// Something that not every machine has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Need {
    /// As written in `STEPMESH_REQUIRE`.
    pub(crate) name: &'static str,
    /// What is not checked without it.
    checks: &'static str,
    probe: fn() -> Presence,
}

/// What a probe found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Presence {
    Present,
    /// Not there, and why this is believed.
    Absent(String),
    /// There, but not usable: always a failure.
    Broken(String),
}

impl Need {
    pub(crate) fn presence(&self) -> Presence {
        (self.probe)()
    }
}

/// Prints what is there and what is not. An error when something is broken, or absent although the
/// environment requires it.
pub(crate) fn report() -> Result<()> {
    let required = env::var(REQUIRE_VARIABLE).unwrap_or_default();
    let found: Vec<_> = NEEDS.iter().map(|need| (*need, need.presence())).collect();
    let mut table = Table::new(["need", "state", "reason", "checked only with it"]);
    for (need, presence) in &found {
        let (state, reason) = match presence {
            Presence::Present => ("present", ""),
            Presence::Absent(reason) => ("ABSENT", reason.as_str()),
            Presence::Broken(reason) => ("BROKEN", reason.as_str()),
        };
        table.row([need.name, state, reason, need.checks].map(str::to_owned));
    }
    println!("{table}");
    let problems = problems(&found, &required);
    if !problems.is_empty() {
        bail!("{}", problems.join("; "));
    }
    Ok(())
}

/// Whether something is there for a step that is nothing without it. Absence is told; it is an error
/// where the environment requires what is absent, and so is what is broken.
pub(crate) fn is_present(need: Need) -> Result<bool> {
    let required = env::var(REQUIRE_VARIABLE).unwrap_or_default();
    let presence = need.presence();
    if let Presence::Absent(reason) = &presence {
        println!(
            "ABSENT ({}): not checked: {}: {reason}",
            need.name, need.checks
        );
    }
    let is_required = required.split(',').any(|name| name.trim() == need.name);
    let asked = if is_required { need.name } else { "" };
    let is_present = presence == Presence::Present;
    match problems(&[(need, presence)], asked).first() {
        Some(problem) => bail!("{problem}"),
        None => Ok(is_present),
    }
}

fn problems(found: &[(Need, Presence)], required: &str) -> Vec<String> {
    let required: Vec<&str> = required
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .collect();
    let mut problems = Vec::new();
    for name in &required {
        if !found.iter().any(|(need, _)| need.name == *name) {
            let known: Vec<&str> = found.iter().map(|(need, _)| need.name).collect();
            problems.push(format!(
                "{REQUIRE_VARIABLE} names `{name}`, which is none of {}",
                known.join(", ")
            ));
        }
    }
    for (need, presence) in found {
        match presence {
            Presence::Absent(reason) if required.contains(&need.name) => {
                problems.push(format!("{} is required but absent: {reason}", need.name));
            }
            Presence::Broken(reason) => {
                problems.push(format!("{} is broken: {reason}", need.name));
            }
            Presence::Present | Presence::Absent(_) => {}
        }
    }
    problems
}

fn cxx() -> Presence {
    match Command::new(CXX_COMPILER).arg("--version").output() {
        Ok(output) if output.status.success() => Presence::Present,
        Ok(output) => Presence::Broken(format!("`{CXX_COMPILER} --version`: {}", output.status)),
        Err(error) => Presence::Absent(format!("`{CXX_COMPILER}`: {error}")),
    }
}

fn clang() -> Presence {
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".into());
    match Command::new(&clang).arg("--version").output() {
        Ok(output) if output.status.success() => Presence::Present,
        Ok(output) => Presence::Broken(format!("`{clang} --version`: {}", output.status)),
        Err(error) => Presence::Absent(format!("`{clang}`: {error}")),
    }
}

fn abidiff() -> Presence {
    match Command::new(ABIDIFF).arg("--version").output() {
        Ok(output) if output.status.success() => Presence::Present,
        Ok(output) => Presence::Broken(format!("`{ABIDIFF} --version`: {}", output.status)),
        Err(error) => Presence::Absent(format!("`{ABIDIFF}` (Debian: abigail-tools): {error}")),
    }
}

fn numa() -> Presence {
    let nodes = entries("/sys/devices/system/node", |name| {
        name.strip_prefix("node")
            .is_some_and(|id| id.parse::<u32>().is_ok())
    });
    if nodes > 1 {
        Presence::Present
    } else {
        Presence::Absent("one NUMA node".into())
    }
}

fn cuda() -> Presence {
    device_file("/dev/nvidiactl")
}

fn rocm() -> Presence {
    device_file("/dev/kfd")
}

fn cuda_library() -> Presence {
    library("libcuda.so.1")
}

fn hip_library() -> Presence {
    library("libamdhip64.so")
}

fn udmabuf() -> Presence {
    match fs::OpenOptions::new().read(true).write(true).open(UDMABUF) {
        Ok(_) => Presence::Present,
        Err(error) => Presence::Absent(format!("{UDMABUF}: {error}")),
    }
}

/// Whether the loader knows a library of this name or of one that starts with it.
fn library(name: &str) -> Presence {
    match Command::new(LDCONFIG).arg("-p").output() {
        Ok(output) if output.status.success() => {
            let known = String::from_utf8_lossy(&output.stdout);
            if known
                .lines()
                .any(|line| line.trim_start().starts_with(name))
            {
                Presence::Present
            } else {
                Presence::Absent(format!("`{LDCONFIG} -p` lists no {name}"))
            }
        }
        Ok(output) => Presence::Broken(format!("`{LDCONFIG} -p`: {}", output.status)),
        Err(error) => Presence::Absent(format!("`{LDCONFIG}`: {error}")),
    }
}

fn rdma() -> Presence {
    let devices = entries("/sys/class/infiniband", |_| true);
    if devices > 0 {
        Presence::Present
    } else {
        Presence::Absent("no device in /sys/class/infiniband".into())
    }
}

/// The same look as in crates/stepmesh-graph/tests/xla.
fn xla() -> Presence {
    let usual = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/xla/bin/python");
    let python = env::var("STEPMESH_XLA_PYTHON").unwrap_or_else(|_| usual.into());
    let asked = Command::new(&python).args(["-c", "import jax"]).output();
    match asked {
        Ok(output) if output.status.success() => Presence::Present,
        _ => Presence::Absent("no jax in target/xla, nor by STEPMESH_XLA_PYTHON".into()),
    }
}

/// The same look as in plugins/cuda/tests.
fn nvrtc() -> Presence {
    let usual = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../target/nvrtc/nvidia/cuda_nvrtc/lib"
    );
    let folder = env::var("STEPMESH_NVRTC_DIR").unwrap_or_else(|_| usual.into());
    if Path::new(&folder).join("libnvrtc.so.12").is_file() {
        Presence::Present
    } else {
        Presence::Absent("no libnvrtc.so.12 in target/nvrtc, nor by STEPMESH_NVRTC_DIR".into())
    }
}

/// A file alone is not enough: libraries make it also where no driver answers.
fn device_file(path: &str) -> Presence {
    match fs::File::open(path) {
        Ok(_) => Presence::Present,
        Err(error) => Presence::Absent(format!("{path}: {error}")),
    }
}

/// How many entries of a folder have a name that `matches`; none when there is no folder.
fn entries(dir: &str, matches: fn(&str) -> bool) -> usize {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_name().to_str().is_some_and(matches))
        .count()
}

/// A comma-separated list of needs whose absence is a failure.
const REQUIRE_VARIABLE: &str = "STEPMESH_REQUIRE";

/// The C++ compiler of the system, by the name that POSIX systems agree on.
pub(crate) const CXX_COMPILER: &str = "c++";

/// Compares the types of two libraries by their debug information.
pub(crate) const ABIDIFF: &str = "abidiff";

/// What the loader knows. It is not on every user's search path.
const LDCONFIG: &str = "/sbin/ldconfig";

/// Makes dma-bufs of memory files.
const UDMABUF: &str = "/dev/udmabuf";

/// The order is that of the report.
const NEEDS: [Need; 14] = [
    CXX,
    ABIDIFF_NEED,
    Need {
        name: "clang",
        checks: "the kernels of the rocm backend, and those of graphs, compile for AMD's devices",
        probe: clang,
    },
    Need {
        name: "verbs",
        checks: "the verbs fabric: it is built, linted and tested",
        probe: verbs::headers,
    },
    Need {
        name: "numa",
        checks: "devices on several NUMA nodes",
        probe: numa,
    },
    Need {
        name: "cuda",
        checks: "memory of NVIDIA devices",
        probe: cuda,
    },
    Need {
        name: "rocm",
        checks: "memory of AMD devices",
        probe: rocm,
    },
    Need {
        name: "libcuda",
        checks: "what the real driver answers without a device",
        probe: cuda_library,
    },
    Need {
        name: "libamdhip64",
        checks: "what the real HIP runtime answers without a device",
        probe: hip_library,
    },
    Need {
        name: "nvrtc",
        checks: "that NVIDIA's own compiler takes the sources of graphs",
        probe: nvrtc,
    },
    Need {
        name: "udmabuf",
        checks: "dma-bufs of simulated devices",
        probe: udmabuf,
    },
    Need {
        name: "rdma",
        checks: "transfers through a network adapter",
        probe: rdma,
    },
    GUEST,
    Need {
        name: "xla",
        checks: "values of every operation by XLA, from the StableHLO text",
        probe: xla,
    },
];

pub(crate) const CXX: Need = Need {
    name: "cxx",
    checks: "the header of the ABI as C++17, the backend in C++, and graphs on simulated GPUs",
    probe: cxx,
};

pub(crate) const ABIDIFF_NEED: Need = Need {
    name: "abidiff",
    checks: "the types of the slots' arguments are those of version 1.0",
    probe: abidiff,
};

/// Its tests run by themselves, so it is asked for there too.
pub(crate) const GUEST: Need = Need {
    name: "guest",
    checks: "the mesh over real verbs, in an emulated machine (cargo xtask vm test)",
    probe: vm::presence,
};

#[cfg(test)]
mod tests {
    //! Absence is harmless until it is required; what is broken never is.

    use super::{CXX, Presence, problems};

    #[test]
    fn only_a_required_absence_is_a_problem() {
        let found = [(CXX, Presence::Absent("no compiler".into()))];
        assert_eq!(problems(&found, ""), [""; 0]);
        assert_eq!(
            problems(&found, "cxx, "),
            ["cxx is required but absent: no compiler"]
        );
    }

    #[test]
    fn a_broken_need_is_a_problem_though_nobody_requires_it() {
        let found = [(CXX, Presence::Broken("it crashes".into()))];
        assert_eq!(problems(&found, ""), ["cxx is broken: it crashes"]);
    }

    #[test]
    fn an_unknown_requirement_is_a_problem() {
        let problems = problems(&[(CXX, Presence::Present)], "cuba");
        assert_eq!(
            problems,
            ["STEPMESH_REQUIRE names `cuba`, which is none of cxx"]
        );
    }
}
