//! The library file: one symbol, a note that survives `strip`, an entry that answers.

use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::process::Command;

use object::{Object as _, ObjectSection as _, ObjectSymbol as _};
use stepmesh_plugin::abi::note::{NOTE_SECTION, parse_note};
use stepmesh_plugin::abi::{QUERY_SYMBOL, SmBackendQueryFn, SmError};

use crate::support::host;

/// Cargo builds both kinds of the crate for its tests and puts the library beside the test program.
fn library() -> PathBuf {
    let program = std::env::current_exe().expect("the test program has a path");
    program.with_file_name("libstepmesh_backend_cpu.so")
}

fn exported_symbols(data: &[u8]) -> Vec<String> {
    let file = object::File::parse(data).expect("the library is an ELF file");
    let exported = file
        .dynamic_symbols()
        .filter(|symbol| !symbol.is_undefined());
    exported
        .filter_map(|symbol| symbol.name().ok().map(str::to_owned))
        .collect()
}

fn check_note(data: &[u8]) {
    let file = object::File::parse(data).expect("the library is an ELF file");
    let section = file
        .section_by_name(NOTE_SECTION)
        .expect("the note has its section");
    let note = parse_note(section.data().expect("the section has bytes")).expect("a valid note");
    assert_eq!((note.name, note.exported_symbols), ("cpu", 1));
    assert_eq!(note.version, env!("CARGO_PKG_VERSION"));
}

#[test]
fn exactly_one_symbol_is_exported_and_the_note_survives_strip() {
    let data = std::fs::read(library()).unwrap();
    assert_eq!(exported_symbols(&data), [QUERY_SYMBOL]);
    check_note(&data);
    let dir = tempfile::tempdir().unwrap();
    let stripped = dir.path().join("stripped.so");
    let status = Command::new("strip")
        .arg("-s")
        .arg("-o")
        .arg(&stripped)
        .arg(library())
        .status();
    assert!(status.unwrap().success());
    let data = std::fs::read(&stripped).unwrap();
    assert_eq!(exported_symbols(&data), [QUERY_SYMBOL]);
    check_note(&data);
}

#[test]
fn the_library_needs_no_vendor_library() {
    let output = Command::new("readelf")
        .arg("-d")
        .arg(library())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let needed: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .filter_map(|line| line.split(['[', ']']).nth(1))
        .collect();
    let system = |name: &&str| {
        name.starts_with("libc.")
            || name.starts_with("ld-linux")
            || name.starts_with("libgcc_s.")
            || name.starts_with("libm.")
    };
    assert!(
        !needed.is_empty() && needed.iter().all(system),
        "{needed:?}"
    );
    assert!(!text.contains("TEXTREL"));
}

#[test]
fn the_loaded_entry_answers_the_same_table_twice_and_probes() {
    let query = load(&library());
    let host = host(&[]);
    let mut err = SmError::new();
    // SAFETY: a leaked table and a local error.
    let first = unsafe { query(host, &raw mut err) };
    // SAFETY: as above.
    assert_eq!(first, unsafe { query(host, &raw mut err) });
    // SAFETY: null or a static table.
    let api = unsafe { first.as_ref() }.expect("the host is whole");
    assert_eq!(api.missing_required_slot(), None);
    let (mut n, mut score) = (0, 0);
    // SAFETY: local out pointers.
    let code = unsafe { (api.probe.unwrap())(&raw mut n, &raw mut score, &raw mut err) };
    assert_eq!((code, n >= 1), (0, true));
}

fn load(path: &Path) -> SmBackendQueryFn {
    let path = CString::new(path.to_str().expect("utf-8")).expect("no NUL");
    let flags = libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE;
    // SAFETY: the plugin runs no code when it is loaded.
    let handle = unsafe { libc::dlopen(path.as_ptr(), flags) };
    assert!(!handle.is_null());
    let name = CString::new(QUERY_SYMBOL).expect("no NUL");
    // SAFETY: a live handle and a string.
    let symbol = unsafe { libc::dlsym(handle, name.as_ptr()) };
    assert!(!symbol.is_null());
    // SAFETY: the symbol has this type by the ABI, and the library is never unloaded.
    unsafe { std::mem::transmute::<*mut libc::c_void, SmBackendQueryFn>(symbol) }
}
