//! push_pull of torch tensors through a real mesh.

use std::thread;
use std::time::Duration;

use stepmesh::{RequestOptions, Scheduler, Server, Worker};
use stepmesh_core::config::Config;
use stepmesh_torch::{Keyed, from_torch, push_pull, to_torch};
use tch::Kind;

use crate::cpu;

const TIMEOUT: Duration = Duration::from_secs(20);

#[test]
fn torch_tensors_are_pushed_computed_with_by_torch_and_pulled() {
    let mut config = Config {
        backend: "cpu".into(),
        ..Config::default()
    };
    let device = cpu();
    let mut scheduler = Scheduler::start(&config).unwrap();
    config.mesh.scheduler_port = scheduler.address().port();
    let scheduler = thread::spawn(move || scheduler.run());
    let (server_config, server_device) = (config.clone(), device.clone());
    let server = thread::spawn(move || {
        let server = Server::start(&server_config, &server_device).unwrap();
        for _ in 0..2 {
            for mut batch in server.get_batch(TIMEOUT).unwrap() {
                // The slot that the worker wrote into, as torch sees it.
                let input = to_torch(&batch.tensors()[0]).unwrap();
                let answer = from_torch(&server_device, &(input.matmul(&input) + 1.0)).unwrap();
                batch.respond(&[answer]).unwrap().wait(TIMEOUT).unwrap();
            }
        }
    });

    let worker = Worker::start(&config).unwrap();
    let pull = tch::Tensor::zeros([4, 4], (Kind::Float, tch::Device::Cpu));
    for round in 1..=2 {
        let push = tch::Tensor::eye(4, (Kind::Float, tch::Device::Cpu)) * f64::from(round);
        let (pushed, pulled) = ([Keyed::new(1, &push)], [Keyed::new(2, &pull)]);
        let options = RequestOptions::default();
        let handle = push_pull(&worker, &device, &pushed, &pulled, options).unwrap();
        handle.wait(TIMEOUT).unwrap();
        assert!(
            pull.allclose(&(push.matmul(&push) + 1.0), 0.0, 0.0, false),
            "{round}"
        );
    }
    // The server waits for its answers to be taken, by a worker that is still there.
    server.join().unwrap();
    drop(worker);
    scheduler.join().unwrap().unwrap();
}
