//! The judgement on libraries that a C compiler makes here: good ones and each way to be bad.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Result, bail};
use stepmesh_abi::note::{NoteParams, note_bytes, note_len};
use tempfile::TempDir;

use super::{elf, load, replace_if_good};

#[test]
fn only_defined_dynamic_symbols_are_exported() {
    let library = Library::of(
        "__attribute__((visibility(\"hidden\"))) int hidden(void) { return 1; }
         static int local(void) { return hidden(); }
         extern int elsewhere(void);
         int b(void) { return local() + elsewhere(); }
         int a = 1;",
    );
    assert_eq!(elf::exported_symbols(&library.bytes()).unwrap(), ["a", "b"]);
}

#[test]
fn the_note_is_found_among_others_and_after_strip() {
    const PARAMS: NoteParams<'static> = NoteParams::new("demo", "1.2.3");
    const NOTE: [u8; note_len(&PARAMS)] = note_bytes(&PARAMS);
    let bytes = NOTE.map(|byte| byte.to_string()).join(",");
    let library = Library::of(&format!(
        "__attribute__((used, aligned(4), section(\".note.stepmesh\")))
         static const unsigned char note[] = {{{bytes}}};"
    ));
    let note_name = |bytes: &[u8]| elf::note(bytes).unwrap().name.to_owned();
    assert_eq!(note_name(&library.bytes()), "demo");
    assert!(
        Command::new("strip")
            .arg(&library.path)
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(note_name(&library.bytes()), "demo");
}

#[test]
fn a_library_without_a_note_says_so() {
    let error = elf::note(&Library::of("int a;").bytes()).unwrap_err();
    assert!(error.to_string().contains("no note"), "{error}");
}

#[test]
fn what_is_not_a_library_says_so() {
    let error = elf::exported_symbols(b"#!/bin/sh\n").unwrap_err();
    assert!(
        error.to_string().contains("not a 64-bit ELF file"),
        "{error}"
    );
}

#[test]
fn a_library_without_the_entry_is_not_called() {
    let error = load::load_back(&Library::of("int a;").path).unwrap_err();
    assert!(error.to_string().contains("has no entry"), "{error:#}");
}

#[test]
fn a_library_that_refuses_the_host_is_reported_with_its_message() {
    let library = Library::of(
        "struct error { unsigned size; int code; long native; unsigned flags, len; char msg[232]; };
         const void *stepmesh_backend_query_v1(const void *host, struct error *error) {
             (void)host;
             error->code = 9;
             error->len = 3;
             __builtin_memcpy(error->msg, \"why\", 3);
             return 0;
         }",
    );
    let error = load::load_back(&library.path).unwrap_err();
    assert!(error.to_string().contains("why"), "{error:#}");
}

#[test]
fn a_table_of_another_major_version_is_not_read() {
    let library = Library::of(
        "static const struct { unsigned size; unsigned short major, minor; } table = {8, 2, 0};
         const void *stepmesh_backend_query_v1(void) { return &table; }",
    );
    let error = load::load_back(&library.path).unwrap_err();
    assert!(
        format!("{error:#}").contains("major version 2"),
        "{error:#}"
    );
}

#[test]
fn a_table_that_is_too_short_is_not_read() {
    let library = Library::of(
        "static const struct { unsigned size; unsigned short major, minor; } table = {8, 1, 0};
         const void *stepmesh_backend_query_v1(void) { return &table; }",
    );
    let error = load::load_back(&library.path).unwrap_err();
    assert!(format!("{error:#}").contains("has 8 bytes"), "{error:#}");
}

#[test]
fn a_good_file_replaces_the_old_one() {
    let folder = Folder::with_old_and_new();
    let verdict = replace_if_good(&folder.waiting(), &folder.installed(), |staged| {
        Ok(fs::read_to_string(staged).unwrap())
    });
    assert_eq!(verdict.unwrap(), "new");
    assert_eq!(folder.contents(), ["new", "new"]);
}

#[test]
fn a_bad_file_leaves_the_old_one_and_nothing_else() {
    let folder = Folder::with_old_and_new();
    let refused = replace_if_good(&folder.waiting(), &folder.installed(), |_| -> Result<()> {
        bail!("it is bad")
    });
    assert_eq!(refused.unwrap_err().to_string(), "it is bad");
    assert_eq!(folder.contents(), ["old", "new"]);
}

#[test]
fn a_missing_file_leaves_the_old_one_and_nothing_else() {
    let folder = Folder::with_old_and_new();
    let missing = folder.0.path().join("missing");
    replace_if_good(&missing, &folder.installed(), |_| Ok(())).unwrap_err();
    assert_eq!(folder.contents(), ["old", "new"]);
}

/// A folder in which a file is installed and another waits.
struct Folder(TempDir);

impl Folder {
    fn with_old_and_new() -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        fs::write(folder.installed(), "old").unwrap();
        fs::write(folder.waiting(), "new").unwrap();
        folder
    }

    fn installed(&self) -> PathBuf {
        self.0.path().join("libdemo.so")
    }

    fn waiting(&self) -> PathBuf {
        self.0.path().join("new")
    }

    /// What is in each file, in the order of their names.
    fn contents(&self) -> Vec<String> {
        let mut paths: Vec<PathBuf> = fs::read_dir(self.0.path())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        paths.sort_unstable();
        paths
            .iter()
            .map(|path| fs::read_to_string(path).unwrap())
            .collect()
    }
}

/// A shared library compiled from C.
struct Library {
    path: PathBuf,
    /// Removed when the test ends.
    _dir: TempDir,
}

impl Library {
    fn of(source: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let source_path = dir.path().join("library.c");
        let path = dir.path().join("library.so");
        fs::write(&source_path, source).unwrap();
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .args([&path, &source_path])
            .status()
            .unwrap_or_else(|error| panic!("the tests need `cc`: {error}"));
        assert!(compiled.success());
        Self { path, _dir: dir }
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(&self.path).unwrap()
    }
}
