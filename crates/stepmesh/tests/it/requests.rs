//! Requests over the real fabrics.

use std::time::Duration;

use stepmesh::{Keyed, Roles, Tensor};
use stepmesh_core::Device;
use stepmesh_core::config::TransportKind;

use crate::backends;
use crate::mesh::{Mesh, PATIENCE, config, kinds};

/// Every way of transport with every backend.
fn on_everything() -> impl Iterator<Item = (TransportKind, Device)> {
    let devices = backends::all();
    kinds(&KINDS)
        .into_iter()
        .flat_map(move |kind| devices.clone().map(|device| (kind, device)))
}

const KINDS: [TransportKind; 3] = [TransportKind::Shm, TransportKind::Tcp, TransportKind::Auto];

#[test]
fn two_workers_push_to_two_servers_and_pull_what_they_pushed() {
    for (kind, device) in on_everything() {
        let mesh = Mesh::form_on(config(kind, 2, 2), device);
        let echoes = mesh.echo();
        let make = |values: &[f32]| {
            let rows = values.len() as u64;
            Tensor::from_slice(&mesh.device, &[rows, 1], values).unwrap()
        };
        let reachable = mesh.device.backend().name() == "cpu";
        std::thread::scope(|scope| {
            for (index, worker) in mesh.workers.iter().enumerate() {
                scope.spawn(move || {
                    let push = make(&[0.0; 1000]);
                    let pulls = [make(&[0.0; 1000]), make(&[0.0; 1000])];
                    for round in 0..50 {
                        let values: Vec<f32> = (0..1000)
                            .map(|i| (i * 7 + round * 3 + index) as f32)
                            .collect();
                        push.write(&values).unwrap();
                        let pull = [Keyed::new(2, &pulls[0]), Keyed::new(3, &pulls[1])];
                        let handle = worker.push_pull(&[Keyed::new(1, &push)], &pull).unwrap();
                        handle.wait(PATIENCE).unwrap();
                        for pull in &pulls {
                            assert_eq!(pull.to_vec::<f32>().unwrap(), values, "{kind:?}");
                        }
                        let trace = handle.trace(1);
                        assert!(trace.total_ns() > 0);
                        assert_eq!(trace.staged.any(), !reachable);
                    }
                });
            }
        });
        mesh.end(echoes);
    }
}

#[test]
fn three_workers_and_two_servers_work_by_eight_queue_pairs() {
    for kind in kinds(&[TransportKind::Tcp]) {
        let mut config = config(kind, 3, 2);
        config.rdma.queue_pairs = 8;
        // So much at once starves heartbeats where all is emulated.
        config.timeouts.peer_dead_ms = 30_000;
        let mesh = Mesh::form(config);
        let echoes = mesh.echo();
        // Five shares of a quarter of a megabyte, and some.
        let len: usize = (5 << 18) + 77;
        let make = || Tensor::from_slice(&mesh.device, &[len as u64], &vec![0_u8; len]).unwrap();
        std::thread::scope(|scope| {
            for (index, worker) in (1_u8..).zip(&mesh.workers) {
                scope.spawn(move || {
                    let (push, pulls) = (make(), [make(), make()]);
                    for round in 0..3 {
                        let bytes: Vec<u8> = (0..len)
                            .map(|at| at.to_le_bytes()[0].wrapping_mul(index) ^ round)
                            .collect();
                        push.write(&bytes).unwrap();
                        let pull = [Keyed::new(2, &pulls[0]), Keyed::new(3, &pulls[1])];
                        let handle = worker.push_pull(&[Keyed::new(1, &push)], &pull).unwrap();
                        handle.wait(PATIENCE).unwrap();
                        for pull in &pulls {
                            assert!(pull.to_vec::<u8>().unwrap() == bytes, "{kind:?}");
                        }
                    }
                });
            }
        });
        mesh.end(echoes);
    }
}

#[test]
fn large_tensors_cross_byte_for_byte() {
    for (kind, device) in on_everything() {
        let mesh = Mesh::form_on(config(kind, 1, 1), device);
        let echoes = mesh.echo();
        let len = 3 * 1024 * 1024 + 5;
        let values: Vec<u8> = (0..len)
            .map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        let push = Tensor::from_slice(&mesh.device, &[u64::from(len)], &values).unwrap();
        let pull =
            Tensor::from_slice(&mesh.device, &[u64::from(len)], &vec![0u8; len as usize]).unwrap();
        for _ in 0..3 {
            pull.write(&vec![0u8; len as usize]).unwrap();
            let worker = &mesh.workers[0];
            let handle = worker
                .push_pull(&[Keyed::new(1, &push)], &[Keyed::new(2, &pull)])
                .unwrap();
            handle.wait(PATIENCE).unwrap();
            assert!(pull.to_vec::<u8>().unwrap() == values, "{kind:?}");
        }
        mesh.end(echoes);
    }
}

#[test]
fn a_handle_can_be_awaited() {
    let mesh = Mesh::form(config(TransportKind::Shm, 1, 1));
    let echoes = mesh.echo();
    let push = Tensor::from_slice(&mesh.device, &[4], &[1.0f32, 2.0, 3.0, 4.0]).unwrap();
    let pull = Tensor::from_slice(&mesh.device, &[4], &[0.0f32; 4]).unwrap();
    for _ in 0..20 {
        let worker = &mesh.workers[0];
        let handle = worker
            .push_pull(&[Keyed::new(1, &push)], &[Keyed::new(2, &pull)])
            .unwrap();
        pollster::block_on(handle).unwrap();
    }
    assert_eq!(pull.to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0]);
    mesh.end(echoes);
}

#[test]
fn a_silent_server_is_a_timeout_that_names_it_and_the_request_goes_on() {
    let mesh = Mesh::form(config(TransportKind::Shm, 1, 1));
    let push = Tensor::from_slice(&mesh.device, &[1], &[5.0f32]).unwrap();
    let pull = Tensor::from_slice(&mesh.device, &[1], &[0.0f32]).unwrap();
    let worker = &mesh.workers[0];
    let handle = worker
        .push_pull(&[Keyed::new(1, &push)], &[Keyed::new(2, &pull)])
        .unwrap();
    let error = handle
        .wait(Duration::from_millis(100))
        .unwrap_err()
        .to_string();
    assert!(error.contains("not done after 100 ms"), "{error}");
    assert!(error.contains("server 0"), "{error}");
    let echoes = mesh.echo();
    handle.wait(PATIENCE).unwrap();
    assert_eq!(pull.to_vec::<f32>().unwrap(), [5.0]);
    drop(handle);
    mesh.end(echoes);
}

#[test]
fn barriers_bring_everybody_together() {
    let mesh = Mesh::form(config(TransportKind::Auto, 2, 1));
    for _ in 0..3 {
        std::thread::scope(|scope| {
            for worker in &mesh.workers {
                scope.spawn(|| worker.barrier(Roles::ALL, PATIENCE).unwrap());
            }
            mesh.servers[0].barrier(Roles::ALL, PATIENCE).unwrap();
        });
    }
    let alone = mesh.workers[0].barrier(Roles::ALL, Duration::from_millis(50));
    let error = alone.unwrap_err().to_string();
    assert!(error.contains("missing: server 0, worker 1"), "{error}");
    mesh.end(Vec::new());
}

#[test]
fn rails_keep_apart() {
    let mut config = config(TransportKind::Auto, 1, 1);
    config.mesh.group_size = 2;
    let mesh = Mesh::form(config);
    assert_eq!((mesh.workers.len(), mesh.servers.len()), (2, 2));
    let echoes = mesh.echo();
    for (rank, worker) in mesh.workers.iter().enumerate() {
        assert_eq!(worker.servers(), 1);
        let value = [rank as f32];
        let push = Tensor::from_slice(&mesh.device, &[1], &value).unwrap();
        let pull = Tensor::from_slice(&mesh.device, &[1], &[9.0f32]).unwrap();
        let handle = worker
            .push_pull(&[Keyed::new(1, &push)], &[Keyed::new(2, &pull)])
            .unwrap();
        handle.wait(PATIENCE).unwrap();
        assert_eq!(pull.to_vec::<f32>().unwrap(), value);
    }
    mesh.end(echoes);
}

#[test]
fn respond_vec_gives_each_worker_its_own_rows() {
    for (kind, device) in on_everything() {
        respond_vec_on(Mesh::form_on(config(kind, 2, 1), device));
    }
}

fn respond_vec_on(mesh: Mesh) {
    let rows = |values: &[f32]| {
        Tensor::from_slice(&mesh.device, &[values.len() as u64, 1], values).unwrap()
    };
    let pushes = [rows(&[1.0]), rows(&[2.0, 3.0])];
    let pulls = [rows(&[0.0; 4]), rows(&[0.0; 4])];
    let handles: Vec<_> = (0..2)
        .map(|index| {
            let push = [Keyed::new(1, &pushes[index])];
            let pull = [Keyed::new(2, &pulls[index])];
            mesh.workers[index].push_pull(&push, &pull).unwrap()
        })
        .collect();
    let server = &mesh.servers[0];
    let mut batches = server.get_batch(PATIENCE).unwrap();
    let error = batches
        .respond_vec(&rows(&[0.0; 4]))
        .unwrap_err()
        .to_string();
    assert!(error.contains("4 rows to answer 3 pushed rows"), "{error}");
    // Nothing is lost by it.
    assert_eq!(batches.len(), 2);
    batches.respond_vec(&rows(&[10.0, 20.0, 30.0])).unwrap();
    for handle in &handles {
        handle.wait(PATIENCE).unwrap();
    }
    assert_eq!(handles[0].pulled_rows(0, 0), Some(1));
    assert_eq!(handles[1].pulled_rows(0, 0), Some(2));
    assert_eq!(pulls[0].to_vec::<f32>().unwrap()[..1], [10.0]);
    assert_eq!(pulls[1].to_vec::<f32>().unwrap()[..2], [20.0, 30.0]);
    drop(handles);
    mesh.end(Vec::new());
}
