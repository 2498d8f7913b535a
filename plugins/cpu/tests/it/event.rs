//! Events: the rules for those never recorded, recorded again, and timed.

use stepmesh_plugin::abi::SmEvent;
use stepmesh_plugin::abi::error::{SM_FAILED_PRECONDITION, SM_UNIMPLEMENTED};
use stepmesh_plugin::abi::event::{
    SM_EVENT_DONE, SM_EVENT_IPC, SM_EVENT_PENDING, SM_EVENT_TIMING, SM_WAIT_BLOCK,
};
use stepmesh_plugin::abi::stream::SM_STREAM_LEGACY;

use crate::stream::Gate;
use crate::support::{Answer, Backend, LONG_NS, REQUIRED};

fn elapsed(b: &Backend, start: *mut SmEvent, end: *mut SmEvent) -> Answer<f64> {
    let mut ms = 0.0;
    let elapsed = b
        .api
        .event_elapsed
        .expect("the cpu backend fills this slot");
    // SAFETY: an open instance, live events and a local out pointer.
    b.call(|s, e| unsafe { elapsed(s, start, end, &raw mut ms, e) })?;
    Ok(ms)
}

#[test]
fn an_event_never_recorded_is_done() {
    let b = Backend::open();
    let event = b.event(0);
    assert_eq!(b.event_state(event), SM_EVENT_DONE);
    b.event_sync(event, 0, SM_WAIT_BLOCK).unwrap();
}

#[test]
fn an_event_recorded_on_an_idle_stream_is_done_at_once() {
    let b = Backend::open();
    let event = b.event(0);
    b.record(event, SM_STREAM_LEGACY);
    assert_eq!(b.event_state(event), SM_EVENT_DONE);
}

#[test]
fn recording_again_moves_the_mark_and_leaves_earlier_waiters_alone() {
    let b = Backend::open();
    let (first, second, third) = (b.stream(), b.stream(), b.stream());
    let event = b.event(0);
    let first_gate = Gate::put(&b, first);
    b.record(event, first);
    let wait = b.api.stream_wait_event.expect(REQUIRED);
    // SAFETY: an open instance and a live event.
    b.call(|s, e| unsafe { wait(s, 0, third, event, e) })
        .unwrap();
    let second_gate = Gate::put(&b, second);
    b.record(event, second);
    first_gate.open();
    // The third stream waits for the first record only.
    b.stream_sync(third, LONG_NS).unwrap();
    assert_eq!(b.event_state(event), SM_EVENT_PENDING);
    second_gate.open();
    b.event_sync(event, LONG_NS, SM_WAIT_BLOCK).unwrap();
}

#[test]
fn elapsed_time_is_not_negative_and_needs_timing_events_that_are_done() {
    let b = Backend::open();
    let stream = b.stream();
    let (start, end, untimed) = (
        b.event(SM_EVENT_TIMING),
        b.event(SM_EVENT_TIMING),
        b.event(0),
    );
    assert_eq!(
        elapsed(&b, start, end).unwrap_err().code,
        SM_FAILED_PRECONDITION
    );
    b.record(start, stream);
    let gate = Gate::put(&b, stream);
    b.record(end, stream);
    assert_eq!(
        elapsed(&b, start, end).unwrap_err().code,
        SM_FAILED_PRECONDITION
    );
    gate.open();
    b.event_sync(end, LONG_NS, SM_WAIT_BLOCK).unwrap();
    assert!(elapsed(&b, start, end).unwrap() >= 0.0);
    assert!(elapsed(&b, end, start).unwrap() <= 0.0);
    b.record(untimed, stream);
    assert_eq!(
        elapsed(&b, start, untimed).unwrap_err().code,
        SM_FAILED_PRECONDITION
    );
}

#[test]
fn a_thousand_events_live_and_pending_ones_may_be_destroyed() {
    let b = Backend::open();
    let stream = b.stream();
    let gate = Gate::put(&b, stream);
    let events: Vec<_> = (0..1000).map(|_| b.event(0)).collect();
    for event in &events {
        b.record(*event, stream);
    }
    for event in &events[..500] {
        b.destroy_event(*event);
    }
    gate.open();
    for event in &events[500..] {
        b.event_sync(*event, LONG_NS, SM_WAIT_BLOCK).unwrap();
    }
    // The rest is left to close.
    b.close().unwrap();
}

#[test]
fn events_between_processes_are_unimplemented() {
    let b = Backend::open();
    let mut event = std::ptr::null_mut();
    let create = b.api.event_create.expect(REQUIRED);
    // SAFETY: an open instance and a local out pointer.
    let answer = b.call(|s, e| unsafe { create(s, 0, SM_EVENT_IPC, &raw mut event, e) });
    assert_eq!(answer.unwrap_err().code, SM_UNIMPLEMENTED);
}
