//! What `backends`, `config` and `--help` show.

use serde_json::Value;

use crate::support::{run, run_with};

#[test]
fn backends_shows_the_built_in_one() {
    let ended = run(&["backends"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for text in ["name", "ABI", "reason", "cpu", "(built in)", "loaded"] {
        assert!(ended.stdout.contains(text), "{text}: {ended:?}");
    }
}

#[test]
fn backends_tells_the_reason_of_each_file_it_refuses() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("libstepmesh_backend_bad.so");
    std::fs::write(&file, "no library").unwrap();
    let path = dir.path().to_str().unwrap();
    let ended = run_with(&[("STEPMESH_PLUGIN_PATH", path)], &["backends", "--json"]);
    let backends: Value = serde_json::from_str(&ended.stdout).unwrap();
    let bad = backends.as_array().unwrap().iter();
    let mut bad = bad.filter(|row| row["file"].as_str() == file.to_str());
    let bad = bad.next().unwrap();
    assert_eq!(bad["state"], "rejected");
    assert!(
        bad["reason"]
            .as_str()
            .unwrap()
            .contains("not a shared library"),
        "{bad}"
    );
}

#[test]
fn config_shows_each_value_with_its_origin_and_no_secret() {
    let env = [("STEPMESH_MESH_TOKEN", "hush"), ("DMLC_NUM_WORKER", "3")];
    let ended = run_with(&env, &["config", "-o", "transport.kind=tcp"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(!ended.stdout.contains("hush"), "{ended:?}");
    let line = |key: &str| {
        let mut lines = ended
            .stdout
            .lines()
            .filter(|line| line.trim().starts_with(key));
        lines.next().unwrap()
    };
    assert!(
        line("transport.kind").contains("\"tcp\"")
            && line("transport.kind").contains("command line")
    );
    assert!(line("mesh.workers").contains("DMLC_NUM_WORKER"));
    assert!(line("mesh.servers").contains("default"));
}

#[test]
fn config_as_json_has_typed_values() {
    let ended = run(&["config", "--json", "--set", "mesh.workers=7"]);
    let config: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(config["mesh.workers"]["value"], 7);
    assert_eq!(config["mesh.workers"]["from"], "command line");
    assert_eq!(config["trace.enabled"]["value"], true);
    assert_eq!(config["plugins.path"]["value"], serde_json::json!([]));
}

#[test]
fn a_misspelt_variable_is_warned_about_once() {
    let ended = run_with(&[("STEPMESH_TRANSPORT_KINDS", "tcp")], &["config"]);
    assert_eq!(ended.code, Some(0));
    let warnings = ended.stderr.matches("warning: ");
    assert_eq!(warnings.count(), 1, "{ended:?}");
    assert!(
        ended.stderr.contains("STEPMESH_TRANSPORT_KIND`"),
        "{ended:?}"
    );
}

#[test]
fn help_documents_the_exit_codes() {
    let ended = run(&["--help"]);
    assert_eq!(ended.code, Some(0));
    for text in [
        "Exit codes:",
        "backends",
        "scheduler",
        "server",
        "worker",
        "143",
    ] {
        assert!(ended.stdout.contains(text), "{text}: {ended:?}");
    }
}

#[test]
fn doctor_ends_by_the_worst_that_it_found() {
    let ended = run(&["doctor", "--json"]);
    let page: Value = serde_json::from_str(&ended.stdout).unwrap();
    let count = |state| page["tally"][state].as_u64().unwrap();
    let code = match (count("bad"), count("warn")) {
        (0, 0) => 0,
        (0, _) => 5,
        _ => 1,
    };
    assert_eq!(ended.code, Some(code), "{ended:?}");
    let findings = page["findings"].as_array().unwrap();
    assert!(findings.iter().any(|finding| finding["what"] == "kernel"));
    let is_mended = |finding: &Value| finding["state"] == "ok" || finding["mend"].is_string();
    assert!(findings.iter().all(is_mended), "{ended:?}");
}

#[test]
fn doctor_says_what_is_wrong_with_the_chosen_backend() {
    let ended = run_with(&[("STEPMESH_BACKEND", "cppu")], &["doctor"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(
        ended.stdout.contains("bad") && ended.stdout.contains("cppu"),
        "{ended:?}"
    );
}

#[test]
fn rdma_explain_shows_a_port_to_use_or_says_in_one_line_why_there_is_none() {
    let ended = run(&["rdma", "explain", "--json"]);
    let page: Value = serde_json::from_str(&ended.stdout).unwrap();
    let ports = page["choice"]["ports"].as_array().unwrap();
    let shown = run(&["rdma", "explain"]);
    if let Some(absence) = page["absence"].as_str() {
        assert_eq!((ended.code, shown.code), (Some(1), Some(1)), "{shown:?}");
        assert_eq!(shown.stderr.trim(), format!("error: {absence}"));
        assert!(!absence.contains('\n'), "{absence}");
    } else {
        assert_eq!((ended.code, shown.code), (Some(0), Some(0)), "{shown:?}");
        assert!(ports.iter().any(|port| port["rank"] == 1), "{page}");
        assert!(shown.stdout.contains("used"), "{shown:?}");
    }
    let refused = run(&["rdma", "explain", "--include", "no_such_adapter"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
}
