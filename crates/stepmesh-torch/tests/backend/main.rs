//! stepmesh-lazy served by torch, beside the cpu plugin and the reference interpreter. `cargo xtask
//! torch-test` runs it.
#![cfg(feature = "lazy")]
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may, as tests themselves do"
)]

mod ops;
mod values;

use std::sync::Arc;

use stepmesh_core::config::Config;
use stepmesh_core::{Backend, Device};
use stepmesh_lazy::{BackendDevice, LazyBackend, LazyDevice, Options};
use stepmesh_torch::TorchBackend;

/// Torch's CPU, and the name of it.
fn torch() -> (Arc<TorchBackend>, BackendDevice) {
    let backend = TorchBackend::new(&[tch::Device::Cpu]).unwrap();
    let name = backend.get_backend_devices()[0];
    (Arc::new(backend), name)
}

/// The cpu backend's device.
fn cpu() -> Device {
    let config = Config {
        backend: "cpu".into(),
        ..Config::default()
    };
    Backend::open(&config).unwrap().device(0).unwrap()
}

/// The engine on both.
fn engines() -> [LazyDevice; 2] {
    let (backend, name) = torch();
    [
        LazyDevice::new(backend, name, Options::default()).unwrap(),
        LazyDevice::open(&cpu(), Options::default()).unwrap(),
    ]
}
