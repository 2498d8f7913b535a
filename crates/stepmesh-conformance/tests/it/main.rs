//! The checks judge our own plugins, which must be good, and deliberately wrong ones, each of which
//! must be caught by the check that is there for it. Has a `main` of its own, because the program
//! starts itself again for each check.

mod judged;
mod spoiled;

use std::process::ExitCode;

use libtest_mimic::Arguments;
use stepmesh_conformance::{BuiltIn, run_child_if_asked};

fn main() -> ExitCode {
    // SAFETY: the entry of a backend that is linked in.
    let cpu = unsafe { BuiltIn::new("cpu", stepmesh_backend_cpu::query) };
    if let Some(code) = run_child_if_asked(&[cpu]) {
        return code;
    }
    let arguments = Arguments::from_args();
    let trials = [judged::trials(), spoiled::trials()];
    libtest_mimic::run(&arguments, trials.into_iter().flatten().collect()).exit_code()
}
