//! What is found where, and what is refused.

use stepmesh_abi::Code;
use stepmesh_abi::memory::{SM_MEMORY_DEVICE, SM_MEMORY_HOST_REGISTERED};

use super::{Allocation, Allocations};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Own,
    Registered,
}

fn own(len_bytes: u64) -> Allocation<Origin> {
    Allocation::new(len_bytes, Some(1), SM_MEMORY_DEVICE, 0, Origin::Own)
}

fn registered(len_bytes: u64) -> Allocation<Origin> {
    Allocation::new(
        len_bytes,
        None,
        SM_MEMORY_HOST_REGISTERED,
        0,
        Origin::Registered,
    )
}

#[test]
fn an_allocation_is_found_by_any_range_within_it() {
    let table = Allocations::default();
    table.insert(0x1000, own(0x100));
    let base = |ptr, len| table.find(ptr, len, |base, _| base);
    for (ptr, len) in [(0x1000, 0x100), (0x1001, 1), (0x10ff, 1), (0x1100, 0)] {
        assert_eq!(base(ptr, len), Some(0x1000), "{len} bytes at {ptr:#x}");
    }
    for (ptr, len) in [(0xfff, 1), (0x1000, 0x101), (0x1100, 1), (0x1080, u64::MAX)] {
        assert_eq!(base(ptr, len), None, "{len} bytes at {ptr:#x}");
    }
    let attributes = table.attributes(0x1010).unwrap();
    assert_eq!(attributes.base, 0x1000);
    assert_eq!(attributes.size, 0x100);
    assert_eq!(attributes.device, 1);
    assert!(attributes.alloc_id > 0);
}

#[test]
fn no_number_comes_twice() {
    assert_ne!(own(1).alloc_id, own(1).alloc_id);
}

#[test]
fn registered_memory_does_not_overlap_what_is_known() {
    let table = Allocations::default();
    table.insert(0x1000, own(0x100));
    for ptr in [0xf81, 0x1000, 0x1080, 0x10ff] {
        let refused = table
            .insert_apart(ptr, 0x80, || registered(0x80))
            .unwrap_err();
        assert_eq!(refused.code(), Code::AlreadyExists, "{ptr:#x}");
    }
    table
        .insert_apart(0xf80, 0x80, || registered(0x80))
        .unwrap();
    table
        .insert_apart(0x1100, 0x80, || registered(0x80))
        .unwrap();
    let beyond = table
        .insert_apart(u64::MAX, 2, || registered(2))
        .unwrap_err();
    assert_eq!(beyond.code(), Code::InvalidArgument);
}

#[test]
fn only_what_was_allocated_on_a_device_is_freed_there() {
    let table = Allocations::default();
    table.insert(0x1000, own(0x100));
    table.insert(0x2000, registered(0x100));
    let take = |device, ptr| table.take_allocation(device, ptr, |origin| *origin == Origin::Own);
    for (device, ptr, what) in [
        (1, 0x3000, "no allocation is there"),
        (1, 0x1080, "it lies within the allocation at 0x1000"),
        (1, 0x2000, "it was imported or registered"),
        (0, 0x1000, "it belongs to another device"),
    ] {
        let refused = take(device, ptr).unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.to_string().contains(what), "{refused}");
    }
    assert_eq!(take(1, 0x1000).unwrap().len_bytes, 0x100);
    take(1, 0x1000).unwrap_err();
    assert_eq!(table.drain().len(), 1);
}

#[test]
fn a_range_that_leaves_its_allocation_is_refused() {
    let table = Allocations::default();
    table.insert(0x1000, own(0x100));
    table.check_range(0x1000, 0x100).unwrap();
    table.check_range(0x5000, 0x100).unwrap();
    let beyond = table.check_range(0x1080, 0x81).unwrap_err();
    assert!(beyond.to_string().contains("0x1000"), "{beyond}");
}

#[test]
fn an_update_may_make_change_and_end_what_is_there() {
    let table = Allocations::default();
    table.update(0x1000, |slot| *slot = Some(own(1)));
    let grown = table.update(0x1000, |slot| {
        let allocation = slot.as_mut()?;
        allocation.len_bytes += 1;
        Some(allocation.len_bytes)
    });
    assert_eq!(grown, Some(2));
    assert!(
        table
            .take_if(0x1000, |known| known.len_bytes == 1)
            .is_none()
    );
    table.update(0x1000, |slot| *slot = None);
    assert!(table.attributes(0x1000).is_none());
}
