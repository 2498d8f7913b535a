//! Order, asynchrony, bounds and ends of streams.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use stepmesh_plugin::abi::error::{SM_DEADLINE_EXCEEDED, SM_INVALID_ARGUMENT};
use stepmesh_plugin::abi::event::{SM_EVENT_DONE, SM_EVENT_ERROR, SM_EVENT_PENDING};
use stepmesh_plugin::abi::event::{SM_WAIT_BLOCK, SM_WAIT_SPIN, SM_WAIT_YIELD};
use stepmesh_plugin::abi::stream::{SM_STREAM_CURRENT, SM_STREAM_LEGACY, SM_STREAM_PER_THREAD};

use crate::support::{Backend, LONG_NS, REQUIRED, bytes};

/// Holds a stream until it is told to go on.
pub(crate) struct Gate {
    go: Sender<()>,
    gone: Mutex<Receiver<()>>,
}

impl Gate {
    /// Puts a gate into a stream; the stream stops there. The gate outlives the stream's work.
    pub(crate) fn put(b: &Backend, stream: u64) -> &'static Self {
        let (go, gone) = channel();
        let gate: &'static Self = Box::leak(Box::new(Self {
            go,
            gone: Mutex::new(gone),
        }));
        b.launch(
            stream,
            wait_at_gate,
            std::ptr::from_ref(gate).cast_mut().cast(),
        )
        .unwrap_or_else(|failure| panic!("the gate could not be put: {failure:?}"));
        gate
    }

    pub(crate) fn open(&self) {
        self.go.send(()).expect("the gate has its other end");
    }
}

unsafe extern "C" fn wait_at_gate(arg: *mut c_void) {
    // SAFETY: the argument is a leaked gate.
    let gate = unsafe { &*arg.cast::<Gate>() };
    let gone = gate.gone.lock().unwrap_or_else(PoisonError::into_inner);
    // A test that fails must not hang the others.
    let _ = gone.recv_timeout(Duration::from_secs(30));
}

unsafe extern "C" fn count(arg: *mut c_void) {
    // SAFETY: the argument is a test's counter, which outlives the stream's work.
    unsafe { &*arg.cast::<AtomicU32>() }.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn work_is_asynchronous_and_in_order() {
    let b = Backend::open();
    let stream = b.stream();
    let (x, y, z) = (
        b.alloc(1 << 20).unwrap(),
        b.alloc(1 << 20).unwrap(),
        b.alloc(1 << 20).unwrap(),
    );
    bytes(x, 1 << 20).fill(9);
    let gate = Gate::put(&b, stream);
    b.copy(y, x, 1 << 20, stream).unwrap();
    b.copy(z, y, 1 << 20, stream).unwrap();
    assert_eq!(
        bytes(z, 1)[0],
        0,
        "nothing may run while the stream is held"
    );
    assert_eq!(
        b.stream_sync(stream, 1_000_000).unwrap_err().code,
        SM_DEADLINE_EXCEEDED
    );
    gate.open();
    b.stream_sync(stream, LONG_NS).unwrap();
    assert!(bytes(z, 1 << 20).iter().all(|byte| *byte == 9));
}

#[test]
fn a_stream_tells_whether_it_is_done() {
    let b = Backend::open();
    let stream = b.stream();
    let query = b.api.stream_query.unwrap();
    let is_done = || {
        let mut done = 9;
        // SAFETY: an open instance and a local out pointer.
        b.call(|s, e| unsafe { query(s, 0, stream, &raw mut done, e) })
            .unwrap();
        done
    };
    assert_eq!(is_done(), 1);
    let gate = Gate::put(&b, stream);
    assert_eq!(is_done(), 0);
    gate.open();
    b.stream_sync(stream, LONG_NS).unwrap();
    assert_eq!(is_done(), 1);
}

#[test]
fn an_event_orders_two_streams() {
    let b = Backend::open();
    let (first, second) = (b.stream(), b.stream());
    let (x, y) = (b.alloc(8).unwrap(), b.alloc(8).unwrap());
    bytes(x, 8).fill(0);
    let one = b.alloc(8).unwrap();
    bytes(one, 8).fill(1);
    let event = b.event(0);
    let gate = Gate::put(&b, first);
    b.copy(x, one, 8, first).unwrap();
    b.record(event, first);
    let wait = b.api.stream_wait_event.unwrap();
    // SAFETY: an open instance and a live event.
    b.call(|s, e| unsafe { wait(s, 0, second, event, e) })
        .unwrap();
    b.copy(y, x, 8, second).unwrap();
    // Destroyed while a stream waits for it: the wait goes on.
    b.destroy_event(event);
    assert_eq!(
        b.stream_sync(second, 1_000_000).unwrap_err().code,
        SM_DEADLINE_EXCEEDED
    );
    gate.open();
    b.stream_sync(second, LONG_NS).unwrap();
    assert_eq!(bytes(y, 8), [1; 8]);
}

#[test]
fn stream_numbers_are_refused_or_taken_as_the_abi_says() {
    let b = Backend::open();
    for stream in [SM_STREAM_LEGACY, SM_STREAM_PER_THREAD] {
        b.stream_sync(stream, LONG_NS).unwrap();
        let destroy = b.api.stream_destroy.unwrap();
        // SAFETY: an open instance.
        let answer = b.call(|s, e| unsafe { destroy(s, 0, stream, e) });
        assert_eq!(answer.unwrap_err().code, SM_INVALID_ARGUMENT);
    }
    for stream in [0, 3, SM_STREAM_CURRENT] {
        assert_eq!(
            b.stream_sync(stream, 1).unwrap_err().code,
            SM_INVALID_ARGUMENT,
            "{stream}"
        );
    }
}

#[test]
fn each_thread_has_a_default_stream_of_its_own() {
    let b = Backend::open();
    let gate = Gate::put(&b, SM_STREAM_PER_THREAD);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let calls = AtomicU32::new(0);
            let arg = (&raw const calls).cast_mut().cast();
            b.launch(SM_STREAM_PER_THREAD, count, arg).unwrap();
            b.stream_sync(SM_STREAM_PER_THREAD, LONG_NS).unwrap();
            assert_eq!(calls.load(Ordering::SeqCst), 1);
        });
    });
    let held = b.stream_sync(SM_STREAM_PER_THREAD, 1_000_000).unwrap_err();
    assert_eq!(held.code, SM_DEADLINE_EXCEEDED);
    gate.open();
    b.stream_sync(SM_STREAM_PER_THREAD, LONG_NS).unwrap();
}

#[test]
fn a_destroyed_stream_still_does_its_work_and_takes_no_more() {
    let b = Backend::open();
    let stream = b.stream();
    let calls = AtomicU32::new(0);
    let gate = Gate::put(&b, stream);
    b.launch(stream, count, (&raw const calls).cast_mut().cast())
        .unwrap();
    let destroy = b.api.stream_destroy.unwrap();
    // SAFETY: an open instance.
    b.call(|s, e| unsafe { destroy(s, 0, stream, e) }).unwrap();
    assert_eq!(
        b.stream_sync(stream, 1).unwrap_err().code,
        SM_INVALID_ARGUMENT
    );
    gate.open();
    let sync = b.api.device_sync.expect(REQUIRED);
    // SAFETY: an open instance.
    b.call(|s, e| unsafe { sync(s, 0, e) }).unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

#[test]
fn closing_does_the_work_that_is_left() {
    let b = Backend::open();
    let stream = b.stream();
    let calls = AtomicU32::new(0);
    for _ in 0..100 {
        b.launch(stream, count, (&raw const calls).cast_mut().cast())
            .unwrap();
    }
    b.close().unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 100);
}

#[test]
fn quiesce_ends_within_its_bound_though_a_stream_hangs_and_loses_no_function() {
    let b = Backend::open();
    let stream = b.stream();
    let calls = AtomicU32::new(0);
    let gate = Gate::put(&b, stream);
    b.launch(stream, count, (&raw const calls).cast_mut().cast())
        .unwrap();
    let event = b.event(0);
    b.record(event, stream);
    let quiesce = b.api.quiesce.unwrap();
    // SAFETY: an open instance.
    let answer = b.call(|s, e| unsafe { quiesce(s, e) });
    assert_eq!(answer.unwrap_err().code, SM_DEADLINE_EXCEEDED);
    assert_eq!(
        calls.load(Ordering::SeqCst),
        1,
        "dropped work runs its function all the same"
    );
    gate.open();
    b.close().unwrap();
}

#[test]
fn an_event_waits_in_each_mode_and_times_out_in_each() {
    let b = Backend::open();
    for wait in [SM_WAIT_SPIN, SM_WAIT_YIELD, SM_WAIT_BLOCK] {
        let stream = b.stream();
        let event = b.event(0);
        let gate = Gate::put(&b, stream);
        b.record(event, stream);
        assert_eq!(b.event_state(event), SM_EVENT_PENDING);
        let late = b.event_sync(event, 2_000_000, wait).unwrap_err();
        assert_eq!(late.code, SM_DEADLINE_EXCEEDED);
        gate.open();
        b.event_sync(event, LONG_NS, wait).unwrap();
        assert_eq!(b.event_state(event), SM_EVENT_DONE);
        assert_ne!(b.event_state(event), SM_EVENT_ERROR);
        b.destroy_event(event);
    }
}
