//! Slots about events.
#![expect(unsafe_code, reason = "functions of the C table")]

use stepmesh_abi::{SmBackend, SmError, SmEvent};

use crate::boundary::Value;
use crate::instance::{EventArg, Instance, Phase, slot};
use crate::{Backend, EventOptions, EventState, Stream, WaitMode};

pub(crate) unsafe extern "C" fn event_create<B: Backend>(
    s: *mut SmBackend,
    dev: u32,
    flags: u32,
    out: *mut *mut SmEvent,
    err: *mut SmError,
) -> i32 {
    let work = |i: &Instance<B>| {
        let options = EventOptions::from_raw(flags)?;
        let event = i.backend.event_create(i.check_device(dev)?, options)?;
        Ok(i.add_event(event))
    };
    // SAFETY: the table's contract for the instance, out pointers and `err`.
    unsafe { slot::<B, _>(s, err, "event_create", Phase::Open, Value(out), work) }
}

pub(crate) unsafe extern "C" fn event_destroy<B: Backend>(
    s: *mut SmBackend,
    event: *mut SmEvent,
    err: *mut SmError,
) -> i32 {
    let work = |i: &Instance<B>| {
        if event.is_null() {
            Ok(())
        } else {
            i.remove_event(event).map(drop)
        }
    };
    // SAFETY: the table's contract for the instance, out pointers and `err`.
    unsafe { slot::<B, _>(s, err, "event_destroy", Phase::Ending, (), work) }
}

pub(crate) unsafe extern "C" fn event_record<B: Backend>(
    s: *mut SmBackend,
    event: *mut SmEvent,
    stream_dev: u32,
    stream: u64,
    err: *mut SmError,
) -> i32 {
    // SAFETY: the table's contract: null or a live event.
    let event = unsafe { EventArg::<B>::new(event) };
    let work = |i: &Instance<B>| {
        i.backend.event_record(
            event.of(i)?,
            Stream::from_raw(i.check_device(stream_dev)?, stream)?,
        )
    };
    // SAFETY: the table's contract for the instance, out pointers and `err`.
    unsafe { slot::<B, _>(s, err, "event_record", Phase::Open, (), work) }
}

pub(crate) unsafe extern "C" fn event_query<B: Backend>(
    s: *mut SmBackend,
    event: *mut SmEvent,
    state: *mut u32,
    err: *mut SmError,
) -> i32 {
    // SAFETY: the table's contract: null or a live event.
    let event = unsafe { EventArg::<B>::new(event) };
    let work = |i: &Instance<B>| i.backend.event_query(event.of(i)?).map(EventState::raw);
    // SAFETY: the table's contract for the instance, out pointers and `err`.
    unsafe { slot::<B, _>(s, err, "event_query", Phase::Open, Value(state), work) }
}

pub(crate) unsafe extern "C" fn event_sync<B: Backend>(
    s: *mut SmBackend,
    event: *mut SmEvent,
    timeout_ns: u64,
    wait: u32,
    err: *mut SmError,
) -> i32 {
    // SAFETY: the table's contract: null or a live event.
    let event = unsafe { EventArg::<B>::new(event) };
    let work = |i: &Instance<B>| {
        i.backend
            .event_sync(event.of(i)?, timeout_ns, WaitMode::from_raw(wait)?)
    };
    // SAFETY: the table's contract for the instance, out pointers and `err`.
    unsafe { slot::<B, _>(s, err, "event_sync", Phase::Open, (), work) }
}

pub(crate) unsafe extern "C" fn event_elapsed<B: Backend>(
    s: *mut SmBackend,
    start: *mut SmEvent,
    end: *mut SmEvent,
    ms: *mut f64,
    err: *mut SmError,
) -> i32 {
    // SAFETY: the table's contract: null or a live event.
    let start = unsafe { EventArg::<B>::new(start) };
    // SAFETY: the table's contract: null or a live event.
    let end = unsafe { EventArg::<B>::new(end) };
    let work = |i: &Instance<B>| i.backend.event_elapsed_ms(start.of(i)?, end.of(i)?);
    // SAFETY: the table's contract for the instance, out pointers and `err`.
    unsafe { slot::<B, _>(s, err, "event_elapsed", Phase::Open, Value(ms), work) }
}
