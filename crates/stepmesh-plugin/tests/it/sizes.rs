//! Older and newer hosts: structs shorter and longer than this build's.

use std::ptr::null_mut;

use stepmesh_plugin::abi::error::{
    SM_ERROR_OOM, SM_ERROR_TRUNCATED, SM_FAILED_PRECONDITION, SM_INVALID_ARGUMENT, SM_OK,
    SM_RESOURCE_EXHAUSTED,
};
use stepmesh_plugin::abi::{SmDeviceInfo, SmError, SmHdr, SmHostApi, SmPtrAttr};

use crate::fake;
use crate::support::{host, message, open, try_open};

/// An error of another size, with bytes behind it that must stay.
#[repr(C)]
struct Guarded {
    err: SmError,
    behind: [u8; 64],
}

#[test]
fn an_error_is_written_within_the_callers_size_only() {
    let o = open();
    for size in 0..256_u32 {
        let mut guarded = Guarded {
            err: SmError::new(),
            behind: [0xaa; 64],
        };
        guarded.err.struct_size = size;
        guarded.err.msg.fill(0x55);
        let code = o.alloc(200, &raw mut guarded.err);
        assert_eq!(code, SM_RESOURCE_EXHAUSTED);
        assert_eq!(guarded.err.struct_size, size);
        assert_eq!(guarded.behind, [0xaa; 64]);
        let room = (size as usize).saturating_sub(24);
        assert!(
            guarded.err.msg[room..].iter().all(|byte| *byte == 0x55),
            "size {size}"
        );
        if size < 24 {
            assert_eq!(guarded.err.code, 0, "size {size}");
            continue;
        }
        assert_eq!(guarded.err.code, SM_RESOURCE_EXHAUSTED);
        // The message is 400 bytes of two-byte characters: cut at a boundary.
        assert_eq!(guarded.err.msg_len as usize, room / 2 * 2);
        assert_eq!(guarded.err.flags, SM_ERROR_OOM | SM_ERROR_TRUNCATED);
    }
}

#[test]
fn no_error_struct_is_fine_and_last_error_has_it_for_this_thread_only() {
    let o = open();
    assert_eq!(o.alloc(3, null_mut()), SM_RESOURCE_EXHAUSTED);
    let last = |s: usize| {
        let mut err = SmError::new();
        let s = std::ptr::with_exposed_provenance_mut(s);
        // SAFETY: an open instance and a local error.
        let code = unsafe { (o.api.last_error.unwrap())(s, &raw mut err) };
        assert_eq!(code, err.code);
        (code, message(&err), err.flags)
    };
    let s = o.s.expose_provenance();
    assert_eq!(
        last(s),
        (SM_RESOURCE_EXHAUSTED, "ééé".to_owned(), SM_ERROR_OOM)
    );
    let api = o.api;
    let other = std::thread::spawn(move || {
        let mut err = SmError::new();
        let s = std::ptr::with_exposed_provenance_mut(s);
        // SAFETY: the instance is open until the thread is joined.
        unsafe { (api.last_error.unwrap())(s, &raw mut err) }
    });
    assert_eq!(other.join().unwrap(), SM_OK);
}

#[test]
fn an_out_struct_is_filled_up_to_the_callers_size() {
    let o = open();
    let mut info = SmDeviceInfo {
        total_mem: 1,
        ..SmDeviceInfo::new()
    };
    info.hdr.struct_size = 80;
    // SAFETY: an open instance and a local struct of at least the size it says.
    let code = unsafe { (o.api.device_info.unwrap())(o.s, 0, &raw mut info, null_mut()) };
    assert_eq!((code, info.total_mem, info.hdr.struct_size), (SM_OK, 1, 80));

    #[repr(C)]
    struct Newer {
        known: SmPtrAttr,
        unknown: u64,
    }
    let mut newer = Newer {
        known: SmPtrAttr::new(),
        unknown: 5,
    };
    newer.known.hdr.struct_size = 64;
    // SAFETY: as above; the struct is longer than this build knows.
    let code =
        unsafe { (o.api.pointer_attributes.unwrap())(o.s, 1, &raw mut newer.known, null_mut()) };
    assert_eq!((code, newer.known.alloc_id, newer.unknown), (SM_OK, 9, 5));
    assert_eq!(newer.known.hdr.struct_size, 56);

    info.hdr.struct_size = 4;
    // SAFETY: as above.
    let code = unsafe { (o.api.device_info.unwrap())(o.s, 0, &raw mut info, null_mut()) };
    assert_eq!(code, SM_INVALID_ARGUMENT);
}

#[test]
fn a_truncated_host_table_is_read_to_its_end_only() {
    // Only header and context are there; a function pointer read beyond would be garbage.
    #[repr(C)]
    struct Short {
        hdr: SmHdr,
        ctx: usize,
        garbage: [usize; 16],
    }
    let mut hdr = SmHdr::of::<SmHostApi>();
    for size in [8, 16, 19] {
        hdr.struct_size = size;
        let short = Box::leak(Box::new(Short {
            hdr,
            ctx: 0,
            garbage: [usize::MAX; 16],
        }));
        let host = std::ptr::from_ref(short).cast::<SmHostApi>();
        // SAFETY: the table has the bytes it says, and lives as long as the process.
        let api = unsafe { fake::query(host, null_mut()) };
        // SAFETY: null or a static table.
        let api = unsafe { api.as_ref() }.expect("missing functions are no reason to refuse");
        let (code, s, err) = try_open(api, host);
        assert_eq!(code, SM_OK, "{err:?}");
        // SAFETY: an open instance that nothing uses any more.
        unsafe { (api.close.unwrap())(s, null_mut()) };
    }
}

#[test]
fn a_larger_host_of_a_later_minor_is_served() {
    #[repr(C)]
    struct Newer {
        known: SmHostApi,
        unknown: [usize; 8],
    }
    let (host, _) = host("");
    let mut newer = Newer {
        known: *host,
        unknown: [usize::MAX; 8],
    };
    newer.known.hdr.struct_size += 64;
    newer.known.hdr.abi_minor += 9;
    let newer = Box::leak(Box::new(newer));
    // SAFETY: the table has the bytes it says, and lives as long as the process.
    assert!(!unsafe { fake::query(&raw const newer.known, null_mut()) }.is_null());
}

#[test]
fn a_host_of_another_major_a_null_host_and_one_without_a_size_are_refused() {
    let ask = |host: *const SmHostApi| {
        let mut err = SmError::new();
        // SAFETY: null or a table that lives as long as the process; a local error.
        assert!(unsafe { fake::query(host, &raw mut err) }.is_null());
        (err.code, message(&err))
    };
    let mut other = SmHostApi::new();
    other.hdr.abi_major = 2;
    let (code, text) = ask(Box::leak(Box::new(other)));
    assert_eq!(code, SM_FAILED_PRECONDITION);
    assert!(text.contains("ABI 2.0"), "{text}");
    assert_eq!(ask(std::ptr::null()).0, SM_INVALID_ARGUMENT);
    let mut empty = SmHostApi::new();
    empty.hdr.struct_size = 0;
    assert_eq!(ask(Box::leak(Box::new(empty))).0, SM_INVALID_ARGUMENT);
}
