//! What cannot be done is an error with a message, on the side that asked.

use stepmesh_core::Backend;
use stepmesh_core::config::Config;
use stepmesh_torch::{Error, lazy};
use tch::{Device, Kind, Tensor};

use crate::{Mode, Turn};

#[test]
fn a_second_backend_is_refused() {
    let _turn = Turn::new(Mode::Ours);
    let config = Config {
        backend: "cpu".into(),
        ..Config::default()
    };
    let devices = Backend::open(&config).unwrap().devices();
    let error = lazy::register(&devices).unwrap_err();
    assert!(error.to_string().contains("registered before"), "{error}");
    assert!(matches!(lazy::register(&[]), Err(Error::Lazy { .. })));
}

#[test]
fn a_device_that_is_not_there_is_refused() {
    let _turn = Turn::new(Mode::Ours);
    let x = Tensor::ones([2], (Kind::Float, Device::Cpu));
    let fault = lazy::to_lazy(&x, 7).err().map(|error| error.to_string());
    assert!(fault.is_some_and(|fault| fault.contains("no lazy device 7")));
    let error = lazy::mark_step(7, true).unwrap_err();
    assert!(matches!(error, Error::Lazy { .. }), "{error}");
}

#[test]
fn a_type_that_we_have_not_is_refused_and_the_next_one_works() {
    let turn = Turn::new(Mode::Ours);
    for kind in [Kind::ComplexFloat, Kind::Int16] {
        let tensor = Tensor::ones([2], (kind, Device::Cpu));
        let error = lazy::to_lazy(&tensor, 0).unwrap_err();
        assert!(matches!(error, Error::UnsupportedKind { .. }), "{error}");
        assert!(error.to_string().ends_with("convert the tensor"), "{error}");
    }
    // Within a graph it is seen when that is lowered.
    let x = turn.tensor(&Tensor::ones([2], (Kind::Float, Device::Cpu)));
    let narrowed = x
        .f_to_kind(Kind::Int16)
        .and_then(|narrowed| narrowed.f_to_device(Device::Cpu));
    let fault = narrowed.err().map(|error| error.to_string());
    assert!(fault.is_some_and(|fault| fault.contains("is not supported")));
    assert_eq!((x + 1.0).to_device(Device::Cpu).double_value(&[1]), 2.0);
}

#[test]
fn a_lazy_tensor_is_not_pushed_but_told_where_it_is() {
    let turn = Turn::new(Mode::Ours);
    let config = Config {
        backend: "cpu".into(),
        ..Config::default()
    };
    let device = Backend::open(&config).unwrap().device(0).unwrap();
    let x = turn.tensor(&Tensor::ones([2], (Kind::Float, Device::Cpu)));
    let error = stepmesh_torch::from_torch(&device, &x).unwrap_err();
    assert!(
        error.to_string().contains("is on lazy:0, the mesh's"),
        "{error}"
    );
}
