//! `stepmesh plugin`: list, check, probe, conform, on plugins compiled here.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{run, run_with};

/// A folder with the example in C, and a wrong one whose way to be wrong is its name.
struct Folder {
    directory: TempDir,
}

impl Folder {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self { directory }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().canonicalize().unwrap()
    }

    fn compile(&self, name: &str, source: &str) -> String {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let path = self.path().join(format!("libstepmesh_backend_{name}.so"));
        let output = Command::new("cc")
            .args(["-shared", "-fPIC", "-fvisibility=hidden", "-I"])
            .arg(here.join("../stepmesh-abi/include"))
            .arg("-o")
            .arg(&path)
            .arg(here.join("../..").join(source))
            .arg("-lpthread")
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        path.to_str().unwrap().into()
    }

    fn good(&self) -> String {
        self.compile("example-c", "plugins/example-c/example.c")
    }

    fn wrong(&self, way: &str) -> String {
        self.compile(way, "crates/stepmesh-conformance/tests/it/spoiled.c")
    }
}

#[test]
fn list_shows_each_candidate_and_loads_none() {
    let folder = Folder::new();
    folder.good();
    std::fs::write(folder.path().join("libstepmesh_backend_bad.so"), "no").unwrap();
    let path = folder.path();
    let env = [("STEPMESH_PLUGIN_PATH", path.to_str().unwrap())];
    let ended = run_with(&env, &["plugin", "list"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for part in [
        "example-c",
        "compatible",
        "rejected",
        "not a shared library",
    ] {
        assert!(ended.stdout.contains(part), "{part}: {ended:?}");
    }
    let ended = run_with(&env, &["plugin", "list", "--json"]);
    let listed: Value = serde_json::from_str(&ended.stdout).unwrap();
    let names = listed.as_array().unwrap().iter();
    let names: Vec<_> = names.map(|row| row["name"].as_str()).collect();
    assert!(names.contains(&Some("example-c")) && names.contains(&None));
}

#[test]
fn check_tells_what_a_file_is_without_running_it() {
    let folder = Folder::new();
    let ended = run(&["plugin", "check", &folder.good()]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(!ended.stdout.contains("BROKEN"), "{ended:?}");
    let ended = run(&["plugin", "check", "/bin/sh"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stdout.contains("no note of the owner"), "{ended:?}");
    let ended = run(&["plugin", "check", "no-such-file.so"]);
    assert_eq!(ended.code, Some(4), "{ended:?}");
    assert!(ended.stderr.contains("no-such-file.so"), "{ended:?}");
}

#[test]
fn probe_shows_devices_and_turns_a_crash_into_a_line() {
    let folder = Folder::new();
    let ended = run(&["plugin", "probe", &folder.good()]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for part in ["example-c 0.1.0: 1 device", "Example in C"] {
        assert!(ended.stdout.contains(part), "{part}: {ended:?}");
    }
    let ended = run(&["plugin", "probe", &folder.wrong("device_count_crashes")]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(
        ended.stdout.contains("SIGSEGV (in device_count)"),
        "{ended:?}"
    );
}

#[test]
fn conform_gives_a_verdict_a_report_and_an_exit_code() {
    let folder = Folder::new();
    let junit = folder.path().join("junit.xml");
    let file = folder.good();
    let args = ["plugin", "conform", &file, "--tier", "1", "--only", "L*"];
    let ended = run(&[&args[..], &["--junit", junit.to_str().unwrap()]].concat());
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.contains("13 passed, 0 failed"), "{ended:?}");
    assert!(
        std::fs::read_to_string(&junit)
            .unwrap()
            .contains("<testcase name=\"L1 ")
    );

    let file = folder.wrong("device_count_crashes");
    let ended = run(&["plugin", "conform", &file, "--only", "D*", "--json"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    let checks = report["checks"].as_array().unwrap();
    assert_eq!(checks.len(), 8, "a crash does not end the run");
    assert!(checks.iter().any(|check| check["outcome"] == "fail"));
}

#[test]
fn an_expected_failure_is_told_and_an_unexpected_pass_fails() {
    let folder = Folder::new();
    let expect = folder.path().join("expect.toml");
    let lists = "[unsupported]\nD3 = \"never will\"\n[expected_failures]\nD1 = \"grows\"";
    std::fs::write(&expect, lists).unwrap();
    let expect = expect.to_str().unwrap();
    let judge = |file: &str| {
        run(&[
            "plugin", "conform", file, "--only", "D?", "--expect", expect,
        ])
    };
    let ended = judge(&folder.wrong("device_count_grows"));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.contains("1 failed as expected"), "{ended:?}");
    assert!(
        ended.stdout.contains("unsupported: never will"),
        "{ended:?}"
    );
    let ended = judge(&folder.good());
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stdout.contains("listed as a failure"), "{ended:?}");
}

#[test]
fn a_pattern_that_matches_nothing_is_an_error() {
    let folder = Folder::new();
    let ended = run(&["plugin", "conform", &folder.good(), "--only", "Q9"]);
    assert_eq!(ended.code, Some(4), "{ended:?}");
    assert!(ended.stderr.contains("no check matches `Q9`"), "{ended:?}");
}
