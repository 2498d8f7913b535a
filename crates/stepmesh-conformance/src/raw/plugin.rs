//! Loading a plugin and asking it for its table, as a host does but without the host's judgement.
#![expect(
    unsafe_code,
    reason = "dlopen, the entry function and the memory behind its answer"
)]

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use stepmesh_abi::backend::SM_BACKEND_API_LEN_V1_0;
use stepmesh_abi::{
    QUERY_SYMBOL, SmBackend, SmBackendApi, SmBackendQueryFn, SmHdr, SmHostApi, SmOpenArgs,
    SmPluginInfo, SmStr,
};

use super::error_arg::{ErrorArg, ErrorMode};
use super::failure::Failure;
use super::memory::narrow;
use super::progress;
use super::session::Session;

/// A plugin that is linked into the program that runs the checks.
#[derive(Clone, Copy, Debug)]
pub struct BuiltIn {
    /// Name by which it is asked for.
    pub(crate) name: &'static str,
    pub(crate) query: SmBackendQueryFn,
}

impl BuiltIn {
    /// A plugin with this entry function.
    ///
    /// # Safety
    /// - `query` has the type that it says. Whether it follows the contract of [`SmBackendQueryFn`]
    ///   is what the checks judge, in child processes.
    #[must_use]
    pub const unsafe fn new(name: &'static str, query: SmBackendQueryFn) -> Self {
        Self { name, query }
    }
}

/// The entry of a plugin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry(SmBackendQueryFn);

/// A plugin's table, as far as both sides know it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table {
    pub(crate) api: SmBackendApi,
    address: usize,
    host: *const SmHostApi,
}

/// A plugin's description of itself.
#[derive(Clone, Debug)]
pub(crate) struct Info {
    pub(crate) struct_size: u32,
    /// Name, version, vendor and build id, each as it is or why it is no text.
    pub(crate) texts: [Result<String, String>; 4],
}

impl Entry {
    /// The entry of a library file, with all its symbols resolved.
    pub(crate) fn load(path: &Path) -> Result<Self, String> {
        progress::enter("dlopen");
        // SAFETY: runs the library's constructors, in a process that may die of them.
        let library =
            unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL | libc::RTLD_NODELETE) };
        progress::leave();
        let library = library.map_err(|error| match std::error::Error::source(&error) {
            Some(source) => format!("dlopen: {source}"),
            None => format!("dlopen: {error}"),
        })?;
        // SAFETY: a symbol of this name has this type by the ABI.
        let query = unsafe { library.get::<SmBackendQueryFn>(QUERY_SYMBOL.as_bytes()) };
        let query = *query.map_err(|error| format!("no symbol {QUERY_SYMBOL}: {error}"))?;
        // Never unloaded, as in a host.
        let _ = library.into_raw();
        Ok(Self(query))
    }

    pub(crate) fn of(built_in: &BuiltIn) -> Self {
        Self(built_in.query)
    }

    /// Asks for the table, with a host table that lives as long as the process.
    pub(crate) fn query(self, host: *const SmHostApi) -> Result<Table, String> {
        let mut error = ErrorArg::new(ErrorMode::Whole);
        progress::enter("query");
        // SAFETY: the host's table and the error are live and as large as they say.
        let api = unsafe { (self.0)(host, error.as_ptr()) };
        progress::leave();
        if api.is_null() {
            let judged = error.judge("query", stepmesh_abi::error::SM_UNKNOWN);
            let why = judged.result.err().map(|failure| failure.message());
            return Err(format!("query returned null: {}", why.unwrap_or_default()));
        }
        if !api.is_aligned() {
            return Err("query returned a table that is not aligned".into());
        }
        // SAFETY: not null and aligned; by the ABI a table starts with a header.
        let hdr = unsafe { api.cast::<SmHdr>().read() };
        let len = narrow(hdr.struct_size.into());
        if !(SM_BACKEND_API_LEN_V1_0..=STRUCT_LEN_MAX).contains(&len) || !len.is_multiple_of(8) {
            return Err(format!(
                "the table says it has {len} bytes: a multiple of 8 and at least \
                 {SM_BACKEND_API_LEN_V1_0} are right"
            ));
        }
        let mut copy = SmBackendApi::new(std::ptr::null());
        let len = len.min(size_of::<SmBackendApi>());
        // SAFETY: the table says that it has at least `len` bytes, and so has the local; every
        // field is an integer, a raw pointer or an optional function, so any bytes are valid.
        unsafe {
            (&raw mut copy)
                .cast::<u8>()
                .copy_from_nonoverlapping(api.cast::<u8>(), len);
        };
        Ok(Table {
            api: copy,
            address: api.addr(),
            host,
        })
    }
}

impl Table {
    /// Where the plugin's own table is.
    pub(crate) fn address(&self) -> usize {
        self.address
    }

    /// Reads the description.
    pub(crate) fn info(&self) -> Result<Info, String> {
        let info = self.api.info;
        if info.is_null() || !info.is_aligned() {
            return Err("`info` is null or not aligned".into());
        }
        // SAFETY: not null and aligned; by the ABI it starts with a header.
        let hdr = unsafe { info.cast::<SmHdr>().read() };
        let struct_size = hdr.struct_size;
        if narrow(struct_size.into()) < size_of::<SmPluginInfo>() {
            return Err(format!("the description says it has {struct_size} bytes"));
        }
        // SAFETY: not null, aligned, and at least this large by its own word.
        let info = unsafe { info.read() };
        let views = [info.name, info.version, info.vendor, info.build_id];
        Ok(Info {
            struct_size,
            // SAFETY: by the ABI each text is valid for its length; a wrong one kills this process.
            texts: views.map(|view| unsafe { text(view) }),
        })
    }

    /// Counts devices and scores the backend.
    pub(crate) fn probe(&self) -> Result<(u32, u32), Failure> {
        let probe = self.api.probe.ok_or_else(|| Failure::absent("probe"))?;
        let (mut count, mut score) = (0, 0);
        let mut error = ErrorArg::new(ErrorMode::Whole);
        progress::enter("probe");
        // SAFETY: the out pointers and the error are live locals.
        let status = unsafe { probe(&raw mut count, &raw mut score, error.as_ptr()) };
        progress::leave();
        error.judge("probe", status).result.map(|()| (count, score))
    }

    /// Opens an instance.
    pub(crate) fn open(&self) -> Result<Session, Failure> {
        self.open_with(&SmOpenArgs::new())
    }

    /// Opens an instance with these arguments.
    pub(crate) fn open_with(&self, args: &SmOpenArgs) -> Result<Session, Failure> {
        let open = self.api.open.ok_or_else(|| Failure::absent("open"))?;
        let mut instance: *mut SmBackend = std::ptr::null_mut();
        let mut error = ErrorArg::new(ErrorMode::Whole);
        progress::enter("open");
        // SAFETY: the host's table is the one that `query` got and lives as long as the process;
        // arguments, out pointer and error are live locals.
        let status = unsafe { open(self.host, args, &raw mut instance, error.as_ptr()) };
        progress::leave();
        let judged = error.judge("open", status);
        judged.result?;
        if instance.is_null() {
            let mut failure = Failure::absent("instance after open");
            failure.is_absent = false;
            failure.code = stepmesh_abi::Code::Internal;
            return Err(failure);
        }
        Ok(Session {
            api: self.api,
            instance,
            error_mode: AtomicU64::new(0),
            faults: Mutex::new(judged.faults),
        })
    }
}

/// # Safety
/// - `view` is null or valid for its length.
unsafe fn text(view: SmStr) -> Result<String, String> {
    let len = narrow(view.len.into());
    if len == 0 {
        return Ok(String::new());
    }
    if view.ptr.is_null() {
        return Err(format!("null, but has {len} bytes"));
    }
    if len > TEXT_LEN_MAX {
        return Err(format!("has {len} bytes, too many to be true"));
    }
    // SAFETY: not null, and valid for its length by this function's contract.
    let bytes = unsafe { std::slice::from_raw_parts(view.ptr.cast::<u8>(), len) };
    let text = std::str::from_utf8(bytes).map_err(|_| "is not UTF-8".to_owned())?;
    if text.contains('\0') {
        return Err("holds a NUL".into());
    }
    Ok(text.to_owned())
}

/// No future table is a thousand times as long.
const STRUCT_LEN_MAX: usize = 1 << 20;
/// Longest text that a description may hold: that of the note, and then some.
const TEXT_LEN_MAX: usize = 1 << 12;
