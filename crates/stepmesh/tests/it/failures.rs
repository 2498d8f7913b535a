//! What ends badly ends with one clear error, within its bound, and the others go on.

use std::sync::Arc;
use std::time::Duration;

use stepmesh::{Error, Keyed, Scheduler, Server, Tensor, Worker};
use stepmesh_core::config::TransportKind;

use crate::mesh::{Mesh, PATIENCE, config, kinds};

fn scalar(mesh: &Mesh, value: f32) -> Tensor {
    Tensor::from_slice(&mesh.device, &[1], &[value]).unwrap()
}

#[test]
fn a_server_that_leaves_fails_its_requests_and_names_itself() {
    for kind in kinds(&[TransportKind::Shm, TransportKind::Tcp]) {
        let mut mesh = Mesh::form(config(kind, 1, 2));
        let (push, pulls) = (scalar(&mesh, 1.0), [scalar(&mesh, 0.0), scalar(&mesh, 0.0)]);
        let pull = [Keyed::new(2, &pulls[0]), Keyed::new(3, &pulls[1])];
        let worker = &mesh.workers[0];
        let handle = worker.push_pull(&[Keyed::new(1, &push)], &pull).unwrap();
        drop(mesh.servers.remove(1));
        let error = handle.wait(PATIENCE).unwrap_err();
        assert!(
            matches!(&error, Error::PeerLost { peer, .. } if peer.to_string() == "server 1"),
            "{kind:?}: {error}"
        );
        drop(handle);
        mesh.end(Vec::new());
    }
}

#[test]
fn a_worker_that_leaves_is_left_out_and_the_others_are_served() {
    let mut mesh = Mesh::form(config(TransportKind::Auto, 2, 1));
    let echoes = mesh.echo();
    let (push, pull) = (scalar(&mesh, 3.0), scalar(&mesh, 0.0));
    drop(mesh.workers.remove(1));
    // While the other still counts, its batch is waited for; then this worker is enough.
    let handle = mesh.workers[0]
        .push_pull(&[Keyed::new(1, &push)], &[Keyed::new(2, &pull)])
        .unwrap();
    handle.wait(PATIENCE).unwrap();
    assert_eq!(pull.to_vec::<f32>().unwrap(), [3.0]);
    drop(handle);
    mesh.end(echoes);
}

#[test]
fn closing_ends_every_wait() {
    let mesh = Mesh::form(config(TransportKind::Auto, 1, 1));
    let (push, pull) = (scalar(&mesh, 3.0), scalar(&mesh, 0.0));
    let worker = &mesh.workers[0];
    let handle = worker
        .push_pull(&[Keyed::new(1, &push)], &[Keyed::new(2, &pull)])
        .unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| handle.wait(PATIENCE));
        let serving = scope.spawn(|| {
            // The first batch is there; nobody pushes a second one.
            drop(mesh.servers[0].get_batch(PATIENCE).unwrap());
            mesh.servers[0]
                .get_batch(PATIENCE)
                .map(|batches| batches.len())
        });
        let released = waiting.join().unwrap().unwrap_err();
        assert!(matches!(released, Error::Released { .. }), "{released}");
        mesh.servers[0].closer().close();
        let closed = serving.join().unwrap().unwrap_err();
        assert!(matches!(closed, Error::Closed { .. }), "{closed}");
    });
    drop(handle);
    mesh.end(Vec::new());
}

#[test]
fn closing_a_worker_ends_its_futures() {
    let mesh = Mesh::form(config(TransportKind::Auto, 1, 1));
    let (push, pull) = (scalar(&mesh, 3.0), scalar(&mesh, 0.0));
    let worker = &mesh.workers[0];
    let handle = worker
        .push_pull(&[Keyed::new(1, &push)], &[Keyed::new(2, &pull)])
        .unwrap();
    let closer = worker.closer();
    std::thread::scope(|scope| {
        let awaiting = scope.spawn(move || pollster::block_on(handle));
        closer.close();
        let closed = awaiting.join().unwrap().unwrap_err();
        assert!(matches!(closed, Error::Closed { .. }), "{closed}");
    });
    let refused = worker
        .push(&[Keyed::new(1, &push)])
        .map(|_| ())
        .unwrap_err();
    assert!(matches!(refused, Error::Closed { .. }), "{refused}");
    mesh.end(Vec::new());
}

#[test]
fn a_port_in_use_is_an_error_that_names_it() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut config = config(TransportKind::Tcp, 1, 1);
    config.mesh.scheduler_port = taken.local_addr().unwrap().port();
    let error = Scheduler::start(&config).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("mesh.scheduler_port"), "{error}");
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(
        source.contains(&config.mesh.scheduler_port.to_string()),
        "{source}"
    );
}

#[test]
fn no_scheduler_and_no_port_are_errors_that_say_what_to_set() {
    let mut config = config(TransportKind::Tcp, 1, 1);
    let error = Worker::start(&config).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("mesh.scheduler_port"), "{error}");
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    config.mesh.scheduler_port = free.local_addr().unwrap().port();
    drop(free);
    config.timeouts.connect_ms = 300;
    let error = Worker::start(&config).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("no scheduler at 127.0.0.1"), "{error}");
}

#[test]
fn an_unknown_interface_is_an_error_that_lists_those_there_are() {
    let mut config = config(TransportKind::Tcp, 1, 1);
    config.mesh.interface = "eth9000".into();
    let error = Scheduler::start(&config)
        .map(|_| ())
        .unwrap_err()
        .to_string();
    assert!(error.contains("eth9000") && error.contains("lo"), "{error}");
}

#[test]
fn a_timeout_of_get_batch_names_who_has_sent_nothing() {
    let mesh = Mesh::form(config(TransportKind::Shm, 2, 1));
    let (push, pull) = (scalar(&mesh, 3.0), scalar(&mesh, 0.0));
    let handle = mesh.workers[1]
        .push_pull(&[Keyed::new(1, &push)], &[Keyed::new(2, &pull)])
        .unwrap();
    let server = &mesh.servers[0];
    let error = server
        .get_batch(Duration::from_millis(200))
        .map(|_| ())
        .unwrap_err()
        .to_string();
    assert!(error.contains("worker 0 (no batch)"), "{error}");
    assert!(!error.contains("worker 1"), "{error}");
    drop(handle);
    mesh.end(Vec::new());
}

#[test]
fn a_server_whose_workers_have_all_left_is_told_so() {
    let mut mesh = Mesh::form(config(TransportKind::Auto, 2, 1));
    mesh.workers.clear();
    let over = mesh.servers[0].get_batch(PATIENCE).map(|_| ()).unwrap_err();
    assert!(matches!(over, Error::WorkersLeft), "{over}");
    mesh.end(Vec::new());
}

#[test]
fn an_answer_that_was_sent_is_no_error_when_its_worker_has_left() {
    for kind in kinds(&[TransportKind::Shm, TransportKind::Tcp]) {
        let mut mesh = Mesh::form(config(kind, 1, 1));
        let (push, pull) = (scalar(&mesh, 3.0), scalar(&mesh, 0.0));
        let handle = mesh.workers[0]
            .push_pull(&[Keyed::new(1, &push)], &[Keyed::new(2, &pull)])
            .unwrap();
        let server = &mesh.servers[0];
        let mut batch = server.get_batch(PATIENCE).unwrap().next().unwrap();
        let tensor = batch.tensors()[0].clone();
        let answer = batch.respond(&[tensor]).unwrap();
        handle.wait(PATIENCE).unwrap();
        drop(handle);
        mesh.workers.clear();
        let over = mesh.servers[0].get_batch(PATIENCE).map(|_| ()).unwrap_err();
        assert!(matches!(over, Error::WorkersLeft), "{kind:?}: {over}");
        answer.wait(PATIENCE).unwrap();
        drop((batch, answer));
        mesh.end(Vec::new());
    }
}

#[test]
fn what_a_server_answered_before_it_left_is_received() {
    for _ in 0..20 {
        let mut mesh = Mesh::form(config(TransportKind::Auto, 1, 1));
        let (push, pull) = (scalar(&mesh, 3.0), scalar(&mesh, 0.0));
        let handle = mesh.workers[0]
            .push_pull(&[Keyed::new(1, &push)], &[Keyed::new(2, &pull)])
            .unwrap();
        for mut batch in mesh.servers[0].get_batch(PATIENCE).unwrap() {
            let answer = batch.tensors()[0].clone();
            batch.respond(&[answer]).unwrap().wait(PATIENCE).unwrap();
        }
        mesh.servers.clear();
        handle.wait(PATIENCE).unwrap();
        assert_eq!(pull.to_vec::<f32>().unwrap(), [3.0]);
        drop(handle);
        mesh.end(Vec::new());
    }
}

#[test]
fn a_rank_that_left_is_taken_again_and_traffic_resumes() {
    for kind in kinds(&[TransportKind::Shm, TransportKind::Tcp]) {
        let mut mesh = Mesh::form(config(kind, 1, 2));
        let (push, pulls) = (scalar(&mesh, 7.0), [scalar(&mesh, 0.0), scalar(&mesh, 0.0)]);
        let pull = [Keyed::new(2, &pulls[0]), Keyed::new(3, &pulls[1])];
        drop(mesh.servers.remove(1));
        let worker = &mesh.workers[0];
        let refused = loop {
            // The push after the departure was noticed is refused at once, one before it fails.
            match worker.push_pull(&[Keyed::new(1, &push)], &pull) {
                Ok(handle) => drop(handle.wait(PATIENCE).unwrap_err()),
                Err(error) => break error,
            }
        };
        assert!(
            matches!(refused, Error::PeerLost { .. }),
            "{kind:?}: {refused}"
        );
        let mut again = mesh.config.clone();
        again.mesh.rank = 1;
        let server = Server::start(&again, &mesh.device).unwrap();
        assert_eq!((server.member().rank, server.member().generation), (1, 1));
        mesh.servers.push(Arc::new(server));
        let echoes = mesh.echo();
        let handle = loop {
            // The worker learns of the return from the scheduler, and connects.
            match worker.push_pull(&[Keyed::new(1, &push)], &pull) {
                Ok(handle) => break handle,
                Err(error) => assert!(matches!(error, Error::PeerLost { .. }), "{error}"),
            }
            std::thread::yield_now();
        };
        handle.wait(PATIENCE).unwrap();
        assert_eq!(pulls[1].to_vec::<f32>().unwrap(), [7.0], "{kind:?}");
        drop(handle);
        mesh.end(echoes);
    }
}

#[test]
fn who_joins_while_others_are_lost_does_not_wait_for_them_and_meets_them_when_they_are_back() {
    for kind in kinds(&[TransportKind::Shm, TransportKind::Tcp]) {
        let mut mesh = Mesh::form(config(kind, 2, 2));
        drop(mesh.servers.remove(1));
        drop(mesh.workers.remove(1));
        let mut again = mesh.config.clone();
        again.mesh.rank = 1;
        // The scheduler must have noticed, or it says that the ranks are taken.
        let worker = loop {
            match Worker::start(&again) {
                Ok(worker) if worker.member().generation == 1 => break worker,
                Ok(worker) => panic!("{}", worker.member()),
                Err(error) => assert!(error.to_string().contains("taken"), "{error}"),
            }
        };
        assert_eq!(worker.servers(), 2, "{kind:?}");
        let (push, pulls) = (scalar(&mesh, 7.0), [scalar(&mesh, 0.0), scalar(&mesh, 0.0)]);
        let pull = [Keyed::new(2, &pulls[0]), Keyed::new(3, &pulls[1])];
        let refused = worker.push_pull(&[Keyed::new(1, &push)], &pull);
        let refused = refused.map(|_| ()).unwrap_err();
        assert!(
            matches!(&refused, Error::PeerLost { peer, .. } if peer.rank == 1),
            "{kind:?}: {refused}"
        );
        drop(worker);
        let server = loop {
            match Server::start(&again, &mesh.device) {
                Ok(server) => break server,
                Err(error) => assert!(error.to_string().contains("taken"), "{error}"),
            }
        };
        mesh.servers.push(Arc::new(server));
        let echoes = mesh.echo();
        let worker = &mesh.workers[0];
        let handle = loop {
            match worker.push_pull(&[Keyed::new(1, &push)], &pull) {
                Ok(handle) => match handle.wait(PATIENCE) {
                    Ok(()) => break handle,
                    Err(error) => assert!(matches!(error, Error::PeerLost { .. }), "{error}"),
                },
                Err(error) => assert!(matches!(error, Error::PeerLost { .. }), "{error}"),
            }
            std::thread::yield_now();
        };
        assert_eq!(pulls[1].to_vec::<f32>().unwrap(), [7.0], "{kind:?}");
        drop(handle);
        mesh.end(echoes);
    }
}
