//! Torch and the mesh together, with a real libtorch. `cargo xtask torch-test` runs it.
#![cfg(feature = "torch")]
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may, as tests themselves do"
)]

mod devices;
mod dlpack;
mod mesh;
mod tensors;

use stepmesh_core::config::Config;
use stepmesh_core::{Backend, Device};

/// The cpu backend's device.
fn cpu() -> Device {
    let config = Config {
        backend: "cpu".into(),
        ..Config::default()
    };
    Backend::open(&config).unwrap().device(0).unwrap()
}
