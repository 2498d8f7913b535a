//! The devices behind the lazy core: copying values, compiling graphs, executing them. Memory, streams
//! and failures are stepmesh-lazy's backend's business; here they get the core's numbers and words.
#![forbid(unsafe_code)]

use std::error::Error as _;
use std::sync::{Mutex, PoisonError};

use stepmesh_core::Device;
use stepmesh_graph::{DType, TensorType};
use stepmesh_lazy::{
    BackendDataPtr, BackendDevice, BackendOptions, ComputationPtr, LazyBackend as _, Scalar,
    StepMeshBackend,
};

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
    backend: StepMeshBackend,
    name: BackendDevice,
    /// For messages.
    device: Device,
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
        Ok(Self {
            devices: devices
                .iter()
                .map(LazyDevice::open)
                .collect::<Result<_, _>>()?,
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
        let LazyDevice { backend, name, .. } = self.device(device)?;
        let value = backend.upload(ty, bytes, name);
        let value = value.map_err(|error| words_of(&error))?;
        Ok(Data { device, value })
    }

    /// Copies a value out, once the work before is done.
    pub(super) fn download(&self, data: &Data, bytes: &mut [u8]) -> Result<(), String> {
        let backend = &self.device(data.device)?.backend;
        let read = backend.download(&data.value, bytes);
        read.map_err(|error| words_of(&error))
    }

    /// Compiles a program for the device that it was traced for.
    pub(super) fn compile(&self, program: &Program) -> Result<(), String> {
        self.executable(program, program.device).map(drop)
    }

    fn executable(&self, program: &Program, device: usize) -> Result<ComputationPtr, String> {
        program.executable(device, || {
            let LazyDevice {
                backend,
                name,
                device,
            } = self.device(device)?;
            let is_supported = |op, dtype| backend.supports(name, op, dtype).unwrap_or(true);
            if let Some((id, dtype)) = program.graph.first_unsupported(is_supported) {
                return Err(format!(
                    "{}:{} has no {} of {dtype}; use another backend, or run it eagerly with \
                     LTC_FORCE_FALLBACK",
                    device.backend().name(),
                    device.ordinal(),
                    program.graph.node(id).kind(),
                ));
            }
            let compiled = backend.compile_graph(program.graph.clone(), name);
            compiled.map_err(|error| words_of(&error))
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
        let mut args: Vec<BackendDataPtr> = args.iter().map(|data| data.value.clone()).collect();
        args.extend(self.random_arguments(program, device)?);
        let LazyDevice { backend, name, .. } = self.device(device)?;
        let results = backend.execute_computation(&executable, &args, name);
        let results = results.map_err(|error| words_of(&error))?;
        let data = |value| Data { device, value };
        Ok(results.into_iter().map(data).collect())
    }

    pub(super) fn set_rng_seed(&self, seed: u64) {
        *self.random() = Random { seed, offset: 0 };
    }

    /// Waits until every device has done what it was asked for.
    pub(super) fn synchronize(&self) -> Result<(), String> {
        for LazyDevice { backend, name, .. } in &self.devices {
            let waited = backend.wait_device_ops(name);
            waited.map_err(|error| words_of(&error))?;
        }
        Ok(())
    }

    /// Seed and offset for one execution, which no other one has.
    fn random_arguments(
        &self,
        program: &Program,
        device: usize,
    ) -> Result<Vec<BackendDataPtr>, String> {
        if !program.is_random {
            return Ok(Vec::new());
        }
        let (seed, offset) = {
            let mut random = self.random();
            let offset = random.offset;
            random.offset = offset.wrapping_add(program.drawn);
            (random.seed, offset)
        };
        let LazyDevice { backend, name, .. } = self.device(device)?;
        // They travel with the launch.
        let number = |number: u64| {
            let scalar = Scalar::Int(number.cast_signed());
            let value = backend.make_computation_data_from_scalar(scalar, DType::I64, name);
            value.map_err(|error| words_of(&error))
        };
        Ok(vec![number(seed)?, number(offset)?])
    }

    fn random(&self) -> std::sync::MutexGuard<'_, Random> {
        self.random.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn device(&self, ordinal: usize) -> Result<&LazyDevice, String> {
        let device = self.devices.get(ordinal);
        device.ok_or_else(|| format!("there is no lazy device {ordinal}"))
    }
}

impl LazyDevice {
    fn open(device: &Device) -> Result<Self, Error> {
        let fault = |fault: String| Error::Lazy { fault };
        if device.compute().is_none() {
            return Err(fault(format!(
                "{}:{} cannot compute: its plugin has no stepmesh.compute.v1; use another backend, such \
                 as cpu",
                device.backend().name(),
                device.ordinal()
            )));
        }
        let backend = StepMeshBackend::new(device.backend(), BackendOptions::default());
        let backend = backend.map_err(|error| fault(words_of(&error)))?;
        let name = backend.device_of(device);
        Ok(Self {
            name: name.map_err(|error| fault(words_of(&error)))?,
            backend,
            device: device.clone(),
        })
    }
}

/// An error with what caused it, for the core takes a text.
fn words_of(error: &stepmesh_lazy::Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(known) = cause {
        words += &format!(": {known}");
        cause = known.source();
    }
    words
}

/// PyTorch's default seed, so that runs without one repeat.
const SEED_AT_FIRST: u64 = 67_280_421_310_721;
