//! The committed header compiles in both languages, and has only grown since version 1.0. That it is
//! current is checked by `cargo xtask abi --check`, which needs the generator.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    needs::{self, Presence},
    workspace::Workspace,
};

#[test]
fn the_header_compiles_as_c11() {
    assert_compiles("cc", "c11", "header.c");
}

#[test]
fn the_header_compiles_as_cxx17() {
    match needs::CXX.presence() {
        Presence::Present => assert_compiles(needs::CXX_COMPILER, "c++17", "header.cc"),
        // `cargo xtask test` reports the same absence, and fails where it is not allowed.
        Presence::Absent(reason) => eprintln!("not checked: {reason}"),
        Presence::Broken(reason) => panic!("{reason}"),
    }
}

/// Offsets alone do not show that an argument of a slot has changed its type; abidiff does.
#[test]
fn a_later_header_only_adds_to_that_of_version_1_0() {
    match needs::ABIDIFF_NEED.presence() {
        Presence::Present => {}
        Presence::Absent(reason) => return eprintln!("not checked: {reason}"),
        Presence::Broken(reason) => panic!("{reason}"),
    }
    let workspace = Workspace::locate().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let read = |path: &str| fs::read_to_string(workspace.path(path)).unwrap();
    let (first, now) = (read(FIRST_HEADER), read(HEADER));
    let library = |name: &str, header: &str| typed_library(dir.path(), name, header);
    let first = library("first", &first);
    assert_eq!(incompatibility(&first, &library("now", &now)), None);

    // The check itself: an appended slot is fine, another argument of an old one is not.
    let appended = now.replace(
        "} SmBackendApi;",
        "  int32_t (*later)(void);\n} SmBackendApi;",
    );
    assert_eq!(incompatibility(&first, &library("more", &appended)), None);
    let changed = appended.replace("(*close)(SmBackend *s,", "(*close)(SmBackend *s, int hard,");
    let problem = incompatibility(&first, &library("changed", &changed)).unwrap();
    assert!(problem.contains("SmBackendApi::close"), "{problem}");
}

/// A library whose debug information tells the types of a header.
fn typed_library(dir: &Path, name: &str, header: &str) -> PathBuf {
    let dir = dir.join(name);
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("stepmesh_backend.h"), header).unwrap();
    fs::write(dir.join("types.c"), TYPES).unwrap();
    let library = dir.join("types.so");
    let status = Command::new("cc")
        .current_dir(&dir)
        .args(["-g", "-shared", "-fPIC", "-I.", "types.c", "-o", "types.so"])
        .status()
        .unwrap();
    assert!(status.success());
    library
}

/// What abidiff has to say of the change from one library to another, unless it is all additions.
fn incompatibility(from: &Path, to: &Path) -> Option<String> {
    let output = Command::new(needs::ABIDIFF)
        .args(["--leaf-changes-only", "--no-show-locs"])
        .args([from, to])
        .output()
        .unwrap();
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    // The status has bits: 1 and 2 are failures of the tool, 4 is any change at all.
    let status = output.status.code().unwrap();
    assert_eq!(status & 3, 0, "{report}");
    let is_addition = !["data member change", "deletion", "Removed,", "Changed,"]
        .iter()
        .any(|word| {
            report
                .lines()
                .any(|line| line.contains(word) && !line.contains("0 Removed, 0 Changed"))
        });
    (!is_addition).then_some(report)
}

/// Compiles a program that takes the entry's address and the size of the table.
fn assert_compiles(compiler: &str, standard: &str, file_name: &str) {
    let header = Workspace::locate().unwrap().path(HEADER);
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join(file_name);
    fs::write(&source, PROGRAM).unwrap();
    let output = Command::new(compiler)
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"])
        .arg(format!("-std={standard}"))
        .arg("-I")
        .arg(header.parent().unwrap())
        .arg(&source)
        .output()
        .unwrap_or_else(|error| panic!("the tests need `{compiler}`: {error}"));
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The header comes first, so that it must include what it needs, and twice, so that it must guard.
const PROGRAM: &str = r#"#include "stepmesh_backend.h"
#include "stepmesh_backend.h"
#include <stdio.h>

int main(void) {
    const SmBackendApi *table = stepmesh_backend_query_v1(0, 0);
    printf("%u %u\n", table->hdr.abi_major, (unsigned)sizeof(SmError));
    return 0;
}
"#;

/// Leads to every type of the header: those of the tables, and those that are only named.
const TYPES: &str = r#"#include "stepmesh_backend.h"
struct { const SmIpcV1 *ipc; SmNoteHeader header; SmNoteDesc note; } others;
const SmBackendApi *stepmesh_backend_query_v1(const SmHostApi *h, SmError *e)
{
    return h == 0 && e == 0 ? (const SmBackendApi *)&others : 0;
}
"#;

const HEADER: &str = "crates/stepmesh-abi/include/stepmesh_backend.h";
const FIRST_HEADER: &str = "crates/stepmesh-abi/tests/it/c/1.0/stepmesh_backend.h";
