//! Runs checks one after the other and collects what became of them.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::check::{Check, Group, Stop, Tier, Verdict};
use crate::checks::checks;
use crate::error::Error;
use crate::expectations::Expectations;
use crate::process::{self, Job, Request};
use crate::report::{CheckResult, Outcome, Report};

/// What is judged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Subject {
    /// A plugin file.
    File(PathBuf),
    /// A plugin that is linked into the program, by the name that it gave
    /// [`crate::run_child_if_asked`].
    BuiltIn(String),
}

impl Subject {
    /// A plugin file.
    #[must_use]
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self::File(path.into())
    }
}

impl std::fmt::Display for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::BuiltIn(name) => write!(f, "{name} (built in)"),
        }
    }
}

/// How much work a check does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scale {
    /// As much as a verdict is worth: minutes at tier 3, gigabytes of memory.
    #[default]
    Full,
    /// A hundredth, for a plugin's everyday tests.
    Reduced,
}

/// Which checks run, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// Checks of this tier and the lower ones.
    pub tier: Tier,
    /// Only checks whose identity or group matches this glob (`M3`, `M*`, `ME`).
    pub only: Option<String>,
    /// How much work they do.
    pub scale: Scale,
    /// Time that one check may take; by its tier when `None`.
    pub limit: Option<Duration>,
    /// What the plugin is known not to do.
    pub expectations: Expectations,
    /// The program that is started for each check; this one when `None`. It calls
    /// [`crate::run_child_if_asked`].
    pub program: Option<PathBuf>,
}

impl Default for Options {
    /// Every check of tier 1 and 2, in full.
    fn default() -> Self {
        Self {
            tier: Tier::Capability,
            only: None,
            scale: Scale::Full,
            limit: None,
            expectations: Expectations::default(),
            program: None,
        }
    }
}

/// Judges a plugin. `on_result` is told of each check as it ends.
///
/// # Errors
/// `NothingMatches`, `ReadPlugin`, `Child`. What the plugin does wrong is in the report.
pub fn run(
    subject: &Subject,
    options: &Options,
    on_result: &mut dyn FnMut(&CheckResult),
) -> Result<Report, Error> {
    let subject = absolute(subject)?;
    let is_wanted = |check: &&Check| check.tier <= options.tier && is_chosen(check, options);
    let chosen: Vec<_> = checks().filter(is_wanted).collect();
    if let (true, Some(pattern)) = (chosen.is_empty(), &options.only) {
        let pattern = pattern.clone();
        return Err(Error::NothingMatches { pattern });
    }
    let mut results = Vec::with_capacity(chosen.len());
    for check in chosen {
        let result = run_one(check, &subject, options)?;
        on_result(&result);
        results.push(result);
    }
    Ok(Report { subject, results })
}

fn run_one(
    check: &'static Check,
    subject: &Subject,
    options: &Options,
) -> Result<CheckResult, Error> {
    let start = Instant::now();
    let result = |outcome, text| CheckResult {
        check,
        outcome,
        text,
        duration: start.elapsed(),
    };
    if let Some(entry) = options.expectations.unsupported(check) {
        let text = format!("listed as unsupported: {}", entry.reason);
        return Ok(result(Outcome::Skip, text));
    }
    let verdict = verdict_on(check, subject, options).map_err(|source| Error::Child {
        check: check.id,
        source,
    })?;
    let expected = options.expectations.expected_failure(check);
    Ok(match (verdict, expected) {
        (Ok(passed), None) => result(Outcome::Pass, passed.note),
        (Ok(_), Some(entry)) => {
            let reason = &entry.reason;
            let text = format!("passes, though it is listed as a failure ({reason}): unlist it");
            result(Outcome::Fail, text)
        }
        (Err(Stop::Skip(why)), _) => result(Outcome::Skip, why),
        (Err(Stop::Fail(why)), None) => result(Outcome::Fail, why),
        (Err(Stop::Fail(why)), Some(entry)) => {
            result(Outcome::ExpectedFailure, format!("{}: {why}", entry.reason))
        }
    })
}

fn verdict_on(check: &Check, subject: &Subject, options: &Options) -> std::io::Result<Verdict> {
    let folder = tempfile::Builder::new()
        .prefix("stepmesh-conform-")
        .tempdir()?;
    let request = Request {
        job: Job::Check(check.id.into()),
        part: None,
        subject: subject.clone(),
        scale: options.scale,
    };
    let limit = options.limit.unwrap_or_else(|| limit_of(check));
    let program = options.program.as_deref();
    let ended = process::run(program, folder.path(), &request, &[], limit)?;
    Ok(ended.into_verdict())
}

pub(crate) fn absolute(subject: &Subject) -> Result<Subject, Error> {
    Ok(match subject {
        Subject::File(path) => Subject::File(canonical(path)?),
        Subject::BuiltIn(name) => Subject::BuiltIn(name.clone()),
    })
}

fn canonical(path: &Path) -> Result<PathBuf, Error> {
    path.canonicalize().map_err(|source| Error::ReadPlugin {
        path: path.into(),
        source,
    })
}

fn is_chosen(check: &Check, options: &Options) -> bool {
    let Some(pattern) = &options.only else {
        return true;
    };
    matches_glob(pattern, check.id) || pattern.eq_ignore_ascii_case(check.group.letters())
}

/// Whether a glob of `*` (any text) and `?` (any character) matches, without regard to case.
pub(crate) fn matches_glob(glob: &str, text: &str) -> bool {
    fn matches(glob: &[char], text: &[char]) -> bool {
        match (glob.split_first(), text.split_first()) {
            (None, None) => true,
            (Some(('*', rest)), _) => (0..=text.len()).any(|at| matches(rest, &text[at..])),
            (Some((wanted, glob)), Some((found, text))) => {
                (*wanted == '?' || wanted.eq_ignore_ascii_case(found)) && matches(glob, text)
            }
            _ => false,
        }
    }
    let chars = |text: &str| text.chars().collect::<Vec<_>>();
    matches(&chars(glob), &chars(text))
}

fn limit_of(check: &Check) -> Duration {
    match check.tier {
        // A vendor's compiler takes its time, and there are hundreds of graphs.
        _ if check.group == Group::Compute => Duration::from_secs(600),
        Tier::Required | Tier::Capability => Duration::from_secs(60),
        Tier::Stress => Duration::from_secs(600),
    }
}
