//! Which memory a device takes, and what it says about what it does not take.

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use stepmesh_rdma::Access;
use stepmesh_rdma::registration::{Cache, CacheLimits, Machine, Way};
use stepmesh_rdma::verbs::{DmabufSlice, Ledger, QpOptions, Write};
use stepmesh_transport::memory::{
    Allocation, Dmabuf, DmabufMapping, ExportDmabuf, Memory, MemoryKind,
};

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
        is_direct: false,
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

#[test]
fn device_memory_that_the_adapter_refuses_is_refused_with_every_way_and_its_reason() {
    let Some(device) = Device::present("the ways to register device memory") else {
        return;
    };
    let mut cache = Cache::new(
        device.domain.clone(),
        Machine::this(),
        CacheLimits::default(),
    );
    let memory = memory(MemoryKind::Device, false, 1);
    let refused = cache.target(&memory, Access::REMOTE_WRITE).unwrap_err();
    println!("refused: {refused}");
    let ways: Vec<Way> = refused.refusals.iter().map(|refusal| refusal.way).collect();
    assert_eq!(ways, [Way::Dmabuf, Way::DmabufPcie, Way::PeerMemory]);
    let first = &refused.refusals[0];
    assert_eq!(first.verb, "ibv_reg_dmabuf_mr");
    assert!(
        first.errno.is_some() && first.adapter == device.port.adapter,
        "{first}"
    );
    assert_eq!(
        (first.address, first.len_bytes),
        (memory.address(), memory.len_bytes())
    );
    assert_eq!(cache.source(&memory).unwrap_err().refusals.len(), 3);
    assert_eq!(Ledger::now().memory_regions, 0);
}

#[test]
fn a_tensor_inside_a_registered_allocation_is_sent_without_registering_again() {
    let Some(device) = Device::present("the cache of registrations") else {
        return;
    };
    let mut cache = Cache::new(
        device.domain.clone(),
        Machine::this(),
        CacheLimits::default(),
    );
    let whole = memory(MemoryKind::Host, true, 7);
    let target_memory = memory(MemoryKind::Host, true, 8);
    let first = cache.source(&whole).unwrap();
    let second = cache.source(&whole).unwrap();
    assert_eq!(first.lkey(), second.lkey());
    let target = cache.target(&target_memory, Access::REMOTE_WRITE).unwrap();
    assert_eq!((target.way(), Ledger::now().memory_regions), (Way::Host, 2));
    let (mut sender, mut receiver) = device.pair(&QpOptions::default());
    receiver.queue_pair.post_recv_empty(1, 1).unwrap();
    let write = Write {
        wr_id: 1,
        lkey: second.lkey(),
        local_address: whole.address(),
        len_bytes: 64,
        rkey: target.rkey(),
        remote_address: target_memory.address() + 64,
        signalled: true,
    };
    sender.write(&write, Some(3));
    assert_eq!(receiver.wait().imm_data, Some(3));
    assert!(sender.wait().status.is_success());
    drop((first, second));
    cache.invalidate(7);
    drop(target);
    assert_eq!(Ledger::now().memory_regions, 0);
}

/// 4096 bytes in the middle of an allocation of 8192.
fn memory(kind: MemoryKind, host_accessible: bool, id: u64) -> Memory {
    let bytes: Arc<Bytes> = Arc::new(Bytes([const { AtomicU8::new(0x5a) }; 8192]));
    let base = bytes.0.as_ptr().expose_provenance() as u64;
    assert_eq!(bytes.0[0].load(Ordering::Relaxed), 0x5a);
    let dmabuf: Option<Box<dyn ExportDmabuf>> = match kind {
        MemoryKind::Device => Some(Box::new(NoDmabuf { base })),
        _ => None,
    };
    // SAFETY: the owner goes with it, and its bytes are atomics.
    let memory = unsafe { Memory::new(base + 2048, 4096, host_accessible, None, bytes) };
    memory.with_allocation(Allocation {
        base,
        len_bytes: 8192,
        id,
        kind,
        pci_address: None,
        numa_node: None,
        dmabuf,
    })
}

struct Bytes([AtomicU8; 8192]);

/// Exports what is no dma-buf.
#[derive(Debug)]
struct NoDmabuf {
    base: u64,
}

impl ExportDmabuf for NoDmabuf {
    fn export(&self, offset: u64, len_bytes: u64, _: DmabufMapping) -> Result<Dmabuf, String> {
        let memfd = memfd_create("no-dmabuf", MemfdFlags::CLOEXEC).unwrap();
        Ok(Dmabuf {
            fd: Box::new(memfd),
            offset: (self.base + offset) % 4096,
            len_bytes,
        })
    }
}
