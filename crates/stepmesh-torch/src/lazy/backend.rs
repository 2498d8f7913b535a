//! The devices behind the lazy core: copying values, compiling graphs, executing them.
#![forbid(unsafe_code)]

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use stepmesh_core::compute::{Argument, CompileOptions, Compute, Executable};
use stepmesh_core::{Buffer, Device, Stream};
use stepmesh_graph::{DType, Shape, TensorType};

use super::data::Data;
use super::program::Program;
use crate::Error;

/// What serves the lazy core. Any thread may use it.
#[derive(Debug)]
pub(super) struct LazyBackend {
    devices: Vec<LazyDevice>,
    random: Mutex<Random>,
}

/// One device: everything is computed on one stream, in the order in which the core asks for it.
#[derive(Debug)]
struct LazyDevice {
    device: Device,
    compute: Compute,
    stream: Stream,
}

/// Where random numbers go on.
#[derive(Debug)]
struct Random {
    seed: u64,
    offset: u64,
}

impl LazyBackend {
    pub(super) fn new(devices: &[Device]) -> Result<Self, Error> {
        if devices.is_empty() {
            return Err(Error::Lazy {
                fault: "no devices were given".into(),
            });
        }
        let open = |device: &Device| -> Result<LazyDevice, Error> {
            let compute = device.compute().ok_or_else(|| Error::Lazy {
                fault: format!(
                    "{}:{} cannot compute: its plugin has no stepmesh.compute.v1; use another backend, \
                     such as cpu",
                    device.backend().name(),
                    device.ordinal()
                ),
            })?;
            Ok(LazyDevice {
                device: device.clone(),
                compute,
                stream: device.create_stream()?,
            })
        };
        Ok(Self {
            devices: devices.iter().map(open).collect::<Result<_, _>>()?,
            random: Mutex::new(Random {
                seed: SEED_AT_FIRST,
                offset: 0,
            }),
        })
    }

    pub(super) fn device_count(&self) -> usize {
        self.devices.len()
    }

    /// A new value with these bytes.
    pub(super) fn upload(
        &self,
        device: usize,
        ty: TensorType,
        bytes: &[u8],
    ) -> Result<Data, String> {
        if bytes.len() != ty.len_bytes() {
            return Err(format!("{} bytes for {ty}", bytes.len()));
        }
        let data = self.empty(device, ty)?;
        let written = data.buffer.write_bytes(0, bytes);
        written.map_err(|error| error.to_string())?;
        Ok(data)
    }

    /// Copies a value out, once the work before is done.
    pub(super) fn download(&self, data: &Data, bytes: &mut [u8]) -> Result<(), String> {
        if bytes.len() != data.ty.len_bytes() {
            return Err(format!("{} bytes for {}", bytes.len(), data.ty));
        }
        let waited = self
            .device(data.device)?
            .stream
            .synchronize(EXECUTION_TIMEOUT);
        waited.map_err(|error| error.to_string())?;
        let read = data.buffer.read_bytes(0, bytes);
        read.map_err(|error| error.to_string())
    }

    /// Compiles a program for the device that it was traced for.
    pub(super) fn compile(&self, program: &Program) -> Result<(), String> {
        self.executable(program, program.device).map(drop)
    }

    fn executable(&self, program: &Program, device: usize) -> Result<Arc<Executable>, String> {
        program.executable(device, || {
            let LazyDevice {
                device, compute, ..
            } = self.device(device)?;
            let is_supported = |op, dtype| compute.supports(op, dtype).unwrap_or(true);
            if let Some((id, dtype)) = program.graph.first_unsupported(is_supported) {
                return Err(format!(
                    "{}:{} has no {} of {dtype}; use another backend, or run it eagerly with \
                     LTC_FORCE_FALLBACK",
                    device.backend().name(),
                    device.ordinal(),
                    program.graph.node(id).kind(),
                ));
            }
            let compiled = compute.compile(&program.graph, &CompileOptions::default());
            compiled.map_err(|error| error.to_string())
        })
    }

    /// Submits an execution; the results are there once the stream got to them.
    pub(super) fn execute(
        &self,
        program: &Program,
        device: usize,
        args: &[&Data],
    ) -> Result<Vec<Data>, String> {
        let executable = self.executable(program, device)?;
        let random = self.random_arguments(program, device)?;
        let args: Vec<Argument<'_>> = args
            .iter()
            .map(|data| &data.buffer)
            .chain(&random)
            .map(Argument::from)
            .collect();
        let results: Result<Vec<Data>, String> = program
            .graph
            .result_types()
            .map(|ty| self.empty(device, ty))
            .collect();
        let results = results?;
        let outs: Vec<Argument<'_>> = results
            .iter()
            .map(|data| Argument::from(&data.buffer))
            .collect();
        let stream = &self.device(device)?.stream;
        let submitted = executable.execute(&args, &outs, stream);
        submitted.map_err(|error| error.to_string())?;
        Ok(results)
    }

    pub(super) fn set_rng_seed(&self, seed: u64) {
        *self.random() = Random { seed, offset: 0 };
    }

    /// Waits until every device has done what it was asked for.
    pub(super) fn synchronize(&self) -> Result<(), String> {
        for device in &self.devices {
            let waited = device.stream.synchronize(EXECUTION_TIMEOUT);
            waited.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Seed and offset for one execution, which no other one has.
    fn random_arguments(
        &self,
        program: &Program,
        device: usize,
    ) -> Result<Vec<Arc<Buffer>>, String> {
        if !program.is_random {
            return Ok(Vec::new());
        }
        let (seed, offset) = {
            let mut random = self.random();
            let offset = random.offset;
            random.offset = offset.wrapping_add(program.drawn);
            (random.seed, offset)
        };
        let ty = TensorType::new(DType::I64, Shape::SCALAR).map_err(|error| error.to_string())?;
        let upload = |number: u64| self.upload(device, ty, &number.to_le_bytes());
        Ok(vec![upload(seed)?.buffer, upload(offset)?.buffer])
    }

    fn random(&self) -> std::sync::MutexGuard<'_, Random> {
        self.random.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn empty(&self, device: usize, ty: TensorType) -> Result<Data, String> {
        // A value without elements has an address all the same.
        let len_bytes = ty.len_bytes().max(1) as u64;
        let buffer = self.device(device)?.device.alloc(len_bytes);
        Ok(Data {
            device,
            ty,
            buffer: Arc::new(buffer.map_err(|error| error.to_string())?),
        })
    }

    fn device(&self, ordinal: usize) -> Result<&LazyDevice, String> {
        let device = self.devices.get(ordinal);
        device.ok_or_else(|| format!("there is no lazy device {ordinal}"))
    }
}

/// PyTorch's default seed, so that runs without one repeat.
const SEED_AT_FIRST: u64 = 67_280_421_310_721;
/// Longest wait for a device: a step that takes longer is a hang.
const EXECUTION_TIMEOUT: Duration = Duration::from_secs(600);
