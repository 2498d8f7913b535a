//! Graphs on a simulated device: run like the cpu backend's, by the alias of the device's memory, and
//! with the delays and faults that any work has.
#![expect(
    unsafe_code,
    reason = "vouches for the memory that a caller vouched for"
)]

use std::sync::Arc;

use stepmesh_kernels::{Executable, Region};
use stepmesh_plugin::abi::Code;
use stepmesh_plugin::compute::{CompileOptions, Compute, DType, Graph, OpKind, TextForm};
use stepmesh_plugin::software::to_u64;
use stepmesh_plugin::{Error, Result, Stream};

use crate::Sim;
use crate::memory::Memory;

/// A graph that was compiled for a device.
#[derive(Debug)]
pub struct Compiled {
    device: u32,
    executable: Executable,
}

impl Compute for Sim {
    type Executable = Compiled;

    fn supports(&self, _device: u32, op: OpKind, _dtype: DType) -> bool {
        !self.options.lacks.contains(&op)
    }

    fn compile(
        &self,
        device: u32,
        graph: &Arc<Graph>,
        options: &CompileOptions,
    ) -> Result<Compiled> {
        self.faults.check(device)?;
        let executable = Executable::compile(graph, options).map_err(|error| failed(&error))?;
        Ok(Compiled { device, executable })
    }

    unsafe fn execute(
        &self,
        executable: &Arc<Compiled>,
        args: &[u64],
        outs: &[u64],
        stream: Stream,
    ) -> Result<()> {
        let stream = self.stream(stream)?;
        let pool = self.threads.get().map_err(|error| failed(&error))?;
        let compiled = Arc::clone(executable);
        let (args, outs) = (args.to_vec(), outs.to_vec());
        // Refused now what could only go wrong then; and found again then, as a copy is.
        compiled.places(&self.memory, &args, &outs)?;
        let simulator = Arc::clone(&self.simulator);
        stream.run(move |worker| {
            simulator.work(worker, || {
                let (args, outs) = compiled.places(&simulator.memory, &args, &outs)?;
                // SAFETY: device memory lies within its alias, which lives as long as the
                // simulator; host memory is readable until the stream did the work, by the contract
                // of `execute`.
                let args = unsafe { Region::list(&args, compiled.executable.arg_lens()) };
                // SAFETY: as above, and writable; overlapping only the argument of a donation.
                let outs = unsafe { Region::list(&outs, compiled.executable.result_lens()) };
                let done = compiled.executable.run(&pool, &args, &outs);
                done.map_err(|error| failed(&error))
            })
        })
    }

    fn scratch_len_bytes(&self, executable: &Compiled) -> u64 {
        to_u64(executable.executable.scratch_len_bytes())
    }

    fn text(&self, executable: &Compiled, form: TextForm) -> Result<String> {
        match form {
            TextForm::Plan => Ok(executable.executable.text().to_owned()),
            _ => Err(Error::unimplemented(
                "the sim backend generates no source; ask for the plan",
            )),
        }
    }
}

impl Compiled {
    /// Where arguments and results really are.
    fn places(&self, memory: &Memory, args: &[u64], outs: &[u64]) -> Result<(Vec<u64>, Vec<u64>)> {
        let find = |addresses: &[u64], lens: &[usize]| {
            let pairs = addresses.iter().zip(lens);
            pairs
                .map(|(address, len)| memory.reachable(self.device, *address, to_u64(*len)))
                .collect::<Result<Vec<u64>>>()
        };
        let args = find(args, self.executable.arg_lens())?;
        Ok((args, find(outs, self.executable.result_lens())?))
    }
}

fn failed(error: &stepmesh_kernels::Error) -> Error {
    Error::new(Code::ResourceExhausted, error.to_string())
}
