//! A host that dereferences a device pointer dies at once.

use stepmesh_plugin::abi::memory::SM_MEMORY_HOST_PINNED;

use crate::support::Backend;

/// How a child process ends that does something to a byte at an address.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Exit(i32),
    Signal(i32),
}

fn in_child(ptr: u64, touch: unsafe fn(*mut u8)) -> End {
    let addr = usize::try_from(ptr).expect("an address");
    let at = std::ptr::with_exposed_provenance_mut::<u8>(addr);
    // SAFETY: the child makes system calls and touches one byte, nothing that a lock of another
    // thread could hold up.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", std::io::Error::last_os_error()),
        0 => {
            let none = libc::rlimit {
                rlim_cur: 0,
                rlim_max: 0,
            };
            // SAFETY: a local struct; no core file is wanted of a death that is expected.
            unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const none) };
            // SAFETY: either readable and writable or the death that is tested.
            unsafe { touch(at) };
            // SAFETY: ends the child without the test's own destructors.
            unsafe { libc::_exit(0) }
        }
        child => {
            let mut status = 0;
            // SAFETY: a child of this process and a local out pointer.
            let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!(waited, child);
            if libc::WIFSIGNALED(status) {
                End::Signal(libc::WTERMSIG(status))
            } else {
                End::Exit(libc::WEXITSTATUS(status))
            }
        }
    }
}

unsafe fn read(at: *mut u8) {
    // SAFETY: the caller's.
    let _ = unsafe { at.read_volatile() };
}

unsafe fn write(at: *mut u8) {
    // SAFETY: the caller's.
    unsafe { at.write_volatile(1) };
}

#[test]
fn touching_device_memory_kills_the_process() {
    let b = Backend::open(&[]);
    for dev in [0, 1] {
        let ptr = b.alloc(dev, 10_000).unwrap();
        for at in [ptr, ptr + 5000, ptr + 9999] {
            assert_eq!(in_child(at, read), End::Signal(libc::SIGSEGV));
            assert_eq!(in_child(at, write), End::Signal(libc::SIGSEGV));
        }
        b.write(ptr, &[7; 10_000]);
        assert_eq!(in_child(ptr, read), End::Signal(libc::SIGSEGV));
        b.free(dev, ptr).unwrap();
        // Also after its end: nothing else ever lies there.
        assert_eq!(in_child(ptr, read), End::Signal(libc::SIGSEGV));
    }
}

#[test]
fn touching_pinned_memory_does_not() {
    let b = Backend::open(&[]);
    let ptr = b.alloc_with(0, 100, 0, SM_MEMORY_HOST_PINNED, 0).unwrap();
    assert_eq!(in_child(ptr, read), End::Exit(0));
    assert_eq!(in_child(ptr + 99, write), End::Exit(0));
}

#[test]
fn the_kernel_cannot_be_talked_into_it() {
    let b = Backend::open(&[]);
    let ptr = b.alloc(0, 4096).unwrap();
    let at = std::ptr::with_exposed_provenance::<libc::c_void>(usize::try_from(ptr).unwrap());
    let mut ends = [0; 2];
    // SAFETY: a local array for two descriptors.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    // SAFETY: the kernel checks the address; that it refuses is what is tested.
    assert_eq!(unsafe { libc::write(ends[1], at, 16) }, -1);
    let error = std::io::Error::last_os_error();
    assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
    for end in ends {
        // SAFETY: descriptors of this test alone.
        unsafe { libc::close(end) };
    }
}
