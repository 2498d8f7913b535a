//! Negotiation with tables that lie.
#![expect(unsafe_code, reason = "plays plugins")]

use stepmesh_abi::{SmBackendApi, SmBackendQueryFn, SmError, SmHostApi, SmPluginInfo};

use super::{Plugin, negotiate};
use crate::discovery::Reason;
use crate::fake;

/// An entry function that returns a table spoiled by a closure.
macro_rules! query {
    ($spoil:expr) => {{
        unsafe extern "C" fn query(_: *const SmHostApi, _: *mut SmError) -> *const SmBackendApi {
            let spoil: fn(&mut SmBackendApi) = $spoil;
            let mut api = fake::api();
            spoil(&mut api);
            Box::leak(Box::new(api))
        }
        query
    }};
}

fn ask(query: SmBackendQueryFn) -> Result<&'static Plugin, Reason> {
    negotiate(query, None, "test".into())
}

fn leak(info: SmPluginInfo) -> *const SmPluginInfo {
    Box::leak(Box::new(info))
}

#[test]
fn a_good_table_is_taken_and_its_texts_are_copied() {
    let plugin = ask(fake::query).unwrap();
    assert_eq!(
        (plugin.name.as_str(), plugin.version.as_str()),
        ("fake", "1.0.0")
    );
    assert_eq!(
        (plugin.vendor.as_str(), plugin.build_id.as_str()),
        ("tests", "")
    );
}

#[test]
fn a_size_that_cannot_be_true_is_refused() {
    let sizes: [(SmBackendQueryFn, u32); 5] = [
        (query!(|api| api.hdr.struct_size = 0), 0),
        (query!(|api| api.hdr.struct_size = 7), 7),
        (query!(|api| api.hdr.struct_size = 300), 300),
        (query!(|api| api.hdr.struct_size = 1 << 31), 1 << 31),
        (query!(|api| api.hdr.struct_size = u32::MAX), u32::MAX),
    ];
    for (query, size) in sizes {
        let fault = format!("the table claims a size of {size} bytes, version 1.0 has 304");
        assert_eq!(ask(query).unwrap_err(), Reason::BadTable { fault });
    }
}

#[test]
fn a_longer_table_of_a_newer_minor_version_is_taken() {
    #[repr(C)]
    struct Newer(SmBackendApi, [usize; 4]);
    unsafe extern "C" fn query(_: *const SmHostApi, _: *mut SmError) -> *const SmBackendApi {
        let mut api = fake::api();
        api.hdr.struct_size += 32;
        api.hdr.abi_minor = 7;
        // The unknown slots are no functions at all: whoever reads them crashes.
        &raw const Box::leak(Box::new(Newer(api, [1; 4]))).0
    }
    assert_eq!(ask(query).unwrap().name, "fake");
}

#[test]
fn another_major_version_inside_the_table_is_refused() {
    let reason = ask(query!(|api| api.hdr.abi_major = 2)).unwrap_err();
    assert_eq!(
        reason.to_string(),
        "has a bad table: the table is of ABI 2, this host has 1"
    );
}

#[test]
fn a_missing_required_slot_is_refused_by_name() {
    let reason = ask(query!(|api| api.alloc = None)).unwrap_err();
    assert_eq!(reason, Reason::MissingSlot { slot: "alloc" });
    let reason = ask(query!(|api| api.info = std::ptr::null())).unwrap_err();
    assert_eq!(reason, Reason::MissingSlot { slot: "info" });
}

#[test]
fn a_misaligned_table_is_refused() {
    unsafe extern "C" fn query(_: *const SmHostApi, _: *mut SmError) -> *const SmBackendApi {
        std::ptr::without_provenance(0x1001)
    }
    let reason = ask(query).unwrap_err();
    assert_eq!(
        reason.to_string(),
        "has a bad table: the table is not aligned"
    );
}

#[test]
fn null_carries_the_plugins_own_reason() {
    unsafe extern "C" fn silent(_: *const SmHostApi, _: *mut SmError) -> *const SmBackendApi {
        std::ptr::null()
    }
    unsafe extern "C" fn telling(_: *const SmHostApi, e: *mut SmError) -> *const SmBackendApi {
        // SAFETY: the host's error struct.
        unsafe { *e = SmError::with_message(9, "this driver is too old") };
        std::ptr::null()
    }
    let reason = |query| ask(query).unwrap_err().to_string();
    assert_eq!(
        reason(silent),
        "refused this host: the backend gave no reason"
    );
    assert_eq!(reason(telling), "refused this host: this driver is too old");
}

#[test]
fn a_description_with_bad_texts_is_refused() {
    type Spoil = fn(&mut SmPluginInfo);
    let spoiled: [(&str, Spoil); 5] = [
        ("the name is empty", |info| info.name.len = 0),
        ("the name is null or too long", |info| {
            info.name.ptr = std::ptr::null()
        }),
        ("the vendor is null or too long", |info| {
            info.vendor.len = u32::MAX
        }),
        ("the version is not UTF-8", |info| {
            info.version.ptr = b"\xff\xff\xff\xff\xff".as_ptr().cast()
        }),
        ("the version has control characters", |info| {
            info.version.ptr = c"1\n2\n3".as_ptr()
        }),
    ];
    for (fault, spoil) in spoiled {
        let mut info = fake::INFO;
        spoil(&mut info);
        // SAFETY: a live description; texts that are not readable are refused before.
        let copied = unsafe { super::copy_info(leak(info)) };
        assert_eq!(
            copied.unwrap_err(),
            Reason::BadTable {
                fault: fault.into()
            }
        );
    }
    let mut info = fake::INFO;
    info.hdr.struct_size = 16;
    let fault = "the description claims a size of 16 bytes, version 1.0 has 72".into();
    // SAFETY: a live description.
    let copied = unsafe { super::copy_info(leak(info)) };
    assert_eq!(copied.unwrap_err(), Reason::BadTable { fault });
}
