//! The backend trait by itself: registry, devices, data, lowering, computations.

use std::sync::Arc;

use stepmesh_lazy::{
    BackendDevice, BackendDeviceType, BackendRegistrar, DType, Error, HostTensor, LazyBackend,
    LazyDevice, Options, Scalar, Shape, StepMeshBackend, VirtualDevice, get_backend, has_backend,
};

use crate::common::core_device;

fn backend() -> Arc<StepMeshBackend> {
    let options = {
        let mut options = Options::default().backend;
        options.interpret = true;
        options
    };
    Arc::new(StepMeshBackend::new(core_device().backend(), options).unwrap())
}

#[test]
fn the_registry_holds_one_backend_and_refuses_another() {
    assert!(!has_backend());
    assert!(matches!(get_backend(), Err(Error::NotRegistered)));
    let registrar = BackendRegistrar::new(backend()).unwrap();
    assert!(has_backend());
    assert_eq!(get_backend().unwrap().name(), "cpu");
    let refused = BackendRegistrar::new(backend()).unwrap_err();
    assert!(
        matches!(refused, Error::AlreadyRegistered { .. }),
        "{refused}"
    );
    let device = LazyDevice::registered(Options::default()).unwrap();
    assert_eq!(device.device().to_string(), "CPU0");
    drop(registrar);
    assert!(!has_backend());
}

#[test]
fn virtual_and_concrete_devices_are_told_apart() {
    let backend = backend();
    assert_eq!(
        backend.get_backend_devices(),
        [BackendDevice::new(BackendDeviceType::CPU, 0)]
    );
    assert_eq!(
        backend
            .get_backend_device(VirtualDevice(0))
            .unwrap()
            .to_string(),
        "CPU0"
    );
    let unknown = backend.get_backend_device(VirtualDevice(7)).unwrap_err();
    assert_eq!(
        unknown.to_string(),
        "the backend cpu has no device lazy:7; it has 1"
    );
    assert_eq!(backend.get_default_device_type(), BackendDeviceType::CPU);
    backend.set_default_device_ordinal(0).unwrap();
    backend.set_default_device_ordinal(3).unwrap_err();
    backend
        .set_default_device_type(BackendDeviceType::CUDA)
        .unwrap_err();
    assert_eq!(backend.eager_fallback_device_type(), BackendDeviceType::CPU);
    let other = BackendDevice::new(BackendDeviceType::CUDA, 0);
    LazyDevice::new(backend, other, Options::default()).unwrap_err();
    assert!(BackendDevice::new(BackendDeviceType::CPU, 1) < other);
}

#[test]
fn data_is_made_filled_and_read() {
    let backend = backend();
    let device = backend.get_backend_devices()[0];
    let host = HostTensor::from_slice(&[2], &[1.5_f32, -2.0]).unwrap();
    let shape = Shape::new(host.ty());
    let data = backend
        .make_computation_data_from_tensor(&host, &shape, &device)
        .unwrap();
    assert!(data.has_value());
    assert_eq!(
        backend
            .make_tensor_from_computation_data(&data, None)
            .unwrap(),
        host
    );
    let ints = backend
        .make_tensor_from_computation_data(&data, Some(DType::I64))
        .unwrap();
    assert_eq!(ints.to_vec::<i64>().unwrap(), [1, -2]);

    let placeholder = backend.create_data_placeholder(&device, &shape);
    assert!(!placeholder.has_value());
    assert!(matches!(placeholder.wait(), Err(Error::NoValue { .. })));
    placeholder.assign(&*data).unwrap();
    assert_eq!(
        backend
            .make_tensor_from_computation_data(&placeholder, None)
            .unwrap(),
        host
    );
    assert_ne!(placeholder.get_handle(), data.get_handle());

    let number = backend.make_computation_data_from_scalar(Scalar::Int(3), DType::F16, &device);
    let number = number.unwrap();
    assert!(matches!(
        placeholder.assign(&*number),
        Err(Error::Elements { .. })
    ));
    let read = backend
        .make_tensor_from_computation_data(&number, Some(DType::F32))
        .unwrap();
    assert_eq!(read.to_vec::<f32>().unwrap(), [3.0]);
}

#[test]
fn computations_are_lowered_compiled_and_executed_by_hand() {
    let backend = backend();
    let name = backend.get_backend_devices()[0];
    let lazy = LazyDevice::new(
        Arc::clone(&backend) as Arc<dyn LazyBackend>,
        name,
        Options::default(),
    );
    let lazy = lazy.unwrap();
    let x = lazy.from_slice(&[2], &[1.0_f32, 2.0]).unwrap();
    let y = (&x + &x).unwrap();
    let mut lowering = backend.create_lowering_context("by_hand", &name).unwrap();
    let result = lowering.add_result(&y.ir_value().unwrap()).unwrap();
    assert!(matches!(
        lowering.set_up_alias(result, 1),
        Err(Error::Lowering { .. })
    ));
    lowering.set_up_alias(result, 0).unwrap();
    lowering.set_up_alias(result, 0).unwrap_err();
    assert!(lowering.check_result_shape(&x.data().unwrap(), result));
    assert_eq!(
        (lowering.get_emitted_node_count(), lowering.device()),
        (2, name)
    );
    let arguments = lowering.get_parameters_data().to_vec();
    let computation = lowering.build().unwrap();
    assert_eq!(computation.parameters_size(), 1);
    assert_eq!(computation.parameter_names(), ["p0"]);
    assert_eq!(computation.parameter_shapes()[0].to_string(), "Float[2]");
    assert_eq!(computation.result_shapes().len(), 1);
    assert!(
        computation.to_text().contains("add(%0, %0)"),
        "{computation}"
    );
    // What was not compiled does not execute.
    backend
        .execute_computation(&computation, &arguments, &name)
        .unwrap_err();
    let compiled = backend.compile(vec![computation]).unwrap().remove(0);
    let results = backend
        .execute_computation(&compiled, &arguments, &name)
        .unwrap();
    let read = backend
        .make_tensor_from_computation_data(&results[0], None)
        .unwrap();
    assert_eq!(read.to_vec::<f32>().unwrap(), [2.0, 4.0]);
    backend
        .execute_computation(&compiled, &[], &name)
        .unwrap_err();

    // A donated argument is gone, and says so.
    let place = backend.create_data_placeholder(&name, &results[0].shape());
    backend
        .execute_computation_into(&compiled, &results, &[place], &[(0, 0)], &name)
        .unwrap();
    assert!(matches!(results[0].wait(), Err(Error::Donated { .. })));
    backend
        .execute_computation(&compiled, &results, &name)
        .unwrap_err();
}

#[test]
fn computations_are_texts_in_the_formats_that_there_are() {
    let device = crate::common::compiled(|_| {});
    let x = device.from_slice(&[2], &[1.0_f32, 2.0]).unwrap();
    let y = x.exp().unwrap().neg().unwrap();
    let text = |format| y.computation_text(format);
    assert!(text("graph").unwrap().contains("exp"));
    let stablehlo = text("stablehlo").unwrap();
    assert!(stablehlo.contains("stablehlo.exponential"), "{stablehlo}");
    assert!(
        stablehlo.contains("@main(%arg0: tensor<2xf32>)"),
        "{stablehlo}"
    );
    assert!(text("plan").unwrap().contains("fused kernel"));
    let none = text("source").unwrap_err();
    assert!(matches!(none, Error::Backend { .. }), "{none:?}");
    let unknown = text("hlo").unwrap_err();
    assert_eq!(
        unknown.to_string(),
        "computation_text: there is no format `hlo`; there are graph, stablehlo, plan, source"
    );

    // Not compiled: there is a graph, and no more.
    let backend = device.backend();
    let mut lowering = backend
        .create_lowering_context("g", &device.device())
        .unwrap();
    lowering.add_result(&y.ir_value().unwrap()).unwrap();
    let computation = lowering.build().unwrap();
    assert_eq!(
        backend
            .computation_text(&computation, "stablehlo")
            .unwrap()
            .lines()
            .next(),
        Some("module @g_g {")
    );
    let early = backend.computation_text(&computation, "plan").unwrap_err();
    assert!(matches!(early, Error::Lowering { .. }), "{early:?}");
    // Only asked: nothing was launched.
    assert!(y.is_traced());
}

#[test]
fn single_operations_are_lowered_with_parameters() {
    let backend = backend();
    let name = backend.get_backend_devices()[0];
    let lazy = LazyDevice::new(
        Arc::clone(&backend) as Arc<dyn LazyBackend>,
        name,
        Options::default(),
    );
    let lazy = lazy.unwrap();
    let deep = lazy
        .from_slice(&[2], &[1.0_f32, 2.0])
        .unwrap()
        .exp()
        .unwrap();
    let y = deep.neg().unwrap();
    let (input, output) = (deep.ir_value().unwrap(), y.ir_value().unwrap());
    let mut lowering = backend.create_lowering_context("one_op", &name).unwrap();
    let shape = Shape::new(input.ty());
    lowering.add_parameter(&input, 1, &shape, "x").unwrap_err();
    lowering.add_parameter(&input, 0, &shape, "x").unwrap();
    lowering.add_result(&output).unwrap();
    assert_eq!(lowering.get_emitted_node_count(), 2);
    let text = lowering.build().unwrap().to_text();
    assert!(text.contains("neg(%0)") && !text.contains("exp"), "{text}");
}

#[test]
fn after_prepare_to_exit_nothing_is_launched_and_values_can_be_read() {
    let backend = backend();
    let name = backend.get_backend_devices()[0];
    let lazy = LazyDevice::new(
        Arc::clone(&backend) as Arc<dyn LazyBackend>,
        name,
        Options::default(),
    );
    let lazy = lazy.unwrap();
    let x = lazy.from_slice(&[2], &[1.0_f32, 2.0]).unwrap();
    let y = x.neg().unwrap();
    y.wait().unwrap();
    backend.prepare_to_exit().unwrap();
    assert!(matches!(
        x.exp().unwrap().wait(),
        Err(Error::Exiting { .. })
    ));
    assert_eq!(y.to_vec::<f32>().unwrap(), [-1.0, -2.0]);
}

#[test]
fn symbolic_sizes_are_bounds_and_hash_apart_from_sizes() {
    let ty = HostTensor::from_slice(&[2, 3], &[0.0_f32; 6]).unwrap().ty();
    let other = HostTensor::from_slice(&[2, 4], &[0.0_f32; 8]).unwrap().ty();
    let (fixed, bound) = (Shape::new(ty), Shape::new(ty).with_symbolic(1));
    assert!(bound.is_symbolic(1) && !bound.is_symbolic(0) && !fixed.is_symbolic(1));
    assert_eq!(bound.to_string(), "f32[2,<=3]");
    assert_ne!(fixed.hash(true), Shape::new(other).hash(true));
    assert_eq!(fixed.hash(false), Shape::new(other).hash(false));
    assert_ne!(fixed.hash(false), bound.hash(false));
}

#[test]
fn every_method_of_the_reference_is_there_under_its_name() {
    // `torch::lazy::BackendImplInterface`, and the functions of registration beside it.
    let reference = [
        "InitializeAtenBindings",
        "PrepareToExit",
        "SetRngSeed",
        "GetIrBuilder",
        "ShouldSyncTensor",
        "MakeComputationDataFromTensor",
        "MakeComputationDataFromScalar",
        "CreateDataPlaceholder",
        "GetComputationDataFromNode",
        "MakeTensorFromComputationData",
        "CreateLoweringContext",
        "GetCompilationDevices",
        "Compile",
        "ExecuteComputation",
        "GetDefaultDeviceType",
        "SetDefaultDeviceType",
        "GetDefaultDeviceOrdinal",
        "SetDefaultDeviceOrdinal",
        "EagerFallbackDeviceType",
        "GetBackendDevices",
        "GetBackendDevice",
        "CreateMetricReport",
        "GetComputationBackendText",
        "HasBackend",
        "GetBackend",
    ];
    let sources = [
        include_str!("../../src/backend/mod.rs"),
        include_str!("../../src/backend/registry.rs"),
    ]
    .concat();
    for name in reference {
        let mut snake = String::new();
        for letter in name.chars() {
            if letter.is_ascii_uppercase() && !snake.is_empty() {
                snake.push('_');
            }
            snake.push(letter.to_ascii_lowercase());
        }
        assert!(sources.contains(&format!("fn {snake}(")), "{name}: {snake}");
    }
    // The second form of the overloaded one.
    assert!(sources.contains("fn create_lowering_context_with_post_order("));
}
