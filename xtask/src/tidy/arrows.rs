//! Which of our crates may use which. The table is the crate diagram of ARCHITECTURE.md in a form
//! that a program can check; tests may use more than the code does.

use super::Violation;
use crate::workspace::Metadata;

pub(super) fn check(members: &Metadata) -> Vec<Violation> {
    let names: Vec<&str> = members.packages().map(|package| package.name()).collect();
    let mut violations = Vec::new();
    for package in members.packages() {
        let ours = package.dependencies().filter(|name| names.contains(name));
        violations.extend(check_crate(package.name(), ours));
    }
    violations
}

pub(super) fn check_crate<'a>(name: &str, uses: impl Iterator<Item = &'a str>) -> Vec<Violation> {
    let Some(allowed) = allowed_for(name) else {
        let message = "a crate that the diagram does not know: add it to ARCHITECTURE.md and to \
                       xtask/src/tidy/arrows.rs";
        return vec![Violation::new(name, message)];
    };
    uses.filter(|used| !allowed.contains(used))
        .map(|used| {
            let may = if allowed.is_empty() {
                "no crate of ours".into()
            } else {
                allowed.join(", ")
            };
            Violation::new(name, format!("uses {used}, but may use {may}"))
        })
        .collect()
}

fn allowed_for(name: &str) -> Option<&'static [&'static str]> {
    if let Some((_, to)) = ARROWS.iter().find(|(from, _)| *from == name) {
        return Some(to);
    }
    name.starts_with("stepmesh-backend-")
        .then_some(&["stepmesh-plugin"])
}

const ARROWS: &[(&str, &[&str])] = &[
    ("stepmesh-abi", &[]),
    ("stepmesh-graph", &["stepmesh-abi"]),
    ("stepmesh-plugin", &["stepmesh-abi", "stepmesh-graph"]),
    // What the backends without hardware of their own compute with.
    ("stepmesh-fusion", &["stepmesh-graph"]),
    (
        "stepmesh-gpu-source",
        &["stepmesh-fusion", "stepmesh-graph"],
    ),
    ("stepmesh-kernels", &["stepmesh-fusion", "stepmesh-graph"]),
    (
        "stepmesh-backend-cpu",
        &["stepmesh-kernels", "stepmesh-plugin"],
    ),
    (
        "stepmesh-backend-sim",
        &["stepmesh-kernels", "stepmesh-plugin"],
    ),
    // What the backends of GPU vendors share.
    (
        "stepmesh-driver",
        &["stepmesh-gpu-source", "stepmesh-plugin"],
    ),
    (
        "stepmesh-backend-cuda",
        &["stepmesh-driver", "stepmesh-plugin"],
    ),
    (
        "stepmesh-backend-rocm",
        &["stepmesh-driver", "stepmesh-plugin"],
    ),
    // Stand-ins for the vendors' libraries, for tests: of us they know the header with which the source
    // of kernels is C++.
    ("stepmesh-simdriver", &["stepmesh-gpu-source"]),
    ("stepmesh-simdriver-cuda", &["stepmesh-simdriver"]),
    ("stepmesh-simdriver-hip", &["stepmesh-simdriver"]),
    // The cpu backend is linked in as the fallback of a host without plugin files.
    (
        "stepmesh-core",
        &["stepmesh-abi", "stepmesh-graph", "stepmesh-backend-cpu"],
    ),
    (
        "stepmesh-conformance",
        &["stepmesh-abi", "stepmesh-core", "stepmesh-graph"],
    ),
    ("stepmesh-lazy", &["stepmesh-core", "stepmesh-graph"]),
    ("stepmesh-transport", &[]),
    ("stepmesh-rdma", &["stepmesh-transport"]),
    (
        "stepmesh",
        &["stepmesh-core", "stepmesh-rdma", "stepmesh-transport"],
    ),
    (
        "stepmesh-torch",
        &[
            "stepmesh",
            "stepmesh-core",
            "stepmesh-graph",
            "stepmesh-lazy",
        ],
    ),
    // `bench` calls a function of the cpu backend with and without its table.
    (
        "stepmesh-cli",
        &[
            "stepmesh",
            "stepmesh-conformance",
            "stepmesh-core",
            "stepmesh-lazy",
            "stepmesh-backend-cpu",
            "stepmesh-plugin",
            "stepmesh-rdma",
            "stepmesh-transport",
        ],
    ),
    // Compares the backend with bare calls of the driver.
    (
        "stepmesh-gpu-check",
        &["stepmesh-conformance", "stepmesh-core", "stepmesh-driver"],
    ),
    // Reads the notes of what it built.
    ("xtask", &["stepmesh-abi"]),
];
