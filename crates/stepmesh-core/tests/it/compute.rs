//! Graphs on a device, behind the safe API, with the example in C that adds and multiplies.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use stepmesh_core::compute::{
    Argument, CompileOptions, Compute, DType, Graph, GraphBuilder, Op, OpKind, Shape, TextForm,
};
use stepmesh_core::{Backend, Buffer, Device, Error};

use crate::plugins::Plugins;

/// The device of the example; its file goes away, what was loaded stays.
fn device() -> Device {
    let plugins = Plugins::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let status = Command::new(&compiler)
        .args([
            "-shared",
            "-fPIC",
            "-fvisibility=hidden",
            "-DEXAMPLE_COMPUTE",
            "-I",
        ])
        .arg(root.join("crates/stepmesh-abi/include"))
        .arg(root.join("plugins/example-c/example.c"))
        .arg("-o")
        .arg(plugins.file("example-c"))
        .status()
        .unwrap_or_else(|error| panic!("these tests need a C compiler ({compiler}): {error}"));
    assert!(status.success());
    let backend: Backend = plugins.discover().select(Some("example-c")).unwrap();
    backend.device(0).unwrap()
}

fn compute(device: &Device) -> Compute {
    device.compute().expect("the example computes")
}

/// `(a + b) * a`, in place of a.
fn graph(dtype: DType) -> Graph {
    let shape = Shape::new(&[2, 2]).unwrap();
    let mut graph = GraphBuilder::new("poly");
    graph.set_location(Some("model.rs:12".into()));
    let a = graph.parameter(dtype, shape).unwrap();
    let b = graph.parameter(dtype, shape).unwrap();
    let sum = graph.node(Op::Add, &[a, b]).unwrap();
    let product = graph.node(Op::Mul, &[sum, a]).unwrap();
    graph.donate(0, 0);
    graph.build(&[product]).unwrap()
}

fn filled(device: &Device, numbers: [f32; 4]) -> Arc<Buffer> {
    let buffer = device.alloc(16).unwrap();
    buffer
        .write_bytes(0, numbers.map(f32::to_le_bytes).as_flattened())
        .unwrap();
    Arc::new(buffer)
}

fn numbers(buffer: &Buffer) -> [f32; 4] {
    let mut bytes = [[0; 4]; 4];
    buffer.read_bytes(0, bytes.as_flattened_mut()).unwrap();
    bytes.map(f32::from_le_bytes)
}

#[test]
fn a_graph_is_compiled_and_executed_in_place_and_elsewhere() {
    let device = device();
    let compute = compute(&device);
    assert!(compute.supports(OpKind::Add, DType::F32).unwrap());
    assert!(!compute.supports(OpKind::Exp, DType::F32).unwrap());
    let executable = compute
        .compile(&graph(DType::F32), &CompileOptions::default())
        .unwrap();
    assert_eq!(executable.info().params.len(), 2);
    assert_eq!(executable.info().results[0].to_string(), "f32[2,2]");
    assert_eq!(executable.info().aliases.len(), 1);
    let stream = device.create_stream().unwrap();
    let [a, b, out] = [[1.0, 2.0, 3.0, 4.0], [0.5; 4], [0.0; 4]].map(|list| filled(&device, list));
    let wait = Duration::from_secs(10);
    let args: [Argument<'_>; 2] = [(&a).into(), (&b).into()];
    executable
        .execute(&args, &[(&out).into()], &stream)
        .unwrap();
    stream.synchronize(wait).unwrap();
    assert_eq!(numbers(&out), [1.5, 5.0, 10.5, 18.0]);
    assert_eq!(numbers(&a), [1.0, 2.0, 3.0, 4.0]);
    executable.execute(&args, &[(&a).into()], &stream).unwrap();
    drop(executable);
    stream.synchronize(wait).unwrap();
    assert_eq!(numbers(&a), [1.5, 5.0, 10.5, 18.0]);
}

#[test]
fn arguments_stay_alive_until_the_stream_is_done() {
    let device = device();
    let executable = compute(&device).compile(&graph(DType::F32), &CompileOptions::default());
    let executable = executable.unwrap();
    let stream = device.create_stream().unwrap();
    let [a, b, out] = [[1.0; 4], [2.0; 4], [0.0; 4]].map(|list| filled(&device, list));
    let weak = [&a, &b, &out].map(Arc::downgrade);
    let args: [Argument<'_>; 2] = [(&a).into(), (&b).into()];
    executable
        .execute(&args, &[(&out).into()], &stream)
        .unwrap();
    drop([a, b, out]);
    assert!(weak.iter().all(|buffer| buffer.upgrade().is_some()));
    stream.synchronize(Duration::from_secs(10)).unwrap();
    assert!(weak.iter().all(|buffer| buffer.upgrade().is_none()));
}

#[test]
fn memory_that_does_not_fit_is_refused_before_the_plugin_sees_it() {
    let device = device();
    let executable = compute(&device).compile(&graph(DType::F32), &CompileOptions::default());
    let executable = executable.unwrap();
    let stream = device.create_stream().unwrap();
    let big = Arc::new(device.alloc(64).unwrap());
    let [a, b, short] = [16, 16, 8].map(|len| Arc::new(device.alloc(len).unwrap()));
    let at = |offset| Argument {
        buffer: &big,
        offset,
    };
    let (a, b, short): (Argument<'_>, Argument<'_>, Argument<'_>) =
        ((&a).into(), (&b).into(), (&short).into());
    let fault = |args: &[Argument<'_>], out: Argument<'_>| {
        executable
            .execute(args, &[out], &stream)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(fault(&[a], at(0)), "compute.execute: 1 arguments, it has 2");
    assert!(fault(&[a, short], at(0)).contains("exceeds the buffer of 8"));
    assert!(fault(&[a, b], at(2)).contains("which is not aligned"));
    let overlap = "the memory of argument 1 and of result 0 overlaps";
    assert!(fault(&[at(0), at(32)], at(20)).contains(overlap));
    // In place of the other argument, which is not donated, or half over the donated one.
    assert!(fault(&[at(0), at(32)], at(32)).contains(overlap));
    assert!(fault(&[at(0), at(32)], at(8)).contains("argument 0 and of result 0 overlaps"));
    assert!(fault(&[at(0), at(8)], at(0)).contains(overlap));
    executable
        .execute(&[at(0), at(32)], &[at(16)], &stream)
        .unwrap();
    executable
        .execute(&[at(0), at(0)], &[at(16)], &stream)
        .unwrap();
    // What two openings made does not mix.
    let other = self::device().create_stream().unwrap();
    let foreign = executable.execute(&[a, b], &[at(0)], &other).unwrap_err();
    assert!(matches!(foreign, Error::ForeignHandle { .. }), "{foreign}");
}

#[test]
fn what_the_device_lacks_is_named_with_its_place() {
    let device = device();
    let refused = compute(&device).compile(&graph(DType::F64), &CompileOptions::default());
    let error = refused.unwrap_err();
    // With the backend's own words behind, which may say what is missing.
    let wanted = "example-c:0 has no parameter for f64 (at model.rs:12); cast to another type, or \
                  compute it elsewhere (example-c: has no op 1 for type 4, which node 0 needs \
                  model.rs:12)";
    assert_eq!(error.to_string(), wanted);
    let Error::UnsupportedOp { op, dtype, .. } = error else {
        panic!("{error}");
    };
    assert_eq!((op, dtype), (OpKind::Parameter, DType::F64));
}

#[test]
fn what_the_plugin_cannot_do_with_executables_is_said() {
    let device = device();
    let compute = compute(&device);
    let executable = compute
        .compile(&graph(DType::F32), &CompileOptions::default())
        .unwrap();
    let unsupported = |error: Error| matches!(error, Error::Unsupported { .. });
    assert!(unsupported(executable.text(TextForm::Plan).unwrap_err()));
    assert!(unsupported(executable.serialize().unwrap_err()));
    let damaged = compute.deserialize(b"nothing").unwrap_err();
    assert!(
        damaged.to_string().contains("7 bytes are no executable"),
        "{damaged}"
    );
    assert_eq!(&compute.fingerprint().unwrap()[..9], b"example-c");
    executable.release().unwrap();
}
