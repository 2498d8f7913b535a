//! The committed C header is enough to write a plugin, and its strings are those of the crate. That
//! it compiles as C++ is checked by xtask, which can tell that a machine has no C++ compiler.

use std::path::{Path, PathBuf};
use std::process::Command;

use object::{Object as _, ObjectSection as _};
use stepmesh_abi::extension;
use stepmesh_abi::note::{NOTE_SECTION, NoteParams, SM_KIND_GPU, SM_NOTE_THREADS, parse_note};

const CRATE_DIR: &str = env!("CARGO_MANIFEST_DIR");

fn compile(compiler: &str, flags: &[&str], out: &Path) {
    let source = Path::new(CRATE_DIR).join("tests/it/c/plugin.c");
    let output = Command::new(compiler)
        .args(flags)
        .args(["-Wall", "-Wextra", "-Werror", "-I"])
        .arg(Path::new(CRATE_DIR).join("include"))
        .arg("-o")
        .arg(out)
        .arg(source)
        .output()
        .unwrap_or_else(|error| panic!("a C compiler is needed: {compiler}: {error}"));
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn a_c11_plugin_compiles_and_its_note_parses() {
    let dir = tempfile::tempdir().unwrap();
    let out: PathBuf = dir.path().join("libstepmesh_backend_cdemo.so");
    let flags = [
        "-std=c11",
        "-pedantic",
        "-fPIC",
        "-shared",
        "-fvisibility=hidden",
    ];
    compile("cc", &flags, &out);
    let data = std::fs::read(&out).unwrap();
    let file = object::File::parse(&*data).unwrap();
    let section = file.section_by_name(NOTE_SECTION).unwrap();
    let note = parse_note(section.data().unwrap()).unwrap();
    let expected = NoteParams {
        kind: SM_KIND_GPU,
        flags: SM_NOTE_THREADS,
        priority: -7,
        aliases: "GPU",
        ..NoteParams::new("cdemo", "1.2.3")
    };
    assert_eq!(note, expected);
}

#[test]
fn the_headers_extension_names_are_those_of_the_crate() {
    let header = std::fs::read_to_string(Path::new(CRATE_DIR).join("include/stepmesh_backend.h"));
    let header = header.unwrap();
    for (name, id) in [
        ("SM_EXTENSION_IPC_V1", extension::SM_EXTENSION_IPC_V1),
        ("SM_EXTENSION_RDMA_V1", extension::SM_EXTENSION_RDMA_V1),
        (
            "SM_EXTENSION_MEMEVENT_V1",
            extension::SM_EXTENSION_MEMEVENT_V1,
        ),
        ("SM_EXTENSION_TIMING_V1", extension::SM_EXTENSION_TIMING_V1),
        ("SM_EXTENSION_GRAPH_V1", extension::SM_EXTENSION_GRAPH_V1),
        ("SM_EXTENSION_VMM_V1", extension::SM_EXTENSION_VMM_V1),
        (
            "SM_EXTENSION_COMPUTE_V1",
            extension::SM_EXTENSION_COMPUTE_V1,
        ),
        ("SM_EXTENSION_LAZY_V1", extension::SM_EXTENSION_LAZY_V1),
    ] {
        assert!(
            header.contains(&format!("#define {name} \"{id}\"\n")),
            "{name}"
        );
    }
    assert!(header.contains(stepmesh_abi::QUERY_SYMBOL));
}
