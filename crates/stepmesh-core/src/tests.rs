//! The safe handles over a backend whose memory the host cannot touch.

use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::fake::{self, Fake};
use crate::{
    AllocFlags, AllocOptions, Backend, Buffer, Device, Error, EventOptions, MemoryKind, WaitMode,
};

fn device() -> Device {
    fake::backend().device(0).unwrap()
}

fn state(device: &Device) -> &Fake {
    Fake::of(device.backend())
}

fn buffer(device: &Device, len_bytes: u64) -> Arc<Buffer> {
    Arc::new(device.alloc(len_bytes).unwrap())
}

#[test]
fn memory_that_the_host_cannot_read_is_staged() {
    let device = device();
    let buffer = device.alloc(64).unwrap();
    assert!(!buffer.is_host_accessible());
    assert_eq!((buffer.host_bytes(), buffer.host_ptr()), (None, None));
    buffer.write_bytes(8, b"hello").unwrap();
    let mut out = [0; 7];
    buffer.read_bytes(7, &mut out).unwrap();
    assert_eq!(&out, b"\0hello\0");
    assert_eq!(
        state(&device).streams.load(Ordering::Relaxed),
        0,
        "the thunk's stream is gone"
    );
}

#[test]
fn host_memory_is_read_in_place() {
    let options = AllocOptions {
        kind: MemoryKind::HostPinned,
        ..AllocOptions::default()
    };
    let buffer = device().alloc_with(16, options).unwrap();
    buffer.write_bytes(0, b"pinned").unwrap();
    assert_eq!(&buffer.host_bytes().unwrap()[..7], b"pinned\0");
    assert_eq!(buffer.kind(), MemoryKind::HostPinned);
}

#[test]
fn ranges_beyond_the_buffer_are_refused() {
    let device = device();
    let (a, b) = (buffer(&device, 16), buffer(&device, 16));
    let stream = device.create_stream().unwrap();
    let error = a.read_bytes(10, &mut [0; 7]).unwrap_err().to_string();
    assert_eq!(
        error,
        "read_bytes of 7 bytes at 10 exceeds the buffer of 16"
    );
    assert!(matches!(
        a.write_bytes(u64::MAX, &[1]),
        Err(Error::OutOfRange { .. })
    ));
    assert!(matches!(
        stream.copy(&a, 0, &b, 9, 8),
        Err(Error::OutOfRange { .. })
    ));
    assert!(matches!(
        stream.copy(&a, u64::MAX, &b, 0, 8),
        Err(Error::OutOfRange { .. })
    ));
    let error = stream.copy(&a, 0, &a, 4, 8).unwrap_err().to_string();
    assert_eq!(error, "copy: the ranges of one buffer overlap");
    stream.copy(&a, 0, &a, 8, 8).unwrap();
}

#[test]
fn an_empty_buffer_has_no_address_and_no_bytes() {
    let buffer = device().alloc(0).unwrap();
    assert_eq!(
        (buffer.device_ptr(), buffer.len_bytes(), buffer.alloc_id()),
        (0, 0, 0)
    );
    assert_eq!(buffer.host_bytes(), Some(&[][..]));
    buffer.write_bytes(0, &[]).unwrap();
    assert!(matches!(
        buffer.export_fd(),
        Err(Error::InvalidArgument { .. })
    ));
    buffer.release().unwrap();
}

#[test]
fn out_of_memory_is_an_error_of_its_own_and_the_device_goes_on() {
    let device = device();
    let error = device.alloc(1 << 40).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
    assert_eq!(
        error.to_string(),
        "out of memory on fake:0: 1 GiB is all there is"
    );
    device.alloc(1).unwrap();
}

#[test]
fn a_bad_alignment_is_refused_before_the_backend_sees_it() {
    let options = AllocOptions {
        align_bytes: 3,
        ..AllocOptions::default()
    };
    assert!(matches!(
        device().alloc_with(1, options),
        Err(Error::InvalidArgument { .. })
    ));
}

#[test]
fn a_backend_that_ignores_the_alignment_gives_a_bad_answer() {
    let options = AllocOptions {
        align_bytes: 1 << 40,
        ..AllocOptions::default()
    };
    let error = device().alloc_with(1, options).unwrap_err();
    assert!(
        matches!(
            error,
            Error::BadAnswer {
                operation: "alloc",
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn every_allocation_has_its_own_id() {
    let device = device();
    let (a, b) = (device.alloc(1).unwrap(), device.alloc(1).unwrap());
    assert!(a.alloc_id() != 0 && a.alloc_id() != b.alloc_id());
    let inside = device.pointer_attributes(a.device_ptr()).unwrap();
    assert_eq!((inside.alloc_id, inside.len_bytes), (a.alloc_id(), 1));
    let outside = device.pointer_attributes(8).unwrap();
    assert_eq!((outside.kind, outside.alloc_id), (MemoryKind::Unknown, 0));
}

#[test]
fn without_the_extension_exporting_is_unsupported_by_name() {
    let options = AllocOptions {
        flags: AllocFlags::SHAREABLE,
        ..AllocOptions::default()
    };
    let error = device()
        .alloc_with(8, options)
        .unwrap()
        .export_fd()
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "fake:0 does not support stepmesh.ipc.v1: the plugin has no such extension"
    );
}

#[test]
fn handles_of_two_openings_do_not_mix() {
    let (one, two) = (device(), device());
    let stream = one.create_stream().unwrap();
    let event = two.create_event(EventOptions::default()).unwrap();
    assert!(matches!(
        event.record(&stream),
        Err(Error::ForeignHandle { .. })
    ));
    assert!(matches!(
        stream.wait_event(&event),
        Err(Error::ForeignHandle { .. })
    ));
    let (a, b) = (buffer(&one, 8), buffer(&two, 8));
    assert!(matches!(
        stream.copy(&a, 0, &b, 0, 8),
        Err(Error::ForeignHandle { .. })
    ));
    assert!(matches!(
        stream.fill(&b, 0, 8, 0),
        Err(Error::ForeignHandle { .. })
    ));
}

#[test]
fn a_wait_that_runs_out_is_a_timeout_and_the_object_stays_usable() {
    let device = device();
    let stream = device.create_stream().unwrap();
    let event = device.create_event(EventOptions::default()).unwrap();
    event.record(&stream).unwrap();
    state(&device).hangs.store(true, Ordering::Relaxed);
    let timeout = Duration::from_millis(3);
    let error = stream.synchronize(timeout).unwrap_err();
    assert_eq!(
        error.to_string(),
        "stream_sync on fake:0 took longer than 3ms"
    );
    assert!(!stream.is_done().unwrap() && !event.is_done().unwrap());
    let error = event.synchronize(timeout, WaitMode::Spin).unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    state(&device).hangs.store(false, Ordering::Relaxed);
    stream.synchronize(timeout).unwrap();
    assert!(event.is_done().unwrap());
}

#[test]
fn buffers_live_until_the_work_on_them_is_done() {
    let device = device();
    let fake = state(&device);
    let stream = device.create_stream().unwrap();
    fake.hangs.store(true, Ordering::Relaxed);
    stream
        .copy(&buffer(&device, 8), 0, &buffer(&device, 8), 0, 8)
        .unwrap();
    assert_eq!(fake.live_allocations(), 2);
    assert!(!stream.is_done().unwrap());
    assert_eq!(fake.live_allocations(), 2, "still in flight");
    fake.hangs.store(false, Ordering::Relaxed);
    assert!(stream.is_done().unwrap());
    assert_eq!(fake.live_allocations(), 0);
}

#[test]
fn a_stream_that_nobody_waits_for_lets_go_of_what_is_done() {
    let device = device();
    let stream = device.create_stream().unwrap();
    let kept = buffer(&device, 8);
    for _ in 0..1000 {
        stream.copy(&kept, 0, &buffer(&device, 8), 0, 8).unwrap();
    }
    let live = state(&device).live_allocations();
    assert!(live < 70, "{live} buffers are still held");
}

#[test]
fn a_stream_that_is_far_behind_pushes_back_with_an_error() {
    let device = device();
    let stream = device.create_stream().unwrap();
    let (a, b) = (buffer(&device, 8), buffer(&device, 8));
    state(&device).hangs.store(true, Ordering::Relaxed);
    let failed = (0..10_000).find_map(|_| stream.copy(&a, 0, &b, 0, 8).err());
    assert!(matches!(failed, Some(Error::Timeout { .. })), "{failed:?}");
    state(&device).hangs.store(false, Ordering::Relaxed);
    stream.copy(&a, 0, &b, 0, 8).unwrap();
}

#[test]
fn memory_under_endless_work_is_never_given_back() {
    let device = device();
    let fake = state(&device);
    let before = crate::cleanup_failures();
    let stream = device.create_stream().unwrap();
    fake.hangs.store(true, Ordering::Relaxed);
    stream
        .copy(&buffer(&device, 8), 0, &buffer(&device, 8), 0, 8)
        .unwrap();
    drop(stream);
    assert_eq!(fake.live_allocations(), 2);
    assert!(crate::cleanup_failures() > before);
    // A synchronous copy that the backend gave up on: its staging memory is kept as well.
    let error = device.alloc(8).unwrap().write_bytes(0, &[1]).unwrap_err();
    assert!(error.to_string().contains("deadline exceeded"), "{error}");
}

#[test]
fn a_host_function_runs_once_even_without_the_slot() {
    let device = device();
    let stream = device.create_stream().unwrap();
    let (done, is_done) = mpsc::channel();
    stream
        .launch_host_func(move || done.send(1).unwrap())
        .unwrap();
    assert_eq!(is_done.recv_timeout(Duration::from_secs(10)), Ok(1));
    let ended = is_done.recv_timeout(Duration::from_secs(10));
    assert_eq!(
        ended,
        Err(mpsc::RecvTimeoutError::Disconnected),
        "dropped after its only run"
    );
}

#[test]
fn a_failing_destructor_is_counted_and_release_tells() {
    let device = device();
    state(&device).free_fails.store(true, Ordering::Relaxed);
    let before = crate::cleanup_failures();
    drop(device.alloc(8).unwrap());
    assert!(crate::cleanup_failures() > before);
    let error = device.alloc(8).unwrap().release().unwrap_err();
    assert_eq!(
        error.to_string(),
        "free failed on fake:0: not today (unavailable)"
    );
}

#[test]
fn events_and_streams_are_given_back() {
    let device = device();
    let fake = state(&device);
    let event = device.create_event(EventOptions::default()).unwrap();
    let stream = device.create_stream().unwrap();
    assert_eq!(fake.events.load(Ordering::Relaxed), 1);
    event.release().unwrap();
    stream.release().unwrap();
    drop(device.create_event(EventOptions::default()).unwrap());
    drop(device.default_stream());
    assert_eq!(fake.events.load(Ordering::Relaxed), 0);
    assert_eq!(
        fake.streams.load(Ordering::Relaxed),
        0,
        "the default one is not ours to end"
    );
}

#[test]
fn what_the_backend_lacks_is_unsupported() {
    let device = device();
    let stream = device.create_stream().unwrap();
    let error = stream.fill(&buffer(&device, 8), 0, 8, 7).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Unsupported {
                operation: "memset_async",
                ..
            }
        ),
        "{error}"
    );
    let error = device.memory().unwrap_err();
    assert_eq!(
        error.to_string(),
        "fake:0 does not support mem_info: the plugin has no mem_info"
    );
}

#[test]
fn a_device_that_does_not_exist_is_named() {
    let error = fake::backend().device(1).unwrap_err();
    assert_eq!(
        error.to_string(),
        "backend fake has 1 devices, there is no device 1"
    );
}

#[test]
fn handles_cross_threads() {
    fn crosses<T: Send + Sync>() {}
    crosses::<(Backend, Device, Buffer)>();
    crosses::<(crate::Stream, crate::Event, crate::Registry, Error)>();
    let device = device();
    let stream = device.create_stream().unwrap();
    let shared = buffer(&device, 8);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    stream.copy(&shared, 0, &buffer(&device, 8), 0, 8).unwrap();
                    stream.is_done().unwrap();
                }
            });
        }
    });
    stream.synchronize(Duration::from_secs(1)).unwrap();
    assert_eq!(state(&device).live_allocations(), 1);
}
