//! A server that doubles what the workers push. Its mesh is that of `config/stepmesh.toml` and the
//! environment; the README says how to run it beside a scheduler and `worker`.

use std::time::Duration;

use stepmesh::{Error, Server, Tensor};
use stepmesh_core::Backend;
use stepmesh_core::config::{Config, Sources};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = Config::load(&Sources::from_process())?.config;
    let device = Backend::open(&config)?.device(0)?;
    let server = Server::start(&config, &device)?;
    loop {
        // One batch of every worker, in rank order.
        let batches = match server.get_batch(Duration::from_millis(100)) {
            Ok(batches) => batches,
            Err(_) if server.workers_connected() == 0 => return Ok(()),
            Err(Error::Timeout { .. }) => continue,
            Err(error) => return Err(error.into()),
        };
        for mut batch in batches {
            let pushed = &batch.tensors()[0];
            let doubled: Vec<f32> = pushed.to_vec::<f32>()?.iter().map(|x| 2.0 * x).collect();
            let answer = Tensor::from_slice(&device, pushed.shape().dims(), &doubled)?;
            batch.respond(&[answer])?;
        }
    }
}
