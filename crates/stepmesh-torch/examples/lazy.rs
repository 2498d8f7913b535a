//! PyTorch's own lazy tensors on a StepMesh plugin: a regression is trained, each step is one graph
//! that PyTorch traces, and that the plugin which STEPMESH_BACKEND names compiles once and executes.
#![expect(clippy::print_stdout, reason = "an example shows what it got")]

use stepmesh_core::Backend;
use stepmesh_core::config::{Config, Sources};
use stepmesh_torch::lazy;
use tch::{Device, Kind, Tensor};

fn main() -> anyhow::Result<()> {
    let config = Config::load(&Sources::from_process())?.config;
    let backend = Backend::open(&config)?;
    lazy::register(&backend.devices())?;

    let input = Tensor::randn([64, 16], (Kind::Float, Device::Cpu));
    let truth = input.matmul(&Tensor::randn([16, 1], (Kind::Float, Device::Cpu)));
    // From here on on torch's device `lazy:0`: nothing runs until a step ends.
    let (input, truth) = (lazy::to_lazy(&input, 0)?, lazy::to_lazy(&truth, 0)?);
    let weights = Tensor::zeros([16, 1], (Kind::Float, Device::Cpu));
    let mut weights = lazy::to_lazy(&weights, 0)?.set_requires_grad(true);
    for step in 0..STEPS {
        let loss = (input.matmul(&weights) - &truth).square().mean(Kind::Float);
        loss.backward();
        weights = (&weights - weights.grad() * 0.2)
            .detach()
            .set_requires_grad(true);
        lazy::mark_step(0, true)?;
        if step % 10 == 0 {
            println!(
                "step {step:2}: loss {:.6}",
                loss.to_device(Device::Cpu).double_value(&[])
            );
        }
    }
    println!(
        "on {}: {} steps, {} compiled, {} from the cache",
        backend.name(),
        lazy::counter("MarkStep")?,
        lazy::counter("UncachedCompile")?,
        lazy::counter("CachedCompile")?,
    );
    Ok(())
}

const STEPS: u32 = 50;
