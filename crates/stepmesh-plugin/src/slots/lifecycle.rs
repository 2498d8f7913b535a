//! Slots that begin and end an instance, and those that ask it for extensions and errors.
#![expect(unsafe_code, reason = "functions of the C table")]

use std::ffi::{c_char, c_void};

use stepmesh_abi::{SmBackend, SmError, SmHostApi, SmOpenArgs};

use crate::boundary::{Out, Value, copy_last_error, fail, read_sized};
use crate::instance::{Instance, Phase, close as close_instance, guarded_free, slot};
use crate::{Backend, Error, Host, Result};

pub(crate) unsafe extern "C" fn probe<B: Backend>(
    n_devices: *mut u32,
    score: *mut u32,
    err: *mut SmError,
) -> i32 {
    let work = || {
        let host = crate::table::queried_host();
        B::probe(&host).map(|probe| (probe.device_count, probe.score))
    };
    // SAFETY: the table's contract for out pointers and `err`.
    unsafe { answer(err, (Value(n_devices), Value(score)), "probe", work) }
}

pub(crate) unsafe extern "C" fn open<B: Backend>(
    host: *const SmHostApi,
    args: *const SmOpenArgs,
    out: *mut *mut SmBackend,
    err: *mut SmError,
) -> i32 {
    let work = || {
        // SAFETY: the table's contract: the host's table, alive as long as the process.
        let host = unsafe { Host::from_raw(host)? };
        // SAFETY: the table's contract: null or arguments of the size they say.
        unsafe { check_open_args(args)? };
        let instance = Instance::<B>::open(host)?;
        Ok(Box::into_raw(instance).cast::<SmBackend>())
    };
    // SAFETY: the table's contract for out pointers and `err`.
    unsafe { answer(err, Value(out), "open", work) }
}

/// # Safety
/// - `args` is null or valid for the `struct_size` bytes that it starts with saying.
unsafe fn check_open_args(args: *const SmOpenArgs) -> Result<()> {
    let mut own = SmOpenArgs::new();
    if !args.is_null() {
        // SAFETY: this function's contract; the struct is numbers only.
        unsafe { read_sized(args, &mut own)? };
    }
    if own.flags != 0 {
        return Err(Error::invalid_argument(format!(
            "open flags {:#x} are unknown",
            own.flags
        )));
    }
    Ok(())
}

/// # Safety
/// - `out` and `err` are null or valid as the table says.
unsafe fn answer<O: Out>(
    err: *mut SmError,
    out: O,
    name: &'static str,
    work: impl FnOnce() -> Result<O::Value>,
) -> i32 {
    // SAFETY: this function's contract.
    let checked = unsafe { out.check() };
    match checked.and_then(|()| guarded_free(name, work)) {
        Ok(value) => {
            // SAFETY: checked above.
            unsafe { out.write(value) };
            stepmesh_abi::error::SM_OK
        }
        // SAFETY: this function's contract.
        Err(error) => unsafe { fail(err, &error) },
    }
}

pub(crate) unsafe extern "C" fn quiesce<B: Backend>(s: *mut SmBackend, err: *mut SmError) -> i32 {
    // SAFETY: the table's contract for the instance and `err`.
    unsafe { slot::<B, _>(s, err, "quiesce", Phase::Ending, (), Instance::quiesce) }
}

pub(crate) unsafe extern "C" fn close<B: Backend>(s: *mut SmBackend, err: *mut SmError) -> i32 {
    // SAFETY: the table's contract: a live instance that no other call uses.
    match unsafe { close_instance::<B>(s) } {
        Ok(()) => stepmesh_abi::error::SM_OK,
        // SAFETY: the table's contract for `err`.
        Err(error) => unsafe { fail(err, &error) },
    }
}

pub(crate) unsafe extern "C" fn last_error(_s: *mut SmBackend, err: *mut SmError) -> i32 {
    // SAFETY: the table's contract for `err`.
    unsafe { copy_last_error(err) }
}

pub(crate) unsafe extern "C" fn get_extension<B: Backend>(
    s: *mut SmBackend,
    id: *const c_char,
    id_len: u32,
    min_version: u32,
    table: *mut *const c_void,
    version: *mut u32,
    err: *mut SmError,
) -> i32 {
    let out = (Value(table), Value(version));
    // SAFETY: the table's contract: null or `id_len` bytes that outlive the call.
    let name = unsafe { text(id, id_len) };
    let work = |instance: &Instance<B>| {
        let name = name?;
        let found = instance.backend.extension(name, min_version);
        let found = found
            .filter(|extension| extension.version >= min_version)
            .ok_or_else(|| {
                Error::not_found(format!(
                    "backend `{}` has no extension `{name}` of version {min_version} or later",
                    B::NOTE.name
                ))
            })?;
        Ok((
            std::ptr::with_exposed_provenance(found.table),
            found.version,
        ))
    };
    // SAFETY: the table's contract for the instance, out pointers and `err`.
    unsafe { slot::<B, _>(s, err, "get_extension", Phase::Open, out, work) }
}

/// # Safety
/// - `ptr` is null or valid for `len` bytes for the life of the answer.
unsafe fn text<'a>(ptr: *const c_char, len: u32) -> Result<&'a str> {
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    if ptr.is_null() || len > EXTENSION_NAME_LEN_MAX {
        return Err(Error::invalid_argument(
            "the extension's name is null or too long",
        ));
    }
    // SAFETY: not null, and valid for `len` bytes by this function's contract.
    let bytes = unsafe { std::slice::from_raw_parts(ptr.cast::<u8>(), len) };
    std::str::from_utf8(bytes)
        .map_err(|_| Error::invalid_argument("the extension's name is not utf-8"))
}

/// Longest name of an extension: a reverse-DNS name has at most 253 bytes.
const EXTENSION_NAME_LEN_MAX: usize = 256;
