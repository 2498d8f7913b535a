//! Which memory a device takes, and what it says about what it does not take.

use std::os::fd::AsFd as _;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use stepmesh_rdma::Access;
use stepmesh_rdma::verbs::{DmabufSlice, Ledger};

use crate::support::Device;

#[test]
fn an_address_that_is_not_mapped_is_refused_with_range_and_remedy() {
    let Some(device) = Device::present("an address that is not mapped") else {
        return;
    };
    // SAFETY: nothing is there, which is what the device is to find out.
    let refused = unsafe {
        device
            .domain
            .register(0x1000, 8192, Access::REMOTE_WRITE, Arc::new(()))
    };
    let error = refused.unwrap_err();
    assert_eq!(error.errno, libc::EFAULT);
    let message = error.to_string();
    assert!(message.contains("8192 bytes at 0x1000"), "{message}");
    assert_eq!(Ledger::now().memory_regions, 0);
}

#[test]
fn what_is_no_dmabuf_is_refused_as_one() {
    let Some(device) = Device::present("a descriptor that is no dma-buf") else {
        return;
    };
    let memfd = memfd_create("no-dmabuf", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&memfd, 8192).unwrap();
    let slice = DmabufSlice {
        fd: memfd.as_fd(),
        offset: 0,
        len_bytes: 8192,
        iova: 0x1000,
    };
    // SAFETY: it cannot be registered.
    let refused = unsafe {
        device
            .domain
            .register_dmabuf(slice, Access::REMOTE_WRITE, Arc::new(()))
    };
    let error = refused.unwrap_err();
    assert_eq!(error.verb, "ibv_reg_dmabuf_mr");
    println!("refused: {error}");
    assert!(
        error.is_unsupported() || error.errno == libc::EINVAL,
        "{error}"
    );
    assert_eq!(Ledger::now().memory_regions, 0);
}

#[test]
fn memory_stays_allocated_until_its_region_is_gone() {
    let Some(device) = Device::present("the owner of registered memory") else {
        return;
    };
    let owner = Arc::new(vec![0_u8; 4096]);
    let address = owner.as_ptr().expose_provenance() as u64;
    let keep_alive = owner.clone();
    // SAFETY: the owner goes with it, and nobody may write to it.
    let region = unsafe {
        device
            .domain
            .register(address, 4096, Access::LOCAL, keep_alive)
    };
    let region = region.unwrap();
    assert_eq!(Arc::strong_count(&owner), 2);
    assert_eq!((region.address(), region.len_bytes()), (address, 4096));
    region.close().unwrap();
    assert_eq!(Arc::strong_count(&owner), 1);
}
