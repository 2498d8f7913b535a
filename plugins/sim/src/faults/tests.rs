//! The grammar, and counts by device.

use std::time::{Duration, Instant};

use stepmesh_plugin::abi::Code;
use stepmesh_plugin::abi::error::SM_ERROR_DEVICE_LOST;

use super::{Faults, Kind};

fn due(faults: &Faults, kind: Kind, device: u32, count: usize) -> Vec<bool> {
    let operations = 0..count;
    operations
        .map(|_| faults.count(kind, device).is_some())
        .collect()
}

#[test]
fn the_nth_operation_goes_wrong_once_or_from_then_on_on_each_device() {
    let faults = Faults::parse("alloc:oom@2, copy:fail@3+ ,,copy.1:fail@1", 2).unwrap();
    assert_eq!(
        due(&faults, Kind::AllocOom, 0, 4),
        [false, true, false, false]
    );
    assert_eq!(due(&faults, Kind::AllocOom, 1, 2), [false, true]);
    assert_eq!(
        due(&faults, Kind::CopyFail, 0, 4),
        [false, false, true, true]
    );
    assert_eq!(
        due(&faults, Kind::CopyFail, 1, 4),
        [true, false, true, true]
    );
    assert_eq!(due(&faults, Kind::StreamStuck, 0, 4), [false; 4]);
}

#[test]
fn by_time_the_first_operation_after_it_goes_wrong() {
    let mut faults = Faults::parse("copy:fail@60000ms, alloc:oom@60000ms+", 1).unwrap();
    assert_eq!(due(&faults, Kind::CopyFail, 0, 2), [false; 2]);
    faults.opened = Instant::now().checked_sub(Duration::from_secs(60)).unwrap();
    assert_eq!(due(&faults, Kind::CopyFail, 0, 3), [true, false, false]);
    assert_eq!(due(&faults, Kind::AllocOom, 0, 3), [true; 3]);
}

#[test]
fn a_device_is_lost_by_count_or_by_time_and_for_good() {
    let faults = Faults::parse("device.0:lost@2, device.1:lost@0ms", 3).unwrap();
    assert!(faults.is_lost(1) && !faults.is_lost(0) && !faults.is_lost(2));
    assert_eq!(faults.count_operation(0), Ok(()));
    let lost = faults.count_operation(0).unwrap_err();
    assert_eq!(lost.code(), Code::Unavailable);
    assert_ne!(lost.flags() & SM_ERROR_DEVICE_LOST, 0);
    assert!(lost.message().contains("`device.0:lost@2`"), "{lost}");
    for again in [
        faults.check(0),
        faults.count_operation(0),
        faults.count_operation(1),
    ] {
        assert_eq!(again.unwrap_err().code(), Code::Unavailable);
    }
    assert_eq!(faults.count_operation(2), Ok(()));
    assert_eq!(faults.check(7), Ok(()));
}

#[test]
fn what_is_not_a_fault_is_refused_by_name() {
    for text in [
        "alloc",
        "alloc:oom",
        "alloc@3",
        "alloc:lost@3",
        "alloc:oom@",
        "alloc:oom@0",
        "alloc:oom@-1",
        "alloc:oom@3s",
        "alloc:oom@ms",
        "alloc:oom@3++",
        "alloc.2:oom@3",
        "alloc.x:oom@3",
        "copy:fail@1, disk:full@2",
    ] {
        let error = Faults::parse(text, 2).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        let named = text.split(", ").last().unwrap();
        assert!(error.message().contains(&format!("`{named}`")), "{error}");
    }
    let many = Faults::parse(&"alloc:oom@1,".repeat(65), 1).unwrap_err();
    assert_eq!(many.code(), Code::InvalidArgument);
}
