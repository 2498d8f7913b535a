//! What happens when the network or a peer fails.

use stepmesh_transport::sim::options::{Faults, SimOptions};

use super::world::{PEER_DEAD_NS, World, echo};
use crate::error::Error;
use crate::protocol::worker::{Keyed, RequestOptions};

fn lossy() -> SimOptions {
    SimOptions {
        faults: Faults {
            loss: 0.1,
            duplication: 0.1,
            reorder: 0.2,
            delay_min_ns: 5_000,
            delay_max_ns: 2_000_000,
            ..Faults::default()
        },
        ..SimOptions::default()
    }
}

#[test]
fn every_request_completes_under_loss_duplication_and_reordering() {
    for seed in 0..20 {
        let mut world = World::new(seed, lossy(), 2, 2);
        let options = RequestOptions::default();
        let push: Vec<_> = (0..2).map(|w| world.tensor(&[w as f32, 5.0])).collect();
        let pulls: Vec<_> = (0..4).map(|_| world.tensor(&[0.0; 2])).collect();
        for round in 0..5 {
            let mut ids = Vec::new();
            for worker in 0..2 {
                push[worker].write(&[worker as f32, round as f32]).unwrap();
                let pull = [
                    Keyed::new(10, &pulls[worker * 2]),
                    Keyed::new(11, &pulls[worker * 2 + 1]),
                ];
                let keyed = [Keyed::new(1, &push[worker])];
                ids.push(world.submit(worker, &keyed, &pull, &options).unwrap());
            }
            world.run_until("served", |world| {
                world.serve(0, echo);
                world.serve(1, echo);
                ids.iter()
                    .enumerate()
                    .all(|(worker, id)| world.outcome(worker, *id).is_some())
            });
            for (worker, id) in ids.into_iter().enumerate() {
                world.wait(worker, id).unwrap();
                world.workers[worker].machine.detach(id);
                for pull in &pulls[worker * 2..worker * 2 + 2] {
                    let expected = [worker as f32, round as f32];
                    assert_eq!(pull.to_vec::<f32>().unwrap(), expected, "seed {seed}");
                }
            }
        }
    }
}

#[test]
fn a_dead_server_fails_its_requests_within_the_bound_and_names_itself() {
    let mut world = World::new(3, SimOptions::default(), 1, 2);
    let push = world.tensor(&[1.0]);
    let pulls = [world.tensor(&[0.0]), world.tensor(&[0.0])];
    let pull = [Keyed::new(2, &pulls[0]), Keyed::new(3, &pulls[1])];
    let options = RequestOptions::default();
    let id = world
        .submit(0, &[Keyed::new(1, &push)], &pull, &options)
        .unwrap();
    world.network.kill("server1");
    world.servers[1].alive = false;
    let start_ns = world.network.now_ns();
    world.run_until("failed", |world| {
        world.serve(0, echo);
        world.outcome(0, id).is_some()
    });
    let error = world.wait(0, id).unwrap_err();
    assert!(
        matches!(&error, Error::PeerLost { peer, .. } if peer.to_string() == "server 1"),
        "{error}"
    );
    let took_ns = world.network.now_ns() - start_ns;
    assert!(took_ns <= PEER_DEAD_NS * 5 / 4, "{took_ns} ns");
    let error = world
        .submit(0, &[Keyed::new(1, &push)], &pull, &options)
        .unwrap_err();
    assert!(matches!(error, Error::PeerLost { .. }), "{error}");
}

#[test]
fn a_dead_worker_is_dropped_and_the_others_are_served() {
    let mut world = World::new(4, SimOptions::default(), 2, 1);
    let push = [world.tensor(&[1.0]), world.tensor(&[2.0])];
    let pull = world.tensor(&[0.0]);
    let options = RequestOptions::default();
    world
        .submit(
            1,
            &[Keyed::new(1, &push[1])],
            &[Keyed::new(2, &pull)],
            &options,
        )
        .unwrap();
    world.run_for_ns(10_000_000);
    world.network.kill("worker1");
    world.workers[1].alive = false;
    let id = world
        .submit(
            0,
            &[Keyed::new(1, &push[0])],
            &[Keyed::new(2, &pull)],
            &options,
        )
        .unwrap();
    // While both count as alive, both must have a batch of the tag; then the dead one is dropped.
    let mut sizes = Vec::new();
    world.run_until("answered", |world| {
        if let Some(list) = world.take_matched(0) {
            sizes.push(list.len());
            let node = &mut world.servers[0];
            for record in list {
                let answers = echo(&record);
                let _ = node.machine.respond(&mut node.fabrics, record, &answers);
            }
        }
        world.outcome(0, id).is_some()
    });
    world.wait(0, id).unwrap();
    world.run_until("noticed", |world| {
        world.servers[0].machine.workers_connected() == 1
    });
    let missing = world.servers[0].machine.without_batch();
    assert!(missing.contains("worker 1 (not connected)"), "{missing}");
    // From here on worker 0 alone makes a complete batch.
    world.workers[0].machine.detach(id);
    let id = world
        .submit(
            0,
            &[Keyed::new(1, &push[0])],
            &[Keyed::new(2, &pull)],
            &options,
        )
        .unwrap();
    world.run_until("served alone", |world| {
        if let Some(list) = world.take_matched(0) {
            assert_eq!(list.len(), 1);
            let node = &mut world.servers[0];
            for record in list {
                let answers = echo(&record);
                node.machine
                    .respond(&mut node.fabrics, record, &answers)
                    .map_err(|e| e.1)
                    .unwrap();
            }
        }
        world.outcome(0, id).is_some()
    });
    world.wait(0, id).unwrap();
}

#[test]
fn a_worker_that_comes_back_is_served_and_its_old_batch_cannot_be_answered() {
    let mut world = World::new(5, SimOptions::default(), 1, 1);
    let push = world.tensor(&[1.0]);
    let pull = world.tensor(&[0.0]);
    let options = RequestOptions::default();
    world
        .submit(
            0,
            &[Keyed::new(1, &push)],
            &[Keyed::new(2, &pull)],
            &options,
        )
        .unwrap();
    let mut old = None;
    world.run_until("taken", |world| {
        old = world.servers[0].machine.take_any();
        old.is_some()
    });
    world.network.kill("worker0");
    world.workers[0] = world.make_worker(0, 1);
    world.connect(0);
    world.run_until("connected again", |world| {
        world.workers[0].machine.is_connected().is_ok_and(|up| up)
    });
    let new_push = world.tensor(&[7.0]);
    let id = world
        .submit(
            0,
            &[Keyed::new(1, &new_push)],
            &[Keyed::new(2, &pull)],
            &options,
        )
        .unwrap();
    // The application still reads the old batch: its slot must not be written to.
    let record = old.unwrap().pop_front().unwrap();
    world.run_until("served", |world| {
        world.serve(0, echo);
        world.outcome(0, id).is_some()
    });
    world.wait(0, id).unwrap();
    assert_eq!(record.tensors()[0].to_vec::<f32>().unwrap(), [1.0]);
    assert_eq!(pull.to_vec::<f32>().unwrap(), [7.0]);
    let node = &mut world.servers[0];
    let answers = echo(&record);
    let (record, error) = node
        .machine
        .respond(&mut node.fabrics, record, &answers)
        .unwrap_err();
    assert!(matches!(error, Error::PeerLost { .. }), "{error}");
    node.machine.release(&mut node.fabrics, record);
}

#[test]
fn a_pause_shorter_than_the_bound_loses_nothing() {
    let mut world = World::new(6, SimOptions::default(), 1, 1);
    let push = world.tensor(&[1.0]);
    let pull = world.tensor(&[0.0]);
    let options = RequestOptions::default();
    world.network.pause("server0");
    world.servers[0].alive = false;
    let id = world
        .submit(
            0,
            &[Keyed::new(1, &push)],
            &[Keyed::new(2, &pull)],
            &options,
        )
        .unwrap();
    world.run_for_ns(PEER_DEAD_NS / 4);
    world.network.resume("server0");
    world.servers[0].alive = true;
    world.run_until("served", |world| {
        world.serve(0, echo);
        world.outcome(0, id).is_some()
    });
    world.wait(0, id).unwrap();
}
