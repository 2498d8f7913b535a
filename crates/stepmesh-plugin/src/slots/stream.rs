//! Slots about streams.
#![expect(unsafe_code, reason = "functions of the C table")]

use std::ffi::c_void;

use stepmesh_abi::stream::SM_STREAM_NON_BLOCKING;
use stepmesh_abi::{SmBackend, SmError, SmEvent};

use crate::boundary::Value;
use crate::instance::{EventArg, Instance, Phase, slot};
use crate::request::known_bits;
use crate::{Backend, Error, HostFunc, Stream};

pub(crate) unsafe extern "C" fn stream_create<B: Backend>(
    s: *mut SmBackend,
    dev: u32,
    priority: i32,
    flags: u32,
    stream: *mut u64,
    err: *mut SmError,
) -> i32 {
    let work = |i: &Instance<B>| {
        let dev = i.check_device(dev)?;
        known_bits("stream flags", flags, SM_STREAM_NON_BLOCKING)?;
        i.backend
            .stream_create(dev, priority, flags & SM_STREAM_NON_BLOCKING != 0)
    };
    // SAFETY: the table's contract for the instance, out pointers and `err`.
    unsafe { slot::<B, _>(s, err, "stream_create", Phase::Open, Value(stream), work) }
}

pub(crate) unsafe extern "C" fn stream_destroy<B: Backend>(
    s: *mut SmBackend,
    stream_dev: u32,
    stream: u64,
    err: *mut SmError,
) -> i32 {
    let work = |i: &Instance<B>| {
        i.backend
            .stream_destroy(Stream::from_raw(i.check_device(stream_dev)?, stream)?)
    };
    // SAFETY: the table's contract for the instance, out pointers and `err`.
    unsafe { slot::<B, _>(s, err, "stream_destroy", Phase::Ending, (), work) }
}

pub(crate) unsafe extern "C" fn stream_sync<B: Backend>(
    s: *mut SmBackend,
    stream_dev: u32,
    stream: u64,
    timeout_ns: u64,
    err: *mut SmError,
) -> i32 {
    let work = |i: &Instance<B>| {
        i.backend.stream_sync(
            Stream::from_raw(i.check_device(stream_dev)?, stream)?,
            timeout_ns,
        )
    };
    // SAFETY: the table's contract for the instance, out pointers and `err`.
    unsafe { slot::<B, _>(s, err, "stream_sync", Phase::Open, (), work) }
}

pub(crate) unsafe extern "C" fn stream_query<B: Backend>(
    s: *mut SmBackend,
    stream_dev: u32,
    stream: u64,
    done: *mut u32,
    err: *mut SmError,
) -> i32 {
    let work = |i: &Instance<B>| {
        i.backend
            .stream_is_done(Stream::from_raw(i.check_device(stream_dev)?, stream)?)
            .map(u32::from)
    };
    // SAFETY: the table's contract for the instance, out pointers and `err`.
    unsafe { slot::<B, _>(s, err, "stream_query", Phase::Open, Value(done), work) }
}

pub(crate) unsafe extern "C" fn stream_wait_event<B: Backend>(
    s: *mut SmBackend,
    stream_dev: u32,
    stream: u64,
    event: *mut SmEvent,
    err: *mut SmError,
) -> i32 {
    // SAFETY: the table's contract: null or a live event.
    let event = unsafe { EventArg::<B>::new(event) };
    let work = |i: &Instance<B>| {
        i.backend.stream_wait_event(
            Stream::from_raw(i.check_device(stream_dev)?, stream)?,
            event.of(i)?,
        )
    };
    // SAFETY: the table's contract for the instance, out pointers and `err`.
    unsafe { slot::<B, _>(s, err, "stream_wait_event", Phase::Open, (), work) }
}

pub(crate) unsafe extern "C" fn launch_host_func<B: Backend>(
    s: *mut SmBackend,
    stream_dev: u32,
    stream: u64,
    func: Option<unsafe extern "C" fn(*mut c_void)>,
    arg: *mut c_void,
    err: *mut SmError,
) -> i32 {
    let work = |i: &Instance<B>| {
        let func = func.ok_or_else(|| Error::invalid_argument("the function is null"))?;
        let stream = Stream::from_raw(i.check_device(stream_dev)?, stream)?;
        i.backend.launch_host_func(stream, HostFunc::new(func, arg))
    };
    // SAFETY: the table's contract for the instance, out pointers and `err`.
    unsafe { slot::<B, _>(s, err, "launch_host_func", Phase::Open, (), work) }
}
