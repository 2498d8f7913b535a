//! Mem-events of the cpu backend through the safe API, and events that use them.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use stepmesh_core::abi::device::SM_CAP_MEMEVENT;
use stepmesh_core::config::{Config, Sources};
use stepmesh_core::{Backend, Device, Error, EventOptions, Stream, WaitMode};

const LONG: Duration = Duration::from_secs(30);

fn device_with(env: &[(&'static str, &'static str)]) -> Device {
    let mut all = vec![("STEPMESH_BACKEND", "cpu")];
    all.extend(env);
    let sources = Sources::from_env(all);
    let config = Config::load(&sources).unwrap().config;
    Backend::open(&config).unwrap().device(0).unwrap()
}

fn device() -> Device {
    device_with(&[])
}

/// Holds a stream up until the sender is used or dropped.
fn gate(stream: &Stream) -> Sender<()> {
    let (sender, receiver) = channel::<()>();
    stream
        .launch_host_func(move || receiver.recv().unwrap_or_default())
        .unwrap();
    sender
}

#[test]
fn a_number_is_reached_when_its_stream_gets_there() {
    let device = device();
    assert!(device.capabilities().unwrap().contains(SM_CAP_MEMEVENT));
    let (stream, event) = (
        device.create_stream().unwrap(),
        device.create_mem_event().unwrap(),
    );
    assert_eq!(event.reached(), 0);
    event.wait(0, Duration::ZERO).unwrap();
    // An idle stream is there at once.
    event.arm(&stream, 3).unwrap();
    assert_eq!(event.reached(), 3);
    let first = gate(&stream);
    event.arm(&stream, 5).unwrap();
    let second = gate(&stream);
    assert_eq!(event.arm_next(&stream).unwrap(), 6);
    assert_eq!(event.reached(), 3);
    drop(first);
    event.wait(4, LONG).unwrap();
    assert_eq!(event.reached(), 5);
    drop(second);
    event.wait(6, LONG).unwrap();
    event.release().unwrap();
}

#[test]
fn a_wait_that_runs_out_leaves_the_event_usable() {
    let device = device();
    let (stream, event) = (
        device.create_stream().unwrap(),
        device.create_mem_event().unwrap(),
    );
    let open = gate(&stream);
    event.arm(&stream, 1).unwrap();
    for timeout in [Duration::ZERO, Duration::from_millis(5)] {
        let error = event.wait(1, timeout).unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
    }
    drop(open);
    event.wait(1, LONG).unwrap();
}

#[test]
fn numbers_only_grow_and_one_stream_at_a_time_is_pending() {
    let device = device();
    let (a, b) = (
        device.create_stream().unwrap(),
        device.create_stream().unwrap(),
    );
    let event = device.create_mem_event().unwrap();
    let open = gate(&a);
    event.arm(&a, 7).unwrap();
    let refused = |stream, seq| event.arm(stream, seq).unwrap_err().to_string();
    assert_eq!(
        refused(&a, 7),
        "memevent.arm: the number 7 is not greater than 7, which was armed before"
    );
    assert_eq!(
        refused(&b, 8),
        "memevent.arm: the number 7 is pending on another stream; wait for it or take another \
         mem-event"
    );
    drop(open);
    event.wait(7, LONG).unwrap();
    event.arm(&b, 8).unwrap();
    event.wait(8, LONG).unwrap();
}

/// Every wake of two threads that pass a number back and forth would hang if one were lost.
#[test]
fn no_number_is_lost_between_threads() {
    const ROUNDS: u64 = 20_000;
    let device = device();
    let (ping, pong) = (
        Arc::new(device.create_mem_event().unwrap()),
        Arc::new(device.create_mem_event().unwrap()),
    );
    let (theirs, ours) = (Arc::clone(&ping), Arc::clone(&pong));
    let other = std::thread::spawn(move || {
        let stream = theirs.device().create_stream().unwrap();
        for seq in 1..=ROUNDS {
            while theirs.reached() < seq {
                std::thread::yield_now();
            }
            ours.arm(&stream, seq).unwrap();
        }
    });
    let stream = device.create_stream().unwrap();
    for seq in 1..=ROUNDS {
        // Every few rounds the number goes through the stream's thread instead of an idle stream.
        if seq % 16 == 0 {
            stream.launch_host_func(|| {}).unwrap();
        }
        ping.arm(&stream, seq).unwrap();
        while pong.reached() < seq {
            std::thread::yield_now();
        }
    }
    other.join().unwrap();
    assert_eq!((ping.reached(), pong.reached()), (ROUNDS, ROUNDS));
}

#[test]
fn what_a_stream_wrote_is_there_when_the_number_is() {
    let device = device();
    let (stream, event) = (
        device.create_stream().unwrap(),
        device.create_mem_event().unwrap(),
    );
    let to = Arc::new(device.alloc(1 << 16).unwrap());
    for seq in 1..200 {
        let value = u8::try_from(seq).unwrap();
        stream.fill(&to, 0, 1 << 16, value).unwrap();
        event.arm(&stream, seq).unwrap();
        event.wait(seq, LONG).unwrap();
        let mut last = [0];
        to.read_bytes((1 << 16) - 1, &mut last).unwrap();
        assert_eq!(last[0], value);
    }
}

#[test]
fn events_poll_memory_unless_told_otherwise() {
    let is_synced =
        |device: &Device, options| device.create_event(options).unwrap().is_mem_synced();
    let blocking = EventOptions {
        blocking: true,
        ..EventOptions::default()
    };
    let insisting = EventOptions {
        mem_sync: true,
        ..EventOptions::default()
    };
    let on = device();
    assert!(is_synced(&on, EventOptions::default()));
    assert!(!is_synced(&on, blocking));
    // The original's name of the switch, and its values.
    for (name, value) in [
        ("STEPMESH_MEM_SYNC", "0"),
        ("STEPMESH_TRANSPORT_MEM_SYNC", "false"),
    ] {
        let off = device_with(&[(name, value)]);
        assert!(!is_synced(&off, EventOptions::default()), "{name}");
        assert!(is_synced(&off, insisting), "{name}");
    }
    assert!(is_synced(
        &device_with(&[("STEPMESH_MEM_SYNC", "1")]),
        EventOptions::default()
    ));
}

#[test]
fn an_event_is_the_same_whether_it_polls_memory_or_not() {
    for env in [("STEPMESH_MEM_SYNC", "1"), ("STEPMESH_MEM_SYNC", "0")] {
        let device = device_with(&[env]);
        let (a, b) = (
            device.create_stream().unwrap(),
            device.create_stream().unwrap(),
        );
        let event = device.create_event(EventOptions::default()).unwrap();
        assert!(event.is_done().unwrap(), "never recorded");
        event.synchronize(Duration::ZERO, WaitMode::Spin).unwrap();
        for mode in [WaitMode::Spin, WaitMode::Yield, WaitMode::Block] {
            let open = gate(&a);
            event.record(&a).unwrap();
            assert!(!event.is_done().unwrap(), "{mode:?}");
            let error = event.synchronize(Duration::ZERO, mode).unwrap_err();
            assert!(matches!(error, Error::Timeout { .. }), "{mode:?}: {error}");
            // Recorded again, on another stream, while the first record is pending.
            let other = gate(&b);
            event.record(&b).unwrap();
            drop(open);
            a.synchronize(LONG).unwrap();
            assert!(!event.is_done().unwrap(), "{mode:?}: the mark has moved");
            drop(other);
            event.synchronize(LONG, mode).unwrap();
            assert!(event.is_done().unwrap(), "{mode:?}");
        }
    }
}
