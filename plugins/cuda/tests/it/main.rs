//! The cuda backend without a card: judged over the simulated driver, and told what goes wrong with
//! drivers. Has a `main` of its own, because the program starts itself again for each check: the loader
//! reads its search path when a process begins.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test program, which the lints take for an ordinary one"
)]

mod computing;
mod files;
#[path = "../../../simdriver/testing/graphs.rs"]
mod graphs;
mod judged;
mod scenarios;
mod trouble;

use std::process::ExitCode;

use libtest_mimic::Arguments;
use stepmesh_conformance::run_child_if_asked;

fn main() -> ExitCode {
    if let Some(code) = run_child_if_asked(&[]) {
        return code;
    }
    if let Some(code) = scenarios::run_if_asked() {
        return code;
    }
    let arguments = Arguments::from_args();
    // The checks inherit this program's search path.
    if let Err(error) = judged::start_again_over_the_simulated_driver() {
        eprintln!("{error:?}");
        return ExitCode::FAILURE;
    }
    let trials = [
        judged::trials(),
        trouble::trials(),
        computing::trials(),
        files::trials(),
    ];
    libtest_mimic::run(&arguments, trials.into_iter().flatten().collect()).exit_code()
}
