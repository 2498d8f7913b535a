//! The host: kernel, limits, memory, processors.

use std::thread;

use rustix::process::{Resource, Rlimit, getrlimit};
use stepmesh_core::config::{Config, PollMode};

use super::system::System;
use super::{Finding, State};

pub(super) fn examine(system: &System, config: &Config) -> Vec<Finding> {
    let has_adapter = !system.names("/sys/class/infiniband").is_empty();
    let mut findings = vec![
        kernel(system),
        memlock(
            getrlimit(Resource::Memlock),
            can_lock_all(system),
            has_adapter,
        ),
        open_files(getrlimit(Resource::Nofile), config),
        shared_memory(system),
        huge_pages(system),
        iommu(system),
        processors(
            system,
            config,
            thread::available_parallelism().map_or(1, usize::from),
        ),
    ];
    findings.extend(governor(system));
    findings.extend(numa(system));
    findings
}

/// From 5.12 on, a kernel registers dma-bufs with network adapters.
fn kernel(system: &System) -> Finding {
    let release = system
        .text("/proc/sys/kernel/osrelease")
        .unwrap_or_else(|| "unknown".into());
    let finding = Finding::ok(AREA, "kernel", &*release);
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut next = || numbers.next().and_then(|number| number.parse::<u32>().ok());
    match (next(), next()) {
        (Some(major), Some(minor)) if (major, minor) >= DMABUF_SINCE => Finding {
            found: format!("{release}: registers dma-bufs with network adapters"),
            ..finding
        },
        (Some(_), Some(_)) => Finding {
            found: format!("{release}: too old to register dma-bufs with network adapters"),
            ..finding
        }
        .at(
            State::Warn,
            "upgrade to 5.12 or newer, or load nvidia-peermem",
        ),
        _ => finding.at(State::Warn, "mount /proc"),
    }
}

/// Registering memory with an adapter locks it.
fn memlock(limit: Rlimit, can_lock_all: bool, has_adapter: bool) -> Finding {
    let what = "locked memory";
    match limit.current {
        _ if can_lock_all => Finding::ok(AREA, what, "no limit (CAP_IPC_LOCK)"),
        None => Finding::ok(AREA, what, "no limit"),
        Some(bytes) => {
            let found = format!("at most {}", bytes_text(bytes));
            let finding = Finding::ok(AREA, what, found);
            if bytes >= MEMLOCK_BYTES_ENOUGH {
                return finding;
            }
            // Without an adapter nothing is locked.
            let state = if has_adapter { State::Bad } else { State::Ok };
            if state == State::Ok {
                return finding;
            }
            finding.at(
                state,
                "ulimit -l unlimited; LimitMEMLOCK=infinity in a systemd unit; docker run \
                 --ulimit memlock=-1; * - memlock unlimited in /etc/security/limits.conf",
            )
        }
    }
}

/// Whether the effective capabilities have `CAP_IPC_LOCK`.
fn can_lock_all(system: &System) -> bool {
    let status = system.text("/proc/self/status").unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & (1 << CAP_IPC_LOCK) != 0)
}

/// A peer takes up to three descriptors: its connection, its doorbell, its memory.
fn open_files(limit: Rlimit, config: &Config) -> Finding {
    let needed = u64::from(config.limits.peers_max)
        .saturating_mul(3)
        .saturating_add(64);
    let Some(files) = limit.current else {
        return Finding::ok(AREA, "open files", "no limit");
    };
    let finding = Finding::ok(AREA, "open files", format!("at most {files}"));
    if files >= needed {
        return finding;
    }
    let mend = format!(
        "ulimit -n {needed} (limits.peers_max = {} may need as many), or lower limits.peers_max",
        config.limits.peers_max
    );
    finding.at(State::Warn, mend)
}

/// Where files of shared memory go.
fn shared_memory(system: &System) -> Finding {
    let what = "/dev/shm";
    match rustix::fs::statvfs(system.path(what)) {
        Ok(stat) => {
            let free = stat.f_bavail.saturating_mul(stat.f_frsize);
            let finding = Finding::ok(AREA, what, format!("{} free", bytes_text(free)));
            if free >= SHM_BYTES_ENOUGH {
                return finding;
            }
            finding.at(
                State::Warn,
                "mount -o remount,size=8G /dev/shm; docker run --shm-size=8g (only programs that \
                 share named memory need it, such as NCCL beside the mesh)",
            )
        }
        Err(error) => Finding::ok(AREA, what, format!("not there: {error}"))
            .at(State::Warn, "mount -t tmpfs tmpfs /dev/shm"),
    }
}

/// An adapter keeps one entry for each page: large pages need fewer.
fn huge_pages(system: &System) -> Finding {
    let what = "huge pages";
    let number = |key| system.number_of("/proc/meminfo", key).unwrap_or(0);
    let (total, free) = (number("HugePages_Total"), number("HugePages_Free"));
    let size = bytes_text(number("Hugepagesize").saturating_mul(1024));
    let transparent = system
        .text("/sys/kernel/mm/transparent_hugepage/enabled")
        .and_then(|text| chosen(&text))
        .unwrap_or_else(|| "unknown".into());
    let found = format!("{free} of {total} free, {size} each; transparent: {transparent}");
    let finding = Finding::ok(AREA, what, found);
    if total > 0 || transparent != "never" {
        return finding;
    }
    finding.at(
        State::Warn,
        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, or sysctl vm.nr_hugepages=512",
    )
}

/// The word in brackets, by which the kernel shows what is chosen.
fn chosen(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

/// Translation costs adapters that read device memory; `iommu=pt` spares them.
fn iommu(system: &System) -> Finding {
    let what = "IOMMU";
    let units = system.names("/sys/class/iommu").len();
    if units == 0 {
        return Finding::ok(AREA, what, "off");
    }
    let command_line = system.text("/proc/cmdline").unwrap_or_default();
    if command_line
        .split_whitespace()
        .any(|word| word == "iommu=pt")
    {
        return Finding::ok(AREA, what, "on, passing through (iommu=pt)");
    }
    Finding::ok(
        AREA,
        what,
        "on, translating: peer-to-peer traffic of devices goes the long way",
    )
    .at(
        State::Warn,
        "iommu=pt on the kernel's command line, and ACS off on the PCIe switches between",
    )
}

fn processors(system: &System, config: &Config, usable: usize) -> Finding {
    let isolated = system.text("/sys/devices/system/cpu/isolated");
    let found = match &isolated {
        Some(list) => format!("{usable} usable, {list} isolated"),
        None => format!("{usable} usable, none isolated"),
    };
    let finding = Finding::ok(AREA, "processors", found);
    let is_busy = config.transport.poll == PollMode::Busy;
    if is_busy && isolated.is_none() {
        return finding.at(
            State::Warn,
            "transport.poll = busy takes a core for itself: isolcpus=N nohz_full=N on the kernel's \
             command line and taskset -c N, or transport.poll = adaptive",
        );
    }
    finding
}

/// A core that sleeps deep or clocks down answers late.
fn governor(system: &System) -> Option<Finding> {
    let governor = system.text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")?;
    let finding = Finding::ok(AREA, "frequency governor", &*governor);
    if governor == "performance" {
        return Some(finding);
    }
    Some(finding.at(State::Warn, "cpupower frequency-set -g performance"))
}

/// On several nodes, pages that move under a transfer cost it.
fn numa(system: &System) -> Option<Finding> {
    let names = system.names("/sys/devices/system/node");
    let is_node = |name: &&String| {
        let number = name.strip_prefix("node");
        number.is_some_and(|number| number.parse::<u32>().is_ok())
    };
    let nodes = names.iter().filter(is_node).count();
    if nodes < 2 {
        return None;
    }
    let finding = Finding::ok(AREA, "NUMA", format!("{nodes} nodes"));
    let is_balancing = system
        .text("/proc/sys/kernel/numa_balancing")
        .is_some_and(|on| on != "0");
    Some(if is_balancing {
        finding.at(State::Warn, "sysctl kernel.numa_balancing=0")
    } else {
        finding
    })
}

/// A size for people.
pub(super) fn bytes_text(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = (0..UNITS.len())
        .rev()
        .find(|unit| bytes >> (10 * unit) > 0)
        .unwrap_or(0);
    format!("{} {}", bytes >> (10 * unit), UNITS[unit])
}

const AREA: &str = "host";
/// The first kernel with `ibv_reg_dmabuf_mr`.
const DMABUF_SINCE: (u32, u32) = (5, 12);
/// Slots of a few requests in flight; below this, registration fails early.
const MEMLOCK_BYTES_ENOUGH: u64 = 1 << 30;
/// What containers get by default (64 MiB) is too little for anything that uses it.
const SHM_BYTES_ENOUGH: u64 = 256 << 20;
/// Number of the capability in `linux/capability.h`.
const CAP_IPC_LOCK: u32 = 14;

#[cfg(test)]
mod tests;
