//! `stepmesh bench` from end to end. How fast anything is, is not tested.

use serde_json::Value;

use crate::support::run;

#[test]
fn bench_measures_with_processes_of_its_own_and_writes_the_summary() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("new").join("bench");
    let args = [
        "bench",
        "--quick",
        "--only",
        "alloc.per*",
        "--json",
        "--out",
    ];
    let ended = run(&[&args[..], &[out.to_str().unwrap()]].concat());
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let printed: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert!(printed["alloc.per_push_pull"].is_number(), "{printed}");
    let written = std::fs::read_to_string(out.join("summary.json")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&written).unwrap(), printed);
}

#[test]
fn bench_names_what_there_is_when_nothing_is_called_so() {
    let ended = run(&["bench", "--only", "shn.*"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("shm.rtt_8b_over_floor"), "{ended:?}");
}

#[test]
fn bench_tells_why_a_process_of_its_own_failed() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().to_str().unwrap();
    // No member can map memory in a folder that is not there.
    let nowhere = dir.path().join("nowhere");
    let setting = format!("shm.dir={}", nowhere.display());
    let args = ["bench", "--quick", "--only", "alloc.per*", "--out", out];
    let ended = run(&[&args[..], &["-o", &setting]].concat());
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("alloc.per_push_pull"), "{ended:?}");
    assert!(ended.stderr.contains("nowhere"), "{ended:?}");
    assert!(ended.stdout.contains("failed"), "{ended:?}");
}
