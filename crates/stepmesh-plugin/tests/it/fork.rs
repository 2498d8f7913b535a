//! A forked child may not use its parent's instance, but may open its own.

use std::os::fd::AsRawFd as _;

use stepmesh_plugin::abi::error::{SM_FAILED_PRECONDITION, SM_OK};

use crate::support::{message, open};

#[test]
fn a_forked_child_is_refused_and_may_open_its_own_instance() {
    let opened = open();
    let (read_end, write_end) = rustix::pipe::pipe().unwrap();
    // SAFETY: the child allocates and calls the fake only, takes no lock another thread could hold
    // but the allocator's (which glibc makes safe over fork), and leaves with `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let (code, err) = opened.device_sync(0);
        let refused = code == SM_FAILED_PRECONDITION
            && message(&err).contains("a forked child must open its own");
        let own = open();
        let works = own.device_sync(0).0 == SM_OK && opened.device_sync(0).0 != SM_OK;
        let answer = [u8::from(refused), u8::from(works)];
        // SAFETY: an open descriptor and two bytes of a local.
        unsafe { libc::write(write_end.as_raw_fd(), answer.as_ptr().cast(), 2) };
        // SAFETY: ends the child at once, without the test harness's destructors.
        unsafe { libc::_exit(0) };
    }
    drop(write_end);
    let mut answer = [0_u8; 2];
    assert_eq!(rustix::io::read(&read_end, &mut answer).unwrap(), 2);
    assert_eq!(answer, [1, 1]);
    // SAFETY: the child made above, which no one else waits for.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    assert_eq!(opened.device_sync(0).0, SM_OK);
}
