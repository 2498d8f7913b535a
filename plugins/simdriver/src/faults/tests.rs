//! The grammar, and that counts are of the site and the device.

use super::{Effect, Faults};

#[test]
fn the_nth_call_of_a_function_fails_and_no_other() {
    let faults = Faults::parse("cuMemAlloc_v2:2@2");
    assert_eq!(faults.count("cuMemAlloc_v2", None), None);
    assert_eq!(faults.count("cuMemFree_v2", None), None);
    assert_eq!(faults.count("cuMemAlloc_v2", None), Some(Effect::Status(2)));
    assert_eq!(faults.count("cuMemAlloc_v2", None), None);
}

#[test]
fn a_plus_makes_all_later_ones_fail() {
    let faults = Faults::parse(" work.1:stuck@2+ ,cuInit:100!@1");
    assert_eq!(faults.count("work", Some(1)), None);
    assert_eq!(faults.count("work", Some(0)), None);
    assert_eq!(faults.count("work", Some(1)), Some(Effect::Stuck));
    assert_eq!(faults.count("work", Some(1)), Some(Effect::Stuck));
    assert_eq!(faults.count("cuInit", None), Some(Effect::Sticky(100)));
}

#[test]
fn a_device_breaks_by_time() {
    let faults = Faults::parse("device.1:719@0ms,device:214@3600000ms");
    assert_eq!(faults.device_fault(1), Some(719));
    assert_eq!(faults.device_fault(0), None);
}

#[test]
fn what_is_not_understood_does_nothing() {
    let faults = Faults::parse("cuInit,cuInit:x@1,cuInit:1@y,cuInit@1,,:@");
    assert_eq!(faults.count("cuInit", None), None);
}
