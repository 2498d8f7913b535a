//! Loads plugin libraries and negotiates their tables. What is loaded stays loaded.
//!
//! A library is loaded at most once in a process, whoever asks and however many threads race. No
//! lock but that of the plugin itself is held while its code runs.
#![expect(
    unsafe_code,
    reason = "dlopen, dlsym and the memory that a plugin hands over"
)]

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, OsStr};
use std::fs::{self, Metadata};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::{io, ptr};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use stepmesh_abi::backend::SM_BACKEND_API_LEN_V1_0;
use stepmesh_abi::note::TEXT_LEN_MAX;
use stepmesh_abi::{
    QUERY_SYMBOL, SM_ABI_MAJOR, SmBackendApi, SmBackendQueryFn, SmError, SmHdr, SmHostApi,
    SmPluginInfo, SmStr,
};

use crate::discovery::{FileId, Found, Reason};
use crate::host::HostContext;
use crate::status::Failure;
use crate::table::Table;

/// A backend that is linked into the program instead of being loaded from a file.
#[derive(Debug, Clone, Copy)]
pub struct StaticPlugin {
    query: SmBackendQueryFn,
}

/// A loaded plugin. Never unloaded, hence always `&'static`.
#[derive(Debug)]
pub(crate) struct Plugin {
    pub(crate) table: Table,
    /// The plugin's table as this host knows it, without thunks.
    pub(crate) api: SmBackendApi,
    pub(crate) host: &'static HostContext,
    pub(crate) host_api: &'static SmHostApi,
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) vendor: String,
    pub(crate) build_id: String,
    /// `None` for a static one.
    pub(crate) path: Option<PathBuf>,
}

impl StaticPlugin {
    /// A backend with this entry function.
    ///
    /// # Safety
    /// - `query` follows the contract of [`SmBackendQueryFn`] and of the table it returns.
    #[must_use]
    pub const unsafe fn new(query: SmBackendQueryFn) -> Self {
        Self { query }
    }

    /// Asks the entry function for its table, once in a process.
    pub(crate) fn load(self) -> Result<&'static Plugin, Reason> {
        static LOADED: Once<usize> = Once::new();
        LOADED.get(self.query as usize, || {
            negotiate(self.query, None, "built in".into())
        })
    }
}

/// Loads a file, once in a process.
///
/// # Errors
/// `Load`, `Swapped`, `MissingSymbol`, `Refused`, `BadTable`, `MissingSlot`.
pub(crate) fn load(found: &Found) -> Result<&'static Plugin, Reason> {
    static LOADED: Once<FileId> = Once::new();
    LOADED.get(found.id, || {
        let query = open(found)?;
        let plugin = negotiate(query, Some(&found.path), found.path.display().to_string())?;
        let noted = (found.note.name.as_str(), found.note.version.as_str());
        let told = (plugin.name.as_str(), plugin.version.as_str());
        if noted != told {
            let fault = format!("the note says {noted:?}, the table {told:?}");
            return Err(Reason::BadTable { fault });
        }
        tracing::info!(
            plugin = plugin.name,
            version = plugin.version,
            vendor = plugin.vendor,
            build_id = plugin.build_id,
            path = %found.path.display(),
            "plugin loaded"
        );
        Ok(plugin)
    })
}

/// Results that are made once for each key, outside the lock of the map.
struct Once<K>(Mutex<Option<HashMap<K, Arc<OnceLock<Loaded>>>>>);

type Loaded = Result<&'static Plugin, Reason>;

impl<K: Eq + std::hash::Hash> Once<K> {
    const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// The result for a key, made by the first thread that asks while the others wait. A failure is
    /// forgotten, so that a corrected plugin can be tried again.
    fn get(&self, key: K, make: impl FnOnce() -> Loaded) -> Loaded {
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let cell = lock()
            .get_or_insert_default()
            .entry(key)
            .or_default()
            .clone();
        let result = cell.get_or_init(make).clone();
        if result.is_err() {
            lock()
                .get_or_insert_default()
                .retain(|_, other| !Arc::ptr_eq(other, &cell));
        }
        result
    }
}

/// Opens the library and finds its own entry symbol.
fn open(found: &Found) -> Result<SmBackendQueryFn, Reason> {
    // The dynamic linker takes a path it knows for the library it knows, whatever is there now.
    static OPENED: Mutex<BTreeMap<PathBuf, FileId>> = Mutex::new(BTreeMap::new());
    let opened = || OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    if opened().get(&found.path).is_some_and(|id| *id != found.id) {
        return Err(Reason::Replaced);
    }
    let flags = RTLD_NOW | RTLD_LOCAL | libc::RTLD_NODELETE;
    // Should a constructor crash, this line is what is left of it.
    tracing::debug!(path = %found.path.display(), "loading plugin");
    // SAFETY: constructors of the library run here. Its owner and mode were checked or explicitly
    // trusted, its note says that it is a plugin for this host, and plugins have no constructors
    // that need anything of the host.
    let library =
        unsafe { Library::open(Some(&found.path), flags) }.map_err(|error| Reason::Load {
            error: with_source(&error),
        })?;
    opened().insert(found.path.clone(), found.id);
    let missing = || Reason::MissingSymbol {
        symbol: QUERY_SYMBOL,
    };
    // SAFETY: a symbol of this name has this type by the ABI; its major version is in the name.
    let query = unsafe { library.get::<SmBackendQueryFn>(QUERY_SYMBOL.as_bytes()) };
    let query = *query.map_err(|_| missing())?;
    // Never unloaded: threads, destructors and strings of a plugin may outlive every handle.
    let _ = library.into_raw();
    check_origin(query, found, |path| opened().contains_key(path))?;
    Ok(query)
}

/// The symbol must be the checked file's own: not that of a dependency, nor of a file that took the
/// place of the checked one, nor of an older plugin that the dynamic linker takes for this one.
fn check_origin(
    query: SmBackendQueryFn,
    found: &Found,
    is_plugin: impl Fn(&Path) -> bool,
) -> Result<(), Reason> {
    let Some(loaded) = object_of(query as *const ()) else {
        return Err(Reason::Swapped {
            loaded: "unknown".into(),
        });
    };
    let id_of = |metadata: io::Result<Metadata>| metadata.ok().map(|data| FileId::of(&data));
    let is_same = loaded == found.path
        && id_of(fs::metadata(&loaded)) == Some(found.id)
        // The file that was checked is kept open: it must not have changed since.
        && id_of(found.file.metadata()) == Some(found.id);
    if is_same {
        Ok(())
    } else if is_plugin(&loaded) {
        Err(Reason::Swapped {
            loaded: loaded.display().to_string(),
        })
    } else {
        Err(Reason::MissingSymbol {
            symbol: QUERY_SYMBOL,
        })
    }
}

/// Path of the loaded object that contains an address.
fn object_of(address: *const ()) -> Option<PathBuf> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: dladdr takes any address and writes to the struct, which is large enough.
    let status = unsafe { libc::dladdr(address.cast(), info.as_mut_ptr()) };
    // SAFETY: zeroed above, and all zero is a valid `Dl_info`.
    let info = unsafe { info.assume_init() };
    if status == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: not null; the dynamic linker keeps the name as long as the object, which stays.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}

/// Asks for the table and copies what both sides know of it.
fn negotiate(
    query: SmBackendQueryFn,
    path: Option<&Path>,
    label: String,
) -> Result<&'static Plugin, Reason> {
    let (host, host_api) = HostContext::leak(label);
    let mut error = SmError::new();
    // SAFETY: the host table is static, the error struct is a live local; the function is the
    // entry of a plugin for this major version.
    let api = unsafe { query(host_api, &raw mut error) };
    if api.is_null() {
        let failure = Failure::new(error.code, &error);
        return Err(Reason::Refused {
            message: failure.message,
        });
    }
    let mut known = SmBackendApi::new(ptr::null());
    // SAFETY: not null, and by the ABI the table of a plugin starts with its size; the fields of a
    // table are integers, raw pointers and optional functions.
    unsafe { copy_known(api, &mut known) }?;
    let api = known;
    let table = Table::new(&api).map_err(|slot| Reason::MissingSlot { slot })?;
    // SAFETY: null or, by the ABI, a description that starts with its size.
    let [name, version, vendor, build_id] = unsafe { copy_info(api.info) }?;
    let path = path.map(Path::to_owned);
    let plugin = Plugin {
        table,
        api,
        host,
        host_api,
        name,
        version,
        vendor,
        build_id,
        path,
    };
    Ok(Box::leak(Box::new(plugin)))
}

/// Copies the smaller of the plugin's table and this host's; the rest of `own` stays as it is.
///
/// # Safety
/// - `api` is valid for reading an [`SmHdr`], and for as many bytes as that says.
/// - `T` starts as [`SmBackendApi`] does, and whole words of any table are a valid `T`.
unsafe fn copy_known<T>(api: *const SmBackendApi, own: &mut T) -> Result<(), Reason> {
    // SAFETY: this function's contract.
    let len = unsafe { struct_len(api, "the table", SM_BACKEND_API_LEN_V1_0) }?;
    let to = ptr::from_mut(own).cast::<u8>();
    let len = len.min(size_of::<T>());
    // SAFETY: `api` is not null and aligned (`struct_len`), and its own header says that `len`
    // bytes are there; `own` is at least as long, and by contract they are valid for it.
    unsafe { ptr::copy_nonoverlapping(api.cast::<u8>(), to, len) };
    Ok(())
}

/// Name, version, vendor and build id.
///
/// # Safety
/// - `info` is null or valid for reading an [`SmHdr`], and for as many bytes as that says; its texts
///   are valid for their lengths.
unsafe fn copy_info(info: *const SmPluginInfo) -> Result<[String; 4], Reason> {
    if info.is_null() {
        return Err(Reason::MissingSlot { slot: "info" });
    }
    // SAFETY: not null, so it starts with its size by this function's contract.
    unsafe { struct_len(info, "the description", size_of::<SmPluginInfo>()) }?;
    // SAFETY: not null and aligned, and its header says that it is at least this long.
    let info = unsafe { info.read() };
    // SAFETY: the texts are valid by this function's contract.
    let copy = |what, view| unsafe { text(what, view) };
    let name = copy("name", info.name)?;
    if name.is_empty() {
        let fault = "the name is empty".into();
        return Err(Reason::BadTable { fault });
    }
    let version = copy("version", info.version)?;
    Ok([
        name,
        version,
        copy("vendor", info.vendor)?,
        copy("build id", info.build_id)?,
    ])
}

/// Checks the header that starts every struct: the size may be larger than this host knows, but not
/// smaller than version 1.0, nor absurd.
///
/// # Safety
/// - `at` is valid for reading an [`SmHdr`] if it is aligned.
unsafe fn struct_len<T>(at: *const T, what: &str, len_min: usize) -> Result<usize, Reason> {
    let bad = |fault: String| {
        Err(Reason::BadTable {
            fault: format!("{what} {fault}"),
        })
    };
    if !at.is_aligned() {
        return bad("is not aligned".into());
    }
    // SAFETY: aligned (checked above), so this function's contract holds.
    let header = unsafe { at.cast::<SmHdr>().read() };
    let len = usize::try_from(header.struct_size).unwrap_or(usize::MAX);
    if header.abi_major != SM_ABI_MAJOR {
        return bad(format!(
            "is of ABI {}, this host has {SM_ABI_MAJOR}",
            header.abi_major
        ));
    }
    if len < len_min || len > STRUCT_LEN_MAX || !len.is_multiple_of(STRUCT_LEN_UNIT) {
        return bad(format!(
            "claims a size of {len} bytes, version 1.0 has {len_min}"
        ));
    }
    Ok(len)
}

/// # Safety
/// - The view is null or valid for its length.
unsafe fn text(what: &str, view: SmStr) -> Result<String, Reason> {
    let bad = |fault: &str| Reason::BadTable {
        fault: format!("the {what} {fault}"),
    };
    let len = usize::try_from(view.len).unwrap_or(usize::MAX);
    if len == 0 {
        return Ok(String::new());
    }
    if view.ptr.is_null() || len > TEXT_LEN_MAX {
        return Err(bad("is null or too long"));
    }
    // SAFETY: not null (checked above), so valid for `len` bytes by this function's contract.
    let bytes = unsafe { std::slice::from_raw_parts(view.ptr.cast::<u8>(), len) };
    let text = std::str::from_utf8(bytes).map_err(|_| bad("is not UTF-8"))?;
    if text.chars().any(char::is_control) {
        return Err(bad("has control characters"));
    }
    Ok(text.into())
}

fn with_source(error: &dyn std::error::Error) -> String {
    error
        .source()
        .map_or_else(|| error.to_string(), ToString::to_string)
}

/// The backends that are linked into the program.
#[cfg(feature = "static-cpu")]
// SAFETY: the query function of a backend made by stepmesh-plugin follows the contract.
pub(crate) const BUILT_IN: &[StaticPlugin] =
    &[unsafe { StaticPlugin::new(stepmesh_backend_cpu::query) }];
/// The backends that are linked into the program.
#[cfg(not(feature = "static-cpu"))]
pub(crate) const BUILT_IN: &[StaticPlugin] = &[];
/// No future version is a thousand times as long; larger is garbage.
const STRUCT_LEN_MAX: usize = 1 << 20;
/// Every struct of the ABI is a multiple of this.
const STRUCT_LEN_UNIT: usize = 8;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod versions;
