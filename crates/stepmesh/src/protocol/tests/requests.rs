//! What requests do when nothing goes wrong.

use stepmesh_transport::sim::options::SimOptions;

use super::world::{World, echo};
use crate::error::Error;
use crate::protocol::wire::Tag;
use crate::protocol::worker::{Keyed, RequestOptions};

fn plain(workers: usize, servers: usize) -> World {
    World::new(1, SimOptions::default(), workers, servers)
}

fn tagged(layer: u32, stage: u32) -> RequestOptions {
    RequestOptions {
        tag: Tag { layer, stage },
        ready: None,
    }
}

#[test]
fn every_server_gets_the_push_and_fills_its_own_part_of_the_pulls() {
    let mut world = plain(1, 3);
    let push = world.tensor(&[1.0, 2.0, 3.0]);
    let pulls: Vec<_> = (0..6).map(|_| world.tensor(&[0.0; 3])).collect();
    let keyed: Vec<_> = (100..)
        .zip(&pulls)
        .map(|(key, t)| Keyed::new(key, t))
        .collect();
    let id = world
        .submit(
            0,
            &[Keyed::new(7, &push)],
            &keyed,
            &RequestOptions::default(),
        )
        .unwrap();
    world.run_until("served", |world| {
        let device = world.device.clone();
        let served: usize = (0..3)
            .map(|server| {
                world.serve(server, |record| {
                    let values = record.tensors()[0].to_vec::<f32>().unwrap();
                    let answer = |slot: usize| {
                        let factor = (server * 10 + slot) as f32;
                        let values: Vec<f32> = values.iter().map(|v| v * factor).collect();
                        crate::Tensor::from_slice(&device, &[3, 1], &values).unwrap()
                    };
                    vec![answer(1), answer(2)]
                })
            })
            .sum();
        served > 0 && world.outcome(0, id).is_some() || world.outcome(0, id).is_some()
    });
    world.wait(0, id).unwrap();
    for (index, pull) in pulls.iter().enumerate() {
        let factor = (index / 2 * 10 + index % 2 + 1) as f32;
        let expected = vec![factor, 2.0 * factor, 3.0 * factor];
        assert_eq!(pull.to_vec::<f32>().unwrap(), expected, "pull {index}");
    }
}

#[test]
fn rows_vary_from_push_to_push_and_may_be_none() {
    let mut world = plain(1, 1);
    let push = world.tensor(&[1.0, 2.0, 3.0, 4.0]);
    let pull = world.tensor(&[0.0; 4]);
    for rows in [4, 1, 0, 3] {
        let part = push.rows(0, rows).unwrap();
        let id = world
            .submit(
                0,
                &[Keyed::new(1, &part)],
                &[Keyed::new(2, &pull)],
                &RequestOptions::default(),
            )
            .unwrap();
        world.run_until("served", |world| {
            world.serve(0, |record| {
                assert_eq!(record.tensors()[0].shape().rows(), rows);
                echo(record)
            });
            world.outcome(0, id).is_some()
        });
        world.wait(0, id).unwrap();
        let back = world.workers[0].machine.pulled_rows(id, 0).unwrap();
        assert_eq!(
            back.iter().copied().map(u64::from).collect::<Vec<_>>(),
            [rows]
        );
        world.workers[0].machine.detach(id);
    }
    assert_eq!(pull.to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0]);
}

#[test]
fn batches_are_matched_by_tag_and_not_by_arrival() {
    let mut world = plain(2, 1);
    let tensors: Vec<_> = (0..4).map(|i| world.tensor(&[i as f32])).collect();
    let pulls: Vec<_> = (0..4).map(|_| world.tensor(&[0.0])).collect();
    // Worker 1 sends its stages in the opposite order.
    let order = [(0, 0u32), (0, 1), (1, 1), (1, 0)];
    let mut ids = Vec::new();
    for (index, (worker, stage)) in order.into_iter().enumerate() {
        let push = [Keyed::new(u64::from(stage), &tensors[index])];
        let pull = [Keyed::new(10 + u64::from(stage), &pulls[index])];
        let id = world
            .submit(worker, &push, &pull, &tagged(5, stage))
            .unwrap();
        ids.push((worker, id));
    }
    let mut seen = Vec::new();
    world.run_until("both stages taken", |world| {
        if let Some(list) = world.take_matched(0) {
            let tags: Vec<_> = list.iter().map(|record| record.tag()).collect();
            assert_eq!(list.len(), 2);
            assert_eq!(tags[0], tags[1]);
            assert_eq!(list.iter().map(|r| r.worker()).collect::<Vec<_>>(), [0, 1]);
            seen.push(tags[0].stage);
            let node = &mut world.servers[0];
            for record in list {
                let answers = echo(&record);
                node.machine
                    .respond(&mut node.fabrics, record, &answers)
                    .map_err(|e| e.1)
                    .unwrap();
            }
        }
        seen.len() == 2
    });
    seen.sort_unstable();
    assert_eq!(seen, [0, 1]);
    for (worker, id) in ids {
        world.wait(worker, id).unwrap();
    }
    let back: Vec<f32> = pulls
        .iter()
        .flat_map(|pull| pull.to_vec::<f32>().unwrap())
        .collect();
    assert_eq!(back, [0.0, 1.0, 2.0, 3.0]);
}

#[test]
fn a_slot_is_not_overwritten_before_its_batch_was_answered() {
    let mut world = plain(1, 1);
    let first = world.tensor(&[1.0]);
    let second = world.tensor(&[2.0]);
    let pull = world.tensor(&[0.0]);
    let options = RequestOptions::default();
    let a = world
        .submit(
            0,
            &[Keyed::new(1, &first)],
            &[Keyed::new(9, &pull)],
            &options,
        )
        .unwrap();
    let b = world
        .submit(
            0,
            &[Keyed::new(1, &second)],
            &[Keyed::new(9, &pull)],
            &options,
        )
        .unwrap();
    let mut list = None;
    world.run_until("the first batch is there", |world| {
        list = world.servers[0].machine.take_any();
        list.is_some()
    });
    world.run_for_ns(1_000_000_000);
    // The second push waits at the worker: its credit has not come back.
    assert!(world.servers[0].machine.take_any().is_none());
    let record = list.unwrap().pop_front().unwrap();
    assert_eq!(record.tensors()[0].to_vec::<f32>().unwrap(), [1.0]);
    let node = &mut world.servers[0];
    let answers = echo(&record);
    node.machine
        .respond(&mut node.fabrics, record, &answers)
        .map_err(|e| e.1)
        .unwrap();
    world.run_until("the second is served", |world| world.serve(0, echo) == 1);
    world.wait(0, a).unwrap();
    world.wait(0, b).unwrap();
    assert_eq!(pull.to_vec::<f32>().unwrap(), [2.0]);
}

#[test]
fn a_push_is_done_when_the_application_consumed_it() {
    let mut world = plain(1, 2);
    let push = world.tensor(&[3.0]);
    let id = world
        .submit(0, &[Keyed::new(1, &push)], &[], &RequestOptions::default())
        .unwrap();
    world.run_for_ns(100_000_000);
    assert!(world.outcome(0, id).is_none());
    for server in 0..2 {
        let node = &mut world.servers[server];
        for record in node.machine.take_any().unwrap() {
            assert_eq!(record.tensors()[0].to_vec::<f32>().unwrap(), [3.0]);
            node.machine.release(&mut node.fabrics, record);
        }
    }
    world.wait(0, id).unwrap();
}

#[test]
fn a_released_batch_is_an_error_to_a_worker_that_waits_for_an_answer() {
    let mut world = plain(1, 1);
    let tensor = world.tensor(&[0.0]);
    let keyed = [Keyed::new(1, &tensor)];
    let id = world
        .submit(0, &[], &keyed, &RequestOptions::default())
        .unwrap();
    world.run_until("taken", |world| {
        let node = &mut world.servers[0];
        let Some(list) = node.machine.take_any() else {
            return false;
        };
        for record in list {
            node.machine.release(&mut node.fabrics, record);
        }
        true
    });
    let error = world.wait(0, id).unwrap_err();
    assert!(matches!(error, Error::Released { .. }), "{error}");
}

#[test]
fn an_answer_that_does_not_fit_is_refused_and_the_batch_stays() {
    let mut world = plain(1, 1);
    let push = world.tensor(&[1.0, 2.0]);
    let pull = world.tensor(&[0.0]);
    let id = world
        .submit(
            0,
            &[Keyed::new(1, &push)],
            &[Keyed::new(2, &pull)],
            &RequestOptions::default(),
        )
        .unwrap();
    let mut taken = None;
    world.run_until("taken", |world| {
        taken = world.servers[0].machine.take_any();
        taken.is_some()
    });
    let record = taken.unwrap().pop_front().unwrap();
    let too_long = record.tensors()[0].clone();
    let node = &mut world.servers[0];
    let refused = node
        .machine
        .respond(&mut node.fabrics, record, std::slice::from_ref(&too_long));
    let (record, error) = refused.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("key 2: f32 [2, 1] does not go into"),
        "{error}"
    );
    let none = node.machine.respond(&mut node.fabrics, record, &[]);
    let (record, error) = none.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("0 tensors, but worker 0 asked for 1"),
        "{error}"
    );
    let fits = too_long.rows(1, 1).unwrap();
    node.machine
        .respond(&mut node.fabrics, record, &[fits])
        .map_err(|e| e.1)
        .unwrap();
    world.wait(0, id).unwrap();
    assert_eq!(pull.to_vec::<f32>().unwrap(), [2.0]);
}

#[test]
fn registered_buffers_gather_workers_side_by_side() {
    let mut world = plain(2, 1);
    let gathered = world.tensor(&[0.0; 4]);
    let machine = &mut world.servers[0].machine;
    machine
        .register_recv_buffer(&gathered, &[(0, 1), (1, 1)])
        .unwrap();
    let twice = machine
        .register_recv_buffer(&gathered, &[(0, 1)])
        .unwrap_err()
        .to_string();
    assert!(
        twice.contains("worker 0, key 1 has a receive buffer already"),
        "{twice}"
    );
    let uneven = machine.register_recv_buffer(&gathered, &[(0, 2), (1, 2), (0, 3)]);
    assert!(
        uneven
            .unwrap_err()
            .to_string()
            .contains("3 parts of whole rows")
    );
    assert!(machine.register_recv_buffer(&gathered, &[(2, 9)]).is_err());
    let options = RequestOptions::default();
    let tensors = [world.tensor(&[1.0, 2.0]), world.tensor(&[3.0, 4.0])];
    let ids: Vec<_> = (0..2)
        .map(|worker| world.submit(worker, &[Keyed::new(1, &tensors[worker])], &[], &options))
        .collect();
    let mut taken = None;
    world.run_until("both are there", |world| {
        taken = world.take_matched(0);
        taken.is_some()
    });
    assert_eq!(gathered.to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0]);
    let node = &mut world.servers[0];
    for record in taken.unwrap() {
        assert_eq!(
            record.tensors()[0].buffer().device_ptr(),
            gathered.device_ptr()
        );
        node.machine.release(&mut node.fabrics, record);
    }
    for (worker, id) in ids.into_iter().enumerate() {
        world.wait(worker, id.unwrap()).unwrap();
    }
    // More rows than were set aside are refused, and say so.
    let long = world.tensor(&[0.0; 3]);
    let id = world
        .submit(0, &[Keyed::new(1, &long)], &[], &options)
        .unwrap();
    let error = world.wait(0, id).unwrap_err().to_string();
    assert!(
        error.contains("12 bytes, but the registered receive buffer holds 8"),
        "{error}"
    );
}

#[test]
fn nonsense_is_refused_before_it_is_sent() {
    let mut world = plain(1, 2);
    let t = world.tensor(&[0.0]);
    let key = |key| Keyed::new(key, &t);
    let wide = world.tensor(&[0.0, 0.0]);
    let part = wide.rows(1, 1).unwrap();
    let cases: [(&[Keyed<'_>], &[Keyed<'_>], &str); 5] = [
        (&[], &[], "nothing to push and nothing to pull"),
        (&[key(1)], &[key(2)], "1 pull tensors for 2 servers"),
        (&[key(1), key(1)], &[], "key 1 is pushed twice"),
        (&[key(1)], &[key(2), key(3)], "of keys 2 and 3 share memory"),
        (
            &[],
            &[Keyed::new(5, &part), Keyed::new(4, &wide)],
            "of keys 4 and 5 share memory",
        ),
    ];
    for (push, pull, expected) in cases {
        let error = world
            .submit(0, push, pull, &RequestOptions::default())
            .unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn traces_are_monotone_within_each_clock() {
    let mut world = plain(1, 1);
    let push = world.tensor(&[1.0]);
    let pull = world.tensor(&[0.0]);
    let id = world
        .submit(
            0,
            &[Keyed::new(1, &push)],
            &[Keyed::new(2, &pull)],
            &RequestOptions::default(),
        )
        .unwrap();
    world.run_until("served", |world| {
        world.serve(0, echo);
        world.outcome(0, id).is_some()
    });
    let words = world.workers[0].machine.trace(id, 0).unwrap().words();
    assert!(words.iter().all(|word| *word > 0), "{words:?}");
    assert!(words.is_sorted(), "one virtual clock: {words:?}");
}
