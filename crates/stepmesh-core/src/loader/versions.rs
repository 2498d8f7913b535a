//! Tests: hosts and plugins of this minor version and of the next, in every combination. The next
//! one is made here by appending: a function to the host's table, a slot to the plugin's, a field to
//! a struct that the plugin fills.
#![expect(unsafe_code, reason = "plays a host of the next version")]

use std::ffi::c_void;
use std::path::Path;
use std::process::Command;
use std::ptr;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use stepmesh_abi::{
    QUERY_SYMBOL, SmBackend, SmBackendApi, SmBackendQueryFn, SmDeviceInfo, SmError, SmHostApi,
    SmOpenArgs,
};

use super::copy_known;
use crate::host::HostContext;
use crate::table::Table;

#[repr(C)]
struct NextHost {
    known: SmHostApi,
    next: Option<unsafe extern "C" fn(*mut c_void) -> u32>,
}

#[repr(C)]
struct NextApi {
    known: SmBackendApi,
    next_slot: Option<unsafe extern "C" fn(*mut SmBackend, *mut u32, *mut SmError) -> i32>,
}

#[repr(C)]
struct NextInfo {
    known: SmDeviceInfo,
    next: u64,
}

/// What a host gets out of a plugin: the ordinal of its device, what the new slot answers, and the
/// new field.
type Answers = (i32, Option<u32>, u64);

#[test]
fn any_host_and_any_plugin_work_together() {
    let dir = tempfile::tempdir().unwrap();
    let old = compile(dir.path(), "old", "include", &[]);
    let new = compile(dir.path(), "new", "include", &["-DNEXT"]);
    // Built with the header as version 1.0 was first published.
    let first = compile(dir.path(), "first", "tests/it/c/1.0", &[]);
    // Neither side has anything new, or only one: what both know works, the rest is absent.
    assert_eq!(serve_by_this_host(old), (0, None, 0));
    assert_eq!(serve_by_this_host(new), (0, None, 0));
    assert_eq!(serve_by_next_host(old), (0, None, 0));
    assert_eq!(serve_by_this_host(first), (0, None, 0));
    assert_eq!(serve_by_next_host(first), (0, None, 0));
    // Both have it.
    assert_eq!(serve_by_next_host(new), (0, Some(42), 7));
}

fn serve_by_this_host(query: SmBackendQueryFn) -> Answers {
    let (_, host) = HostContext::leak("this host".into());
    let mut api = SmBackendApi::new(ptr::null());
    ask(query, host, &mut api);
    let mut info = SmDeviceInfo::new();
    let table = Table::new(&api).unwrap();
    serve(&table, host, &mut info, |_| {});
    (info.ordinal, None, 0)
}

fn serve_by_next_host(query: SmBackendQueryFn) -> Answers {
    unsafe extern "C" fn forty_one(_: *mut c_void) -> u32 {
        41
    }
    let (_, known) = HostContext::leak("the next host".into());
    let host = Box::leak(Box::new(NextHost {
        known: *known,
        next: Some(forty_one),
    }));
    grow(&mut host.known.hdr, size_of::<NextHost>());
    let mut api = NextApi {
        known: SmBackendApi::new(ptr::null()),
        next_slot: None,
    };
    ask(query, &host.known, &mut api);
    let mut info = NextInfo {
        known: SmDeviceInfo::new(),
        next: 0,
    };
    grow(&mut info.known.hdr, size_of::<NextInfo>());
    let table = Table::new(&api.known).unwrap();
    let mut answer = None;
    let at = ptr::from_mut(&mut info).cast();
    serve(&table, &host.known, at, |s| {
        if let Some(slot) = api.next_slot {
            let mut out = 0;
            // SAFETY: an open instance and a live local.
            assert_eq!(unsafe { slot(s, &raw mut out, ptr::null_mut()) }, 0);
            answer = Some(out);
        }
    });
    (info.known.ordinal, answer, info.next)
}

fn grow(hdr: &mut stepmesh_abi::SmHdr, len_bytes: usize) {
    hdr.struct_size = u32::try_from(len_bytes).unwrap();
    hdr.abi_minor += 1;
}

/// Negotiates as the loader does, for a table that may be longer than this host's.
fn ask<T>(query: SmBackendQueryFn, host: &'static SmHostApi, own: &mut T) {
    let mut error = SmError::new();
    // SAFETY: the table lives as long as the process, the error is a live local.
    let api = unsafe { query(host, &raw mut error) };
    assert!(!api.is_null(), "{error:?}");
    // SAFETY: a plugin's table; `T` is the table of this host or of the next one.
    unsafe { copy_known(api, own) }.unwrap();
}

/// Opens, asks for the device, does something with the instance, closes.
fn serve(
    table: &Table,
    host: &SmHostApi,
    info: *mut SmDeviceInfo,
    with: impl FnOnce(*mut SmBackend),
) {
    let (mut s, args, err) = (ptr::null_mut(), SmOpenArgs::new(), ptr::null_mut());
    // SAFETY: the host's table is that of `query`; the others are live locals.
    let opened = unsafe { (table.open)(host, &raw const args, &raw mut s, err) };
    assert_eq!(opened, 0);
    // SAFETY: an open instance and a struct of the size that it says.
    assert_eq!(unsafe { (table.device_info)(s, 0, info, err) }, 0);
    with(s);
    // SAFETY: an open instance that nothing uses any more.
    assert_eq!(unsafe { (table.close)(s, err) }, 0);
}

/// The entry of a plugin made of the integration tests' source and the header in a folder of
/// stepmesh-abi.
fn compile(dir: &Path, name: &str, include: &str, options: &[&str]) -> SmBackendQueryFn {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = dir.join(format!("lib{name}.so"));
    let output = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".into()))
        .args(["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"])
        .args(options)
        .arg("-I")
        .arg(here.join("../stepmesh-abi").join(include))
        .arg("-o")
        .arg(&path)
        .arg(here.join("tests/it/plugin.c"))
        .output()
        .expect("this test needs a C compiler");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    // SAFETY: a library that was made here, whose constructor does nothing.
    let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) }.unwrap();
    // SAFETY: the symbol's name fixes its type.
    let query = *unsafe { library.get::<SmBackendQueryFn>(QUERY_SYMBOL.as_bytes()) }.unwrap();
    // A plugin is never unloaded.
    let _ = library.into_raw();
    query
}
