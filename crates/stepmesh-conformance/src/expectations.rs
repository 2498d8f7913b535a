//! What a plugin is known not to do: two lists, each entry with its reason.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::Deserialize;

use crate::check::Check;
use crate::checks::checks;
use crate::error::Error;
use crate::runner::matches_glob;

/// What a plugin is known not to do.
///
/// As a file:
/// ```toml
/// [unsupported]           # never will: not run, told as skipped
/// "R*" = "the device has no memory that a network adapter reaches"
/// [expected_failures]     # should and does not: a failure is expected, a pass is a failure
/// K5 = "the driver of version 5 hangs in a forked child"
/// ```
#[derive(Clone, Debug, Default)]
pub struct Expectations {
    /// What the plugin will never do. Not run.
    pub unsupported: Vec<Expectation>,
    /// What it should do and does not. Run; a pass is a failure.
    pub expected_failures: Vec<Expectation>,
}

/// One entry of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expectation {
    /// Glob on identities.
    pub checks: String,
    /// Why.
    pub reason: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    unsupported: BTreeMap<String, String>,
    #[serde(default)]
    expected_failures: BTreeMap<String, String>,
}

impl Expectations {
    /// Reads a file.
    ///
    /// # Errors
    /// `ReadExpectations`, `BadExpectations` when it is not TOML of this shape, an entry has no
    /// reason, matches no check, or is on both lists.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = fs::read_to_string(path).map_err(|source| Error::ReadExpectations {
            path: path.into(),
            source,
        })?;
        Self::parse(&text).map_err(|fault| Error::BadExpectations {
            path: path.into(),
            fault,
        })
    }

    /// Reads the text of a file.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let file: File = toml::from_str(text).map_err(|error| error.to_string())?;
        let entries = |map: BTreeMap<String, String>| {
            let entries = map.into_iter();
            entries
                .map(|(checks, reason)| Expectation { checks, reason })
                .collect::<Vec<_>>()
        };
        let lists = Self {
            unsupported: entries(file.unsupported),
            expected_failures: entries(file.expected_failures),
        };
        for entry in lists.unsupported.iter().chain(&lists.expected_failures) {
            if entry.reason.trim().is_empty() {
                return Err(format!("`{}` has no reason; say why", entry.checks));
            }
            if !checks().any(|check| entry.covers(check)) {
                return Err(format!("`{}` matches no check", entry.checks));
            }
        }
        let on_both = |check: &&Check| {
            lists.unsupported(check).is_some() && lists.expected_failure(check).is_some()
        };
        match checks().find(on_both) {
            Some(check) => Err(format!("{} is on both lists; take it off one", check.id)),
            None => Ok(lists),
        }
    }

    pub(crate) fn unsupported(&self, check: &Check) -> Option<&Expectation> {
        self.unsupported.iter().find(|entry| entry.covers(check))
    }

    pub(crate) fn expected_failure(&self, check: &Check) -> Option<&Expectation> {
        self.expected_failures
            .iter()
            .find(|entry| entry.covers(check))
    }
}

impl Expectation {
    fn covers(&self, check: &Check) -> bool {
        matches_glob(&self.checks, check.id)
    }
}
