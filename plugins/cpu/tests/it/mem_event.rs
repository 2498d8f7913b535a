//! Mem-events through the table: misuse is refused, and destroying one that is armed is safe.

use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};

use stepmesh_plugin::abi::error::SM_INVALID_ARGUMENT;
use stepmesh_plugin::abi::event::{SM_EVENT_DONE, SM_EVENT_PENDING};
use stepmesh_plugin::abi::extension::SM_EXTENSION_MEMEVENT_V1;
use stepmesh_plugin::abi::{SmMemEvent, SmMemEventV1};

use crate::stream::Gate;
use crate::support::{Answer, Backend, LONG_NS, REQUIRED};

fn table(b: &Backend) -> &'static SmMemEventV1 {
    let (mut table, mut version) = (null(), 0);
    let name = SM_EXTENSION_MEMEVENT_V1;
    let len = u32::try_from(name.len()).expect("short");
    let get = b.api.get_extension.expect("the kit fills this slot");
    let (out, out_version) = (&raw mut table, &raw mut version);
    // SAFETY: an open instance, a static name and local out pointers.
    let found = b.call(|s, e| unsafe { get(s, name.as_ptr().cast(), len, 1, out, out_version, e) });
    assert_eq!((found, version), (Ok(()), 1));
    // SAFETY: the table is static.
    unsafe { &*table.cast::<SmMemEventV1>() }
}

fn create(b: &Backend) -> *mut SmMemEvent {
    let mut event = null_mut();
    let create = table(b).create.expect(REQUIRED);
    // SAFETY: an open instance and a local out pointer.
    b.call(|s, e| unsafe { create(s, 0, &raw mut event, e) })
        .expect("a mem-event can be made");
    event
}

fn destroy(b: &Backend, event: *mut SmMemEvent) -> Answer<()> {
    let destroy = table(b).destroy.expect(REQUIRED);
    // SAFETY: an open instance; an address that is not live is not touched.
    b.call(|s, e| unsafe { destroy(s, event, e) })
}

fn arm(b: &Backend, event: *mut SmMemEvent, stream: u64, seq: u64) -> Answer<()> {
    let arm = table(b).arm.expect(REQUIRED);
    // SAFETY: an open instance and a live event or null.
    b.call(|s, e| unsafe { arm(s, event, 0, stream, seq, e) })
}

fn query(b: &Backend, event: *mut SmMemEvent) -> Answer<u32> {
    let (mut state, query) = (99, table(b).query.expect(REQUIRED));
    // SAFETY: an open instance, a live event and a local out pointer.
    b.call(|s, e| unsafe { query(s, event, &raw mut state, e) })?;
    Ok(state)
}

fn word(b: &Backend, event: *mut SmMemEvent) -> &AtomicU64 {
    let (mut addr, poll) = (null(), table(b).poll_addr.expect(REQUIRED));
    // SAFETY: an open instance, a live event and a local out pointer.
    b.call(|s, e| unsafe { poll(s, event, &raw mut addr, e) })
        .expect("a live event has a word");
    // SAFETY: aligned and readable for the life of the event, which ends after its last use here.
    unsafe { AtomicU64::from_ptr(addr.cast_mut()) }
}

#[test]
fn the_word_stays_in_place_and_has_the_last_number_once_the_stream_is_there() {
    let b = Backend::open();
    let (stream, event) = (b.stream(), create(&b));
    let at = word(&b, event);
    assert_eq!(
        (at.load(Ordering::Acquire), query(&b, event)),
        (0, Ok(SM_EVENT_DONE))
    );
    let gate = Gate::put(&b, stream);
    arm(&b, event, stream, 10).unwrap();
    assert_eq!(query(&b, event), Ok(SM_EVENT_PENDING));
    gate.open();
    b.stream_sync(stream, LONG_NS).unwrap();
    assert_eq!(
        (at.load(Ordering::Acquire), query(&b, event)),
        (10, Ok(SM_EVENT_DONE))
    );
    assert_eq!(word(&b, event).as_ptr(), at.as_ptr());
    destroy(&b, event).unwrap();
}

#[test]
fn misuse_is_refused_by_name() {
    let b = Backend::open();
    let (stream, event) = (b.stream(), create(&b));
    arm(&b, event, stream, 2).unwrap();
    let other = Backend::open();
    for (answer, expected) in [
        (arm(&b, event, stream, 2), "2 is not greater than 2"),
        (arm(&b, event, stream, 0), "0 is not greater than 2"),
        (arm(&b, event, 0, 3), "stream 0"),
        (arm(&b, event, 0xdead, 3), "stream 0xdead"),
        (arm(&b, null_mut(), stream, 3), "null"),
        (arm(&other, event, 1, 3), "another instance"),
        (destroy(&other, event), "no live mem-event"),
    ] {
        let failure = answer.expect_err(expected);
        assert_eq!(failure.code, SM_INVALID_ARGUMENT);
        assert!(failure.message.contains(expected), "{failure:?}");
    }
    // A refused number may be armed after all.
    arm(&b, event, stream, 3).unwrap();
    destroy(&b, event).unwrap();
    let again = destroy(&b, event).expect_err("it is gone");
    assert_eq!(again.code, SM_INVALID_ARGUMENT);
    destroy(&b, null_mut()).unwrap();
}

#[test]
fn one_that_is_armed_may_be_destroyed_or_left_to_close() {
    let b = Backend::open();
    let stream = b.stream();
    let gate = Gate::put(&b, stream);
    let (destroyed, left) = (create(&b), create(&b));
    arm(&b, destroyed, stream, 1).unwrap();
    arm(&b, left, stream, 1).unwrap();
    destroy(&b, destroyed).unwrap();
    gate.open();
    b.stream_sync(stream, LONG_NS).unwrap();
    assert_eq!(word(&b, left).load(Ordering::Acquire), 1);
    b.close().unwrap();
}
