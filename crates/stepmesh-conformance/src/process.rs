//! A child process with a time limit, and how it ended. What runs in it is in `child`.
#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::check::{Passed, Stop, Verdict};
use crate::raw::progress;
use crate::runner::{Scale, Subject};

/// What a child is asked to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) job: Job,
    pub(crate) part: Option<String>,
    pub(crate) subject: Subject,
    pub(crate) scale: Scale,
}

/// Which kind of work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Job {
    /// The check of this identity.
    Check(String),
    /// Open the plugin and tell what devices it has.
    Probe,
}

/// What a child says of a check.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Pass(String),
    Fail(String),
    Skip(String),
}

impl From<Verdict> for Answer {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Ok(passed) => Self::Pass(passed.note),
            Err(Stop::Fail(why)) => Self::Fail(why),
            Err(Stop::Skip(why)) => Self::Skip(why),
        }
    }
}

/// How a child ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// `None`: not within the limit; it was killed.
    pub(crate) status: Option<ExitStatus>,
    pub(crate) limit: Duration,
    /// What it had written before that.
    pub(crate) answer: Option<String>,
    /// Where it was, as far as it told.
    pub(crate) progress: Option<String>,
    /// The end of what it printed, both streams.
    pub(crate) printed: String,
}

impl Ended {
    /// What to say of a child that did not end well; `None` if it did.
    pub(crate) fn bad_end(&self) -> Option<String> {
        let place = match &self.progress {
            Some(place) => format!(" ({place})"),
            None => String::new(),
        };
        let printed = match self.printed.trim() {
            "" => String::new(),
            printed => format!("; it printed: {printed}"),
        };
        let Some(status) = self.status else {
            let seconds = self.limit.as_secs_f32();
            return Some(format!(
                "timeout: no end within {seconds} s{place}{printed}"
            ));
        };
        match (status.signal(), status.code()) {
            (Some(signal), _) => Some(format!("{}{place}{printed}", signal_name(signal))),
            (None, Some(0)) => None,
            (None, code) => Some(format!(
                "the process exited with code {}{place}{printed}",
                code.unwrap_or(-1)
            )),
        }
    }

    /// The verdict on a check: that of the child, unless its process came to a bad end.
    pub(crate) fn into_verdict(self) -> Verdict {
        let answer = self.answer.as_deref().map(serde_json::from_str::<Answer>);
        let bad_end = self.bad_end();
        match (answer, bad_end) {
            (Some(Ok(Answer::Fail(why))), _) => Err(Stop::Fail(why)),
            (Some(Ok(_)), Some(end)) => {
                Err(Stop::Fail(format!("{end}, after the check had ended")))
            }
            (Some(Ok(Answer::Pass(note))), None) => Ok(Passed { note }),
            (Some(Ok(Answer::Skip(why))), None) => Err(Stop::Skip(why)),
            (_, Some(end)) => Err(Stop::Fail(end)),
            (_, None) => {
                let why = "the plugin ended the process in the middle of the check";
                Err(Stop::Fail(why.into()))
            }
        }
    }
}

/// Runs a child to its end or to the limit. `program` is this program unless it is given.
pub(crate) fn run(
    program: Option<&Path>,
    folder: &Path,
    request: &Request,
    env: &[(&str, &str)],
    limit: Duration,
) -> io::Result<Ended> {
    fs::create_dir_all(folder)?;
    fs::write(folder.join(REQUEST_FILE), serde_json::to_vec(request)?)?;
    let program = match program {
        Some(program) => program.to_owned(),
        None => std::env::current_exe()?,
    };
    let mut command = Command::new(program);
    command
        .arg(CHILD_ARG)
        .arg(folder)
        .envs(env.iter().copied())
        .stdin(Stdio::null())
        .stdout(File::create(folder.join(STDOUT_FILE))?)
        .stderr(File::create(folder.join(STDERR_FILE))?);
    // What a child starts, parts of a check included, is in its group and dies with it at the limit.
    let leads_group = request.part.is_none();
    if leads_group {
        command.process_group(0);
    }
    let status = wait(&mut command.spawn()?, limit, leads_group)?;
    Ok(Ended {
        status,
        limit,
        answer: fs::read_to_string(folder.join(ANSWER_FILE)).ok(),
        progress: progress::read(&folder.join(PROGRESS_FILE)),
        printed: printed(folder),
    })
}

fn wait(child: &mut Child, limit: Duration, leads_group: bool) -> io::Result<Option<ExitStatus>> {
    let until = Instant::now() + limit;
    let mut pause = PAUSE_MIN;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= until {
            let pid = i32::try_from(child.id()).ok().filter(|_| leads_group);
            if let Some(group) = pid.and_then(rustix::process::Pid::from_raw) {
                // Gone already is as good.
                let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            }
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// The end of both streams, cut for a line of a report.
fn printed(folder: &Path) -> String {
    let mut all = String::new();
    for file in [STDERR_FILE, STDOUT_FILE] {
        let bytes = fs::read(folder.join(file)).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes).replace('\n', " ");
        let mut at = text.len().saturating_sub(PRINTED_LEN_MAX);
        while !text.is_char_boundary(at) {
            at += 1;
        }
        all.push_str(&text[at..]);
    }
    all
}

pub(crate) fn signal_name(number: i32) -> String {
    let name = match number {
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGILL => "SIGILL",
        libc::SIGKILL => "SIGKILL",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGSYS => "SIGSYS",
        libc::SIGTERM => "SIGTERM",
        libc::SIGTRAP => "SIGTRAP",
        _ => return format!("signal {number}"),
    };
    name.into()
}

/// First argument of a child; no subcommand of any program is called so.
pub(crate) const CHILD_ARG: &str = "--stepmesh-conformance-child";
/// What the child is to do.
pub(crate) const REQUEST_FILE: &str = "request.json";
/// What it found.
pub(crate) const ANSWER_FILE: &str = "answer.json";
/// Which slot it is in.
pub(crate) const PROGRESS_FILE: &str = "progress";
const STDOUT_FILE: &str = "stdout";
const STDERR_FILE: &str = "stderr";
/// Of what was printed, this much of each stream is shown.
const PRINTED_LEN_MAX: usize = 300;
/// How soon a child is looked at for the first time, and how often at most later.
const PAUSE_MIN: Duration = Duration::from_micros(500);
const PAUSE_MAX: Duration = Duration::from_millis(10);
