//! The kernels of flags in memory, as HIP source (`kernels/`), which is compiled for the device when they
//! are first used.
#![forbid(unsafe_code)]

use std::ffi::CStr;

use stepmesh_driver::Kernel;

/// The kernels, for a device whose wall clock makes so many ticks a millisecond.
pub(crate) fn source(ticks_per_ms: u32) -> String {
    let source = include_str!("../kernels/flags.hip");
    format!("#define STEPMESH_TICKS_PER_MS {ticks_per_ms}ULL\n{source}")
}

/// Name of a kernel in the source, and what it takes: numbers of 8 bytes each.
pub(crate) fn name_and_arguments(kernel: Kernel) -> (&'static CStr, Vec<u64>) {
    match kernel {
        Kernel::WriteFlag { flag, seq } => (c"stepmesh_write_flag", vec![flag, seq]),
        Kernel::WaitFlag(wait) => (
            c"stepmesh_wait_flag",
            vec![
                wait.flag,
                wait.seq,
                wait.abort,
                wait.outcome,
                wait.timeout_ns,
            ],
        ),
        Kernel::AddOne { seq } => (c"stepmesh_seq_add_one", vec![seq]),
    }
}
