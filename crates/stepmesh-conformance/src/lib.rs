//! Judges any StepMesh backend plugin: every promise of `docs/abi.md` as a check with a name.
//!
//! Choices that hold for the whole crate:
//! - Each check runs in a process of its own with a time limit. A crash or a hang of the plugin is
//!   a failed check that names the signal and the slot, and the next check runs all the same.
//! - Checks are data ([`checks`]): an identity, a tier, a group, what it proves, a function.
//! - A check is skipped for one of three facts only: a capability bit that is not set, an extension
//!   or optional slot that is not there, or too few devices. The report says which.
//! - What a plugin cannot do, and what it does wrong and is known, are two lists ([`Expectations`]),
//!   each entry with its reason. Something on the second list that works is a failure.
//!
//! # Example
//! The program of a plugin's own tests: `harness = false` in its manifest, and
//! ```no_run
//! use std::process::ExitCode;
//! use stepmesh_conformance::{Options, Subject, run, run_child_if_asked};
//!
//! fn main() -> ExitCode {
//!     // The program runs itself again for each check.
//!     if let Some(code) = run_child_if_asked(&[]) {
//!         return code;
//!     }
//!     let subject = Subject::file("target/debug/libstepmesh_backend_mine.so");
//!     let report = run(&subject, &Options::default(), &mut |_| {}).expect("the checks can run");
//!     println!("{report}");
//!     if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
//! }
//! ```
//! `stepmesh plugin conform FILE` is the same without writing a program.
//!
//! # Threads
//! A run uses the calling thread; several runs may go on at once.
//!
//! # Cleaning up
//! Children are killed with their process group at the limit, and their folders removed.
//!
//! # What it does not do
//! It judges no speed, and not the host: the loader's own tests are in stepmesh-core. The plugin is
//! loaded in children only, never in the program that asks.
#![deny(unsafe_code)]

mod check;
mod checks;
mod child;
mod context;
mod elf;
mod error;
mod expectations;
mod inspect;
mod probe;
mod process;
mod raw;
mod report;
mod runner;

pub use check::{Check, Group, Tier};
pub use checks::checks;
pub use child::run_child_if_asked;
pub use error::Error;
pub use expectations::{Expectation, Expectations};
pub use inspect::{Finding, Inspection, inspect};
pub use probe::{ProbeReport, ProbedDevice, probe};
pub use raw::plugin::BuiltIn;
pub use report::{CheckResult, Counts, Outcome, Report};
pub use runner::{Options, Scale, Subject, run};

#[cfg(test)]
mod tests;
