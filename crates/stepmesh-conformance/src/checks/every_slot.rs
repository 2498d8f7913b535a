//! Calls of every slot: with good arguments, with a device that does not exist, and with values that
//! no version knows. For checks that are about all of them.
#![forbid(unsafe_code)]

use stepmesh_abi::Code;
use stepmesh_abi::memory::{SM_COPY_D2D, SM_COPY_H2D, SM_MEMORY_DEVICE};

use super::setting::{LONG_NS, Setting};
use crate::check::Stop;
use crate::raw::failure::Failure;
use crate::raw::memory::HostBuffer;
use crate::raw::session::{Event, Session, Stream};

/// What a call does.
type Make = Box<dyn Fn(&Session) -> Result<(), Failure> + Send + Sync>;

/// A call of one slot, which can be made any number of times.
pub(super) struct Call {
    pub(super) what: &'static str,
    pub(super) make: Make,
}

fn call(
    what: &'static str,
    make: impl Fn(&Session) -> Result<(), Failure> + Send + Sync + 'static,
) -> Call {
    let make = Box::new(make);
    Call { what, make }
}

/// Every slot of class A with arguments that are right. Each call leaves nothing behind.
pub(super) fn good(setting: &Setting) -> Result<Vec<Call>, Stop> {
    let (dev, on) = (setting.dev, setting.stream);
    let memory = setting.alloc(LEN)?;
    let (low, high) = (memory.at(0, HALF), memory.at(HALF, HALF));
    let host = HostBuffer::zeroed(LEN / 2);
    let event = setting.event()?;
    Ok(vec![
        call("device_count", |s| s.device_count().map(drop)),
        call("device_info", move |s| s.device_info(dev).map(drop)),
        call("mem_info", move |s| s.mem_info(dev).map(drop)),
        call("capabilities", move |s| s.capabilities(dev).map(drop)),
        call("get_current_device", |s| s.current_device().map(drop)),
        call("device_sync", move |s| s.device_sync(dev)),
        call("alloc and free", move |s| {
            s.alloc(dev, 5000).and_then(|own| s.free(dev, own.ptr))
        }),
        call("alloc_async and free_async", move |s| {
            s.alloc_async(dev, 5000, on)
                .and_then(|own| s.free_async(dev, own.ptr, on))
        }),
        call("pointer_attributes", move |s| {
            s.pointer_attributes(memory.ptr).map(drop)
        }),
        call("stream_create and stream_destroy", move |s| {
            s.stream_create(dev).and_then(|own| s.stream_destroy(own))
        }),
        call("memcpy_async", move |s| {
            s.memcpy_async(high, host.all(), SM_COPY_H2D, on)
        }),
        call("memcpy_sync", move |s| {
            s.memcpy_sync(high, low, SM_COPY_D2D)
        }),
        call("memset_async", move |s| s.memset_async(high, 7, 1, on)),
        call("event_create and event_destroy", move |s| {
            s.event_create(dev, 0).and_then(|own| s.event_destroy(own))
        }),
        call("stream_wait_event", move |s| s.stream_wait_event(on, event)),
        call("stream_query", move |s| s.stream_query(on).map(drop)),
        call("stream_sync", move |s| s.stream_sync(on, LONG_NS)),
        call("event_query", move |s| s.event_query(event).map(drop)),
        call("event_sync", move |s| s.event_sync(event, LONG_NS, 2)),
        call("launch_host_func", move |s| s.launch(on, || {}).map(drop)),
        call("last_error", |s| s.last_error().map(drop)),
        call("health", move |s| s.health(dev).map(drop)),
        call("get_extension", |s| {
            match s.extension("org.example.nothing", 1) {
                Err(failure) if failure.code == Code::NotFound => Ok(()),
                result => result.map(drop),
            }
        }),
        call("event_record", move |s| {
            // Class H: one call at a time for each handle, so it brings its own.
            let own = s.event_create(dev, 0)?;
            let recorded = s.event_record(own, on);
            s.event_destroy(own).and(recorded)
        }),
    ])
}

/// Every slot that takes a device, with one that does not exist.
pub(super) fn with_device(dev: u32) -> Vec<Call> {
    let on = Stream { dev, raw: 1 };
    vec![
        call("device_info", move |s| s.device_info(dev).map(drop)),
        call("mem_info", move |s| s.mem_info(dev).map(drop)),
        call("capabilities", move |s| s.capabilities(dev).map(drop)),
        call("set_current_device", move |s| s.set_current_device(dev)),
        call("device_sync", move |s| s.device_sync(dev)),
        call("alloc", move |s| s.alloc(dev, 4096).map(drop)),
        call("free", move |s| s.free(dev, 4096)),
        call("stream_create", move |s| s.stream_create(dev).map(drop)),
        call("stream_sync", move |s| s.stream_sync(on, 1000)),
        call("stream_query", move |s| s.stream_query(on).map(drop)),
        call("event_create", move |s| s.event_create(dev, 0).map(drop)),
        call("health", move |s| s.health(dev).map(drop)),
    ]
}

/// Every slot that takes a stream, with this one.
pub(super) fn with_stream(setting: &Setting, on: Stream) -> Result<Vec<Call>, Stop> {
    let memory = setting.alloc(LEN)?;
    let (low, high) = (memory.at(0, HALF), memory.at(HALF, HALF));
    let event = setting.event()?;
    Ok(vec![
        call("stream_sync", move |s| s.stream_sync(on, 1000)),
        call("stream_query", move |s| s.stream_query(on).map(drop)),
        call("stream_wait_event", move |s| s.stream_wait_event(on, event)),
        call("memcpy_async", move |s| {
            s.memcpy_async(high, low, SM_COPY_D2D, on)
        }),
        call("memset_async", move |s| s.memset_async(high, 1, 1, on)),
        call("event_record", move |s| s.event_record(event, on)),
        call("launch_host_func", move |s| s.launch(on, || {}).map(drop)),
        call("alloc_async", move |s| {
            s.alloc_async(on.dev, 4096, on).map(drop)
        }),
        call("stream_destroy", move |s| s.stream_destroy(on)),
    ])
}

/// Arguments that no version of the ABI knows: each call is to be refused as an invalid argument.
pub(super) fn unknown_values(setting: &Setting) -> Result<Vec<Call>, Stop> {
    let (dev, on) = (setting.dev, setting.stream);
    let memory = setting.alloc(LEN)?;
    let (low, high) = (memory.at(0, HALF), memory.at(HALF, HALF));
    let host = HostBuffer::zeroed(4096);
    let event = setting.event()?;
    Ok(vec![
        call("alloc of an unknown kind", move |s| {
            s.alloc_with(dev, 64, 0, 77, 0).map(drop)
        }),
        call("alloc with unknown flags", move |s| {
            s.alloc_with(dev, 64, 0, SM_MEMORY_DEVICE, 1 << 31)
                .map(drop)
        }),
        call("alloc aligned to 3", move |s| {
            s.alloc_with(dev, 64, 3, SM_MEMORY_DEVICE, 0).map(drop)
        }),
        call("free of memory that is not there", move |s| {
            s.free(dev, 4096)
        }),
        call("host_register with unknown flags", move |s| {
            s.host_register(&host, 1 << 31).map(drop)
        }),
        call("stream_create with unknown flags", move |s| {
            s.stream_create_with(dev, 0, 1 << 31).map(drop)
        }),
        call("stream_sync of stream 0", move |s| {
            s.stream_sync(Stream { dev, raw: 0 }, 1000)
        }),
        call("memcpy_async in an unknown direction", move |s| {
            s.memcpy_async(high, low, 77, on)
        }),
        call("memset_async of width 3", move |s| {
            s.memset_async(memory.at(0, 99), 1, 3, on)
        }),
        call("event_create with unknown flags", move |s| {
            s.event_create(dev, 1 << 31).map(drop)
        }),
        call("event_record of no event", move |s| {
            s.event_record(Event::NULL, on)
        }),
        call("event_sync of no event", move |s| {
            s.event_sync(Event::NULL, 1000, 2)
        }),
        call("event_sync in an unknown way", move |s| {
            s.event_sync(event, 1000, 77)
        }),
        call("launch_host_func of no function", move |s| {
            s.launch_nothing(on)
        }),
    ])
}

/// Makes calls and gives what each said, but for slots that the plugin lacks.
pub(super) fn make_all(
    session: &Session,
    calls: &[Call],
) -> Vec<(&'static str, Result<(), Failure>)> {
    let results = calls.iter().map(|call| (call.what, (call.make)(session)));
    results
        .filter(|(_, result)| !result.as_ref().is_err_and(|failure| failure.is_absent))
        .collect()
}

/// Everything that a plugin does in ordinary life, good and bad, for checks that only watch.
pub(super) fn ordinary_life(setting: &Setting) -> Result<(), Stop> {
    for (what, result) in make_all(&setting.session, &good(setting)?) {
        result.map_err(|failure| Stop::Fail(format!("{what}: {failure}")))?;
    }
    make_all(&setting.session, &with_device(setting.devices + 41));
    make_all(&setting.session, &unknown_values(setting)?);
    setting.sync(setting.stream)
}

/// Bytes that the calls work on, in two halves.
const LEN: usize = 8192;
const HALF: u64 = 4096;
