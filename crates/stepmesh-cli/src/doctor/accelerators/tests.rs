//! Cards of a made-up machine.

use super::super::State;
use super::super::tests::Machine;

const CARD: &str = "sys/bus/pci/devices/0000:3b:00.0";

/// A card with a window of `end - start + 1` bytes.
fn card(vendor: &str, resource: &str, others: &[(&str, &str)]) -> Machine {
    let file = |name: &str| format!("{CARD}/{name}");
    let (class, vendor_file, device) = (file("class"), file("vendor"), file("device"));
    let (resources, node) = (file("resource"), file("numa_node"));
    let mut files = vec![
        (&*class, "0x030200\n"),
        (&*vendor_file, vendor),
        (&*device, "0x2335\n"),
        (&*resources, resource),
        (&*node, "1\n"),
    ];
    files.extend(others);
    Machine::with(&files)
}

const LARGE: &str = "0x0 0x0 0x0\n0x0000380000000000 0x0000383fffffffff 0x000000000014220c\n";
const SMALL: &str = "0x00000000e0000000 0x00000000efffffff 0x0\n";

#[test]
fn a_card_that_works_is_named_with_its_driver_node_and_window() {
    let machine = card("0x1002", LARGE, &[]).link(&format!("{CARD}/driver"), "../drivers/amdgpu");
    let findings = super::examine(&machine.system());
    assert_eq!(findings[0].found, "AMD 0x2335, NUMA node 1, driver amdgpu");
    assert_eq!(findings[1].found, "largest window (BAR) 256 GiB");
    assert!(findings.iter().all(|finding| finding.state == State::Ok));
}

#[test]
fn a_card_without_a_driver_is_bad_and_a_small_window_a_warning() {
    let findings = super::examine(&card("0x10de", SMALL, &[]).system());
    assert_eq!(findings[0].state, State::Bad);
    assert!(
        findings[0]
            .mend
            .as_deref()
            .unwrap()
            .starts_with("modprobe nvidia")
    );
    assert_eq!(findings[1].state, State::Warn);
    assert_eq!(findings[1].found, "largest window (BAR) 256 MiB");
}

#[test]
fn the_way_into_nvidias_memory_depends_on_the_modules() {
    let way = |version, others: &[(&str, &str)]| {
        let mut files = vec![("proc/driver/nvidia/version", version)];
        files.extend(others);
        let machine = card("0x10de", LARGE, &files);
        super::examine(&machine.system()).pop().unwrap()
    };
    let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86\nGCC version";
    let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.261\nGCC version";
    let peermem = [("sys/module/nvidia_peermem/version", "1")];
    assert!(way(open, &[]).found.starts_with("dma-buf"));
    assert_eq!(way(closed, &peermem).found, "nvidia-peermem");
    let none = way(closed, &[]);
    assert_eq!(none.state, State::Warn);
    assert!(none.mend.unwrap().contains("nvidia-peermem"));
}

#[test]
fn other_devices_are_none_of_our_business() {
    let files = [
        ("sys/bus/pci/devices/0000:00:02.0/class", "0x020000"),
        ("sys/bus/pci/devices/0000:00:02.0/vendor", "0x10de"),
        ("sys/bus/pci/devices/0000:00:03.0/class", "0x030000"),
        ("sys/bus/pci/devices/0000:00:03.0/vendor", "0x1234"),
    ];
    let findings = super::examine(&Machine::with(&files).system());
    assert_eq!(findings.len(), 1);
    assert_eq!(findings[0].found, "no accelerator of a known maker");
}

#[test]
fn ranges_of_garbage_have_no_length() {
    assert_eq!(super::range_len_bytes("0x1000 0x1fff 0x0"), Some(4096));
    assert_eq!(super::range_len_bytes("0x0 0x0 0x0"), None);
    assert_eq!(super::range_len_bytes("0x2000 0x1fff 0x0"), None);
    assert_eq!(super::range_len_bytes("0x2000 0x1000 0x0"), None);
    assert_eq!(super::range_len_bytes("0x0 0xffffffffffffffff"), None);
    assert_eq!(super::range_len_bytes("word"), None);
}
