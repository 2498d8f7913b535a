//! A layer split in two: a worker pushes hidden states, a server computes a feed-forward network of
//! PyTorch on them, where they arrived, and answers. Both are threads of this process here; in a
//! deployment each is a process, and the scheduler another.
#![expect(clippy::print_stdout, reason = "an example shows what it got")]

use std::thread;
use std::time::Duration;

use stepmesh::{RequestOptions, Scheduler, Server, Worker};
use stepmesh_core::config::{Config, Sources};
use stepmesh_core::{Backend, Device};
use stepmesh_torch::{Keyed, from_torch, push_pull, to_torch, torch_device};
use tch::{Kind, Tensor};

fn main() -> anyhow::Result<()> {
    // STEPMESH_BACKEND chooses the plugin; nothing set is the cpu backend.
    let mut config = Config::load(&Sources::from_process())?.config;
    let device = Backend::open(&config)?.device(0)?;
    let mut scheduler = Scheduler::start(&config)?;
    config.mesh.scheduler_port = scheduler.address().port();
    let scheduler = thread::spawn(move || scheduler.run());
    let (server_config, server_device) = (config.clone(), device.clone());
    let server = thread::spawn(move || serve(&server_config, &server_device));

    let worker = Worker::start(&config)?;
    let torch = torch_device(&device)?;
    let hidden = Tensor::randn([64, WIDTH], (Kind::Float, torch));
    let result = Tensor::zeros([64, WIDTH], (Kind::Float, torch));
    for _ in 0..STEPS {
        let (pushed, pulled) = ([Keyed::new(1, &hidden)], [Keyed::new(2, &result)]);
        // No copy: the request goes from torch's memory, and the answer comes into it.
        let options = RequestOptions::default();
        push_pull(&worker, &device, &pushed, &pulled, options)?.wait(TIMEOUT)?;
    }
    let mean = result.mean(Kind::Double).double_value(&[]);
    println!("{STEPS} steps; the mean of the last answer is {mean:.4}");
    server
        .join()
        .map_err(|_| anyhow::anyhow!("the server panicked"))??;
    drop(worker);
    scheduler
        .join()
        .map_err(|_| anyhow::anyhow!("the scheduler panicked"))??;
    Ok(())
}

fn serve(config: &Config, device: &Device) -> anyhow::Result<()> {
    let server = Server::start(config, device)?;
    let torch = torch_device(device)?;
    let up = Tensor::randn([WIDTH, 4 * WIDTH], (Kind::Float, torch)) * 0.05;
    let down = Tensor::randn([4 * WIDTH, WIDTH], (Kind::Float, torch)) * 0.05;
    for _ in 0..STEPS {
        for mut batch in server.get_batch(TIMEOUT)? {
            let hidden = to_torch(&batch.tensors()[0])?;
            let result = hidden.matmul(&up).gelu("none").matmul(&down);
            batch.respond(&[from_torch(device, &result)?])?;
        }
    }
    Ok(())
}

const WIDTH: i64 = 384;
const STEPS: u32 = 3;
const TIMEOUT: Duration = Duration::from_secs(20);
