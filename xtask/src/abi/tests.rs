//! The committed header compiles in both languages. That it is current is checked by
//! `cargo xtask abi --check`, which needs the generator.

use std::{fs, process::Command};

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

const HEADER: &str = "crates/stepmesh-abi/include/stepmesh_backend.h";
