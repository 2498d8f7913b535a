//! The kernels of flags in memory, as the driver takes them. Their source and how they were made is in
//! `kernels/`.
#![forbid(unsafe_code)]

use std::ffi::CStr;

use stepmesh_driver::Kernel;

/// The kernels as PTX, with a NUL at the end.
pub(crate) const PTX: &str = concat!(include_str!("../kernels/flags.ptx"), "\0");

/// Name of a kernel in the PTX, and what it takes: numbers of 8 bytes each.
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
