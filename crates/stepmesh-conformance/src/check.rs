//! What a check is, and how it says what it found. The checks themselves are in `checks`.
#![forbid(unsafe_code)]

use std::fmt;

use stepmesh_abi::Code;

use crate::context::Context;
use crate::raw::failure::Failure;

/// One thing that a plugin must do.
#[derive(Clone, Copy)]
pub struct Check {
    /// Identity, such as `M3`: stable, used by lists of expectations.
    pub id: &'static str,
    /// Name for people.
    pub name: &'static str,
    /// Who must pass it.
    pub tier: Tier,
    /// What it is about.
    pub group: Group,
    /// What a pass proves.
    pub proves: &'static str,
    pub(crate) run: fn(&Context<'_>) -> Verdict,
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Check({} {})", self.id, self.name)
    }
}

/// Who must pass a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Tier {
    /// Every plugin.
    Required,
    /// A plugin that has the capability or extension.
    Capability,
    /// A plugin that is to be trusted under load.
    Stress,
}

impl Tier {
    /// The tier of a number, 1 to 3.
    #[must_use]
    pub fn of(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Required),
            2 => Some(Self::Capability),
            3 => Some(Self::Stress),
            _ => None,
        }
    }

    /// 1 to 3.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Required => 1,
            Self::Capability => 2,
            Self::Stress => 3,
        }
    }
}

/// What a check is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Group {
    /// L: the file, loading, versions.
    Load,
    /// E: errors.
    Errors,
    /// D: devices.
    Device,
    /// M: memory.
    Memory,
    /// S: streams and events.
    Stream,
    /// R: memory for network adapters (`stepmesh.rdma.v1`).
    Rdma,
    /// ME: events in memory (`stepmesh.memevent.v1`).
    MemEvent,
    /// I: memory shared between processes (`stepmesh.ipc.v1`).
    Ipc,
    /// K: threads and forks.
    Concurrency,
    /// X: lifecycle.
    Lifecycle,
    /// Z: computing (`stepmesh.compute.v1`).
    Compute,
}

impl Group {
    /// The letters that identities start with.
    #[must_use]
    pub fn letters(self) -> &'static str {
        match self {
            Self::Load => "L",
            Self::Errors => "E",
            Self::Device => "D",
            Self::Memory => "M",
            Self::Stream => "S",
            Self::Rdma => "R",
            Self::MemEvent => "ME",
            Self::Ipc => "I",
            Self::Concurrency => "K",
            Self::Lifecycle => "X",
            Self::Compute => "Z",
        }
    }
}

/// What a check found: it passed, perhaps with something to say, or it stopped.
pub(crate) type Verdict = Result<Passed, Stop>;

/// The check passed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Passed {
    pub(crate) note: String,
}

/// The check ended early.
#[derive(Clone, Debug)]
pub(crate) enum Stop {
    /// The plugin does not do what it must.
    Fail(String),
    /// The plugin need not do it.
    Skip(String),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Fail(format!("{failure}, where success was due"))
    }
}

pub(crate) fn pass() -> Verdict {
    Ok(Passed::default())
}

pub(crate) fn pass_noting(note: impl Into<String>) -> Verdict {
    Ok(Passed { note: note.into() })
}

pub(crate) fn fail<T>(why: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Fail(why.into()))
}

pub(crate) fn skip<T>(why: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Skip(why.into()))
}

/// Ends the check with a failure unless something holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        let holds: bool = $condition;
        if !holds {
            return Err($crate::check::Stop::Fail(format!($($message)+)));
        }
    };
}
pub(crate) use ensure;

/// The failure of a call that must fail with this code.
pub(crate) fn expect_code<T>(
    what: &str,
    result: Result<T, Failure>,
    code: Code,
) -> Result<Failure, Stop> {
    match result {
        Ok(_) => fail(format!("{what}: succeeded, where `{code}` was due")),
        Err(failure) if failure.code == code => Ok(failure),
        Err(failure) => fail(format!("{what}: {failure}, where `{code}` was due")),
    }
}

/// What a call of an optional slot gave; the check is skipped if the plugin has no such slot.
pub(crate) fn optional<T>(result: Result<T, Failure>) -> Result<T, Stop> {
    result.map_err(|failure| {
        if failure.is_absent {
            Stop::Skip(failure.to_string())
        } else {
            failure.into()
        }
    })
}
