//! Each operation, in each type that it is for: torch, the cpu plugin and the interpreter agree, within
//! the bounds that the interpreter carries with each element (docs/abi.md). The samples have the
//! strange cases too: NaN, overflow, division by 0, empty values, indices out of range.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use stepmesh_core::compute::Argument;
use stepmesh_core::{Buffer, Device};
use stepmesh_graph::samples::{Sample, samples};
use stepmesh_graph::{CompileOptions, DType, Graph, OpKind, TensorType};
use stepmesh_lazy::{
    BackendDataPtr, BackendDevice, Computation, ComputationPtr, Error, HostTensor, LazyBackend,
    Shape,
};
use stepmesh_torch::TorchBackend;

use crate::{cpu, torch};

/// A graph as it is.
#[derive(Debug)]
pub(crate) struct Given(pub(crate) Graph);

impl Computation for Given {
    fn parameters_size(&self) -> usize {
        self.0.params().len()
    }

    fn parameter_shapes(&self) -> Vec<Shape> {
        self.0.param_types().map(Shape::new).collect()
    }

    fn parameter_names(&self) -> Vec<String> {
        vec![String::new(); self.parameters_size()]
    }

    fn result_shapes(&self) -> Vec<Shape> {
        self.0.result_types().map(Shape::new).collect()
    }

    fn aliases(&self) -> &[(usize, usize)] {
        &[]
    }

    fn to_text(&self) -> String {
        self.0.to_string()
    }

    fn in_mark_step(&self) -> bool {
        false
    }

    fn graph(&self) -> &Graph {
        &self.0
    }

    fn len_bytes(&self) -> usize {
        0
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

pub(crate) fn upload(
    backend: &TorchBackend,
    device: BackendDevice,
    ty: TensorType,
    bytes: &[u8],
) -> BackendDataPtr {
    let host = HostTensor::from_bytes(ty, bytes.to_vec()).unwrap();
    backend
        .make_computation_data_from_tensor(&host, &Shape::new(ty), &device)
        .unwrap()
}

/// The results by torch.
fn by_torch(
    backend: &TorchBackend,
    device: BackendDevice,
    sample: &Sample,
) -> Result<Vec<Vec<u8>>, Error> {
    let arguments = sample.graph.param_types().zip(&sample.args);
    let arguments: Vec<BackendDataPtr> = arguments
        .map(|(ty, bytes)| upload(backend, device, ty, bytes))
        .collect();
    let given: ComputationPtr = Arc::new(Given(sample.graph.clone()));
    let compiled = backend.compile(vec![given])?.remove(0);
    let results = backend.execute_computation(&compiled, &arguments, &device)?;
    let read = |data| backend.make_tensor_from_computation_data(data, None);
    let read = |data| read(data).map(HostTensor::into_bytes);
    results.iter().map(read).collect()
}

/// The results by a plugin.
fn by_plugin(device: &Device, sample: &Sample) -> Result<Vec<Vec<u8>>, stepmesh_core::Error> {
    let executable = device
        .compute()
        .unwrap()
        .compile(&sample.graph, &CompileOptions::default())?;
    let alloc = |len: usize| Ok(Arc::new(device.alloc(len.max(1) as u64)?));
    let args = sample.args.iter().map(|bytes| {
        let buffer = alloc(bytes.len())?;
        buffer.write_bytes(0, bytes)?;
        Ok(buffer)
    });
    let args: Vec<Arc<Buffer>> = args.collect::<Result<_, stepmesh_core::Error>>()?;
    let lens: Vec<usize> = sample
        .graph
        .result_types()
        .map(|ty| ty.len_bytes())
        .collect();
    let outs = lens.iter().map(|len| alloc(*len));
    let outs: Vec<Arc<Buffer>> = outs.collect::<Result<_, stepmesh_core::Error>>()?;
    let stream = device.create_stream()?;
    let [from, to] = [&args, &outs].map(|all| all.iter().map(Argument::from).collect::<Vec<_>>());
    executable.execute(&from, &to, &stream)?;
    stream.synchronize(Duration::from_secs(60))?;
    let read = |(buffer, len): (&Arc<Buffer>, &usize)| {
        let mut bytes = vec![0; *len];
        buffer.read_bytes(0, &mut bytes)?;
        Ok(bytes)
    };
    outs.iter().zip(&lens).map(read).collect()
}

#[test]
fn torch_the_cpu_plugin_and_the_interpreter_agree_on_every_operation_and_type() {
    let ((backend, name), plugin) = (torch(), cpu());
    let (mut faults, mut count) = (Vec::new(), 0);
    for op in OpKind::ALL {
        for dtype in DType::ALL {
            for sample in samples(*op, dtype).unwrap() {
                count += 1;
                let expected = sample.expected().unwrap();
                let found = [
                    by_torch(&backend, name, &sample).map_err(|error| format!("{error:?}")),
                    by_plugin(&plugin, &sample).map_err(|error| format!("{error:?}")),
                ];
                for (by, found) in ["torch", "cpu"].into_iter().zip(found) {
                    let fault = match found {
                        Ok(found) if found.len() != expected.len() => Some("no result".into()),
                        Ok(found) => expected
                            .iter()
                            .zip(&found)
                            .find_map(|(tensor, bytes)| tensor.mismatch(bytes)),
                        Err(error) => Some(error),
                    };
                    faults.extend(fault.map(|fault| format!("{by}, {}: {fault}", sample.name)));
                }
            }
        }
    }
    assert!(count > 1000, "{count} samples");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn what_an_operation_is_for_is_supported() {
    let (backend, name) = torch();
    for op in OpKind::ALL {
        for dtype in DType::ALL {
            let is_supported = backend.supports(&name, *op, dtype).unwrap();
            assert_eq!(is_supported, op.allows(dtype), "{op} of {dtype}");
        }
    }
}
