//! Peers that die or fall silent while others work.

use std::path::PathBuf;

use rustix::process::Signal;
use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize_to_file};

use crate::support::{Mesh, layer, network};

#[test]
fn a_worker_killed_in_the_middle_leaves_the_others_working_over_shm() {
    a_killed_worker("shm");
}

#[test]
fn a_worker_killed_in_the_middle_leaves_the_others_working_over_the_network() {
    a_killed_worker(&network());
}

#[test]
fn a_server_killed_while_computing_ends_its_workers_over_shm() {
    a_killed_server("shm");
}

#[test]
fn a_server_killed_while_computing_ends_its_workers_over_the_network() {
    a_killed_server(&network());
}

#[test]
fn a_server_that_falls_silent_is_lost_within_the_bound_on_one_host() {
    a_silent_server("auto", "600");
}

#[test]
fn a_server_that_falls_silent_is_lost_within_the_bound_over_the_network() {
    a_silent_server(&network(), NETWORK_PEER_DEAD_MS);
}

#[test]
fn a_worker_that_falls_silent_does_not_hold_up_the_others_on_one_host() {
    a_silent_worker("auto", "600");
}

#[test]
fn a_worker_that_falls_silent_does_not_hold_up_the_others_over_the_network() {
    a_silent_worker(&network(), NETWORK_PEER_DEAD_MS);
}

#[test]
fn a_mesh_that_does_not_fill_up_gives_up_and_names_who_is_missing() {
    let mut mesh = Mesh::new(2, 1, &[("timeouts.barrier_ms", "500")]);
    let mut server = mesh.start(&["server", "--handler", "echo"]);
    let mut worker = mesh.start(&["worker"]);
    worker.ends_with(3).tells(&["worker"]);
    server.ends_with(3);
    mesh.scheduler.ends_with(3).tells(&["worker"]);
}

fn a_silent_server(transport: &str, peer_dead_ms: &str) {
    let mesh = Mesh::new(1, 1, &silence(transport, peer_dead_ms));
    let mut server = mesh.start(&["server", "--handler", "echo"]);
    let mut worker = mesh.start(&["worker", "--dim", "8", "--iterations", FOREVER]);
    worker.says("first round trip");
    server.signal(Signal::STOP);
    worker.ends_with(3).tells(&["server 0"]);
    // It wakes up to a mesh without workers.
    server.signal(Signal::CONT);
    server.end();
}

fn a_silent_worker(transport: &str, peer_dead_ms: &str) {
    let mesh = Mesh::new(2, 1, &silence(transport, peer_dead_ms));
    let input = layer();
    let mut server = mesh.start(&["server", "--handler", "echo"]);
    let mut silent = mesh.start(&["worker", "--input", &input, "--iterations", FOREVER]);
    let mut other = mesh.start(&["worker", "--dim", "8", "--iterations", "3000"]);
    silent.says("first round trip");
    silent.signal(Signal::STOP);
    other.ends_with(0);
    silent.signal(Signal::CONT);
    // To itself it seems that the others are gone.
    let ended = silent.end();
    assert_eq!(ended.code, Some(3), "{ended:?}");
    ended.error();
    server.ends_with(0);
}

fn silence<'a>(transport: &'a str, peer_dead_ms: &'a str) -> [(&'a str, &'a str); 3] {
    [
        ("transport.kind", transport),
        ("timeouts.peer_dead_ms", peer_dead_ms),
        ("timeouts.heartbeat_ms", "100"),
    ]
}

fn a_killed_worker(transport: &str) {
    let mesh = Mesh::new(2, 2, &[("transport.kind", transport)]);
    let server = || mesh.start(&["server", "--handler", "echo"]);
    let mut servers = [server(), server()];
    let mut victim = mesh.start(&["worker", "--iterations", FOREVER]);
    let mut other = mesh.start(&["worker", "--iterations", "300"]);
    victim.says("first round trip");
    victim.signal(Signal::KILL);
    assert_eq!(victim.end().code, None);
    other.ends_with(0);
    for server in &mut servers {
        server.ends_with(0);
    }
    mesh.ends();
}

fn a_killed_server(transport: &str) {
    let mesh = Mesh::new(2, 2, &[("transport.kind", transport)]);
    let input = slow_layer(&mesh).display().to_string();
    let server = || {
        mesh.start(&[
            "--log",
            "info,stepmesh=trace",
            "server",
            "--handler",
            "ffn",
            "--input",
            &input,
        ])
    };
    let (mut victim, mut other) = (server(), server());
    let worker = || mesh.start(&["worker", "--input", &input]);
    let mut workers = [worker(), worker()];
    victim.says("computing");
    victim.signal(Signal::KILL);
    assert_eq!(victim.end().code, None);
    for worker in &mut workers {
        worker.ends_with(3).tells(&["server", "lost"]);
    }
    other.end();
}

/// A layer that takes seconds to compute, so that a server can be met at it.
fn slow_layer(mesh: &Mesh) -> PathBuf {
    let (hidden, width, rows) = (4096, 512, 1024);
    let zeros = vec![0; 4 * hidden * width];
    let tensor = |shape: &[usize]| {
        let len = 4 * shape.iter().product::<usize>();
        TensorView::new(Dtype::F32, shape.into(), &zeros[..len]).unwrap()
    };
    let path = mesh.dir.path().join("slow.safetensors");
    let tensors = [
        ("w1", tensor(&[hidden, width])),
        ("b1", tensor(&[hidden])),
        ("w2", tensor(&[width, hidden])),
        ("b2", tensor(&[width])),
        ("ffn_in", tensor(&[rows, width])),
        ("ffn_out", tensor(&[rows, width])),
    ];
    serialize_to_file(tensors, None, &path).unwrap();
    path
}

/// Iterations that no test waits for.
const FOREVER: &str = "1000000000";

/// Longer than a host that is emulated may look dead to another.
const NETWORK_PEER_DEAD_MS: &str = "3000";
