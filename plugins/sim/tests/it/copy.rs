//! Copies in every direction, their order and their checks.

use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use stepmesh_plugin::abi::error::{SM_DEADLINE_EXCEEDED, SM_INVALID_ARGUMENT};
use stepmesh_plugin::abi::event::{SM_EVENT_DONE, SM_EVENT_PENDING, SM_WAIT_BLOCK};
use stepmesh_plugin::abi::memory::{
    SM_COPY_AUTO, SM_COPY_D2D, SM_COPY_D2H, SM_COPY_H2D, SM_COPY_P2P, SM_MEMORY_HOST_PINNED,
};

use crate::support::{Backend, LONG_NS, REQUIRED, SHORT_NS, address, bytes};

/// Holds a stream until it is told to go on.
struct Gate {
    go: Sender<()>,
    gone: Mutex<Receiver<()>>,
}

impl Gate {
    fn put(b: &Backend, stream: (u32, u64)) -> &'static Self {
        let (go, gone) = channel();
        let gone = Mutex::new(gone);
        let gate: &'static Self = Box::leak(Box::new(Self { go, gone }));
        let arg = std::ptr::from_ref(gate).cast_mut().cast();
        b.launch(stream, wait_at_gate, arg)
            .expect("the stream takes work");
        gate
    }

    fn open(&self) {
        self.go.send(()).expect("the gate has its other end");
    }
}

unsafe extern "C" fn wait_at_gate(arg: *mut c_void) {
    // SAFETY: the argument is a leaked gate.
    let gate = unsafe { &*arg.cast::<Gate>() };
    if let Ok(gone) = gate.gone.lock() {
        // A test that fails must not hang the others.
        let _ = gone.recv_timeout(Duration::from_secs(30));
    }
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..=250)
        .cycle()
        .take(len)
        .map(|byte: u8| byte ^ seed)
        .collect()
}

#[test]
fn every_direction_is_exact_to_the_byte_at_every_misalignment() {
    let b = Backend::open(&[]);
    for dev in [0, 1] {
        let stream = (dev, b.stream(dev).unwrap());
        let (x, y) = (
            b.alloc(dev, 100_000).unwrap(),
            b.alloc(dev, 100_000).unwrap(),
        );
        let peer = b.alloc(1 - dev, 100_000).unwrap();
        let pinned = b
            .alloc_with(dev, 100_000, 0, SM_MEMORY_HOST_PINNED, 0)
            .unwrap();
        for (size, skew, seed) in [(1, 0, 1), (3, 1, 2), (4095, 7, 3), (70_001, 13, 4)] {
            let len = usize::try_from(size).unwrap();
            let data = pattern(len, seed);
            let host = address(&data);
            bytes(pinned, 100_000).fill(0);
            let steps = [
                (x + skew, host, SM_COPY_H2D, (dev, 0)),
                (y, x + skew, SM_COPY_D2D, (dev, dev)),
                (peer + 1, y, SM_COPY_P2P, (1 - dev, dev)),
                (x + 9, peer + 1, SM_COPY_AUTO, (0, 0)),
                (pinned + skew, x + 9, SM_COPY_D2H, (0, dev)),
            ];
            for (dst, src, direction, (dst_dev, src_dev)) in steps {
                b.copy_as((dst, src, size), (direction, dst_dev, src_dev), stream)
                    .unwrap();
            }
            b.stream_sync(dev, stream.1, LONG_NS).unwrap();
            let start = usize::try_from(skew).unwrap();
            assert_eq!(bytes(pinned, 100_000)[start..start + len], data);
            assert_eq!(bytes(pinned, 100_000)[start + len], 0, "one byte too many");
            assert_eq!(b.read(y, len), data);
        }
    }
}

#[test]
fn fills_of_every_width_are_exact() {
    let b = Backend::open(&[]);
    let stream = (0, b.stream(0).unwrap());
    let ptr = b.alloc(0, 64).unwrap();
    b.fill(ptr, 0x11, 1, 64, stream).unwrap();
    b.fill(ptr + 2, 0x2233, 2, 4, stream).unwrap();
    b.fill(ptr + 8, 0x4455_6677, 4, 8, stream).unwrap();
    b.stream_sync(0, stream.1, LONG_NS).unwrap();
    let read = b.read(ptr, 64);
    assert_eq!(read[..8], [0x11, 0x11, 0x33, 0x22, 0x33, 0x22, 0x11, 0x11]);
    assert_eq!(
        read[8..16],
        [0x77, 0x66, 0x55, 0x44, 0x77, 0x66, 0x55, 0x44]
    );
    assert!(read[16..].iter().all(|byte| *byte == 0x11));
}

#[test]
fn copies_that_a_device_could_only_get_wrong_are_refused() {
    let b = Backend::open(&[]);
    let stream = (0, b.stream(0).unwrap());
    let (x, y, other) = (
        b.alloc(0, 5000).unwrap(),
        b.alloc(0, 5000).unwrap(),
        b.alloc(1, 5000).unwrap(),
    );
    let data = pattern(10_000, 1);
    let host = address(&data);
    let gone = b.alloc(0, 100).unwrap();
    b.free(0, gone).unwrap();
    for (copy, direction) in [
        // Past the end of an allocation, though the device has memory there.
        ((x, host, 5001), (SM_COPY_AUTO, 0, 0)),
        ((x + 4999, y, 2), (SM_COPY_AUTO, 0, 0)),
        ((host, x - 1, 2), (SM_COPY_AUTO, 0, 0)),
        ((gone, host, 1), (SM_COPY_AUTO, 0, 0)),
        // Not what the direction says.
        ((x, y, 10), (SM_COPY_H2D, 0, 0)),
        ((x, y, 10), (SM_COPY_D2H, 0, 0)),
        ((x, host, 10), (SM_COPY_D2D, 0, 0)),
        ((host, host + 5000, 10), (SM_COPY_P2P, 0, 0)),
        ((x, host, 10), (SM_COPY_H2D, 1, 0)),
        ((x, other, 10), (SM_COPY_P2P, 1, 0)),
        ((x, other, 10), (SM_COPY_D2D, 0, 1)),
    ] {
        let refused = b.copy_as(copy, direction, stream).unwrap_err();
        assert_eq!(refused.code, SM_INVALID_ARGUMENT, "{copy:?} {direction:?}");
    }
    assert_eq!(
        b.copy_now(x, host, 5001).unwrap_err().code,
        SM_INVALID_ARGUMENT
    );
    assert_eq!(
        b.fill(x, 0, 1, 5001, stream).unwrap_err().code,
        SM_INVALID_ARGUMENT
    );
    for nothing in [x, x + 5000, gone, host] {
        b.copy(nothing, x, 0, stream).unwrap();
    }
    b.stream_sync(0, stream.1, LONG_NS).unwrap();
}

#[test]
fn work_is_asynchronous_and_in_order_and_events_order_devices() {
    let b = Backend::open(&[]);
    let (first, second) = ((0, b.stream(0).unwrap()), (1, b.stream(1).unwrap()));
    let (x, y) = (b.alloc(0, 1000).unwrap(), b.alloc(1, 1000).unwrap());
    let data = pattern(1000, 5);
    let event = b.event(0).unwrap();
    let gate = Gate::put(&b, first);
    b.fill(x, 1, 1, 1000, first).unwrap();
    b.copy(x, address(&data), 1000, first).unwrap();
    b.record(event, first).unwrap();
    let wait = b.api.stream_wait_event.expect(REQUIRED);
    // SAFETY: an open instance and a live event.
    b.call(|s, e| unsafe { wait(s, 1, second.1, event, e) })
        .unwrap();
    b.copy(y, x, 1000, second).unwrap();
    assert_eq!(b.event_state(event), SM_EVENT_PENDING);
    assert_eq!(
        b.read(x, 1000),
        [0; 1000],
        "nothing may run while the stream is held"
    );
    let late = b.stream_sync(1, second.1, SHORT_NS).unwrap_err();
    assert_eq!(late.code, SM_DEADLINE_EXCEEDED);
    gate.open();
    b.stream_sync(1, second.1, LONG_NS).unwrap();
    assert_eq!(b.event_state(event), SM_EVENT_DONE);
    assert_eq!(b.read(y, 1000), data);
    // An event belongs to its device.
    assert_eq!(
        b.record(event, second).unwrap_err().code,
        SM_INVALID_ARGUMENT
    );
}

#[test]
fn a_delay_shows_as_an_event_that_is_pending_and_does_not_hold_up_the_end() {
    let b = Backend::open(&[("stream_delay_us", "60000000")]);
    let stream = (0, b.stream(0).unwrap());
    let (x, y) = (b.alloc(0, 8).unwrap(), b.alloc(0, 8).unwrap());
    let event = b.event(0).unwrap();
    b.copy(x, y, 8, stream).unwrap();
    b.record(event, stream).unwrap();
    assert_eq!(b.event_state(event), SM_EVENT_PENDING);
    let late = b.event_sync(event, SHORT_NS, SM_WAIT_BLOCK).unwrap_err();
    assert_eq!(late.code, SM_DEADLINE_EXCEEDED);
    assert_eq!(b.close().unwrap_err().code, SM_DEADLINE_EXCEEDED);
}

#[test]
fn delayed_work_is_done_in_the_end() {
    let b = Backend::open(&[("stream_delay_us", "1000")]);
    let stream = (0, b.stream(0).unwrap());
    let x = b.alloc(0, 8).unwrap();
    let event = b.event(0).unwrap();
    for value in 1..=5 {
        b.fill(x, value, 1, 8, stream).unwrap();
    }
    b.record(event, stream).unwrap();
    b.event_sync(event, LONG_NS, SM_WAIT_BLOCK).unwrap();
    assert_eq!(b.event_state(event), SM_EVENT_DONE);
    assert_eq!(b.read(x, 8), [5; 8]);
}
