//! Probing, devices, and what is left behind after a close.

use std::collections::HashSet;
use std::ptr::null_mut;

use stepmesh_plugin::abi::SmDeviceInfo;
use stepmesh_plugin::abi::device::{SM_CAP_IPC, SM_DLPACK_CPU, SM_HEALTH_OK};
use stepmesh_plugin::abi::error::{SM_INVALID_ARGUMENT, SM_OK};
use stepmesh_plugin::abi::stream::SM_STREAM_LEGACY;

use crate::support::{Backend, LONG_NS, REQUIRED, bytes};

fn device_count(b: &Backend) -> u32 {
    let mut n = 0;
    let count = b.api.device_count.expect(REQUIRED);
    // SAFETY: an open instance and a local out pointer.
    b.call(|s, e| unsafe { count(s, &raw mut n, e) })
        .expect("devices can be counted");
    n
}

#[test]
fn probe_and_count_agree_and_do_not_change() {
    let b = Backend::open();
    let probe = b.api.probe.unwrap();
    for _ in 0..100 {
        let (mut n, mut score) = (0, 0);
        // SAFETY: local out pointers.
        let code = unsafe { probe(&raw mut n, &raw mut score, null_mut()) };
        assert_eq!(code, SM_OK);
        assert!(score > 0);
        assert_eq!(n, device_count(&b));
    }
    assert!(device_count(&b) >= 1);
}

#[test]
fn every_device_tells_what_it_is() {
    let b = Backend::open();
    let info = b.api.device_info.unwrap();
    let mut uuids = HashSet::new();
    for dev in 0..device_count(&b) {
        let mut out = SmDeviceInfo::new();
        // SAFETY: an open instance and a local struct that says its size.
        b.call(|s, e| unsafe { info(s, dev, &raw mut out, e) })
            .unwrap();
        assert_eq!((out.dlpack_type, out.integrated), (SM_DLPACK_CPU, 1));
        assert!(out.name[0] != 0 && out.arch[0] != 0);
        assert!(out.total_mem > 0 && out.page_granularity >= 4096);
        assert!(uuids.insert(out.uuid));
        let (mut free, mut total) = (0, 0);
        let mem_info = b.api.mem_info.unwrap();
        // SAFETY: an open instance and local out pointers.
        b.call(|s, e| unsafe { mem_info(s, dev, &raw mut free, &raw mut total, e) })
            .unwrap();
        assert!(free > 0 && free <= total);
        let mut bits = 0;
        let capabilities = b.api.capabilities.unwrap();
        // SAFETY: an open instance and a local out pointer.
        b.call(|s, e| unsafe { capabilities(s, dev, &raw mut bits, e) })
            .unwrap();
        assert_ne!(bits & SM_CAP_IPC, 0);
        let mut state = 9;
        let health = b.api.health.unwrap();
        // SAFETY: an open instance and a local out pointer.
        b.call(|s, e| unsafe { health(s, dev, &raw mut state, e) })
            .unwrap();
        assert_eq!(state, SM_HEALTH_OK);
    }
    let mut out = SmDeviceInfo::new();
    // SAFETY: as above.
    let beyond = b
        .call(|s, e| unsafe { info(s, 5000, &raw mut out, e) })
        .unwrap_err();
    assert_eq!(beyond.code, SM_INVALID_ARGUMENT);
    assert!(beyond.message.contains("5000"), "{beyond:?}");
}

#[test]
fn the_current_device_is_the_threads_own() {
    let b = Backend::open();
    let get = b.api.get_current_device.unwrap();
    let current = || {
        let mut dev = -7;
        // SAFETY: an open instance and a local out pointer.
        b.call(|s, e| unsafe { get(s, &raw mut dev, e) }).unwrap();
        dev
    };
    let set = b.api.set_current_device.unwrap();
    let last = device_count(&b) - 1;
    // SAFETY: an open instance.
    b.call(|s, e| unsafe { set(s, last, e) }).unwrap();
    assert_eq!(current(), i32::try_from(last).unwrap());
    // SAFETY: an open instance.
    let beyond = b.call(|s, e| unsafe { set(s, last + 1, e) });
    assert_eq!(beyond.unwrap_err().code, SM_INVALID_ARGUMENT);
    assert_eq!(current(), i32::try_from(last).unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(current(), 0));
    });
}

/// Threads and mappings of this backend in the process, of every instance.
fn leftovers() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("the process has tasks");
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).ok();
    let threads = tasks.filter_map(Result::ok).filter_map(name);
    let threads = threads.filter(|name| name.starts_with("sm-cpu-")).count();
    let maps = std::fs::read_to_string("/proc/self/maps").expect("the process has mappings");
    threads + maps.matches("memfd:stepmesh-cpu").count()
}

#[test]
fn closing_leaves_no_threads_and_mappings_behind() {
    let before = leftovers();
    for _ in 0..300 {
        let b = Backend::open();
        let (x, y) = (b.alloc(64).unwrap(), b.alloc(1 << 20).unwrap());
        let stream = b.stream();
        bytes(x, 64).fill(3);
        b.copy(y, x, 64, stream).unwrap();
        b.copy(y + 64, x, 64, SM_STREAM_LEGACY).unwrap();
        b.stream_sync(stream, LONG_NS).unwrap();
        // Memory and streams are left to close: 4 leftovers an instance if it forgot them.
        b.close().unwrap();
    }
    // Tests beside this one have some of their own, but not as many.
    assert!(leftovers() < before + 300, "{before} then {}", leftovers());
}
