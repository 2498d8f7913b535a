//! Programs on both, values, and what is refused.

use std::sync::Arc;

use stepmesh_graph::{GraphBuilder, Op, TensorType};
use stepmesh_lazy::{
    BackendDevice, BackendDeviceType, ComputationPtr, DType, Error, LazyBackend, LazyDevice, Shape,
};
use stepmesh_torch::TorchBackend;

use crate::ops::{Given, upload};
use crate::{engines, torch};

#[test]
fn random_numbers_are_those_of_the_plugin() {
    let draw = |device: LazyDevice| {
        let uniform = device.rand(&[9], DType::F32).unwrap();
        let normal = device.randn(&[9], DType::F64).unwrap();
        (
            uniform.to_vec::<f32>().unwrap(),
            normal.to_vec::<f64>().unwrap(),
        )
    };
    let [torch, plugin] = engines().map(draw);
    assert_eq!(torch.0, plugin.0);
    for (a, b) in torch.1.iter().zip(&plugin.1) {
        assert!((a - b).abs() < 1e-12, "{a} and {b}");
    }
}

#[test]
fn a_loop_of_steps_is_compiled_once_and_gives_what_the_plugin_gives() {
    let run = |device: LazyDevice| {
        let mut v = device.from_slice(&[2], &[1.0_f32, -2.0]).unwrap();
        for _ in 0..4 {
            v = device.step(move |_| &v - &v * 0.5).unwrap();
        }
        let compiles = device
            .metrics()
            .counter(stepmesh_lazy::Counter::UncachedCompile);
        (v.to_vec::<f32>().unwrap(), compiles)
    };
    for found in engines().map(run) {
        assert_eq!(found, (vec![0.0625, -0.125], 1));
    }
}

#[test]
fn a_value_is_a_torch_tensor() {
    let (backend, name) = torch();
    let device = LazyDevice::new(backend.clone(), name, stepmesh_lazy::Options::default()).unwrap();
    let x = device.from_slice(&[2, 2], &[1_i64, 2, 3, 4]).unwrap();
    let transposed = x.t().unwrap();
    let tensor = backend.tensor_of(&transposed.data().unwrap()).unwrap();
    assert_eq!(tensor.size(), [2, 2]);
    assert_eq!(
        Vec::<i64>::try_from(tensor.reshape([-1])).unwrap(),
        [1, 3, 2, 4]
    );
}

#[test]
fn arguments_of_another_type_fail_and_so_do_the_results() {
    let (backend, name) = torch();
    let f32s = |len: usize| {
        TensorType::new(DType::F32, stepmesh_graph::Shape::new(&[len]).unwrap()).unwrap()
    };
    let mut graph = GraphBuilder::new("neg");
    let x = graph.parameter(DType::F32, f32s(2).shape()).unwrap();
    let neg = graph.node(Op::Neg, &[x]).unwrap();
    let graph: ComputationPtr = Arc::new(Given(graph.build(&[neg]).unwrap()));
    let three = upload(&backend, name, f32s(3), &[0; 12]);
    let place = backend.create_data_placeholder(&name, &Shape::new(f32s(2)));
    assert!(matches!(place.wait(), Err(Error::NoValue { .. })));
    let places = [place];
    let execute =
        |argument| backend.execute_computation_into(&graph, &[argument], &places, &[(0, 0)], &name);
    let refused = execute(three).unwrap_err();
    assert!(matches!(refused, Error::Lowering { .. }), "{refused}");
    assert!(matches!(places[0].wait(), Err(Error::Lowering { .. })));

    let two = upload(&backend, name, f32s(2), &[0; 8]);
    execute(Arc::clone(&two)).unwrap();
    places[0].wait().unwrap();
    assert!(matches!(two.wait(), Err(Error::Donated { .. })));
    assert!(matches!(execute(two), Err(Error::Donated { .. })));
}

#[test]
fn values_and_devices_of_others_are_refused() {
    let ((backend, name), (other, _)) = (torch(), torch());
    let ty = TensorType::scalar(DType::I32);
    let value = upload(&backend, name, ty, &[1, 0, 0, 0]);
    let foreign = upload(&other, name, ty, &[2, 0, 0, 0]);
    assert!(matches!(
        value.assign(&*foreign),
        Err(Error::ForeignValue { .. })
    ));
    assert!(matches!(
        backend.tensor_of(&foreign),
        Err(Error::ForeignValue { .. })
    ));
    let nowhere = BackendDevice::new(BackendDeviceType::CUDA, 7);
    let place = backend.create_data_placeholder(&nowhere, &Shape::new(ty));
    assert!(matches!(place.wait(), Err(Error::UnknownDevice { .. })));
    let refused = TorchBackend::new(&[tch::Device::Mps]).unwrap_err();
    assert!(
        matches!(refused, stepmesh_torch::Error::UnservedDevice { .. }),
        "{refused}"
    );
}

#[test]
fn after_the_exit_values_are_read_and_nothing_is_executed() {
    let (backend, name) = torch();
    let ty = TensorType::scalar(DType::U8);
    let value = upload(&backend, name, ty, &[7]);
    backend.prepare_to_exit().unwrap();
    let read = backend.make_tensor_from_computation_data(&value, Some(DType::F32));
    assert_eq!(read.unwrap().to_vec::<f32>().unwrap(), [7.0]);
    assert!(matches!(
        backend.compile(Vec::new()),
        Err(Error::Exiting { .. })
    ));
}
