//! Allocation within the limit, pointers, pinned memory and its sharing.

use std::collections::HashSet;
use std::os::fd::{AsFd as _, FromRawFd as _, OwnedFd};
use std::ptr::null;

use stepmesh_plugin::abi::error::{
    SM_ALREADY_EXISTS, SM_ERROR_OOM, SM_INVALID_ARGUMENT, SM_NOT_FOUND, SM_RESOURCE_EXHAUSTED,
    SM_UNIMPLEMENTED,
};
use stepmesh_plugin::abi::extension::{SM_EXTENSION_IPC_V1, SM_IPC_FD, SM_IPC_MAPPABLE};
use stepmesh_plugin::abi::memory::{
    SM_ALLOC_RDMA, SM_ALLOC_SHAREABLE, SM_MEMORY_DEVICE, SM_MEMORY_HOST_PINNED,
    SM_MEMORY_HOST_REGISTERED, SM_MEMORY_MANAGED, SM_MEMORY_UNKNOWN, SM_PTR_HOST_ACCESSIBLE,
    SM_PTR_IMPORTED,
};
use stepmesh_plugin::abi::{SmIpcHandle, SmIpcV1};

use crate::support::{Answer, Backend, FILLED, REQUIRED, bytes};

#[test]
fn device_memory_is_not_the_hosts_and_interior_pointers_resolve() {
    let b = Backend::open(&[]);
    for dev in [0, 1] {
        let ptr = b.alloc(dev, 5000).unwrap();
        let whole = b.attributes(ptr);
        assert_eq!((whole.base, whole.size), (ptr, 5000));
        assert_eq!(whole.kind, SM_MEMORY_DEVICE);
        assert_eq!(whole.device, i32::try_from(dev).unwrap());
        assert_eq!(whole.flags, 0);
        assert_eq!(b.attributes(ptr + 1), whole);
        assert_eq!(b.attributes(ptr + 4999), whole);
        assert_ne!(b.attributes(ptr + 5000).alloc_id, whole.alloc_id);
        b.free(dev, ptr).unwrap();
        assert_eq!(b.attributes(ptr).kind, SM_MEMORY_UNKNOWN);
    }
}

#[test]
fn allocations_are_apart_aligned_and_their_numbers_never_come_again() {
    let b = Backend::open(&[]);
    let (mut ids, mut addresses) = (HashSet::new(), HashSet::new());
    for round in 0..3 {
        let mut live: Vec<(u64, u64)> = Vec::new();
        for (flags, size) in [(0, 1), (0, 4095), (SM_ALLOC_RDMA, 4097), (0, 1 << 20)] {
            for align in [0, 64, 65_536, 2 << 20, 1 << 30] {
                let size = size + round;
                // The largest alignment fits once: at the start.
                let Ok(ptr) = b.alloc_with(0, size, align, SM_MEMORY_DEVICE, flags) else {
                    assert_eq!(align, 1 << 30);
                    continue;
                };
                assert_eq!(ptr % align.max(1), 0);
                assert!(flags & SM_ALLOC_RDMA == 0 || ptr.is_multiple_of(65_536));
                assert!(live.iter().all(|(p, s)| ptr + size <= *p || p + s <= ptr));
                assert!(ids.insert(b.attributes(ptr).alloc_id));
                addresses.insert(ptr);
                live.push((ptr, size));
            }
        }
        for (ptr, _) in live {
            b.free(0, ptr).unwrap();
        }
    }
    assert!(addresses.len() < ids.len(), "no address was used again");
}

#[test]
fn memory_ends_at_its_limit_and_comes_back() {
    let b = Backend::open(&[("memory_len_bytes", "1048576")]);
    assert_eq!(b.memory(0), Ok((1 << 20, 1 << 20)));
    let first = b.alloc(0, 700_000).unwrap();
    let (free, total) = b.memory(0).unwrap();
    assert!(free <= (1 << 20) - 700_000 && total == 1 << 20);
    for size in [700_000, (1 << 20) + 1, 1 << 62, u64::MAX] {
        let full = b.alloc(0, size).unwrap_err();
        assert_eq!(full.code, SM_RESOURCE_EXHAUSTED, "{full:?}");
        assert_ne!(full.flags & SM_ERROR_OOM, 0);
        assert!(full.message.contains(&size.to_string()), "{full:?}");
    }
    let second = b.alloc(0, 100_000).unwrap();
    // The other device has its own.
    let other = b.alloc(1, 1 << 20).unwrap();
    b.free(0, first).unwrap();
    b.free(0, second).unwrap();
    let whole = b.alloc(0, 1 << 20).unwrap();
    assert_eq!(b.memory(0), Ok((0, 1 << 20)));
    b.free(0, whole).unwrap();
    b.free(1, other).unwrap();
    assert_eq!(b.memory(0), Ok((1 << 20, 1 << 20)));
}

#[test]
fn thousands_of_allocations_take_no_descriptors_and_freed_memory_reads_as_zeros() {
    let b = Backend::open(&[]);
    let count = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = count();
    let live: Vec<u64> = (0..3000).map(|_| b.alloc(0, 100).unwrap()).collect();
    // Other tests open descriptors meanwhile; thousands they do not.
    assert!(count() < before + 1000);
    b.write(live[7], &[9; 100]);
    for ptr in &live {
        b.free(0, *ptr).unwrap();
    }
    let again = b.alloc(0, 3000 * 4096).unwrap();
    assert!(b.read(again, 3000 * 4096).iter().all(|byte| *byte == 0));
}

#[test]
fn freeing_what_is_not_the_start_of_an_allocation_names_it() {
    let b = Backend::open(&[]);
    b.free(0, 0).unwrap();
    let ptr = b.alloc(0, 10_000).unwrap();
    for (dev, at) in [(0, ptr + 8), (0, 8), (1, ptr)] {
        let refused = b.free(dev, at).unwrap_err();
        assert_eq!(refused.code, SM_INVALID_ARGUMENT);
        assert!(refused.message.contains(&format!("{at:#x}")), "{refused:?}");
    }
    b.free(0, ptr).unwrap();
    assert_eq!(b.free(0, ptr).unwrap_err().code, SM_INVALID_ARGUMENT);
}

#[test]
fn kinds_and_flags_that_there_are_not_are_unimplemented() {
    let b = Backend::open(&[]);
    let managed = b.alloc_with(0, 100, 0, SM_MEMORY_MANAGED, 0).unwrap_err();
    assert_eq!(managed.code, SM_UNIMPLEMENTED);
    let shared = b.alloc_with(0, 100, 0, SM_MEMORY_DEVICE, SM_ALLOC_SHAREABLE);
    assert_eq!(shared.unwrap_err().code, SM_UNIMPLEMENTED);
}

#[test]
fn registered_host_memory_is_known_until_it_is_not() {
    let b = Backend::open(&[]);
    let mut own = vec![3_u8; 1000];
    let at = own.as_mut_ptr();
    let ptr = u64::try_from(at.expose_provenance()).unwrap();
    let register = b.api.host_register.expect(FILLED);
    let mut device_ptr = 0;
    // SAFETY: the vector lives longer than its registration.
    let again =
        || b.call(|s, e| unsafe { register(s, at.cast(), 1000, 0, &raw mut device_ptr, e) });
    let mut again = again;
    again().unwrap();
    assert_eq!(again().unwrap_err().code, SM_ALREADY_EXISTS);
    assert_eq!(device_ptr, ptr);
    assert_eq!(b.attributes(ptr + 999).kind, SM_MEMORY_HOST_REGISTERED);
    let dev = b.alloc(0, 1000).unwrap();
    b.copy_now(dev, ptr, 1000).unwrap();
    assert_eq!(b.read(dev, 1000), own);
    let unregister = b.api.host_unregister.expect(FILLED);
    // SAFETY: the vector is still there.
    b.call(|s, e| unsafe { unregister(s, at.cast(), e) })
        .unwrap();
    // SAFETY: as above.
    let twice = b.call(|s, e| unsafe { unregister(s, at.cast(), e) });
    assert_eq!(twice.unwrap_err().code, SM_NOT_FOUND);
}

fn table(b: &Backend) -> &'static SmIpcV1 {
    let (mut table, mut version) = (null(), 0);
    let name = SM_EXTENSION_IPC_V1;
    let len = u32::try_from(name.len()).expect("short");
    let get = b.api.get_extension.expect(REQUIRED);
    let (out, out_version) = (&raw mut table, &raw mut version);
    // SAFETY: an open instance, a static name and local out pointers.
    let found = b.call(|s, e| unsafe { get(s, name.as_ptr().cast(), len, 1, out, out_version, e) });
    assert_eq!((found, version), (Ok(()), 1));
    // SAFETY: the table is static.
    unsafe { &*table.cast::<SmIpcV1>() }
}

fn export(b: &Backend, dev: u32, ptr: u64, size: u64) -> Answer<(OwnedFd, SmIpcHandle)> {
    let mut handle = SmIpcHandle::new();
    let export = table(b).export_memory.expect(REQUIRED);
    // SAFETY: an open instance and a local struct that says its size.
    b.call(|s, e| unsafe { export(s, dev, ptr, size, &raw mut handle, e) })?;
    // SAFETY: the descriptor became the caller's.
    Ok((unsafe { OwnedFd::from_raw_fd(handle.fd) }, handle))
}

#[test]
fn pinned_memory_can_be_mapped_by_others_and_device_memory_cannot() {
    let (here, there) = (Backend::open(&[]), Backend::open(&[]));
    let ptr = here
        .alloc_with(1, 9000, 0, SM_MEMORY_HOST_PINNED, SM_ALLOC_SHAREABLE)
        .unwrap();
    let attributes = here.attributes(ptr + 8999);
    assert_eq!(
        (attributes.kind, attributes.device),
        (SM_MEMORY_HOST_PINNED, 1)
    );
    assert_ne!(attributes.flags & SM_PTR_HOST_ACCESSIBLE, 0);

    let (fd, handle) = export(&here, 1, ptr + 5000, 100).unwrap();
    assert_eq!((handle.kind, handle.flags), (SM_IPC_FD, SM_IPC_MAPPABLE));
    assert_eq!((handle.offset, handle.len), (5000, 100));
    let mut peer = 0;
    let import = table(&there).import_memory.expect(REQUIRED);
    // SAFETY: an open instance, a handle that says its size and a local out pointer.
    there
        .call(|s, e| unsafe { import(s, 0, &raw const handle, &raw mut peer, e) })
        .unwrap();
    assert!(
        fd.as_fd().try_clone_to_owned().is_ok(),
        "the descriptor stayed the caller's"
    );
    bytes(ptr + 5000, 100).fill(4);
    assert_eq!(bytes(peer, 100), [4; 100]);
    let attributes = there.attributes(peer);
    assert_eq!(
        (attributes.kind, attributes.size),
        (SM_MEMORY_HOST_PINNED, 100)
    );
    assert_ne!(attributes.flags & SM_PTR_IMPORTED, 0);
    let close = table(&there).close_import.expect(REQUIRED);
    // SAFETY: an open instance; the test uses the import no more.
    there.call(|s, e| unsafe { close(s, 0, peer, e) }).unwrap();
    // SAFETY: as above.
    let twice = there.call(|s, e| unsafe { close(s, 0, peer, e) });
    assert_eq!(twice.unwrap_err().code, SM_NOT_FOUND);

    let device = here.alloc(0, 9000).unwrap();
    for (dev, at, size, code) in [
        (0, device, 9000, SM_UNIMPLEMENTED),
        (1, ptr, 9001, SM_INVALID_ARGUMENT),
        (0, ptr, 9000, SM_INVALID_ARGUMENT),
        (0, 1, 1, SM_INVALID_ARGUMENT),
    ] {
        let refused = export(&here, dev, at, size).map(drop).unwrap_err();
        assert_eq!(refused.code, code, "{refused:?}");
    }
    let lie = SmIpcHandle {
        len: 1 << 40,
        ..handle
    };
    // SAFETY: as above.
    let refused = there.call(|s, e| unsafe { import(s, 0, &raw const lie, &raw mut peer, e) });
    assert_eq!(refused.unwrap_err().code, SM_INVALID_ARGUMENT);
}
