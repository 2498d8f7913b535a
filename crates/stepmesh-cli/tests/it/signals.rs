//! SIGINT and SIGTERM end each role cleanly.

use rustix::process::Signal;

use crate::support::{Mesh, Process};

#[test]
fn sigterm_ends_a_worker_with_its_table_and_the_others_go_on() {
    let (mesh, mut server, mut workers) = working_mesh();
    workers[0].signal(Signal::TERM);
    let ended = workers[0].ends_with(143);
    assert!(
        ended.stdout.contains("round trips with 1 server "),
        "{ended:?}"
    );
    assert!(!ended.stderr.contains("error: "), "{ended:?}");
    workers[1].signal(Signal::INT);
    workers[1].ends_with(130);
    server.ends_with(0);
    mesh.ends();
}

#[test]
fn sigterm_ends_a_server_and_its_workers_say_that_it_left() {
    let (mesh, mut server, mut workers) = working_mesh();
    server.signal(Signal::TERM);
    let ended = server.ends_with(143);
    assert!(ended.stdout.contains("answered"), "{ended:?}");
    for worker in &mut workers {
        worker.ends_with(3).tells(&["server 0"]);
    }
    mesh.ends();
}

#[test]
fn sigterm_ends_the_scheduler_and_those_who_know_each_other_go_on() {
    let (mut mesh, mut server, mut workers) = working_mesh();
    mesh.scheduler.signal(Signal::TERM);
    mesh.scheduler.ends_with(143);
    workers[0].signal(Signal::TERM);
    workers[0].ends_with(143);
    workers[1].signal(Signal::TERM);
    workers[1].ends_with(143);
    server.ends_with(0);
}

#[test]
fn a_signal_while_joining_ends_the_wait() {
    let mesh = Mesh::new(2, 1, &[]);
    let mut worker = mesh.start(&["worker"]);
    worker.says("joining");
    worker.signal(Signal::TERM);
    worker.ends_with(143);
}

/// A mesh whose workers have had an answer and do not stop by themselves.
fn working_mesh() -> (Mesh, Process, [Process; 2]) {
    let mesh = Mesh::new(2, 1, &[]);
    let server = mesh.start(&["server", "--handler", "echo"]);
    let worker = || mesh.start(&["worker", "--dim", "8", "--iterations", "1000000000"]);
    let mut workers = [worker(), worker()];
    for worker in &mut workers {
        worker.says("first round trip");
    }
    (mesh, server, workers)
}
