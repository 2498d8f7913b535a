//! Graphs on host memory: when they run and on which threads. How they are compiled and run is
//! `stepmesh-kernels`'.
#![expect(
    unsafe_code,
    reason = "vouches for the memory that a caller vouched for"
)]

use std::sync::Arc;

use stepmesh_kernels::{Executable, LazyPool, Region};
use stepmesh_plugin::compute::{CompileOptions, Compute, DType, Graph, OpKind, TextForm};
use stepmesh_plugin::{Error, Host, Result, Stream};

use crate::Cpu;

/// The threads that execute graphs, as many as the configuration says.
pub(crate) fn threads(host: &Host) -> Result<LazyPool> {
    // 0: as many as the process may run on.
    let count = match host.config(KEY) {
        None => 0,
        Some(text) => text.trim().parse().map_err(|_| {
            Error::invalid_argument(format!(
                "configuration key `{KEY}` = `{text}`: allowed is a whole number"
            ))
        })?,
    };
    Ok(LazyPool::new(count))
}

impl Compute for Cpu {
    type Executable = Executable;

    fn supports(&self, _device: u32, _op: OpKind, _dtype: DType) -> bool {
        true
    }

    fn compile(
        &self,
        _device: u32,
        graph: &Arc<Graph>,
        options: &CompileOptions,
    ) -> Result<Executable> {
        Executable::compile(graph, options).map_err(|error| failed(&error))
    }

    unsafe fn execute(
        &self,
        executable: &Arc<Executable>,
        args: &[u64],
        outs: &[u64],
        stream: Stream,
    ) -> Result<()> {
        let pool = self.threads.get().map_err(|error| failed(&error))?;
        // SAFETY: this method's contract: readable until the stream did the work, and no one writes.
        let args = unsafe { Region::list(args, executable.arg_lens()) };
        // SAFETY: this method's contract: writable until then, used by no one else, and overlapping
        // only the argument of a donation, for which the graph was compiled.
        let outs = unsafe { Region::list(outs, executable.result_lens()) };
        let executable = Arc::clone(executable);
        self.streams.find(stream)?.run(move |_| {
            let done = executable.run(&pool, &args, &outs);
            done.map_err(|error| failed(&error))
        })
    }

    fn scratch_len_bytes(&self, executable: &Executable) -> u64 {
        u64::try_from(executable.scratch_len_bytes()).unwrap_or(u64::MAX)
    }

    fn text(&self, executable: &Executable, form: TextForm) -> Result<String> {
        match form {
            TextForm::Plan => Ok(executable.text().to_owned()),
            _ => Err(Error::unimplemented(
                "the cpu backend generates no source; ask for the plan",
            )),
        }
    }
}

fn failed(error: &stepmesh_kernels::Error) -> Error {
    Error::new(
        stepmesh_plugin::abi::Code::ResourceExhausted,
        error.to_string(),
    )
}

/// The option that bounds the threads.
const KEY: &str = "cpu.threads";
