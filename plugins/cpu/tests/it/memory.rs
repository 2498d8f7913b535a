//! Allocation, pointers, registration.

use std::collections::HashSet;

use stepmesh_plugin::abi::error::{
    SM_ALREADY_EXISTS, SM_ERROR_OOM, SM_INVALID_ARGUMENT, SM_NOT_FOUND, SM_RESOURCE_EXHAUSTED,
    SM_UNIMPLEMENTED,
};
use stepmesh_plugin::abi::memory::{
    SM_ALLOC_RDMA, SM_ALLOC_SHAREABLE, SM_MEMORY_DEVICE, SM_MEMORY_HOST_PINNED,
    SM_MEMORY_HOST_REGISTERED, SM_MEMORY_MANAGED, SM_MEMORY_UNKNOWN, SM_PTR_HOST_ACCESSIBLE,
};
use stepmesh_plugin::abi::stream::SM_STREAM_LEGACY;

use crate::support::{Backend, LONG_NS, bytes};

#[test]
fn allocations_of_every_size_are_apart_aligned_and_writable() {
    let b = Backend::open();
    let mut live: Vec<(u64, u64)> = Vec::new();
    for flags in [0, SM_ALLOC_SHAREABLE, SM_ALLOC_RDMA] {
        for size in [1, 64, 4095, 4096, 65_536, 65_537, 1 << 20, 5 << 20] {
            for align in [0, 64, 4096, 65_536, 2 << 20] {
                let ptr = b.alloc_with(size, align, SM_MEMORY_DEVICE, flags).unwrap();
                assert_eq!(ptr % align.max(1), 0);
                assert!(flags & SM_ALLOC_RDMA == 0 || ptr.is_multiple_of(65_536));
                let end = ptr + size;
                assert!(live.iter().all(|(p, s)| end <= *p || p + s <= ptr));
                let len = usize::try_from(size).unwrap();
                bytes(ptr, len).fill(u8::try_from(live.len()).unwrap());
                live.push((ptr, size));
            }
        }
    }
    for (idx, (ptr, size)) in live.iter().enumerate() {
        let len = usize::try_from(*size).unwrap();
        let tag = u8::try_from(idx).unwrap();
        assert!(bytes(*ptr, len).iter().all(|byte| *byte == tag));
    }
    for (ptr, _) in live {
        b.free(ptr).unwrap();
    }
}

#[test]
fn a_thousand_small_allocations_do_not_take_a_descriptor_each() {
    let b = Backend::open();
    let count = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = count();
    let live: Vec<u64> = (0..1000).map(|_| b.alloc(4096).unwrap()).collect();
    // Other tests open descriptors meanwhile; a thousand they do not.
    assert!(count() < before + 300, "{before} then {}", count());
    for ptr in live {
        b.free(ptr).unwrap();
    }
}

#[test]
fn an_impossible_size_is_out_of_memory_and_the_next_allocation_works() {
    let b = Backend::open();
    for size in [1 << 62, u64::MAX, 1 << 45] {
        let failure = b.alloc(size).unwrap_err();
        assert_eq!(failure.code, SM_RESOURCE_EXHAUSTED, "{failure:?}");
        assert_ne!(failure.flags & SM_ERROR_OOM, 0);
        assert!(failure.message.contains(&size.to_string()), "{failure:?}");
    }
    let ptr = b.alloc(100).unwrap();
    b.free(ptr).unwrap();
}

#[test]
fn freeing_what_is_not_the_start_of_an_allocation_names_it() {
    let b = Backend::open();
    b.free(0).unwrap();
    let ptr = b.alloc(10_000).unwrap();
    let within = b.free(ptr + 8).unwrap_err();
    assert_eq!(within.code, SM_INVALID_ARGUMENT);
    assert!(
        within.message.contains(&format!("{:#x}", ptr + 8)),
        "{within:?}"
    );
    assert!(within.message.contains(&format!("{ptr:#x}")), "{within:?}");
    b.free(ptr).unwrap();
    let again = b.free(ptr).unwrap_err();
    assert_eq!(again.code, SM_INVALID_ARGUMENT);
    assert!(
        again.message.contains("no allocation is there"),
        "{again:?}"
    );
}

#[test]
fn interior_pointers_resolve_and_the_end_does_not() {
    let b = Backend::open();
    for size in [5000, 1 << 20] {
        let ptr = b.alloc(size).unwrap();
        let whole = b.attributes(ptr);
        assert_eq!(
            (whole.base, whole.size, whole.kind),
            (ptr, size, SM_MEMORY_DEVICE)
        );
        assert_eq!(whole.device, 0);
        assert_ne!(whole.flags & SM_PTR_HOST_ACCESSIBLE, 0);
        assert_eq!(b.attributes(ptr + 1), whole);
        assert_eq!(b.attributes(ptr + size - 1), whole);
        assert_ne!(b.attributes(ptr + size).alloc_id, whole.alloc_id);
        b.free(ptr).unwrap();
        assert_eq!(b.attributes(ptr).kind, SM_MEMORY_UNKNOWN);
    }
}

#[test]
fn memory_of_others_is_unknown_and_no_error() {
    let b = Backend::open();
    let local = 0_u8;
    let addr = u64::try_from((&raw const local).addr()).unwrap();
    for ptr in [0, addr, u64::MAX] {
        let unknown = b.attributes(ptr);
        assert_eq!(
            (unknown.kind, unknown.device, unknown.alloc_id),
            (SM_MEMORY_UNKNOWN, -1, 0)
        );
    }
}

#[test]
fn an_allocation_id_never_comes_again_though_the_address_does() {
    let b = Backend::open();
    let (mut ids, mut addresses) = (HashSet::new(), HashSet::new());
    for _ in 0..200 {
        let ptr = b.alloc(4096).unwrap();
        assert!(ids.insert(b.attributes(ptr).alloc_id));
        addresses.insert(ptr);
        b.free(ptr).unwrap();
    }
    assert!(
        addresses.len() < 200,
        "the test needs an address to be used again"
    );
}

#[test]
fn pinned_memory_is_host_memory_of_its_kind_and_managed_is_unimplemented() {
    let b = Backend::open();
    let ptr = b.alloc_with(100, 0, SM_MEMORY_HOST_PINNED, 0).unwrap();
    bytes(ptr, 100).fill(7);
    assert_eq!(b.attributes(ptr).kind, SM_MEMORY_HOST_PINNED);
    b.free(ptr).unwrap();
    let managed = b.alloc_with(100, 0, SM_MEMORY_MANAGED, 0).unwrap_err();
    assert_eq!(managed.code, SM_UNIMPLEMENTED);
}

#[test]
fn registering_twice_and_unregistering_the_unknown_are_told_apart() {
    let b = Backend::open();
    let mut memory = vec![0_u8; 10_000];
    let ptr = memory.as_mut_ptr();
    let register = b.api.host_register.unwrap();
    let unregister = b.api.host_unregister.unwrap();
    let mut out = 0;
    // SAFETY: here and below: an open instance, memory that outlives it, a local out pointer.
    let first = b.call(|s, e| unsafe { register(s, ptr.cast(), 10_000, 0, &raw mut out, e) });
    assert_eq!(first, Ok(()));
    assert_eq!(out, u64::try_from(ptr.addr()).unwrap());
    assert_eq!(b.attributes(out + 9999).kind, SM_MEMORY_HOST_REGISTERED);
    // SAFETY: as above.
    let again = b.call(|s, e| unsafe { register(s, ptr.cast(), 1, 0, &raw mut out, e) });
    assert_eq!(again.unwrap_err().code, SM_ALREADY_EXISTS);
    assert_eq!(b.free(out).unwrap_err().code, SM_INVALID_ARGUMENT);
    // SAFETY: as above.
    b.call(|s, e| unsafe { unregister(s, ptr.cast(), e) })
        .unwrap();
    // SAFETY: as above.
    let gone = b.call(|s, e| unsafe { unregister(s, ptr.cast(), e) });
    assert_eq!(gone.unwrap_err().code, SM_NOT_FOUND);
}

#[test]
fn fills_of_every_width_write_the_pattern() {
    let b = Backend::open();
    let ptr = b.alloc(64).unwrap();
    let fill = b.api.memset_async.unwrap();
    let cases: [(u32, [u8; 4]); 3] = [(1, [4, 4, 4, 4]), (2, [4, 3, 4, 3]), (4, [4, 3, 2, 1])];
    for (width, pattern) in cases {
        bytes(ptr, 64).fill(0);
        let stream = SM_STREAM_LEGACY;
        // SAFETY: an open instance and a live allocation.
        let answer =
            b.call(|s, e| unsafe { fill(s, ptr + 4, 0x0102_0304, width, 56, 0, stream, e) });
        assert_eq!(answer, Ok(()));
        b.stream_sync(stream, LONG_NS).unwrap();
        let memory = bytes(ptr, 64);
        assert!(
            memory[4..60].chunks(4).all(|chunk| chunk == pattern),
            "{memory:?}"
        );
        assert_eq!((&memory[..4], &memory[60..]), (&[0; 4][..], &[0; 4][..]));
    }
    // SAFETY: as above; refused before memory is touched.
    let odd = b.call(|s, e| unsafe { fill(s, ptr, 0, 4, 6, 0, SM_STREAM_LEGACY, e) });
    assert_eq!(odd.unwrap_err().code, SM_INVALID_ARGUMENT);
    b.free(ptr).unwrap();
}

#[test]
fn memory_may_be_freed_by_another_thread() {
    let b = Backend::open();
    let ptr = b.alloc(1 << 20).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| b.free(ptr).unwrap());
    });
    assert_eq!(b.attributes(ptr).kind, SM_MEMORY_UNKNOWN);
}

#[test]
fn sixteen_threads_allocate_and_free_at_once() {
    let b = Backend::open();
    std::thread::scope(|scope| {
        for thread in 0..16_u8 {
            let b = &b;
            scope.spawn(move || {
                for round in 1..40_u64 {
                    let size = round * 997;
                    let ptr = b.alloc(size).unwrap();
                    let len = usize::try_from(size).unwrap();
                    bytes(ptr, len).fill(thread);
                    assert_eq!(b.attributes(ptr + size / 2).base, ptr);
                    assert!(bytes(ptr, len).iter().all(|byte| *byte == thread));
                    b.free(ptr).unwrap();
                }
            });
        }
    });
}
