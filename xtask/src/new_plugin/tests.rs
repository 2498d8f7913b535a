//! Every skeleton builds without a warning, exports one symbol, carries its note, loads, and passes
//! the conformance checks about that and about errors.

use std::{fs, os::unix::fs::symlink, path::Path, process::Command};

use tempfile::TempDir;

use super::{Language, command, exclude, write};
use crate::{
    needs::{self, Presence},
    plugins::judge_file,
    workspace::Workspace,
};

#[test]
fn the_skeleton_in_c_is_a_plugin() {
    let root = workspace_copy();
    write(root.path(), "my-own", Language::C).unwrap();
    compile(root.path(), "my-own", Language::C);
}

#[test]
fn the_skeleton_in_cpp_is_a_plugin() {
    match needs::CXX.presence() {
        Presence::Present => {
            let root = workspace_copy();
            write(root.path(), "my-own", Language::Cpp).unwrap();
            compile(root.path(), "my-own", Language::Cpp);
        }
        // `cargo xtask test` reports the same absence, and fails where it is not allowed.
        Presence::Absent(reason) => eprintln!("not checked: {reason}"),
        Presence::Broken(reason) => panic!("{reason}"),
    }
}

#[test]
fn the_skeleton_in_rust_is_a_plugin_without_warnings() {
    let root = workspace_copy();
    write(root.path(), "my_own", Language::Rust).unwrap();
    // Its own folder below the target directory keeps what it depends on for the next run.
    let target_dir = Workspace::locate().unwrap().metadata().unwrap();
    let target_dir = target_dir.target_dir().unwrap().join("new-plugin");
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .current_dir(root.path().join("plugins/my_own"))
        .args(["build", "--offline", "--quiet"])
        .env("CARGO_TARGET_DIR", &target_dir)
        .env("RUSTFLAGS", "-D warnings");
    run(&mut cargo);
    let library = target_dir.join("debug/libstepmesh_backend_my_own.so");
    judge_file(&library, "my_own").unwrap();
    // The skeletons in C and C++ are the examples, which the conformance crate judges.
    for group in ["L*", "E*"] {
        let mut conform = Workspace::locate().unwrap().cargo("run");
        // Beside the skeleton: built into the workspace's own folder, with other features, it
        // would take the place of crates that the tests which still follow were built against.
        conform.env("CARGO_TARGET_DIR", &target_dir);
        conform.args(["--quiet", "--package", "stepmesh-cli", "--"]);
        conform.args(["plugin", "conform", "--only", group]);
        run(conform.arg(&library));
    }
}

#[test]
fn a_name_that_no_backend_can_have_is_refused() {
    let root = workspace_copy();
    for (name, language, expected) in [
        ("", Language::C, "no name of a backend"),
        ("../up", Language::C, "no name of a backend"),
        ("Upper", Language::Rust, "no name of a backend"),
        ("my-own", Language::Rust, "write `my_own`"),
    ] {
        let error = write(root.path(), name, language).unwrap_err().to_string();
        assert!(error.contains(expected), "{name}: {error}");
    }
    assert!(!root.path().join("plugins").exists());
}

#[test]
fn what_exists_is_not_overwritten() {
    let root = workspace_copy();
    write(root.path(), "twice", Language::Rust).unwrap();
    let error = write(root.path(), "twice", Language::C).unwrap_err();
    assert!(error.to_string().contains("plugins/twice exists already"));
}

#[test]
fn a_folder_that_is_no_package_is_told_to_cargo() {
    let manifest = "[workspace]\nexclude = [\"plugins/a\"]\nresolver = \"3\"\n";
    assert_eq!(
        exclude(manifest, "b").unwrap(),
        "[workspace]\nexclude = [\"plugins/a\", \"plugins/b\"]\nresolver = \"3\"\n"
    );
    exclude("[workspace]\n", "b").unwrap_err();
}

/// A folder that stands for the workspace: its manifests, and a link to its crates.
fn workspace_copy() -> TempDir {
    let workspace = Workspace::locate().unwrap();
    let root = tempfile::tempdir().unwrap();
    symlink(workspace.path("crates"), root.path().join("crates")).unwrap();
    fs::copy(workspace.path("Cargo.lock"), root.path().join("Cargo.lock")).unwrap();
    let manifest = fs::read_to_string(workspace.path("Cargo.toml")).unwrap();
    let members = manifest
        .lines()
        .find(|line| line.starts_with("members = ["));
    let members = members.expect("the workspace names its members on one line");
    let manifest = manifest.replace(members, "members = [\"plugins/*\"]");
    fs::write(root.path().join("Cargo.toml"), manifest).unwrap();
    root
}

/// Runs the command that the README shows, with every warning an error.
fn compile(root: &Path, name: &str, language: Language) {
    let readme = fs::read_to_string(root.join("plugins").join(name).join("README.md")).unwrap();
    let line = command(name, language);
    assert!(readme.contains(&format!("$ {line}\n")));
    let mut words = line.split(' ');
    let mut compiler = Command::new(words.next().unwrap());
    run(compiler
        .current_dir(root)
        .args(words)
        .args(["-Wall", "-Wextra", "-Werror"]));
    judge_file(&root.join(format!("libstepmesh_backend_{name}.so")), name).unwrap();
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success(), "{command:?}: {said}");
}
