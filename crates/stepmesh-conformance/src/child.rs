//! The hidden entry of a program that runs checks: does one of them and leaves the answer in a file.
#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;

use crate::check::{Stop, Verdict};
use crate::checks::checks;
use crate::context::Context;
use crate::process::{ANSWER_FILE, Answer, CHILD_ARG, Job, PROGRESS_FILE, REQUEST_FILE, Request};
use crate::raw::plugin::BuiltIn;
use crate::raw::progress;

/// Does the work of a child process if this process was started for that, and gives the code with
/// which `main` is to return. A program that calls [`crate::run`] or [`crate::probe`] calls this
/// first of all, because they start it again.
///
/// `built_in` are the plugins that [`crate::Subject::BuiltIn`] can name.
#[must_use]
pub fn run_child_if_asked(built_in: &[BuiltIn]) -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    if args.next().as_deref() != Some(OsStr::new(CHILD_ARG)) {
        return None;
    }
    let folder = args.next()?;
    let folder = Path::new(&folder);
    Some(match work(folder, built_in) {
        Ok(()) => ExitCode::SUCCESS,
        // The parent sees the code and that there is no answer.
        Err(_) => ExitCode::from(CODE_NO_ANSWER),
    })
}

fn work(folder: &Path, built_in: &[BuiltIn]) -> std::io::Result<()> {
    let request: Request = serde_json::from_slice(&fs::read(folder.join(REQUEST_FILE))?)?;
    progress::start(&folder.join(PROGRESS_FILE))?;
    let Request {
        job,
        part,
        subject,
        scale,
    } = request;
    let context = |id| Context {
        id,
        subject,
        part,
        scale,
        built_in,
        folder: folder.to_owned(),
    };
    let answer = match job {
        Job::Check(id) => match checks().find(|check| check.id == id) {
            Some(check) => {
                let context = context(check.id);
                serde_json::to_string(&Answer::from(guarded(|| (check.run)(&context))))?
            }
            None => serde_json::to_string(&Answer::Fail(format!("there is no check {id}")))?,
        },
        Job::Probe => crate::probe::answer(&context("probe"))?,
    };
    fs::write(folder.join(ANSWER_FILE), answer)
}

/// A check that panics has failed; its message is among what the process printed.
fn guarded(check: impl FnOnce() -> Verdict) -> Verdict {
    catch_unwind(AssertUnwindSafe(check)).unwrap_or_else(|payload| {
        let text = payload
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| payload.downcast_ref::<&str>().copied());
        let why = format!(
            "the check panicked: {}",
            text.unwrap_or("without a message")
        );
        Err(Stop::Fail(why))
    })
}

/// Exit code of a child that could not even say what is wrong.
const CODE_NO_ANSWER: u8 = 70;
