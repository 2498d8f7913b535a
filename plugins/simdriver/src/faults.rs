//! Which calls and which work go wrong: the grammar of `STEPMESH_SIMDRIVER_FAULTS`, and the counts.
//! What going wrong means is done by the callers.
#![forbid(unsafe_code)]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The faults of the process: a list of `SITE[.DEVICE]:EFFECT@WHEN[+]`, separated by commas, such as
/// `cuMemAlloc_v2:2@3, work:719@5, work.1:stuck@1, device:214@100ms`.
///
/// | site | what counts | effects |
/// |---|---|---|
/// | the name of a function | its calls | a status, which the call answers without doing anything; with `!` the devices are broken from then on |
/// | `work` | what streams do | a status, which breaks the device; `stuck`: the stream stands still until the device is broken |
/// | `device` | time only | a status, which breaks the device |
///
/// `@3` is the third, `@100ms` the first one 100 ms or more after the library was first called; with
/// `+` all later ones too. An item that is not understood does nothing.
#[derive(Debug)]
pub struct Faults {
    start: Instant,
    items: Vec<Item>,
}

/// What a fault does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Answers a status.
    Status(i32),
    /// Answers a status and breaks every device.
    Sticky(i32),
    /// Stands still.
    Stuck,
}

#[derive(Debug)]
struct Item {
    site: String,
    device: Option<u32>,
    effect: Effect,
    when: When,
    is_repeated: bool,
    count: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Nth(u64),
    After(Duration),
}

impl Faults {
    pub(crate) fn of_process() -> &'static Self {
        static FAULTS: OnceLock<Faults> = OnceLock::new();
        FAULTS.get_or_init(|| {
            let text = std::env::var("STEPMESH_SIMDRIVER_FAULTS").unwrap_or_default();
            Self::parse(&text)
        })
    }

    fn parse(text: &str) -> Self {
        let items = text.split(',').filter_map(|item| Item::parse(item.trim()));
        Self {
            start: Instant::now(),
            items: items.collect(),
        }
    }

    /// Counts one at a site and says what goes wrong with it.
    pub(crate) fn count(&self, site: &str, device: Option<u32>) -> Option<Effect> {
        let elapsed = self.start.elapsed();
        let of_site = self.items.iter().filter(|item| item.is_of(site, device));
        // All are counted, also behind one that is due.
        of_site.fold(None, |first, item| {
            let due = item.count(elapsed).then_some(item.effect);
            first.or(due)
        })
    }

    /// The status of a fault that breaks a device by time and is due.
    pub(crate) fn device_fault(&self, device: u32) -> Option<i32> {
        let elapsed = self.start.elapsed();
        self.items
            .iter()
            .find_map(|item| match (item.when, item.effect) {
                (When::After(time), Effect::Status(status) | Effect::Sticky(status))
                    if item.is_of("device", Some(device)) && elapsed >= time =>
                {
                    Some(status)
                }
                _ => None,
            })
    }
}

impl Item {
    fn parse(text: &str) -> Option<Self> {
        let (what, when) = text.split_once('@')?;
        let (site, effect) = what.split_once(':')?;
        let (site, device) = match site.split_once('.') {
            Some((site, device)) => (site, Some(device.parse().ok()?)),
            None => (site, None),
        };
        let effect = match effect.strip_suffix('!') {
            _ if effect == "stuck" => Effect::Stuck,
            Some(status) => Effect::Sticky(status.parse().ok()?),
            None => Effect::Status(effect.parse().ok()?),
        };
        let (when, is_repeated) = match when.strip_suffix('+') {
            Some(when) => (when, true),
            None => (when, false),
        };
        let when = match when.strip_suffix("ms") {
            Some(ms) => When::After(Duration::from_millis(ms.parse().ok()?)),
            None => When::Nth(when.parse().ok()?),
        };
        Some(Self {
            site: site.to_owned(),
            device,
            effect,
            when,
            is_repeated,
            count: AtomicU64::new(0),
        })
    }

    fn is_of(&self, site: &str, device: Option<u32>) -> bool {
        self.site == site && (self.device.is_none() || self.device == device)
    }

    fn count(&self, elapsed: Duration) -> bool {
        match self.when {
            When::Nth(nth) => {
                let now = self.count.fetch_add(1, Ordering::AcqRel) + 1;
                now == nth || (self.is_repeated && now > nth)
            }
            When::After(time) => {
                elapsed >= time
                    && (self.count.fetch_add(1, Ordering::AcqRel) == 0 || self.is_repeated)
            }
        }
    }
}

#[cfg(test)]
mod tests;
