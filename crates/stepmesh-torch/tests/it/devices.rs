//! Which torch device a backend's device is.

use stepmesh_core::{Backend, config::Config};
use stepmesh_torch::{Error, register_cuda, torch_device};

use crate::cpu;

#[test]
fn the_cpu_backend_is_torchs_cpu() {
    assert_eq!(torch_device(&cpu()).unwrap(), tch::Device::Cpu);
}

#[test]
fn a_type_that_torch_has_not_is_an_error_and_no_other_device() {
    let mut config = Config {
        backend: "sim".into(),
        ..Config::default()
    };
    let plugins = std::env::var_os("STEPMESH_PLUGIN_DIR");
    let plugins = plugins.expect("STEPMESH_PLUGIN_DIR is not set: run `cargo xtask torch-test`");
    config.plugins.path = vec![plugins.into()];
    let device = Backend::open(&config).unwrap().device(0).unwrap();
    let error = torch_device(&device).unwrap_err();
    assert!(matches!(error, Error::NoTorchDevice { .. }), "{error}");
    assert!(
        error
            .to_string()
            .starts_with("sim:0 is of torch device type"),
        "{error}"
    );
}

#[test]
fn torch_without_a_cuda_half_says_what_was_looked_for() {
    if tch::Cuda::is_available() {
        assert!(matches!(register_cuda(), Ok(())));
        return;
    }
    let error = register_cuda().unwrap_err().to_string();
    assert!(
        error.contains("libtorch_cuda.so") && error.contains("libtorch_hip.so"),
        "{error}"
    );
    assert!(error.contains("LD_LIBRARY_PATH"), "{error}");
}
