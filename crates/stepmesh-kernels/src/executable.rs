//! A compiled graph, and how it is run.
#![forbid(unsafe_code)]

use pulp::Arch;
use stepmesh_graph::{CompileOptions, Graph};

use crate::Error;
use crate::kernel::Lent;
use crate::memory::Region;
use crate::plan::{Plan, Step, compile};
use crate::pool::Pool;
use crate::scratch::{Lines, Scratch};

/// A compiled graph. It may run on several threads at once, each time on other memory.
#[derive(Debug)]
pub struct Executable {
    plan: Plan,
    constants: Vec<Lines>,
    scratch: Scratch,
    threads_max: usize,
    arch: Arch,
}

impl Executable {
    /// Compiles a graph. The same arguments always give the same bits, whatever the threads.
    ///
    /// # Errors
    /// `Invalid` if intermediate values are more than a process can have.
    pub fn compile(graph: &Graph, options: &CompileOptions) -> Result<Self, Error> {
        let mut plan = compile(graph)?;
        let constants = std::mem::take(&mut plan.constants);
        let constants = constants.iter().map(|bytes| Lines::of(bytes)).collect();
        let threads = usize::try_from(options.threads_max).unwrap_or(usize::MAX);
        Ok(Self {
            plan,
            constants,
            scratch: Scratch::default(),
            threads_max: if threads == 0 { usize::MAX } else { threads },
            arch: Arch::new(),
        })
    }

    /// Bytes that one run takes for intermediate values, beside the registers of its threads.
    #[must_use]
    pub fn scratch_len_bytes(&self) -> usize {
        self.plan.buffers.workspace_len
    }

    /// Bytes of each argument.
    #[must_use]
    pub fn arg_lens(&self) -> &[usize] {
        &self.plan.buffers.args
    }

    /// Bytes of each result.
    #[must_use]
    pub fn result_lens(&self) -> &[usize] {
        &self.plan.buffers.results
    }

    /// The plan as text: what was fused, and what goes to memory.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.plan.text
    }

    /// Runs it on this thread and on those of the pool, and returns when it is done.
    ///
    /// # Errors
    /// `Buffer` if there are too few regions or one is too short; nothing was run then.
    pub fn run(&self, pool: &Pool, args: &[Region], results: &[Region]) -> Result<(), Error> {
        let buffers = &self.plan.buffers;
        check("argument", args, &buffers.args)?;
        check("result", results, &buffers.results)?;
        let mut workspace = self.scratch.workspace(buffers.workspace_len);
        let own = workspace.region();
        let mut regions = std::mem::take(&mut workspace.regions);
        regions.clear();
        regions.extend_from_slice(&args[..buffers.args.len()]);
        regions.extend_from_slice(&results[..buffers.results.len()]);
        let constants = self.constants.iter().zip(&buffers.constants);
        regions.extend(constants.map(|(lines, len)| lines.region().part(0, *len)));
        let parts = buffers.parts.iter();
        regions.extend(parts.map(|part| own.part(part.offset, part.len_bytes)));
        let lent = Lent {
            arch: self.arch,
            pool,
            threads_max: self.threads_max,
            scratch: &self.scratch,
            regions: &regions,
        };
        for step in &self.plan.steps {
            match step {
                Step::Kernel(kernel) => kernel.run(lent),
                Step::Product(product) => product.run(lent),
                Step::Gather(gather) => gather.run(lent),
                Step::IndexAdd(add) => add.run(lent),
            }
        }
        workspace.regions = regions;
        self.scratch.give_back(workspace);
        Ok(())
    }
}

fn check(what: &'static str, given: &[Region], needed: &[usize]) -> Result<(), Error> {
    for (number, needed_bytes) in needed.iter().enumerate() {
        let len_bytes = given.get(number).map_or(0, Region::len_bytes);
        if number >= given.len() || len_bytes < *needed_bytes {
            return Err(Error::Buffer {
                what,
                number,
                len_bytes,
                needed_bytes: *needed_bytes,
            });
        }
    }
    Ok(())
}
