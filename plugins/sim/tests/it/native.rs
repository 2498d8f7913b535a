//! The backend by its trait, without a table.

use stepmesh_backend_sim::Sim;
use stepmesh_plugin::abi::Code;
use stepmesh_plugin::abi::memory::SM_MEMORY_DEVICE;
use stepmesh_plugin::abi::note::SM_KIND_GPU;
use stepmesh_plugin::{
    AllocKind, AllocRequest, Backend as _, CopyRequest, Direction, EventOptions, EventState, Host,
    Stream, WaitMode,
};

use crate::support::{LONG_NS, address};

fn request(len_bytes: u64) -> AllocRequest {
    AllocRequest {
        len_bytes,
        align_bytes: 1,
        kind: AllocKind::Device,
        rdma: false,
        shareable: false,
    }
}

fn copy(dst: u64, src: u64, len_bytes: u64) -> CopyRequest {
    CopyRequest {
        dst,
        src,
        len_bytes,
        direction: Direction::Auto,
        dst_device: 0,
        src_device: 0,
    }
}

#[test]
fn without_a_host_there_are_two_devices_of_a_gibibyte_that_no_alias_finds() {
    assert!(Sim::NOTE.kind != SM_KIND_GPU && Sim::NOTE.aliases.is_empty());
    assert_eq!(Sim::probe(&Host::absent()).unwrap().device_count, 2);
    let sim = Sim::open(Host::absent()).unwrap();
    assert_eq!(sim.device_count(), 2);
    for device in [0, 1] {
        assert_eq!(sim.mem_info(device).unwrap(), (1 << 30, 1 << 30));
        assert_eq!(sim.device_info(device).unwrap().total_mem, 1 << 30);
        let whole = sim.alloc(device, &request(1 << 30)).unwrap();
        let full = sim.alloc(device, &request(1)).unwrap_err();
        assert_eq!(full.code(), Code::ResourceExhausted);
        // SAFETY: nothing uses it.
        unsafe { sim.free(device, whole) }.unwrap();
    }
    assert_ne!(
        sim.device_info(0).unwrap().uuid,
        sim.device_info(1).unwrap().uuid
    );
}

#[test]
fn bytes_go_to_the_device_and_back() {
    let sim = Sim::open(Host::absent()).unwrap();
    let ptr = sim.alloc(1, &request(1000)).unwrap();
    assert_eq!(
        sim.pointer_attributes(ptr + 999).unwrap().kind,
        SM_MEMORY_DEVICE
    );
    let (sent, mut received) = (vec![6_u8; 1000], vec![0_u8; 1000]);
    let back = u64::try_from(received.as_mut_ptr().expose_provenance()).unwrap();
    let raw = sim.stream_create(1, 0, false).unwrap();
    let stream = Stream { device: 1, raw };
    let event = sim.event_create(1, EventOptions::default()).unwrap();
    // SAFETY: live memory on both sides until the event is done.
    unsafe { sim.memcpy_async(&copy(ptr, address(&sent), 1000), stream) }.unwrap();
    // SAFETY: as above.
    unsafe { sim.memcpy_async(&copy(back, ptr, 1000), stream) }.unwrap();
    sim.event_record(&event, stream).unwrap();
    sim.event_sync(&event, LONG_NS, WaitMode::Block).unwrap();
    assert_eq!(sim.event_query(&event).unwrap(), EventState::Done);
    assert_eq!(received, sent);
}
