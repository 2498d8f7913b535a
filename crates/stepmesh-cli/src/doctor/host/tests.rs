//! Each judgement at its border.

use rustix::process::Rlimit;
use stepmesh_core::config::{Config, PollMode};

use super::super::State;
use super::super::tests::Machine;

fn limit(current: u64) -> Rlimit {
    Rlimit {
        current: Some(current),
        maximum: None,
    }
}

#[test]
fn a_kernel_before_dma_buf_registration_is_a_warning() {
    let judge = |release| {
        let machine = Machine::with(&[("proc/sys/kernel/osrelease", release)]);
        super::kernel(&machine.system()).state
    };
    assert_eq!(judge("5.12.0"), State::Ok);
    assert_eq!(judge("6.1.0-57-amd64\n"), State::Ok);
    assert_eq!(judge("5.11.22-generic"), State::Warn);
    assert_eq!(judge("4.18.0-553.el8.x86_64"), State::Warn);
    assert_eq!(judge("odd"), State::Warn);
}

#[test]
fn little_locked_memory_is_bad_only_where_an_adapter_locks_it() {
    let eight_mib = limit(8 << 20);
    assert_eq!(super::memlock(eight_mib, false, true).state, State::Bad);
    assert_eq!(super::memlock(eight_mib, false, false).state, State::Ok);
    assert_eq!(super::memlock(eight_mib, true, true).state, State::Ok);
    assert_eq!(super::memlock(limit(1 << 30), false, true).state, State::Ok);
    let unlimited = Rlimit {
        current: None,
        maximum: None,
    };
    assert_eq!(super::memlock(unlimited, false, true).found, "no limit");
}

#[test]
fn the_capability_to_lock_is_bit_14() {
    let status = |mask: &str| {
        let text = format!("Name:\tx\nCapEff:\t{mask}\n");
        super::can_lock_all(&Machine::with(&[("proc/self/status", &text)]).system())
    };
    assert!(status("0000000000004000"));
    assert!(!status("ffffffffffffbfff"));
}

#[test]
fn files_for_every_peer_are_wanted() {
    let mut config = Config::default();
    config.limits.peers_max = 100;
    assert_eq!(super::open_files(limit(364), &config).state, State::Ok);
    let few = super::open_files(limit(363), &config);
    assert_eq!(few.state, State::Warn);
    assert!(few.mend.unwrap().starts_with("ulimit -n 364 "));
}

#[test]
fn a_translating_iommu_is_a_warning() {
    let judge = |command_line| {
        let files = [
            ("sys/class/iommu/dmar0/x", ""),
            ("proc/cmdline", command_line),
        ];
        super::iommu(&Machine::with(&files).system()).state
    };
    assert_eq!(judge("quiet intel_iommu=on"), State::Warn);
    assert_eq!(judge("quiet iommu=pt"), State::Ok);
    assert_eq!(super::iommu(&Machine::with(&[]).system()).found, "off");
}

#[test]
fn pages_are_small_only_when_nothing_else_is_allowed() {
    let judge = |total: u32, transparent: &str| {
        let memory = format!("HugePages_Total: {total}\nHugePages_Free: 0\nHugepagesize: 2048 kB");
        let files = [
            ("proc/meminfo", &*memory),
            ("sys/kernel/mm/transparent_hugepage/enabled", transparent),
        ];
        super::huge_pages(&Machine::with(&files).system())
    };
    assert_eq!(judge(0, "always madvise [never]").state, State::Warn);
    assert_eq!(judge(8, "always madvise [never]").state, State::Ok);
    let usual = judge(0, "always [madvise] never");
    assert_eq!(usual.found, "0 of 0 free, 2 MiB each; transparent: madvise");
}

#[test]
fn busy_polling_wants_a_core_of_its_own() {
    let mut config = Config::default();
    let none = Machine::with(&[("sys/devices/system/cpu/isolated", "\n")]).system();
    assert_eq!(super::processors(&none, &config, 8).state, State::Ok);
    config.transport.poll = PollMode::Busy;
    assert_eq!(super::processors(&none, &config, 8).state, State::Warn);
    let machine = Machine::with(&[("sys/devices/system/cpu/isolated", "4-7\n")]);
    let finding = super::processors(&machine.system(), &config, 8);
    assert_eq!(
        (finding.state, &*finding.found),
        (State::Ok, "8 usable, 4-7 isolated")
    );
}

#[test]
fn several_nodes_want_no_balancing() {
    let judge = |balancing| {
        let files = [
            ("sys/devices/system/node/node0/cpulist", ""),
            ("sys/devices/system/node/node1/cpulist", ""),
            ("proc/sys/kernel/numa_balancing", balancing),
        ];
        super::numa(&Machine::with(&files).system()).unwrap().state
    };
    assert_eq!(judge("1"), State::Warn);
    assert_eq!(judge("0"), State::Ok);
    let one = Machine::with(&[("sys/devices/system/node/node0/cpulist", "")]);
    assert_eq!(super::numa(&one.system()), None);
}

#[test]
fn sizes_are_in_the_largest_unit_that_they_fill() {
    assert_eq!(super::bytes_text(0), "0 B");
    assert_eq!(super::bytes_text(1023), "1023 B");
    assert_eq!(super::bytes_text(8 << 20), "8 MiB");
    assert_eq!(super::bytes_text(u64::MAX), "16777215 TiB");
}
