//! A mesh whose adapter is taken away. Only in a guest, whose adapter is nobody else's.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use stepmesh::{Error, Keyed, Tensor};
use stepmesh_core::config::TransportKind;

use crate::mesh::{Mesh, PATIENCE, config, kinds};

/// The driver in software waits for its users, others take the device away at once: requests end well or
/// by name, everything can be put away, and a mesh on the adapter that comes back works.
#[test]
fn a_mesh_whose_adapter_is_deleted_under_load_ends_and_one_on_the_next_works() {
    let has_adapter = kinds(&[]) == [TransportKind::Rdma];
    if !has_adapter || !Path::new("/run/stepmesh/guest.env").exists() {
        report("an adapter that is deleted was not tested: this is no guest with one");
        return;
    }
    let mut deleting = Command::new("rdma");
    deleting.args(["link", "delete", "rxe0"]);
    let mut deleting = works_until(|| deleting.spawn().unwrap());
    assert!(deleting.wait().unwrap().success());
    let mut adding = Command::new("rdma");
    adding.args(["link", "add", "rxe0", "type", "rxe", "netdev", "v0"]);
    assert!(adding.status().unwrap().success());
    let start = Instant::now();
    let gid = "/sys/class/infiniband/rxe0/ports/1/gids/1";
    while !std::fs::read_to_string(gid).is_ok_and(|gid| gid.contains("ffff:")) {
        assert!(start.elapsed() < PATIENCE, "the adapter has no address");
        std::thread::yield_now();
    }
    works_until(|| ());
}

/// A mesh that works while something is done, and is put away then.
fn works_until<T>(done: impl FnOnce() -> T) -> T {
    let mesh = Mesh::form(config(TransportKind::Rdma, 1, 1));
    let echoes = mesh.echo();
    let tensor = || Tensor::from_slice(&mesh.device, &[LEN as u64], &vec![3_u8; LEN]).unwrap();
    let (push, pull) = (tensor(), tensor());
    let mut value = None;
    let mut done = Some(done);
    for round in 0..ROUNDS {
        let handle = mesh.workers[0].push_pull(&[Keyed::new(1, &push)], &[Keyed::new(2, &pull)]);
        if round == ROUNDS / 2
            && let Some(done) = done.take()
        {
            value = Some(done());
        }
        match handle.and_then(|handle| handle.wait(PATIENCE)) {
            Ok(()) => assert_eq!(pull.to_vec::<u8>().unwrap(), push.to_vec::<u8>().unwrap()),
            Err(error) => assert!(matches!(error, Error::PeerLost { .. }), "{error}"),
        }
    }
    mesh.end(echoes);
    value.unwrap()
}

#[expect(clippy::print_stderr, reason = "what was not tested is told")]
fn report(what: &str) {
    eprintln!("ABSENT (rdma): {what}");
}

const LEN: usize = 1 << 20;

const ROUNDS: u32 = 20;
