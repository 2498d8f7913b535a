//! Opening, panicking, poisoning, quiescing, closing.

use std::ptr::null_mut;

use stepmesh_plugin::abi::SmError;
use stepmesh_plugin::abi::error::{SM_FAILED_PRECONDITION, SM_INTERNAL, SM_NOT_FOUND, SM_OK};

use crate::fake::LIVE_EVENTS;
use crate::support::{api, host, message, open, try_open};

#[test]
fn query_gives_the_same_table_each_time_and_the_note_agrees_with_it() {
    let (host, _) = host("");
    let first = api(host);
    assert!(std::ptr::eq(first, api(host)));
    assert_eq!(first.missing_required_slot(), None);
    // SAFETY: the table's description is static.
    let info = unsafe { &*first.info };
    assert_eq!(info.name.len, 4);
}

#[test]
fn unlisted_optional_slots_are_null_and_listed_ones_are_not() {
    let (host, _) = host("");
    let api = api(host);
    assert!(api.mem_info.is_some() && api.launch_host_func.is_some());
    assert!(api.alloc_async.is_none() && api.free_async.is_none() && api.memcpy_sync.is_none());
    assert!(api.memset_async.is_none() && api.event_elapsed.is_none() && api.health.is_none());
    assert!(api.host_register.is_none() && api.host_unregister.is_none());
}

#[test]
fn a_panic_poisons_its_instance_only_and_later_calls_name_it() {
    let (first, second) = (open(), open());
    let (code, err) = first.device_sync(1);
    assert_eq!(code, SM_INTERNAL);
    assert!(
        message(&err).starts_with("device_sync panicked: "),
        "{}",
        message(&err)
    );
    let (code, err) = first.device_sync(0);
    assert_eq!(code, SM_FAILED_PRECONDITION);
    assert!(
        message(&err).contains("device_sync panicked"),
        "{}",
        message(&err)
    );
    assert_eq!(second.device_sync(0).0, SM_OK);
    assert_eq!(first.close().0, SM_OK);
}

#[test]
fn a_panic_in_open_is_an_error_and_the_next_open_works() {
    let (bad, _) = host("panic");
    let table = api(bad);
    let (code, s, err) = try_open(table, bad);
    assert_eq!((code, s), (SM_INTERNAL, null_mut()));
    assert_eq!(message(&err), "open panicked: told to panic in open");
    drop(open());
}

#[test]
fn a_failing_open_passes_the_native_code_on() {
    let (bad, _) = host("fail");
    let (code, _, err) = try_open(api(bad), bad);
    assert_eq!((code, err.native_code), (SM_INTERNAL, 77));
}

#[test]
fn after_quiesce_only_frees_destroys_and_close_are_served() {
    let opened = open();
    for _ in 0..2 {
        // SAFETY: an open instance, and no error is wanted.
        let code = unsafe { (opened.api.quiesce.unwrap())(opened.s, null_mut()) };
        assert_eq!(code, SM_OK);
    }
    let (code, err) = opened.device_sync(0);
    assert_eq!(code, SM_FAILED_PRECONDITION);
    assert!(message(&err).contains("was quiesced"));
    // SAFETY: an open instance; 0 is no memory.
    let code = unsafe { (opened.api.free.unwrap())(opened.s, 0, 0, null_mut()) };
    assert_eq!(code, SM_OK);
    assert_eq!(opened.close().0, SM_OK);
}

#[test]
fn close_releases_events_that_are_left_and_a_stray_destroy_is_refused() {
    let opened = open();
    let (mut kept, mut gone) = (null_mut(), null_mut());
    let create = opened.api.event_create.unwrap();
    for event in [&mut kept, &mut gone] {
        // SAFETY: an open instance and a local out pointer.
        let code = unsafe { create(opened.s, 0, 0, event, null_mut()) };
        assert_eq!(code, SM_OK);
        assert!(!event.is_null());
    }
    let destroy = opened.api.event_destroy.unwrap();
    // SAFETY: a live event.
    assert_eq!(unsafe { destroy(opened.s, gone, null_mut()) }, SM_OK);
    // SAFETY: the kit compares the address only.
    assert_ne!(unsafe { destroy(opened.s, gone, null_mut()) }, SM_OK);
    assert_eq!(opened.close().0, SM_OK);
    assert_eq!(LIVE_EVENTS.get(), 0);
}

#[test]
fn an_event_of_another_instance_is_refused() {
    let (first, second) = (open(), open());
    let mut event = null_mut();
    // SAFETY: an open instance and a local out pointer.
    unsafe { (first.api.event_create.unwrap())(first.s, 0, 0, &raw mut event, null_mut()) };
    let mut err = SmError::new();
    // SAFETY: an open instance and a live event, though not one of its own.
    unsafe { (second.api.event_record.unwrap())(second.s, event, 0, 1, &raw mut err) };
    assert_eq!(message(&err), "the event belongs to another instance");
    // SAFETY: a live event of its instance.
    unsafe { (first.api.event_destroy.unwrap())(first.s, event, null_mut()) };
}

#[test]
fn asynchronous_errors_reach_the_host() {
    let (host, seen) = host("");
    let table = api(host);
    let (_, s, _) = try_open(table, host);
    // SAFETY: an open instance.
    unsafe { (table.device_sync.unwrap())(s, 0, null_mut()) };
    assert_eq!(*seen.async_errors.lock().unwrap(), ["0: from far away"]);
    // SAFETY: an open instance that nothing uses any more.
    unsafe { (table.close.unwrap())(s, null_mut()) };
}

#[test]
fn an_extension_is_found_by_name_and_version() {
    let opened = open();
    let ask = |name: &str, min_version| {
        let (mut table, mut version) = (std::ptr::null(), 0);
        let get = opened.api.get_extension.unwrap();
        let (ptr, len) = (name.as_ptr().cast(), u32::try_from(name.len()).unwrap());
        let (out, out_version) = (&raw mut table, &raw mut version);
        // SAFETY: an open instance, a live name and local out pointers.
        let code = unsafe {
            get(
                opened.s,
                ptr,
                len,
                min_version,
                out,
                out_version,
                null_mut(),
            )
        };
        (code, table.cast::<u64>(), version)
    };
    let (code, table, version) = ask("org.example.answer.v1", 2);
    assert_eq!((code, version), (SM_OK, 3));
    // SAFETY: the fake's table is a static number.
    assert_eq!(unsafe { *table }, 42);
    assert_eq!(ask("org.example.answer.v1", 4).0, SM_NOT_FOUND);
    assert_eq!(ask("org.example.other.v1", 0).0, SM_NOT_FOUND);
}
