//! Whole meshes of processes that do their work.

use serde_json::Value;

use crate::support::{Mesh, Process, layer, network};

#[test]
fn two_workers_and_two_servers_echo_over_shm() {
    echo("shm");
}

#[test]
fn two_workers_and_two_servers_echo_over_the_network() {
    echo(&network());
}

#[test]
fn a_real_layer_is_computed_over_shm() {
    compute("shm");
}

#[test]
fn a_real_layer_is_computed_over_the_network() {
    compute(&network());
}

#[test]
fn a_server_that_takes_batches_as_they_come_gives_each_worker_its_own_rows() {
    let mesh = Mesh::new(2, 1, &[]);
    let input = layer();
    let mut server = mesh.start(&[
        "server",
        "--handler",
        "ffn",
        "--input",
        &input,
        "--batches-of",
        "any",
    ]);
    let worker = || mesh.start(&["worker", "--input", &input, "--iterations", "8"]);
    let mut workers = [worker(), worker()];
    for worker in &mut workers {
        worker.ends_with(0);
    }
    let ended = server.ends_with(0);
    assert!(ended.stdout.contains("answered 16 batches"), "{ended:?}");
    mesh.ends();
}

#[test]
fn sums_come_back() {
    let mesh = Mesh::new(1, 1, &[]);
    let mut server = mesh.start(&["server", "--handler", "sum"]);
    // The sum of one tensor is the tensor.
    let mut worker = mesh.start(&[
        "worker",
        "--dtype",
        "i32",
        "--dim",
        "33",
        "--iterations",
        "20",
    ]);
    worker.ends_with(0);
    server.ends_with(0);
    mesh.ends();
}

#[test]
fn a_server_ends_after_as_many_batches_as_it_was_told() {
    let mesh = Mesh::new(1, 1, &[]);
    let mut server = mesh.start(&["server", "--handler", "echo", "--batches", "5"]);
    let mut worker = mesh.start(&["worker", "--dim", "8", "--iterations", "5"]);
    worker.ends_with(0);
    let ended = server.ends_with(0);
    assert!(ended.stdout.contains("answered 5 batches"), "{ended:?}");
    mesh.ends();
}

#[test]
fn the_table_has_a_block_for_each_server() {
    let mesh = Mesh::new(1, 2, &[]);
    let mut servers = servers(&mesh, 2, &["--handler", "echo"]);
    let mut worker = mesh.start(&["worker", "--dim", "8", "--iterations", "5"]);
    let table = worker.ends_with(0).stdout;
    let columns = [
        "request", "send", "net", "receive", "process", "respond", "total",
    ];
    assert!(
        columns.iter().all(|column| table.contains(column)),
        "{table}"
    );
    for line in ["mean", "p50", "p99.9", "max"] {
        let count = table
            .lines()
            .filter(|text| text.split_whitespace().any(|w| w == line));
        assert_eq!(count.count(), 2, "{line}\n{table}");
    }
    assert!(
        table.contains("every answer came back as it went"),
        "{table}"
    );
    for server in &mut servers {
        server.ends_with(0);
    }
    mesh.ends();
}

fn echo(transport: &str) {
    let mesh = Mesh::new(2, 2, &[("transport.kind", transport)]);
    let mut servers = servers(&mesh, 2, &["--handler", "echo"]);
    let worker = || {
        mesh.start(&[
            "worker",
            "--rows",
            "16",
            "--dim",
            "100",
            "--iterations",
            "50",
        ])
    };
    let mut workers = [worker(), worker()];
    for worker in &mut workers {
        let ended = worker.ends_with(0);
        assert!(
            ended.stdout.contains("50 round trips with 2 servers"),
            "{ended:?}"
        );
    }
    for server in &mut servers {
        let ended = server.ends_with(0);
        assert!(ended.stdout.contains("answered 100 batches"), "{ended:?}");
    }
    mesh.ends();
}

fn compute(transport: &str) {
    let mesh = Mesh::new(2, 2, &[("transport.kind", transport)]);
    let input = layer();
    let mut servers = servers(&mesh, 2, &["--handler", "ffn", "--input", &input]);
    let worker = || mesh.start(&["worker", "--input", &input, "--iterations", "6", "--json"]);
    let mut workers = [worker(), worker()];
    let mut ranks = Vec::new();
    for worker in &mut workers {
        let report: Value = serde_json::from_str(&worker.ends_with(0).stdout).unwrap();
        assert!(report["largest_error"].as_f64().unwrap() < 1e-4, "{report}");
        assert_eq!(report["iterations"], 6);
        assert_eq!(report["servers"].as_array().unwrap().len(), 2, "{report}");
        assert!(
            report["servers"][1]["latency_us"]["process"]["p50"]
                .as_f64()
                .unwrap()
                > 0.0
        );
        ranks.push(report["rank"].as_u64().unwrap());
    }
    ranks.sort_unstable();
    assert_eq!(ranks, [0, 1]);
    for server in &mut servers {
        server.ends_with(0);
    }
    mesh.ends();
}

fn servers(mesh: &Mesh, count: usize, args: &[&str]) -> Vec<Process> {
    let mut all = vec!["server"];
    all.extend(args);
    (0..count).map(|_| mesh.start(&all)).collect()
}
