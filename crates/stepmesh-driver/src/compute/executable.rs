//! A compiled graph on a device, and what an execution queues: its functions and products, in order, with
//! the addresses that they get.
#![expect(unsafe_code, reason = "calls the driver with handles of its own")]

use std::ffi::CString;
use std::sync::{Arc, Mutex};

use stepmesh_gpu_source::{Place, Product, Program, Step};
use stepmesh_plugin::Result;

use super::lane::Scratch;
use super::product;
use crate::shared::{Shared, lock};
use crate::{Answer, Blas as _, Driver, FunctionLaunch, Sums};

/// A graph that was compiled for a device. Dropping it unloads its code.
#[derive(Debug)]
pub struct Executable<D: Driver> {
    pub(super) shared: Arc<Shared<D>>,
    pub(super) device: u32,
    pub(super) program: Program,
    pub(super) image: Vec<u8>,
    /// How products of f32 are summed.
    pub(super) sums_f32: Sums,
    pub(super) arg_lens: Vec<u64>,
    pub(super) result_lens: Vec<u64>,
    /// Bytes of memory that an execution takes.
    pub(super) scratch: ScratchLen,
    module: Option<u64>,
    /// A function for each step that launches one, else 0.
    functions: Vec<u64>,
    /// Scratch memory of executions that were captured, which graphs use.
    captured_scratch: Mutex<Vec<u64>>,
}

/// What an execution works on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bases<'a> {
    pub(super) args: &'a [u64],
    pub(super) outs: &'a [u64],
    pub(super) scratch: u64,
}

/// A handle for products, and the memory that they may use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Products {
    pub(super) handle: u64,
    pub(super) workspace: Scratch,
}

/// Bytes of memory that an execution takes; those of the products are the last.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScratchLen {
    pub(super) values: u64,
    pub(super) workspace: u64,
}

/// What there is of an executable before it is loaded.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) program: Program,
    pub(super) image: Vec<u8>,
    pub(super) sums_f32: Sums,
    pub(super) arg_lens: Vec<u64>,
    pub(super) result_lens: Vec<u64>,
}

impl<D: Driver> Executable<D> {
    /// Loads the code on a device.
    pub(super) fn load(shared: &Arc<Shared<D>>, device: u32, parts: Parts) -> Result<Self> {
        let facts = &shared.device(device)?.facts;
        let blas = shared.driver.blas().ok();
        let blas = blas.filter(|_| has_products(&parts.program));
        let scratch = ScratchLen {
            values: parts
                .program
                .scratch_len_bytes
                .next_multiple_of(ALIGN_BYTES),
            workspace: blas.map_or(0, |blas| blas.workspace_len_bytes(facts)),
        };
        let mut executable = Self {
            shared: Arc::clone(shared),
            device,
            program: parts.program,
            image: parts.image,
            sums_f32: parts.sums_f32,
            arg_lens: parts.arg_lens,
            result_lens: parts.result_lens,
            scratch,
            module: None,
            functions: Vec::new(),
            captured_scratch: Mutex::default(),
        };
        let what = || format!("load the code of a graph on device {device}");
        // What was loaded when a later call fails goes with the executable.
        shared.on_relaxed(device, what, |driver| executable.look_up(driver))?;
        Ok(executable)
    }

    fn look_up(&mut self, driver: &D) -> Answer<()> {
        if self.has_launches() {
            self.module = Some(driver.load_module(&self.image)?);
        }
        let module = self.module.unwrap_or(0);
        let function = |step: &Step| match step {
            Step::Launch(launch) => {
                // Names are identifiers; if one had a NUL, no function would have it.
                let name = CString::new(launch.function.as_str()).unwrap_or_default();
                // SAFETY: the module was loaded above, since there is a step that launches.
                unsafe { driver.function(module, &name) }
            }
            Step::Product(_) => Ok(0),
        };
        self.functions = self
            .program
            .steps
            .iter()
            .map(function)
            .collect::<Answer<_>>()?;
        Ok(())
    }

    /// Whether it has code of its own, and not only products.
    pub(super) fn has_launches(&self) -> bool {
        let is_launch = |step: &Step| matches!(step, Step::Launch(_));
        self.program.steps.iter().any(is_launch)
    }

    /// Memory for an execution that is captured: it stays as long as this, for a graph may run it at
    /// any time. The device is entered.
    pub(super) fn captured_scratch(&self, driver: &D) -> Answer<Scratch> {
        let len_bytes = self.scratch.total();
        if len_bytes == 0 {
            return Ok(Scratch::default());
        }
        let ptr = driver.alloc_device(len_bytes)?;
        lock(&self.captured_scratch).push(ptr);
        Ok(Scratch { ptr, len_bytes })
    }

    /// Queues all steps. The device is entered.
    ///
    /// # Safety
    /// - Addresses and stream are as `execute` has them, the scratch memory is as long as
    ///   [`Executable::scratch`] says and used by nothing else between the stream's work so
    ///   far and that of this execution.
    pub(super) unsafe fn enqueue(
        &self,
        driver: &D,
        stream: u64,
        bases: Bases<'_>,
        products: Option<Products>,
    ) -> Answer<()> {
        let blas = driver.blas().ok().zip(products);
        if let Some((blas, products)) = blas {
            let Scratch { ptr, len_bytes } = products.workspace;
            // SAFETY: the lane's handle; this function's contract for stream and scratch memory.
            unsafe { blas.prepare(products.handle, stream, (ptr, len_bytes))? };
        }
        let mut arguments = Vec::new();
        for (step, function) in self.program.steps.iter().zip(&self.functions) {
            match step {
                Step::Launch(launch) => {
                    arguments.clear();
                    arguments.extend(launch.arguments.iter().map(|place| bases.at(*place)));
                    let launch = FunctionLaunch {
                        function: *function,
                        grid: launch.grid,
                        block: launch.block,
                        arguments: &mut arguments,
                    };
                    // SAFETY: the module is loaded as long as this, which the lane or the instance
                    // keeps until the work is done; the program says what the function takes.
                    unsafe { driver.launch_function(launch, stream)? };
                }
                Step::Product(step) => {
                    // Without the library there would be no such executable.
                    let Some((blas, products)) = blas else {
                        continue;
                    };
                    let gemm = self.gemm(step, bases);
                    // SAFETY: prepared above; this function's contract for the addresses.
                    unsafe { blas.multiply(products.handle, &gemm)? };
                }
            }
        }
        Ok(())
    }

    fn gemm(&self, step: &Product, bases: Bases<'_>) -> crate::Gemm {
        let at = |place| bases.at(place);
        let places = [step.left.place, step.right.place, step.out.place];
        product::by_columns(step, self.sums_f32, places.map(at))
    }
}

impl ScratchLen {
    pub(super) fn total(self) -> u64 {
        self.values + self.workspace
    }
}

impl Bases<'_> {
    /// The address of a place. Places of a program are within what it takes, so that none is missing.
    fn at(&self, place: Place) -> u64 {
        let (base, offset) = match place {
            Place::Argument {
                index,
                offset_bytes,
            } => (self.args.get(index), offset_bytes),
            Place::Result {
                index,
                offset_bytes,
            } => (self.outs.get(index), offset_bytes),
            Place::Scratch { offset_bytes } => (Some(&self.scratch), offset_bytes),
        };
        base.map_or(0, |base| base.wrapping_add(offset))
    }
}

impl<D: Driver> Drop for Executable<D> {
    fn drop(&mut self) {
        let captured = std::mem::take(&mut *lock(&self.captured_scratch));
        let module = self.module.take();
        let what = || format!("unload the code of a graph from device {}", self.device);
        let ended = self.shared.on_ending(self.device, what, |driver| {
            let unloaded = module.map_or(Ok(()), |module| {
                // SAFETY: loaded once; who queued its functions kept this until they were done.
                unsafe { driver.unload_module(module) }
            });
            // All of it, also when something is refused.
            captured.into_iter().fold(unloaded, |outcome, ptr| {
                // SAFETY: this executable's own, and no graph uses it any more.
                let freed = unsafe { driver.free_device(ptr) };
                outcome.and(freed)
            })
        });
        if let Err(error) = ended {
            let level = stepmesh_plugin::LogLevel::Warn;
            self.shared.log(level, format_args!("{error}"));
        }
    }
}

/// Whether a program needs the library of products.
pub(super) fn has_products(program: &Program) -> bool {
    let is_product = |step: &Step| matches!(step, Step::Product(_));
    program.steps.iter().any(is_product)
}

/// What the libraries want of a workspace, and what allocations of a device have.
const ALIGN_BYTES: u64 = 256;
