//! Network adapters with RDMA: the library, its providers, the devices and their ports.

use stepmesh_core::config::{Config, TransportKind};

use stepmesh_rdma::select::{Adapter, Location, Options, PortVerdict, choose};

use super::system::System;
use super::{Finding, State};

pub(super) fn examine(system: &System, config: &Config) -> Vec<Finding> {
    let adapters = system.names("/sys/class/infiniband");
    let is_asked_for = config.transport.kind == TransportKind::Rdma;
    let mut findings = vec![library(system, !adapters.is_empty() || is_asked_for)];
    if adapters.is_empty() {
        findings.push(none(is_asked_for));
        return findings;
    }
    findings.push(access(system));
    findings.extend(ports(system, config));
    findings
}

fn none(is_asked_for: bool) -> Finding {
    let found = "none in /sys/class/infiniband: tensors go by shared memory and TCP";
    let finding = Finding::ok(AREA, "adapters", found);
    if is_asked_for {
        let mend = "transport.kind = auto; or load the adapter's driver (mlx5_ib, ...); without \
                    hardware: rdma link add rxe0 type rxe netdev eth0";
        return finding.at(State::Bad, mend);
    }
    finding
}

/// libibverbs and what it loads for each make of adapter.
fn library(system: &System, is_needed: bool) -> Finding {
    let what = "libibverbs.so.1";
    let found = LIBRARY_DIRS.iter().find_map(|dir| {
        let file = format!("{dir}/{what}");
        let version = system
            .link_name(&file)
            .or_else(|| system.has(&file).then(|| what.into()))?;
        let providers = system.names(&format!("{dir}/libibverbs"));
        Some((version, providers))
    });
    let state = if is_needed { State::Bad } else { State::Ok };
    let Some((version, providers)) = found else {
        let finding = Finding::ok(AREA, what, "not found in the usual folders");
        return mended(finding, state, "apt install libibverbs1 ibverbs-providers");
    };
    let names: Vec<&str> = providers
        .iter()
        .filter_map(|file| file.strip_prefix("lib")?.split_once("-rdmav"))
        .map(|(name, _)| name)
        .collect();
    if names.is_empty() {
        let finding = Finding::ok(AREA, what, format!("{version}, no provider beside it"));
        return mended(finding, state, "apt install ibverbs-providers");
    }
    Finding::ok(
        AREA,
        what,
        format!("{version}; providers: {}", names.join(", ")),
    )
}

/// The same unless its state is ok, which needs no mending.
fn mended(finding: Finding, state: State, mend: &str) -> Finding {
    match state {
        State::Ok => finding,
        other => finding.at(other, mend),
    }
}

/// Every port, with the address that would be used.
fn ports(system: &System, config: &Config) -> Vec<Finding> {
    let adapters = Adapter::all(&system.for_adapters());
    let choice = choose(&adapters, &Location::default(), &Options::default());
    let is_asked_for = config.transport.kind == TransportKind::Rdma;
    // Without any usable port there is no RDMA; beside a usable one the others may be meant so.
    let state = match (choice.candidates.is_empty(), is_asked_for) {
        (false, _) => State::Ok,
        (true, false) => State::Warn,
        (true, true) => State::Bad,
    };
    choice
        .ports
        .iter()
        .map(|verdict| port(verdict, state))
        .collect()
}

fn port(verdict: &PortVerdict, state_if_unusable: State) -> Finding {
    let PortVerdict {
        adapter,
        port,
        rate_gbps,
        ..
    } = verdict;
    let mut found = format!("{rate_gbps} Gbit/s");
    let facts = [
        verdict.model.clone(),
        verdict.pci_address.clone(),
        verdict.numa_node.map(|node| format!("NUMA node {node}")),
    ];
    for fact in facts.into_iter().flatten() {
        found.push_str(", ");
        found.push_str(&fact);
    }
    let used = verdict.gids.iter().find(|gid| gid.rejected.is_none());
    let what = format!("{adapter}:{port}");
    match (verdict.rank, used, &verdict.reason) {
        (Some(_), Some(used), _) => {
            let gid = &used.gid;
            Finding::ok(
                AREA,
                what,
                format!("{found}; {} GID {}, {gid}", gid.kind.as_str(), gid.index),
            )
        }
        (_, _, reason) => {
            let reason = reason.as_deref().unwrap_or("it cannot be used");
            let finding = Finding::ok(AREA, what, format!("{found}; {reason}"));
            let mend = "stepmesh rdma explain tells of each address why it is not used";
            mended(finding, state_if_unusable, mend)
        }
    }
}

/// Whether this user may use the devices.
fn access(system: &System) -> Finding {
    let names = system.names("/dev/infiniband");
    let devices = || names.iter().filter(|name| name.starts_with("uverbs"));
    let what = "/dev/infiniband";
    if devices().next().is_none() {
        return Finding::ok(AREA, what, "no uverbs device").at(
            State::Bad,
            "modprobe ib_uverbs; docker run --device=/dev/infiniband",
        );
    }
    let closed: Vec<&str> = devices()
        .filter(|name| {
            let path = system.path(&format!("{what}/{name}"));
            rustix::fs::access(
                &path,
                rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK,
            )
            .is_err()
        })
        .map(String::as_str)
        .collect();
    let count = devices().count();
    if closed.is_empty() {
        return Finding::ok(AREA, what, format!("{count} uverbs usable"));
    }
    Finding::ok(
        AREA,
        what,
        format!("not for this user: {}", closed.join(", ")),
    )
    .at(
        State::Bad,
        "chmod 666 /dev/infiniband/uverbs*, or a udev rule (rdma-core has one)",
    )
}

const AREA: &str = "adapters";
/// Where distributions put libraries.
const LIBRARY_DIRS: [&str; 5] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
];

#[cfg(test)]
mod tests;
