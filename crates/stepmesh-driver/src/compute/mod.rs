//! `stepmesh.compute.v1`: graphs become source (`stepmesh-gpu-source`), the vendor's compiler makes code
//! of it, and an execution is that code's functions and the vendor's products on a stream. What is
//! queued is told by the executable module; whose scratch memory it uses, by the lane module.
#![expect(
    unsafe_code,
    reason = "the trait has a method whose caller vouches for addresses"
)]

use std::sync::Arc;

use stepmesh_gpu_source::Program;
use stepmesh_plugin::abi::Code;
use stepmesh_plugin::compute::{CompileOptions, Compute, DType, Graph, OpKind, TextForm};
use stepmesh_plugin::{Capture, Error, Result, Stream};

use crate::backend::Accelerator;
use crate::shared::{Shared, lock};
use crate::{Answer, Compiler as _, Driver, Kind, Sums, Uncompiled};
use executable::{Bases, Parts, Products, has_products};
use lane::{Lane, Scratch};

pub use executable::Executable;

pub(crate) use lane::Lanes;

mod executable;
mod image;
mod lane;
mod product;

impl<D: Driver> Compute for Accelerator<D> {
    type Executable = Executable<D>;

    fn supports(&self, _device: u32, op: OpKind, dtype: DType) -> bool {
        Program::supported(op, dtype) && self.shared.lacking_library(op, dtype).is_none()
    }

    fn why_unsupported(&self, _device: u32, op: OpKind, dtype: DType) -> Option<String> {
        self.shared.lacking_library(op, dtype)
    }

    fn compile(
        &self,
        device: u32,
        graph: &Arc<Graph>,
        options: &CompileOptions,
    ) -> Result<Executable<D>> {
        let program = self.program(graph, options)?;
        let image = self.shared.compile_source(device, &program.source)?;
        self.load(device, graph, options, program, image)
    }

    unsafe fn execute(
        &self,
        executable: &Arc<Executable<D>>,
        args: &[u64],
        outs: &[u64],
        stream: Stream,
    ) -> Result<()> {
        let shared = &self.shared;
        shared.check_stream(stream)?;
        let pairs = args.iter().zip(&executable.arg_lens);
        for (ptr, len_bytes) in pairs.chain(outs.iter().zip(&executable.result_lens)) {
            shared.table.check_range(*ptr, *len_bytes)?;
        }
        let addresses = Addresses { args, outs, stream };
        match self.captured(stream)? {
            Capture::None => {
                // SAFETY: this method's contract.
                unsafe { shared.execute(executable, addresses) }
            }
            Capture::Active(_) => {
                // SAFETY: this method's contract.
                unsafe { shared.execute_captured(executable, addresses) }
            }
            _ => Err(Error::failed_precondition(format!(
                "the capture of stream {:#x} of device {} was invalidated; end it first",
                stream.raw, stream.device
            ))),
        }
    }

    fn scratch_len_bytes(&self, executable: &Executable<D>) -> u64 {
        executable.scratch.total()
    }

    fn text(&self, executable: &Executable<D>, form: TextForm) -> Result<String> {
        match form {
            TextForm::Plan => Ok(executable.program.text().to_owned()),
            TextForm::Source => Ok(executable.program.source.clone()),
            _ => Err(Error::unimplemented(format!(
                "backend `{}` has no text of form {form:?}",
                D::NOTE.name
            ))),
        }
    }

    fn compatibility(&self, device: u32) -> Result<String> {
        let arch = &self.shared.device(device)?.facts.arch;
        // Without the compiler nothing was compiled that could be told apart.
        let compiler = self.shared.driver.compiler();
        let version = compiler.map_or("none", |compiler| compiler.version());
        Ok(format!("{arch} {version}"))
    }

    fn serialize(&self, executable: &Executable<D>) -> Result<Vec<u8>> {
        Ok(image::write(&executable.program.source, &executable.image))
    }

    fn deserialize(
        &self,
        device: u32,
        graph: &Arc<Graph>,
        options: &CompileOptions,
        bytes: &[u8],
    ) -> Result<Executable<D>> {
        let program = self.program(graph, options)?;
        let image = image::read(&program.source, bytes).ok_or_else(|| {
            let message = "the bytes are no code of their graph: cut, changed, or of another build";
            Error::new(Code::DataLoss, message)
        })?;
        let image = image.to_vec();
        self.load(device, graph, options, program, image)
    }
}

/// What an execution gets from its caller.
#[derive(Clone, Copy, Debug)]
struct Addresses<'a> {
    args: &'a [u64],
    outs: &'a [u64],
    stream: Stream,
}

impl<D: Driver> Accelerator<D> {
    fn program(&self, graph: &Graph, options: &CompileOptions) -> Result<Program> {
        let program = Program::compile(graph, options);
        program.map_err(|error| Error::new(Code::ResourceExhausted, error.to_string()))
    }

    fn load(
        &self,
        device: u32,
        graph: &Graph,
        options: &CompileOptions,
        program: Program,
        image: Vec<u8>,
    ) -> Result<Executable<D>> {
        let shared = &self.shared;
        if has_products(&program) {
            shared.prepare_products(device)?;
        }
        let parts = Parts {
            program,
            image,
            sums_f32: if options.allows_tf32 {
                Sums::Tf32
            } else {
                Sums::F32
            },
            arg_lens: graph
                .param_types()
                .map(|ty| ty.len_bytes() as u64)
                .collect(),
            result_lens: graph
                .result_types()
                .map(|ty| ty.len_bytes() as u64)
                .collect(),
        };
        Executable::load(shared, device, parts)
    }

    fn captured(&self, stream: Stream) -> Result<Capture> {
        if !self.shared.device(stream.device)?.facts.has_graphs {
            return Ok(Capture::None);
        }
        self.shared.capture_state(stream)
    }
}

impl<D: Driver> Shared<D> {
    /// Why an operation cannot be done for a type, if that is because a library is not there.
    fn lacking_library(&self, op: OpKind, dtype: DType) -> Option<String> {
        if let Err(reason) = self.driver.compiler() {
            return Some(format!("there is no compiler of kernels: {reason}"));
        }
        if !Program::needs_products(op, dtype) {
            return None;
        }
        let reason = self.driver.blas().err()?;
        Some(format!("there is no library of matrix products: {reason}"))
    }

    fn compile_source(&self, device: u32, source: &str) -> Result<Vec<u8>> {
        let compiler = self.driver.compiler().map_err(|reason| {
            Error::unimplemented(format!("there is no compiler of kernels: {reason}"))
        })?;
        let arch = &self.device(device)?.facts.arch;
        let compiled = compiler.compile(source, arch);
        compiled.map_err(|Uncompiled { failure, log }| {
            let what = format!("compile a graph for {arch} with {}", compiler.version());
            let error = failure.error(&self.driver, &what);
            let code = match failure.kind::<D>() {
                Kind::OutOfMemory => error.code(),
                // The source is ours: that it does not compile is no fault of the graph.
                _ => Code::Internal,
            };
            let log = log.trim();
            let end = log.floor_char_boundary(LOG_LEN_MAX);
            let log = log.get(..end).unwrap_or_default();
            let colon = if log.is_empty() { "" } else { ":\n" };
            Error::new(code, format!("{}{colon}{log}", error.message()))
                .with_flags(error.flags())
                .with_native_code(error.native_code())
        })
    }

    /// Makes what the first product on a stream needs, so that it need not be made while the stream is
    /// captured.
    fn prepare_products(&self, device: u32) -> Result<()> {
        let blas = self.blas()?;
        let lanes = &self.device(device)?.lanes;
        let what = || format!("make a handle for products of device {device}");
        self.on_relaxed(device, what, |_| lanes.make_spare_blas(blas))
    }

    fn blas(&self) -> Result<&D::Blas> {
        self.driver.blas().map_err(|reason| {
            Error::unimplemented(format!("there is no library of matrix products: {reason}"))
        })
    }

    /// # Safety
    /// - As [`Compute::execute`].
    unsafe fn execute(
        &self,
        executable: &Arc<Executable<D>>,
        addresses: Addresses<'_>,
    ) -> Result<()> {
        let Addresses { args, outs, stream } = addresses;
        let lanes = &self.device(stream.device)?.lanes;
        let len_bytes = executable.scratch.total();
        let what = || format!("execute a graph on device {}", stream.device);
        self.on_relaxed(stream.device, what, |driver| {
            let lane = lanes.of(stream.raw);
            let mut lane = lock(&lane);
            let scratch = match lane.begin(driver, stream.raw, len_bytes) {
                // What other streams hold and do not use may be enough.
                Err(failure)
                    if failure.kind::<D>() == Kind::OutOfMemory && lanes.trim(driver)? =>
                {
                    lane.begin(driver, stream.raw, len_bytes)?
                }
                begun => begun?,
            };
            let products = self.products(executable, lanes, &mut lane, scratch)?;
            let bases = Bases {
                args,
                outs,
                scratch: scratch.ptr,
            };
            // SAFETY: this function's contract; the lane keeps the scratch memory for what is queued
            // here until its event.
            let queued = unsafe { executable.enqueue(driver, stream.raw, bases, products) };
            // Also when only a part was queued: it uses the memory too.
            let ended = lane.end(driver, stream.raw, executable);
            queued.and(ended).map_err(|failure| worse(driver, failure))
        })
    }

    /// The same for a stream that is captured: what is queued becomes part of a graph, which may run at
    /// any time and again, so that its memory is its own and the executable stays.
    ///
    /// # Safety
    /// - As [`Compute::execute`], for each time that the graph runs.
    unsafe fn execute_captured(
        &self,
        executable: &Arc<Executable<D>>,
        addresses: Addresses<'_>,
    ) -> Result<()> {
        let Addresses { args, outs, stream } = addresses;
        let lanes = &self.device(stream.device)?.lanes;
        let what = || {
            format!(
                "execute a graph on device {} while its stream is captured",
                stream.device
            )
        };
        self.on_relaxed(stream.device, what, |driver| {
            let scratch = executable.captured_scratch(driver)?;
            lanes.keep(executable);
            let lane = lanes.of(stream.raw);
            let mut lane = lock(&lane);
            let products = self.products(executable, lanes, &mut lane, scratch)?;
            let bases = Bases {
                args,
                outs,
                scratch: scratch.ptr,
            };
            // SAFETY: this function's contract; the scratch memory is this execution's alone.
            let queued = unsafe { executable.enqueue(driver, stream.raw, bases, products) };
            queued.map_err(|failure| worse(driver, failure))
        })
    }

    /// The lane's handle with the part of the scratch memory that is the products'.
    fn products(
        &self,
        executable: &Executable<D>,
        lanes: &Lanes<D>,
        lane: &mut Lane<D>,
        scratch: Scratch,
    ) -> Answer<Option<Products>> {
        let len = executable.scratch;
        let (true, Ok(blas)) = (len.workspace > 0, self.driver.blas()) else {
            return Ok(None);
        };
        Ok(Some(Products {
            handle: lane.blas(lanes, blas)?,
            workspace: Scratch {
                ptr: scratch.ptr + len.values,
                len_bytes: len.workspace,
            },
        }))
    }
}

/// What is told of a failed call: if the device is lost, that, for the libraries have no number for it.
fn worse<D: Driver>(driver: &D, failure: crate::Failure) -> crate::Failure {
    match driver.memory_info() {
        Err(asked) if asked.kind::<D>() == Kind::Lost => asked,
        _ => failure,
    }
}

/// What is kept of what a compiler wrote: the first faults, which are the cause of the others.
const LOG_LEN_MAX: usize = 4096;
