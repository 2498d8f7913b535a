//! Loads a plugin that was just built the way a host does, and asks its table who it is. The rest of
//! the table is the business of stepmesh-core.
#![expect(
    unsafe_code,
    reason = "calls the C entry of a library, which no type can vouch for"
)]

use std::{fmt, mem, path::Path, slice};

use anyhow::{Context, Result, bail, ensure};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use stepmesh_abi::{
    QUERY_SYMBOL, SM_ABI_MAJOR, SmBackendApi, SmBackendQueryFn, SmError, SmHdr, SmHostApi,
    SmPluginInfo, SmStr, backend::SM_BACKEND_API_LEN_V1_0,
};

/// What a plugin's table says about the plugin.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reported {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) abi: String,
}

impl fmt::Display for Reported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` {} (ABI {})", self.name, self.version, self.abi)
    }
}

/// Loads `path` for the rest of this process's life and reads the head of its table.
pub(super) fn load_back(path: &Path) -> Result<Reported> {
    let query = entry(path)?;
    let mut error = SmError::new();
    // SAFETY: the symbol's name fixes its type; `HOST` lives as long as the process, and `error`
    // longer than the call.
    let table = unsafe { query(&raw const HOST, &raw mut error) };
    if table.is_null() {
        let message = error.message_bytes();
        let message = String::from_utf8_lossy(&message[..error.message_len()]);
        bail!("{} refuses this host: {message}", path.display());
    }
    let info = info_of(table).with_context(|| format!("the table of {}", path.display()))?;
    Ok(Reported {
        name: text(&info.name).context("the name in the table")?,
        version: text(&info.version).context("the version in the table")?,
        abi: format!("{}.{}", info.hdr.abi_major, info.hdr.abi_minor),
    })
}

fn entry(path: &Path) -> Result<SmBackendQueryFn> {
    // SAFETY: the initialisers are those of a library that this task has just built from this
    // workspace, and which exports one symbol only.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }
        .with_context(|| format!("cannot load {}", path.display()))?;
    // SAFETY: the symbol's name fixes its type.
    let symbol = unsafe { library.get::<SmBackendQueryFn>(QUERY_SYMBOL.as_bytes()) };
    let query = *symbol.with_context(|| format!("{} has no entry", path.display()))?;
    // A plugin is never unloaded: its table and its texts are used until the process ends.
    mem::forget(library);
    Ok(query)
}

fn info_of(table: *const SmBackendApi) -> Result<SmPluginInfo> {
    // SAFETY: a plugin returns null or its table, and a table of any version starts with the header.
    let hdr = unsafe { table.cast::<SmHdr>().read() };
    ensure!(
        hdr.abi_major == SM_ABI_MAJOR,
        "has the major version {}",
        hdr.abi_major
    );
    ensure!(
        hdr.struct_size as usize >= SM_BACKEND_API_LEN_V1_0,
        "has {} bytes, at least {SM_BACKEND_API_LEN_V1_0} are needed",
        hdr.struct_size
    );
    // SAFETY: the table is as long as that of version 1.0, which holds the pointer.
    let info = unsafe { (*table).info };
    ensure!(!info.is_null(), "has no description");
    // SAFETY: not null, and the description of version 1.0 is the shortest there is.
    Ok(unsafe { info.read() })
}

fn text(view: &SmStr) -> Result<String> {
    if view.ptr.is_null() || view.len == 0 {
        return Ok(String::new());
    }
    // SAFETY: not null; the ABI wants `len` immutable bytes there for as long as the library is
    // loaded, which is for good.
    let bytes = unsafe { slice::from_raw_parts(view.ptr.cast::<u8>(), view.len as usize) };
    Ok(std::str::from_utf8(bytes)
        .context("is not UTF-8")?
        .to_owned())
}

/// A host that offers nothing: no slot is called here.
static HOST: SmHostApi = SmHostApi::new();
