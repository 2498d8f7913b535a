//! Each fault, what it does and what it leaves alone.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

use stepmesh_plugin::abi::device::{SM_HEALTH_LOST, SM_HEALTH_OK};
use stepmesh_plugin::abi::error::{
    SM_DATA_LOSS, SM_DEADLINE_EXCEEDED, SM_ERROR_DEVICE_LOST, SM_ERROR_OOM, SM_INVALID_ARGUMENT,
    SM_RESOURCE_EXHAUSTED, SM_UNAVAILABLE,
};
use stepmesh_plugin::abi::event::{SM_EVENT_DONE, SM_EVENT_ERROR, SM_EVENT_PENDING, SM_WAIT_BLOCK};
use stepmesh_plugin::abi::memory::SM_MEMORY_DEVICE;

use crate::support::{Answer, Backend, LONG_NS, REQUIRED, SHORT_NS};

#[test]
fn options_that_make_no_sense_are_refused_by_name() {
    for (option, text) in [
        ("devices", "65"),
        ("devices", "two"),
        ("memory_len_bytes", "-1"),
        ("stream_delay_us", "1e9"),
        ("faults", "disk:full@1"),
        ("faults", "alloc.2:oom@1"),
    ] {
        let refused = Backend::try_open(&[(option, text)]).map(drop).unwrap_err();
        assert_eq!(refused.code, SM_INVALID_ARGUMENT);
        let (key, value) = (format!("`sim.{option}`"), format!("`{text}`"));
        let names_both = refused.message.contains(&key) && refused.message.contains(&value);
        assert!(names_both, "{refused:?}");
    }
}

#[test]
fn an_allocation_is_out_of_memory_where_it_was_told_to_be() {
    let b = Backend::open(&[("faults", "alloc.0:oom@2")]);
    for dev in [0, 1] {
        let outcomes: Vec<_> = (0..3).map(|_| b.alloc(dev, 100)).collect();
        assert!(outcomes[0].is_ok() && outcomes[2].is_ok());
        match &outcomes[1] {
            Ok(_) => assert_eq!(dev, 1),
            Err(failure) => {
                assert_eq!((dev, failure.code), (0, SM_RESOURCE_EXHAUSTED));
                assert_ne!(failure.flags & SM_ERROR_OOM, 0);
                assert!(failure.message.contains("`alloc.0:oom@2`"), "{failure:?}");
            }
        }
    }
}

#[test]
fn a_failing_copy_fails_its_stream_until_it_is_synchronized() {
    let b = Backend::open(&[("faults", "copy:fail@2")]);
    let (stream, other) = ((0, b.stream(0).unwrap()), (0, b.stream(0).unwrap()));
    let (x, y) = (b.alloc(0, 8).unwrap(), b.alloc(0, 8).unwrap());
    let (before, behind) = (b.event(0).unwrap(), b.event(0).unwrap());
    b.copy(x, y, 8, stream).unwrap();
    b.record(before, stream).unwrap();
    b.copy(x, y, 8, stream).unwrap();
    b.record(behind, stream).unwrap();
    // Behind the failure, so it does not happen.
    b.fill(x, 1, 1, 8, stream).unwrap();

    let failed = b.event_sync(behind, LONG_NS, SM_WAIT_BLOCK).unwrap_err();
    assert_eq!(failed.code, SM_DATA_LOSS);
    assert!(failed.message.contains("`copy:fail@2`"), "{failed:?}");
    assert_eq!(
        (b.event_state(before), b.event_state(behind)),
        (SM_EVENT_DONE, SM_EVENT_ERROR)
    );
    assert_eq!(b.stream_sync(0, other.1, LONG_NS), Ok(()));
    assert_eq!(b.stream_sync(0, stream.1, LONG_NS), Err(failed));
    assert_eq!(b.read(x, 8), [0; 8]);
    assert_eq!(b.async_errors(), [(0, SM_DATA_LOSS)]);
    assert_eq!(b.health(0), SM_HEALTH_OK);

    b.fill(x, 1, 1, 8, stream).unwrap();
    assert_eq!(b.stream_sync(0, stream.1, LONG_NS), Ok(()));
    assert_eq!(b.read(x, 8), [1; 8]);
}

#[test]
fn a_failing_copy_without_a_stream_is_an_error_of_the_call() {
    let b = Backend::open(&[("faults", "copy:fail@1")]);
    let (x, y) = (b.alloc(0, 8).unwrap(), b.alloc(0, 8).unwrap());
    assert_eq!(b.copy_now(x, y, 8).unwrap_err().code, SM_DATA_LOSS);
    assert_eq!(b.copy_now(x, y, 8), Ok(()));
    assert_eq!(b.async_errors(), []);
}

#[test]
fn a_stuck_stream_ends_waits_at_their_bound_and_does_not_hold_up_close() {
    let b = Backend::open(&[("faults", "stream:stuck@2")]);
    let (stream, other) = ((0, b.stream(0).unwrap()), (0, b.stream(0).unwrap()));
    let (x, y) = (b.alloc(0, 8).unwrap(), b.alloc(0, 8).unwrap());
    let event = b.event(0).unwrap();
    b.copy(x, y, 8, stream).unwrap();
    b.stream_sync(0, stream.1, LONG_NS).unwrap();
    b.fill(x, 1, 1, 8, stream).unwrap();
    b.record(event, stream).unwrap();
    let late = b.event_sync(event, SHORT_NS, SM_WAIT_BLOCK).unwrap_err();
    assert_eq!(late.code, SM_DEADLINE_EXCEEDED);
    assert_eq!(b.event_state(event), SM_EVENT_PENDING);
    let late = b.stream_sync(0, stream.1, SHORT_NS).unwrap_err();
    assert_eq!(late.code, SM_DEADLINE_EXCEEDED);
    // The device itself and its other streams go on.
    b.copy(y, x, 8, other).unwrap();
    assert_eq!(b.stream_sync(0, other.1, LONG_NS), Ok(()));
    assert_eq!(b.health(0), SM_HEALTH_OK);

    let calls = AtomicU32::new(0);
    b.launch(stream, count, (&raw const calls).cast_mut().cast())
        .unwrap();
    let dropped = b.close().unwrap_err();
    assert_eq!(dropped.code, SM_DEADLINE_EXCEEDED);
    assert!(dropped.message.contains("lost their work"), "{dropped:?}");
    assert_eq!(
        calls.load(Ordering::SeqCst),
        1,
        "a function of the host's is not lost"
    );
}

unsafe extern "C" fn count(arg: *mut c_void) {
    // SAFETY: the argument is a test's counter, which outlives the stream's work.
    unsafe { &*arg.cast::<AtomicU32>() }.fetch_add(1, Ordering::SeqCst);
}

/// Every slot that a lost device must refuse.
fn refusals(
    b: &Backend,
    dev: u32,
    stream: u64,
    memory: [u64; 2],
) -> Vec<(&'static str, Answer<()>)> {
    let [x, y] = memory;
    let device_sync = b.api.device_sync.expect(REQUIRED);
    let query = b.api.stream_query.expect(REQUIRED);
    let mut done = 0;
    // SAFETY: an open instance.
    let device_sync = b.call(|s, e| unsafe { device_sync(s, dev, e) });
    // SAFETY: an open instance and a local out pointer.
    let stream_query = b.call(|s, e| unsafe { query(s, dev, stream, &raw mut done, e) });
    vec![
        ("alloc", b.alloc(dev, 8).map(drop)),
        ("mem_info", b.memory(dev).map(drop)),
        ("device_sync", device_sync),
        ("stream_create", b.stream(dev).map(drop)),
        ("stream_sync", b.stream_sync(dev, stream, LONG_NS)),
        ("stream_query", stream_query),
        ("memcpy_async", b.copy(x, y, 8, (dev, stream))),
        ("memcpy_sync", b.copy_now(x, y, 8)),
        ("memset_async", b.fill(x, 0, 1, 8, (dev, stream))),
        ("event_create", b.event(dev).map(drop)),
    ]
}

#[test]
fn a_lost_device_stays_lost_and_the_other_goes_on() {
    // Counted: two allocations, and the first copy of the stream.
    let b = Backend::open(&[("faults", "device.0:lost@3")]);
    let stream = (0, b.stream(0).unwrap());
    let (x, y) = (b.alloc(0, 8).unwrap(), b.alloc(0, 8).unwrap());
    let event = b.event(0).unwrap();
    assert_eq!(b.health(0), SM_HEALTH_OK);
    b.copy(x, y, 8, stream).unwrap();
    let recorded = b.record(event, stream);
    let lost = b.event_sync(event, LONG_NS, SM_WAIT_BLOCK);
    // By now the device may have been lost before the record.
    if recorded.is_ok() {
        assert_eq!(lost.unwrap_err().code, SM_UNAVAILABLE);
        assert_eq!(b.event_state(event), SM_EVENT_ERROR);
    }
    while b.health(0) != SM_HEALTH_LOST {
        std::thread::yield_now();
    }
    for round in 0..3 {
        for (slot, answer) in refusals(&b, 0, stream.1, [x, y]) {
            let refused = answer.unwrap_err();
            assert_eq!(refused.code, SM_UNAVAILABLE, "{slot}, round {round}");
            assert_ne!(refused.flags & SM_ERROR_DEVICE_LOST, 0, "{slot}");
        }
    }
    assert_eq!(b.health(0), SM_HEALTH_LOST);
    assert_eq!(b.attributes(x).kind, SM_MEMORY_DEVICE);

    assert_eq!(b.health(1), SM_HEALTH_OK);
    let own = b.stream(1).unwrap();
    let memory = [b.alloc(1, 8).unwrap(), b.alloc(1, 8).unwrap()];
    for (slot, answer) in refusals(&b, 1, own, memory) {
        assert_eq!(answer, Ok(()), "{slot}");
    }
    b.stream_sync(1, own, LONG_NS).unwrap();
    b.free(0, x).unwrap();
    let destroy = b.api.event_destroy.expect(REQUIRED);
    // SAFETY: an open instance and a live event that the test uses no more.
    b.call(|s, e| unsafe { destroy(s, event, e) }).unwrap();
    assert_eq!(b.async_errors(), [(0, SM_UNAVAILABLE)]);
    b.close().unwrap();
}

#[test]
fn a_device_lost_by_time_wakes_those_who_wait_for_its_stuck_stream() {
    let b = Backend::open(&[("faults", "stream:stuck@1, device:lost@1000ms")]);
    let stream = (0, b.stream(0).unwrap());
    let (x, y) = (b.alloc(0, 8).unwrap(), b.alloc(0, 8).unwrap());
    let event = b.event(0).unwrap();
    b.copy(x, y, 8, stream).unwrap();
    b.record(event, stream).unwrap();
    let lost = b.event_sync(event, LONG_NS, SM_WAIT_BLOCK).unwrap_err();
    assert_eq!(lost.code, SM_UNAVAILABLE);
    assert_ne!(lost.flags & SM_ERROR_DEVICE_LOST, 0);
    assert_eq!((b.health(0), b.health(1)), (SM_HEALTH_LOST, SM_HEALTH_LOST));
    b.close().unwrap();
}
