//! The thunks that stand in for missing slots, over a backend that has only the required ones.
#![expect(unsafe_code, reason = "calls slots as the wrappers do")]

use std::sync::atomic::Ordering;

use stepmesh_abi::device::SM_HEALTH_OK;
use stepmesh_abi::error::{
    SM_DEADLINE_EXCEEDED, SM_FAILED_PRECONDITION, SM_NOT_FOUND, SM_OK, SM_UNIMPLEMENTED,
};
use stepmesh_abi::{SmBackendApi, SmError};

use super::Table;
use crate::fake::{self, Fake};

#[test]
fn each_required_slot_that_is_missing_is_named() {
    type Spoil = fn(&mut SmBackendApi);
    let spoiled: [(&str, Spoil); 4] = [
        ("probe", |api| api.probe = None),
        ("alloc", |api| api.alloc = None),
        ("memcpy_async", |api| api.memcpy_async = None),
        ("event_sync", |api| api.event_sync = None),
    ];
    for (slot, spoil) in spoiled {
        let mut api = fake::api();
        spoil(&mut api);
        assert_eq!(Table::new(&api).unwrap_err(), slot);
        assert_eq!(
            api.missing_required_slot(),
            Some(slot),
            "the ABI crate agrees"
        );
    }
    let empty = SmBackendApi::new(&raw const fake::INFO);
    assert_eq!(
        Table::new(&empty).unwrap_err(),
        empty.missing_required_slot().unwrap()
    );
}

#[test]
fn a_slot_that_cannot_be_emulated_says_its_name() {
    let table = Table::new(&fake::api()).unwrap();
    let mut error = SmError::new();
    let s = std::ptr::null_mut();
    // SAFETY: the slot is missing, so this is the thunk, which looks at nothing but the error.
    let status = unsafe { (table.host_unregister)(s, std::ptr::null_mut(), &raw mut error) };
    assert_eq!((status, error.code), (SM_UNIMPLEMENTED, SM_UNIMPLEMENTED));
    let bytes = error.message_bytes();
    assert!(bytes.starts_with(b"the plugin has no host_unregister"));
    let mut device_address = 0;
    let out = &raw mut device_address;
    // SAFETY: as above, without an error struct.
    let status =
        unsafe { (table.host_register)(s, std::ptr::null_mut(), 0, 0, out, std::ptr::null_mut()) };
    assert_eq!(status, SM_UNIMPLEMENTED);
}

#[test]
fn small_thunks_answer_as_the_abi_says() {
    let table = Table::new(&fake::api()).unwrap();
    let s = std::ptr::null_mut();
    let (mut error, mut state, mut version) = (SmError::with_message(2, "old"), 9, 0);
    let mut extension = std::ptr::null();
    // SAFETY: the slots are missing, so these are thunks; all pointers are live locals.
    assert_eq!(unsafe { (table.last_error)(s, &raw mut error) }, SM_OK);
    assert_eq!((error.code, error.message_len()), (SM_OK, 0));
    // SAFETY: as above.
    let status = unsafe { (table.health)(s, 0, &raw mut state, &raw mut error) };
    assert_eq!(status, SM_OK);
    assert_eq!(state, SM_HEALTH_OK);
    // SAFETY: as above.
    assert_eq!(unsafe { (table.quiesce)(s, &raw mut error) }, SM_OK);
    // SAFETY: as above; the name is static text of this length.
    let status = unsafe {
        (table.get_extension)(
            s,
            c"x".as_ptr(),
            1,
            1,
            &raw mut extension,
            &raw mut version,
            &raw mut error,
        )
    };
    assert_eq!((status, extension.is_null()), (SM_NOT_FOUND, true));
}

#[test]
fn stream_ordered_memory_is_emulated_by_plain_memory() {
    let backend = fake::backend();
    let (fake, s) = (Fake::of(&backend), backend.as_raw().handle);
    let table = backend.instance().table();
    let (mut at, mut error) = (0, SmError::new());
    // SAFETY: the instance is open, all pointers are live locals.
    let status = unsafe { (table.alloc_async)(s, 0, 64, 0, 1, &raw mut at, &raw mut error) };
    assert_eq!((status, fake.live_allocations()), (SM_OK, 1));
    fake.hangs.store(true, Ordering::Relaxed);
    // SAFETY: as above; the memory is live and not used by any work.
    let status = unsafe { (table.free_async)(s, 0, at, 0, 1, &raw mut error) };
    assert_eq!(
        (status, fake.live_allocations()),
        (SM_DEADLINE_EXCEEDED, 1),
        "still in use"
    );
    fake.hangs.store(false, Ordering::Relaxed);
    // SAFETY: as above.
    let status = unsafe { (table.free_async)(s, 0, at, 0, 1, &raw mut error) };
    assert_eq!((status, fake.live_allocations()), (SM_OK, 0));
}

#[test]
fn emulations_refuse_a_handle_that_is_not_open() {
    let table = Table::new(&fake::api()).unwrap();
    let (mut at, mut error) = (0, SmError::new());
    let s = std::ptr::dangling_mut::<u64>().cast();
    // SAFETY: the thunk looks the handle up and does not touch it.
    let status = unsafe { (table.alloc_async)(s, 0, 64, 0, 1, &raw mut at, &raw mut error) };
    assert_eq!(status, SM_FAILED_PRECONDITION);
}
