//! A worker that pushes a tensor to every server and pulls their answers. Its mesh is that of
//! `config/stepmesh.toml` and the environment; the README says how to run it beside a scheduler and
//! `server`.
#![expect(clippy::print_stdout, reason = "an example shows what it got")]

use stepmesh::{DType, Keyed, Tensor, Worker};
use stepmesh_core::Backend;
use stepmesh_core::config::{Config, Sources};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = Config::load(&Sources::from_process())?.config;
    let device = Backend::open(&config)?.device(0)?;
    let worker = Worker::start(&config)?;
    let pushed = Tensor::from_slice(&device, &[2, 3], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
    let pulled = (0..worker.servers())
        .map(|_| Tensor::empty(&device, DType::F32, &[2, 3]))
        .collect::<Result<Vec<_>, _>>()?;
    // Keys name tensors; one push goes to all servers, each fills a pull tensor of its own.
    let pull: Vec<_> = (2..)
        .zip(&pulled)
        .map(|(key, tensor)| Keyed::new(key, tensor))
        .collect();
    let handle = worker.push_pull(&[Keyed::new(1, &pushed)], &pull)?;
    worker.wait(&handle)?;
    for (server, tensor) in pulled.iter().enumerate() {
        let micros = handle.trace(server).total_ns() / 1000;
        println!(
            "server {server}: {:?} after {micros} µs",
            tensor.to_vec::<f32>()?
        );
    }
    Ok(())
}
