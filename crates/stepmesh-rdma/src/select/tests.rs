//! Choices on machines that exist only as files: two sockets with switches, adapters and
//! accelerators, as the kernel shows them.

use std::fs;
use std::net::Ipv6Addr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::{
    Adapter, Choice, Family, Gid, GidKind, GidRules, LinkLayer, Location, Options, Proximity,
    System, choose, choose_gid,
};

/// A machine made of files.
struct Machine {
    root: TempDir,
}

impl Machine {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        Self { root }
    }

    fn system(&self) -> System {
        System::under(self.root.path())
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path.trim_start_matches('/'))
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    fn link(&self, path: &str, target: &Path) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    }

    /// A PCI device below host bridge and switches, `folder` without /sys/devices.
    fn pci_device(&self, folder: &str, numa_node: i32) -> PathBuf {
        let folder = format!("/sys/devices/{folder}");
        self.file(&format!("{folder}/numa_node"), &numa_node.to_string());
        let target = self.path(&folder);
        let address = target.file_name().unwrap().to_str().unwrap().to_owned();
        self.link(&format!("/sys/bus/pci/devices/{address}"), &target);
        target
    }

    /// An adapter with one active Ethernet port that has the usual four GIDs.
    fn adapter(&self, name: &str, device: Option<&Path>, rate: &str) {
        let dir = format!("/sys/class/infiniband/{name}");
        self.file(&format!("{dir}/hca_type"), "MT4129");
        let port = format!("{dir}/ports/1");
        self.file(&format!("{port}/state"), "4: ACTIVE");
        self.file(&format!("{port}/link_layer"), "Ethernet");
        self.file(&format!("{port}/rate"), rate);
        for (index, (gid, kind)) in [
            ("fe80:0000:0000:0000:0a0b:0cff:fe0d:0e0f", "IB/RoCE v1"),
            ("fe80:0000:0000:0000:0a0b:0cff:fe0d:0e0f", "RoCE v2"),
            ("0000:0000:0000:0000:0000:ffff:0a0a:0001", "IB/RoCE v1"),
            ("0000:0000:0000:0000:0000:ffff:0a0a:0001", "RoCE v2"),
        ]
        .into_iter()
        .enumerate()
        {
            self.file(&format!("{port}/gids/{index}"), gid);
            self.file(&format!("{port}/gid_attrs/types/{index}"), kind);
            self.file(&format!("{port}/gid_attrs/ndevs/{index}"), "eth0");
        }
        self.file(
            &format!("{port}/gids/4"),
            "0000:0000:0000:0000:0000:0000:0000:0000",
        );
        if let Some(device) = device {
            self.link(&format!("{dir}/device"), device);
        }
    }

    fn choose(&self, device: &Location, options: &Options) -> Choice {
        choose(&Adapter::all(&self.system()), device, options)
    }

    fn gpu(&self) -> Location {
        Location::of_pci(&self.system(), "0000:1B:00.0")
    }
}

/// Two sockets; the accelerator shares a switch with `mlx5_1`, a host bridge with `mlx5_10`, a node
/// with `mlx5_2`, and nothing with `mlx5_9`.
fn two_sockets() -> Machine {
    let machine = Machine::new();
    let switch = "pci0000:16/0000:16:01.0/0000:17:00.0";
    machine.pci_device(&format!("{switch}/0000:18:00.0/0000:1b:00.0"), 0);
    let near = machine.pci_device(&format!("{switch}/0000:18:01.0/0000:1c:00.0"), 0);
    let bridge = machine.pci_device("pci0000:16/0000:16:03.0/0000:2a:00.0", 0);
    let node = machine.pci_device("pci0000:38/0000:38:01.0/0000:3b:00.0", 0);
    let far = machine.pci_device("pci0000:96/0000:96:01.0/0000:97:00.0", 1);
    for (name, device) in [
        ("mlx5_9", &far),
        ("mlx5_10", &bridge),
        ("mlx5_2", &node),
        ("mlx5_1", &near),
    ] {
        machine.adapter(name, Some(device), "400 Gb/sec (4X NDR)");
    }
    machine
}

fn names(choice: &Choice) -> Vec<&str> {
    let candidates = choice.candidates.iter();
    candidates
        .map(|candidate| candidate.adapter.as_str())
        .collect()
}

fn reason(choice: &Choice, adapter: &str) -> String {
    let mut ports = choice.ports.iter();
    let port = ports.find(|port| port.adapter == adapter).unwrap();
    port.reason.clone().unwrap_or_default()
}

fn gid(index: u8, address: &str, kind: GidKind, interface: &str) -> Gid {
    Gid {
        index,
        address: address.parse::<Ipv6Addr>().unwrap(),
        kind,
        interface: Some(interface.into()),
    }
}

#[test]
fn adapters_are_ordered_by_their_way_to_the_accelerator() {
    let machine = two_sockets();
    let choice = machine.choose(&machine.gpu(), &Options::default());
    assert_eq!(names(&choice), ["mlx5_1", "mlx5_10", "mlx5_2", "mlx5_9"]);
    let ways: Vec<Proximity> = choice
        .candidates
        .iter()
        .map(|candidate| candidate.distance.proximity)
        .collect();
    assert_eq!(
        ways,
        [
            Proximity::SameSwitch,
            Proximity::SameHostBridge,
            Proximity::SameNumaNode,
            Proximity::OtherNumaNode
        ]
    );
    assert_eq!(reason(&choice, "mlx5_1"), "");
    assert_eq!(
        reason(&choice, "mlx5_9"),
        "farther than mlx5_1 (same PCIe switch)"
    );
}

#[test]
fn a_pci_address_is_taken_in_capitals_and_without_its_domain() {
    let machine = two_sockets();
    let system = machine.system();
    let location = Location::of_pci(&system, "1B:00.0");
    assert_eq!(location, machine.gpu());
    assert_eq!(location.pci_address.as_deref(), Some("0000:1b:00.0"));
    assert!(Location::of_pci(&system, "0000:ff:00.0").is_unknown());
}

#[test]
fn host_memory_is_ordered_by_its_numa_node() {
    let machine = two_sockets();
    let choice = machine.choose(&Location::of_numa_node(Some(1)), &Options::default());
    assert_eq!(names(&choice)[0], "mlx5_9");
}

#[test]
fn a_slow_port_is_last_however_near_it_is() {
    let machine = two_sockets();
    machine.file(
        "/sys/class/infiniband/mlx5_1/ports/1/rate",
        "25 Gb/sec (1X EDR)",
    );
    let choice = machine.choose(&machine.gpu(), &Options::default());
    assert_eq!(names(&choice), ["mlx5_10", "mlx5_2", "mlx5_9", "mlx5_1"]);
    assert_eq!(reason(&choice, "mlx5_1"), "slower than half of 400 Gbit/s");
}

#[test]
fn a_port_that_is_down_is_refused_in_the_kernels_words() {
    let machine = two_sockets();
    machine.file("/sys/class/infiniband/mlx5_1/ports/1/state", "1: DOWN");
    let choice = machine.choose(&machine.gpu(), &Options::default());
    assert_eq!(names(&choice)[0], "mlx5_10");
    assert!(reason(&choice, "mlx5_1").starts_with("its state is DOWN"));
}

#[test]
fn names_in_the_configuration_choose_adapters_and_ports() {
    let machine = two_sockets();
    let chosen = |include: &[&str], exclude: &[&str]| {
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let options = Options {
            include: list(include),
            exclude: list(exclude),
            ..Options::default()
        };
        machine.choose(&machine.gpu(), &options)
    };
    assert_eq!(names(&chosen(&["mlx5_1"], &[])), ["mlx5_1"]);
    assert_eq!(names(&chosen(&["mlx5_1*"], &[])), ["mlx5_1", "mlx5_10"]);
    assert_eq!(names(&chosen(&["mlx5_9:1"], &[])), ["mlx5_9"]);
    assert_eq!(names(&chosen(&["*"], &["mlx5_1*"])), ["mlx5_2", "mlx5_9"]);
    let nothing = chosen(&["mlx5_9:2"], &[]);
    assert!(nothing.absence().unwrap().contains("not among `mlx5_9:2`"));
    assert_eq!(
        reason(&chosen(&[], &["mlx5_2"]), "mlx5_2"),
        "excluded by `mlx5_2`"
    );
}

#[test]
fn devices_that_share_equal_ports_use_different_ones() {
    let machine = two_sockets();
    let switch = "pci0000:16/0000:16:01.0/0000:17:00.0";
    let twin = machine.pci_device(&format!("{switch}/0000:18:01.0/0000:1c:00.1"), 0);
    machine.adapter("mlx5_3", Some(&twin), "400 Gb/sec (4X NDR)");
    let choice = machine.choose(&machine.gpu(), &Options::default());
    let of = |ordinal| choice.for_ordinal(ordinal).unwrap().adapter.clone();
    assert_eq!([of(0), of(1), of(2)], ["mlx5_1", "mlx5_3", "mlx5_1"]);
    assert_eq!(reason(&choice, "mlx5_3"), "as good as mlx5_1");
}

#[test]
fn a_machine_without_verbs_says_so_in_one_line() {
    let machine = Machine::new();
    let choice = machine.choose(&Location::default(), &Options::default());
    let absence = choice.absence().unwrap();
    assert_eq!(absence, "no RDMA device: none in /sys/class/infiniband");
    assert!(choice.for_ordinal(0).is_none());
}

#[test]
fn a_device_in_software_is_usable_at_an_unknown_distance() {
    let machine = Machine::new();
    machine.adapter("rxe0", None, "2.5 Gb/sec (1X SDR)");
    let choice = machine.choose(&Location::default(), &Options::default());
    let candidate = &choice.candidates[0];
    assert_eq!(candidate.distance.proximity, Proximity::Unknown);
    assert_eq!((candidate.gid.index, candidate.rate_gbps), (3, 2));
    assert!(choice.absence().is_none());
}

#[test]
fn roce_v2_over_ipv4_is_chosen_and_each_other_entry_has_its_reason() {
    let machine = two_sockets();
    let port = &Adapter::read(&machine.system(), "mlx5_1").ports[0];
    let choice = choose_gid(&port.gids, &port.link_layer, &GidRules::default());
    assert_eq!(choice.chosen.unwrap().to_string(), "10.10.0.1");
    let reasons: Vec<Option<&str>> = choice
        .verdicts
        .iter()
        .map(|verdict| verdict.rejected.as_deref())
        .collect();
    let v1 = Some("RoCE v1 cannot be routed, and peers use v2");
    let link_local = Some("link-local IPv6: index 3 is IPv4");
    assert_eq!(
        reasons,
        [v1, link_local, v1, None],
        "the empty entry 4 is not listed"
    );
}

#[test]
fn rules_narrow_the_gids_and_say_so() {
    let v2 = GidKind::RoceV2;
    let gids = [
        gid(1, "fe80::1", v2, "eth0"),
        gid(3, "::ffff:10.0.0.1", v2, "eth0"),
        gid(5, "::ffff:10.1.0.1", v2, "eth1"),
        gid(7, "2001:db8::1", v2, "eth1"),
        gid(8, "::ffff:10.0.0.1", GidKind::RoceV1, "eth0"),
    ];
    let chosen = |rules: GidRules| {
        let choice = choose_gid(&gids, &LinkLayer::Ethernet, &rules);
        choice.chosen.map(|gid| gid.index)
    };
    let any = GidRules::default;
    assert_eq!(chosen(any()), Some(3));
    assert_eq!(
        chosen(GidRules {
            index: Some(5),
            ..any()
        }),
        Some(5)
    );
    assert_eq!(
        chosen(GidRules {
            index: Some(8),
            ..any()
        }),
        None
    );
    let allow_roce_v1 = true;
    assert_eq!(
        chosen(GidRules {
            index: Some(8),
            allow_roce_v1,
            ..any()
        }),
        Some(8)
    );
    assert_eq!(
        chosen(GidRules {
            family: Some(Family::V6),
            ..any()
        }),
        Some(7)
    );
    assert_eq!(
        chosen(GidRules {
            interface: Some("eth1".into()),
            ..any()
        }),
        Some(5)
    );
    let address = Some("10.1.0.1".parse().unwrap());
    assert_eq!(chosen(GidRules { address, ..any() }), Some(5));
    let rules = GidRules {
        interface: Some("eth1".into()),
        ..any()
    };
    let verdicts = choose_gid(&gids, &LinkLayer::Ethernet, &rules).verdicts;
    assert_eq!(
        verdicts[1].rejected.as_deref(),
        Some("it is of eth0, eth1 is asked for")
    );
    assert_eq!(
        verdicts[3].rejected.as_deref(),
        Some("IPv6: index 5 is IPv4")
    );
}

#[test]
fn on_infiniband_the_first_gid_of_the_subnet_is_chosen() {
    let ib = GidKind::InfiniBand;
    let gids = [
        gid(0, "fe80::ec0d:9a03:2:1", ib, ""),
        gid(1, "fe80::ec0d:9a03:2:2", ib, ""),
    ];
    let choice = choose_gid(&gids, &LinkLayer::InfiniBand, &GidRules::default());
    assert_eq!(choice.chosen.unwrap().index, 0);
    let reason = choice.verdicts[1].rejected.as_deref();
    assert_eq!(reason, Some("as good as index 0, which comes first"));
    let roce = [gid(0, "fe80::1", GidKind::RoceV2, "eth0")];
    let choice = choose_gid(&roce, &LinkLayer::InfiniBand, &GidRules::default());
    assert!(choice.chosen.is_none());
}

#[test]
fn garbage_in_the_kernels_files_is_no_adapter_and_no_panic() {
    let machine = Machine::new();
    let port = "/sys/class/infiniband/odd0/ports/1";
    machine.file(&format!("{port}/state"), "garbage");
    machine.file(&format!("{port}/rate"), "-- Gb/sec");
    machine.file(&format!("{port}/gids/0"), "not an address");
    machine.file(
        &format!("{port}/gids/999"),
        "fe80:0000:0000:0000:0000:0000:0000:0001",
    );
    machine.file("/sys/class/infiniband/odd0/ports/many/state", "4: ACTIVE");
    let adapter = Adapter::read(&machine.system(), "odd0");
    assert_eq!(adapter.ports.len(), 1);
    assert!(adapter.ports[0].gids.is_empty());
    let choice = machine.choose(&Location::default(), &Options::default());
    assert!(
        choice
            .absence()
            .unwrap()
            .contains("odd0:1: its state is UNKNOWN")
    );
}

#[test]
fn the_report_names_place_way_and_reason_in_json() {
    let machine = two_sockets();
    let choice = machine.choose(&machine.gpu(), &Options::default());
    let json = serde_json::to_value(&choice).unwrap();
    assert_eq!(json["device"]["pci_address"], "0000:1b:00.0");
    assert_eq!(json["ports"][0]["adapter"], "mlx5_1");
    assert_eq!(json["ports"][0]["distance"]["proximity"], "same_switch");
    assert_eq!(json["ports"][0]["rank"], 1);
    assert_eq!(json["ports"][0]["gids"][3]["address"], "::ffff:10.10.0.1");
}
