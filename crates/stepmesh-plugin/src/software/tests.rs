//! Failed work, dropped work, and what becomes of those who wait for it. What works is tested by the
//! backends that use it.
#![expect(unsafe_code, reason = "plays a backend")]

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use stepmesh_abi::Code;

use super::{Engine, Event, MemEvent, OrderedStream, Streams, Worker};
use crate::{
    CopyRequest, Direction, Error, EventOptions, EventState, FillRequest, HostFunc, Result, Stream,
    WaitMode,
};

/// Counts copies; one to address [`BAD`] fails, one to [`STUCK`] hangs, a fill panics.
#[derive(Debug, Default)]
struct Counter {
    copies: AtomicU32,
}

impl Engine for Counter {
    const THREAD_NAME: &'static str = "sm-test";

    unsafe fn copy(&self, worker: &Worker<'_>, request: &CopyRequest) -> Result<()> {
        match request.dst {
            BAD => return Err(Error::internal("bad copy")),
            STUCK => assert!(!worker.pause(LONG)),
            _ => drop(self.copies.fetch_add(1, Ordering::SeqCst)),
        }
        Ok(())
    }

    unsafe fn fill(&self, _: &Worker<'_>, request: &FillRequest) -> Result<()> {
        panic!("fill of {:#x}", request.dst);
    }
}

fn start() -> (Arc<Counter>, Streams<Counter>) {
    let engine = Arc::new(Counter::default());
    (Arc::clone(&engine), Streams::new(1, engine))
}

fn stream(streams: &Streams<Counter>) -> Arc<OrderedStream<Counter>> {
    let raw = streams.create(0).unwrap();
    streams.find(Stream { device: 0, raw }).unwrap()
}

fn copy(stream: &OrderedStream<Counter>, dst: u64) {
    let request = CopyRequest {
        dst,
        src: 1,
        len_bytes: 1,
        direction: Direction::Auto,
        dst_device: 0,
        src_device: 0,
    };
    // SAFETY: this engine touches no memory.
    unsafe { stream.copy(request) }.unwrap();
}

unsafe extern "C" fn count(arg: *mut c_void) {
    // SAFETY: the argument is a counter that outlives the stream's work.
    unsafe { &*arg.cast::<AtomicU32>() }.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn failed_work_fails_what_is_behind_it_until_it_is_told_of() {
    let (engine, streams) = start();
    let (first, second) = (stream(&streams), stream(&streams));
    let (before, behind) = (Event::new(TIMED), Event::new(TIMED));
    let calls = AtomicU32::new(0);
    copy(&first, GOOD);
    first.record(&before).unwrap();
    copy(&first, BAD);
    copy(&first, GOOD);
    let arg = (&raw const calls).cast_mut().cast();
    first.call(HostFunc::new(count, arg)).unwrap();
    first.record(&behind).unwrap();
    second.wait_event(&behind).unwrap();
    copy(&second, GOOD);

    let bad = Err(Error::internal("bad copy"));
    assert_eq!(second.synchronize(LONG), bad);
    for mode in [WaitMode::Spin, WaitMode::Yield, WaitMode::Block] {
        assert_eq!(before.synchronize(LONG, mode), Ok(()));
        assert_eq!(behind.synchronize(LONG, mode), bad);
    }
    assert_eq!(
        (before.query(), behind.query()),
        (EventState::Done, EventState::Error)
    );
    assert_eq!(first.synchronize(LONG), bad);
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    assert_eq!(engine.copies.load(Ordering::SeqCst), 1);

    copy(&first, GOOD);
    first.record(&behind).unwrap();
    assert_eq!(behind.synchronize(LONG, WaitMode::Block), Ok(()));
    assert_eq!(first.synchronize(LONG), Ok(()));
    assert_eq!(engine.copies.load(Ordering::SeqCst), 2);
}

#[test]
fn an_event_recorded_on_an_idle_stream_that_failed_is_in_error() {
    let (_, streams) = start();
    let (stream, event) = (stream(&streams), Event::new(TIMED));
    copy(&stream, BAD);
    while !stream.is_idle() {
        std::thread::yield_now();
    }
    stream.record(&event).unwrap();
    let answer = event.synchronize(LONG, WaitMode::Block);
    assert_eq!(answer, Err(Error::internal("bad copy")));
}

#[test]
fn a_panic_of_the_engine_is_a_failure_and_the_stream_goes_on() {
    let (_, streams) = start();
    let stream = stream(&streams);
    let request = FillRequest {
        dst: 0x77,
        value: 0,
        width_bytes: 1,
        len_bytes: 1,
    };
    // SAFETY: this engine touches no memory.
    unsafe { stream.fill(request) }.unwrap();
    let error = stream.synchronize(LONG).unwrap_err();
    assert_eq!(error.code(), Code::Internal);
    assert!(error.message().contains("fill of 0x77"), "{error}");
    copy(&stream, GOOD);
    assert_eq!(stream.synchronize(LONG), Ok(()));
}

#[test]
fn a_device_is_synchronized_whatever_part_of_its_work_fails() {
    let (engine, streams) = start();
    let (first, second) = (stream(&streams), stream(&streams));
    copy(&first, BAD);
    copy(&second, GOOD);
    let answer = streams.synchronize_device(0, LONG);
    assert_eq!(answer, Err(Error::internal("bad copy")));
    assert_eq!(engine.copies.load(Ordering::SeqCst), 1);
    assert_eq!(streams.synchronize_device(0, LONG), Ok(()));
}

#[test]
fn stuck_work_is_dropped_at_the_end_and_its_waiters_are_told() {
    let (_, streams) = start();
    let (stream, event) = (stream(&streams), Event::new(TIMED));
    copy(&stream, STUCK);
    stream.record(&event).unwrap();
    let late = stream.synchronize(Duration::from_millis(1)).unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
    let dropped = streams.quiesce(Duration::from_millis(1)).unwrap_err();
    assert_eq!(dropped.code(), Code::DeadlineExceeded);
    assert!(dropped.message().contains("threads of 0"), "{dropped}");
    let lost = event.synchronize(LONG, WaitMode::Block).unwrap_err();
    assert_eq!(lost.code(), Code::Cancelled);
}

#[test]
fn a_number_behind_failed_or_dropped_work_never_comes_and_says_why() {
    let (_, streams) = start();
    let (stream, event) = (stream(&streams), MemEvent::new());
    copy(&stream, BAD);
    stream.signal(&event, 1).unwrap();
    let answer = stream.synchronize(LONG);
    assert_eq!(answer, Err(Error::internal("bad copy")));
    assert_eq!(event.query(1), Err(Error::internal("bad copy")));
    // Told of it, the stream is as good as new, and so is the event.
    stream.signal(&event, 2).unwrap();
    assert_eq!(event.query(2), Ok(true));
    assert_eq!(event.word().load(Ordering::Acquire), 2);

    copy(&stream, STUCK);
    stream.signal(&event, 3).unwrap();
    assert_eq!(event.query(3), Ok(false));
    let dropped = streams.quiesce(Duration::from_millis(1)).unwrap_err();
    assert_eq!(dropped.code(), Code::DeadlineExceeded);
    assert_eq!(event.query(3).unwrap_err().code(), Code::Cancelled);
    assert_eq!(event.word().load(Ordering::Acquire), 2);
}

/// Addresses that mean something to the engine.
const GOOD: u64 = 1;
const BAD: u64 = 2;
const STUCK: u64 = 3;
/// Far longer than anything here takes.
const LONG: Duration = Duration::from_secs(30);
const TIMED: EventOptions = EventOptions {
    timing: true,
    ipc: false,
    blocking: false,
    memsync: false,
};
