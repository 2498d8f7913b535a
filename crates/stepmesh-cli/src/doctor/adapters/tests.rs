//! Machines with and without the library and the devices.

use stepmesh_core::config::{Config, TransportKind};

use super::super::State;
use super::super::tests::Machine;

fn states(machine: &Machine, config: &Config) -> Vec<State> {
    let findings = super::examine(&machine.system(), config);
    findings.iter().map(|finding| finding.state).collect()
}

#[test]
fn a_laptop_is_fine_until_rdma_is_asked_for() {
    let machine = Machine::with(&[]);
    let mut config = Config::default();
    assert_eq!(states(&machine, &config), [State::Ok, State::Ok]);
    config.transport.kind = TransportKind::Rdma;
    assert_eq!(states(&machine, &config), [State::Bad, State::Bad]);
}

#[test]
fn the_library_is_shown_with_its_version_and_providers() {
    let machine = Machine::with(&[
        ("usr/lib64/libibverbs/libmlx5-rdmav34.so", ""),
        ("usr/lib64/libibverbs/librxe-rdmav34.so", ""),
    ])
    .link("usr/lib64/libibverbs.so.1", "libibverbs.so.1.14.44.0");
    let finding = super::library(&machine.system(), true);
    assert_eq!(
        finding.found,
        "libibverbs.so.1.14.44.0; providers: mlx5, rxe"
    );
    assert_eq!(finding.state, State::Ok);
    let bare = Machine::with(&[]).link("usr/lib64/libibverbs.so.1", "libibverbs.so.1.14.44.0");
    assert_eq!(super::library(&bare.system(), true).state, State::Bad);
}

#[test]
fn an_adapter_without_a_device_file_is_bad() {
    let machine = Machine::with(&[("sys/class/infiniband/mlx5_0/node_type", "1: CA")]);
    let findings = super::examine(&machine.system(), &Config::default());
    let access = findings
        .iter()
        .find(|finding| finding.what == "/dev/infiniband")
        .unwrap();
    assert_eq!(access.state, State::Bad);
    let with = Machine::with(&[
        ("sys/class/infiniband/mlx5_0/node_type", "1: CA"),
        ("dev/infiniband/uverbs0", ""),
    ]);
    let access = super::access(&with.system());
    assert_eq!(
        (access.state, &*access.found),
        (State::Ok, "1 uverbs usable")
    );
}

/// A machine with one port in this state, which has one address.
fn with_port(state: &str) -> Machine {
    const PORT: &str = "sys/class/infiniband/mlx5_0/ports/1";
    let file = |name: &str| format!("{PORT}/{name}");
    let files = [
        (file("state"), state),
        (file("link_layer"), "Ethernet"),
        (file("rate"), "400 Gb/sec (4X NDR)"),
        (file("gids/3"), "0000:0000:0000:0000:0000:ffff:0a00:0001"),
        (file("gid_attrs/types/3"), "RoCE v2"),
        (file("gid_attrs/ndevs/3"), "eth0"),
    ];
    let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (&**path, *text)).collect();
    Machine::with(&files)
}

#[test]
fn a_port_is_shown_with_the_address_that_is_used() {
    let machine = with_port("4: ACTIVE");
    let findings = super::ports(&machine.system(), &Config::default());
    assert_eq!(findings.len(), 1);
    assert_eq!(
        (findings[0].state, &*findings[0].what),
        (State::Ok, "mlx5_0:1")
    );
    assert_eq!(findings[0].found, "400 Gbit/s; RoCE v2 GID 3, 10.0.0.1");
}

#[test]
fn a_port_that_is_down_is_a_warning_and_bad_where_it_is_needed() {
    let machine = with_port("1: DOWN");
    let mut config = Config::default();
    let finding = super::ports(&machine.system(), &config).remove(0);
    assert_eq!(finding.state, State::Warn);
    assert!(finding.found.contains("DOWN"), "{finding:?}");
    config.transport.kind = TransportKind::Rdma;
    let finding = super::ports(&machine.system(), &config).remove(0);
    assert_eq!(finding.state, State::Bad);
}
