//! Which operations go wrong: the grammar of `sim.faults`, and the counts. What going wrong means is
//! done by the callers.
#![forbid(unsafe_code)]

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use stepmesh_plugin::abi::Code;
use stepmesh_plugin::abi::error::{SM_ERROR_DEVICE_LOST, SM_ERROR_PEER_FATAL, SM_ERROR_STICKY};
use stepmesh_plugin::{Error, Result};

/// The faults of an instance, and how far each device is.
#[derive(Debug)]
pub(crate) struct Faults {
    opened: Instant,
    faults: Vec<Fault>,
    // One for each device.
    lost: Vec<AtomicBool>,
}

/// What can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An allocation is out of memory.
    AllocOom,
    /// A copy fails.
    CopyFail,
    /// A stream stands still.
    StreamStuck,
    /// The device is lost.
    DeviceLost,
}

/// A fault that is due, by the words that asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Due<'a>(&'a str);

#[derive(Debug)]
struct Fault {
    text: String,
    kind: Kind,
    // Any if none.
    device: Option<u32>,
    when: When,
    is_repeated: bool,
    // One for each device.
    counts: Vec<AtomicU64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Nth(u64),
    After(Duration),
}

impl Faults {
    /// Reads the list. Time counts from here on.
    pub(crate) fn parse(text: &str, device_count: u32) -> Result<Self> {
        let items = text
            .split(',')
            .map(str::trim)
            .filter(|item| !item.is_empty());
        let faults: Vec<Fault> = items
            .map(|item| Fault::parse(item, device_count))
            .collect::<Result<_>>()?;
        if faults.len() > FAULTS_MAX {
            let message = format!("sim.faults has more than {FAULTS_MAX} faults");
            return Err(Error::invalid_argument(message));
        }
        Ok(Self {
            opened: Instant::now(),
            faults,
            lost: (0..device_count).map(|_| AtomicBool::new(false)).collect(),
        })
    }

    /// Counts an operation of a kind on a device and says whether it goes wrong.
    pub(crate) fn count(&self, kind: Kind, device: u32) -> Option<Due<'_>> {
        let elapsed = self.opened.elapsed();
        // All are counted, also behind one that is due.
        let of_kind = self.faults.iter().filter(|fault| fault.kind == kind);
        let due = of_kind.filter(|fault| fault.count(device, elapsed));
        due.fold(None, |first, fault| first.or(Some(Due(&fault.text))))
    }

    /// Counts an operation that a device must be there for.
    pub(crate) fn count_operation(&self, device: u32) -> Result<()> {
        if let Some(due) = self.count(Kind::DeviceLost, device)
            && let Some(lost) = self.lost(device)
            && !lost.swap(true, Ordering::AcqRel)
        {
            return Err(lost_error(device, &due.to_string()));
        }
        self.check(device)
    }

    /// Refuses a lost device.
    pub(crate) fn check(&self, device: u32) -> Result<()> {
        if self.is_lost(device) {
            return Err(lost_error(device, "for good; open another instance"));
        }
        Ok(())
    }

    pub(crate) fn is_lost(&self, device: u32) -> bool {
        let elapsed = self.opened.elapsed();
        let is_due = |fault: &Fault| {
            fault.kind == Kind::DeviceLost
                && fault.is_of(device)
                && matches!(fault.when, When::After(time) if elapsed >= time)
        };
        self.lost(device)
            .is_some_and(|lost| lost.load(Ordering::Acquire))
            || self.faults.iter().any(is_due)
    }

    fn lost(&self, device: u32) -> Option<&AtomicBool> {
        self.lost.get(usize::try_from(device).ok()?)
    }
}

impl Fault {
    fn parse(text: &str, device_count: u32) -> Result<Self> {
        let refuse = |what: &str| {
            Error::invalid_argument(format!(
                "configuration key `sim.faults`: `{text}` {what}; write SITE[.DEVICE]:EFFECT@WHEN, \
                 such as `alloc:oom@3`, `copy.1:fail@10+`, `stream:stuck@2` or `device:lost@100ms`"
            ))
        };
        let (what, when) = text.split_once('@').ok_or_else(|| refuse("has no `@`"))?;
        let (site, effect) = what.split_once(':').ok_or_else(|| refuse("has no `:`"))?;
        let (site, device) = match site.split_once('.') {
            Some((site, device)) => (site, Some(device)),
            None => (site, None),
        };
        let kind = match (site.trim(), effect.trim()) {
            ("alloc", "oom") => Kind::AllocOom,
            ("copy", "fail") => Kind::CopyFail,
            ("stream", "stuck") => Kind::StreamStuck,
            ("device", "lost") => Kind::DeviceLost,
            _ => return Err(refuse("is no fault that there is")),
        };
        let device = match device.map(|device| device.trim().parse::<u32>()) {
            None => None,
            Some(Ok(device)) if device < device_count => Some(device),
            Some(_) => return Err(refuse("names a device that does not exist")),
        };
        let (when, is_repeated) = match when.trim().strip_suffix('+') {
            Some(when) => (when, true),
            None => (when.trim(), false),
        };
        let when = match when.strip_suffix("ms") {
            Some(ms) => ms
                .trim()
                .parse()
                .map(Duration::from_millis)
                .map(When::After),
            None => when.parse().map(When::Nth),
        };
        let when = when.map_err(|_| refuse("has no count and no time in ms"))?;
        if when == When::Nth(0) {
            return Err(refuse("counts from 1"));
        }
        Ok(Self {
            text: text.to_owned(),
            kind,
            device,
            when,
            is_repeated,
            counts: (0..device_count).map(|_| AtomicU64::new(0)).collect(),
        })
    }

    fn is_of(&self, device: u32) -> bool {
        self.device.is_none_or(|own| own == device)
    }

    /// Counts an operation and says whether it is one that goes wrong.
    fn count(&self, device: u32, elapsed: Duration) -> bool {
        let count = usize::try_from(device)
            .ok()
            .and_then(|idx| self.counts.get(idx))
            .filter(|_| self.is_of(device));
        let Some(count) = count else { return false };
        match self.when {
            When::Nth(nth) => {
                let now = count.fetch_add(1, Ordering::AcqRel) + 1;
                now == nth || (self.is_repeated && now > nth)
            }
            // Those before the time are not counted.
            When::After(time) => {
                elapsed >= time && (count.fetch_add(1, Ordering::AcqRel) == 0 || self.is_repeated)
            }
        }
    }
}

impl fmt::Display for Due<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fault `{}` of sim.faults", self.0)
    }
}

fn lost_error(device: u32, why: &str) -> Error {
    Error::new(
        Code::Unavailable,
        format!("simulated device {device} is lost: {why}"),
    )
    .with_flags(SM_ERROR_DEVICE_LOST | SM_ERROR_STICKY | SM_ERROR_PEER_FATAL)
}

/// Faults of an instance at most: each is looked at with each operation.
const FAULTS_MAX: usize = 64;

#[cfg(test)]
mod tests;
