//! Memory shared through descriptors: offsets, seals, import, files in a directory.

use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::ptr::null;

use rustix::fs::{MemfdFlags, SealFlags};
use stepmesh_plugin::abi::error::{SM_INVALID_ARGUMENT, SM_NOT_FOUND, SM_RESOURCE_EXHAUSTED};
use stepmesh_plugin::abi::extension::{SM_EXTENSION_IPC_V1, SM_IPC_FD, SM_IPC_MAPPABLE};
use stepmesh_plugin::abi::memory::{SM_ALLOC_SHAREABLE, SM_MEMORY_DEVICE, SM_PTR_IMPORTED};
use stepmesh_plugin::abi::{SmIpcHandle, SmIpcV1};

use crate::support::{Answer, Backend, bytes};

fn table(b: &Backend) -> &'static SmIpcV1 {
    let (mut table, mut version) = (null(), 0);
    let name = SM_EXTENSION_IPC_V1;
    let len = u32::try_from(name.len()).expect("short");
    let get = b.api.get_extension.expect("the kit fills this slot");
    let (out, out_version) = (&raw mut table, &raw mut version);
    // SAFETY: an open instance, a static name and local out pointers.
    let found = b.call(|s, e| unsafe { get(s, name.as_ptr().cast(), len, 1, out, out_version, e) });
    assert_eq!((found, version), (Ok(()), 1));
    // SAFETY: the table is static.
    unsafe { &*table.cast::<SmIpcV1>() }
}

fn export(b: &Backend, ptr: u64, size: u64) -> Answer<(OwnedFd, SmIpcHandle)> {
    let mut handle = SmIpcHandle::new();
    let export = table(b).export_memory.expect("the slot is required");
    // SAFETY: an open instance and a local struct that says its size.
    b.call(|s, e| unsafe { export(s, 0, ptr, size, &raw mut handle, e) })?;
    assert_eq!(
        (handle.kind, handle.len, handle.flags),
        (SM_IPC_FD, size, SM_IPC_MAPPABLE)
    );
    // SAFETY: the descriptor became the caller's.
    Ok((unsafe { OwnedFd::from_raw_fd(handle.fd) }, handle))
}

fn import(b: &Backend, handle: &SmIpcHandle) -> Answer<u64> {
    let mut ptr = 0;
    let import = table(b).import_memory.expect("the slot is required");
    // SAFETY: an open instance, a handle that says its size and a local out pointer.
    b.call(|s, e| unsafe { import(s, 0, handle, &raw mut ptr, e) })?;
    Ok(ptr)
}

fn close_import(b: &Backend, ptr: u64) -> Answer<()> {
    let close = table(b).close_import.expect("the slot is required");
    // SAFETY: an open instance; the test uses the import no more.
    b.call(|s, e| unsafe { close(s, 0, ptr, e) })
}

#[test]
fn an_exported_range_is_the_same_memory_in_another_instance() {
    let (here, there) = (Backend::open(), Backend::open());
    for (size, flags) in [(100, 0), (100, SM_ALLOC_SHAREABLE), (3 << 20, 0)] {
        // A neighbour, so that the range does not start its file.
        let neighbour = here.alloc(5000).unwrap();
        let ptr = here.alloc_with(size, 0, SM_MEMORY_DEVICE, flags).unwrap();
        let (fd, handle) = export(&here, ptr + 10, 80).unwrap();
        let flags = rustix::io::fcntl_getfd(&fd).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        let peer = import(&there, &handle).unwrap();
        drop(fd);
        bytes(ptr + 10, 80).fill(5);
        assert_eq!(bytes(peer, 80), [5; 80]);
        bytes(peer, 80).fill(6);
        assert_eq!(bytes(ptr + 10, 80), [6; 80]);
        let attributes = there.attributes(peer + 79);
        assert_eq!((attributes.base, attributes.size), (peer, 80));
        assert_ne!(attributes.flags & SM_PTR_IMPORTED, 0);
        assert_eq!(there.free(peer).unwrap_err().code, SM_INVALID_ARGUMENT);
        // The memory outlives its owner's free.
        here.free(ptr).unwrap();
        assert_eq!(bytes(peer, 80)[0], 6);
        close_import(&there, peer).unwrap();
        assert_eq!(close_import(&there, peer).unwrap_err().code, SM_NOT_FOUND);
        here.free(neighbour).unwrap();
    }
}

#[test]
fn a_peer_cannot_change_the_size_of_the_file_and_its_pages_are_there() {
    let b = Backend::open();
    let ptr = b
        .alloc_with(1 << 20, 0, SM_MEMORY_DEVICE, SM_ALLOC_SHAREABLE)
        .unwrap();
    let (fd, _) = export(&b, ptr, 1 << 20).unwrap();
    let seals = rustix::fs::fcntl_get_seals(&fd).unwrap();
    assert!(seals.contains(SealFlags::SHRINK | SealFlags::GROW));
    assert_eq!(rustix::fs::ftruncate(&fd, 0), Err(rustix::io::Errno::PERM));
    let stat = rustix::fs::fstat(&fd).unwrap();
    assert_eq!(stat.st_blocks * 512, 1 << 20);
}

#[test]
fn ranges_outside_one_allocation_are_not_exported() {
    let b = Backend::open();
    let ptr = b.alloc(5000).unwrap();
    for (at, size) in [
        (ptr, 5001),
        (ptr + 4999, 2),
        (ptr - 1, 2),
        (1, 1),
        (ptr, 0),
        (u64::MAX, 2),
    ] {
        let failure = export(&b, at, size).map(|_| ()).unwrap_err();
        assert_eq!(failure.code, SM_INVALID_ARGUMENT, "{at:#x} {size}");
    }
}

#[test]
fn handles_that_lie_are_not_imported() {
    let b = Backend::open();
    let file = rustix::fs::memfd_create("t", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, 8192).unwrap();
    let good = SmIpcHandle {
        kind: SM_IPC_FD,
        fd: file.as_raw_fd(),
        offset: 4000,
        len: 4192,
        ..SmIpcHandle::new()
    };
    let ptr = import(&b, &good).unwrap();
    close_import(&b, ptr).unwrap();
    let (pipe, _write_end) = rustix::pipe::pipe().unwrap();
    for lie in [
        SmIpcHandle { len: 4193, ..good },
        SmIpcHandle {
            offset: u64::MAX,
            ..good
        },
        SmIpcHandle {
            len: u64::MAX - 4000,
            ..good
        },
        SmIpcHandle { len: 0, ..good },
        SmIpcHandle { kind: 7, ..good },
        SmIpcHandle { fd: -1, ..good },
        SmIpcHandle {
            fd: pipe.as_raw_fd(),
            ..good
        },
    ] {
        assert_eq!(
            import(&b, &lie).unwrap_err().code,
            SM_INVALID_ARGUMENT,
            "{lie:?}"
        );
    }
}

#[test]
fn with_a_directory_the_memory_lies_there_without_a_name() {
    let dir = tempfile::tempdir().unwrap();
    let b = Backend::open_with(&[("shm.dir", dir.path().to_str().unwrap())]);
    let ptr = b.alloc(1 << 20).unwrap();
    let (fd, _) = export(&b, ptr, 1 << 20).unwrap();
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap();
    assert!(link.starts_with(dir.path()), "{link:?}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    bytes(ptr, 1 << 20).fill(1);
    b.free(ptr).unwrap();
}

#[test]
fn a_directory_that_is_not_there_is_named() {
    let b = Backend::open_with(&[("shm.dir", "/nowhere/at/all")]);
    let failure = b.alloc(100).unwrap_err();
    assert_eq!(failure.code, SM_NOT_FOUND);
    assert!(failure.message.contains("/nowhere/at/all"), "{failure:?}");
}

#[test]
fn a_full_directory_is_out_of_memory_and_named() {
    // More than the whole file system has.
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let b = Backend::open_with(&[("shm.dir", dir.path().to_str().unwrap())]);
    let stat = rustix::fs::statvfs("/dev/shm").unwrap();
    let too_much = stat.f_blocks * stat.f_frsize + (1 << 20);
    let failure = b.alloc(too_much).unwrap_err();
    assert_eq!(failure.code, SM_RESOURCE_EXHAUSTED, "{failure:?}");
    assert!(
        failure.message.contains(dir.path().to_str().unwrap()),
        "{failure:?}"
    );
    // The next one is fine.
    let ptr = b.alloc(100).unwrap();
    b.free(ptr).unwrap();
}
