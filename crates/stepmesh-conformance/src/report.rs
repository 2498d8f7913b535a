//! What became of each check: as a table, as JSON and as JUnit XML.
#![forbid(unsafe_code)]

mod junit;

use std::fmt;
use std::time::Duration;

use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{ContentArrangement, LineStyle, Table};
use serde_json::{Value, json};

use crate::check::Check;
use crate::runner::Subject;

/// What became of the checks of one run, in their order.
#[derive(Clone, Debug)]
pub struct Report {
    /// What was judged.
    pub subject: Subject,
    /// One for each check.
    pub results: Vec<CheckResult>,
}

/// What became of one check.
#[derive(Clone, Debug)]
pub struct CheckResult {
    /// Which check.
    pub check: &'static Check,
    /// How it ended.
    pub outcome: Outcome,
    /// Why, or what was noticed; may be empty.
    pub text: String,
    /// How long it took, its process included.
    pub duration: Duration,
}

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The plugin does what it must.
    Pass,
    /// It does not, or it crashed or hung, or passed what is listed as a failure.
    Fail,
    /// It need not.
    Skip,
    /// It does not, as is known.
    ExpectedFailure,
}

impl Outcome {
    /// As it is shown.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "FAIL",
            Self::Skip => "skip",
            Self::ExpectedFailure => "xfail",
        }
    }
}

/// How many checks ended how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Passed.
    pub pass: usize,
    /// Failed.
    pub fail: usize,
    /// Skipped.
    pub skip: usize,
    /// Failed as expected.
    pub xfail: usize,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            pass,
            fail,
            skip,
            xfail,
        } = self;
        write!(
            f,
            "{pass} passed, {fail} failed, {skip} skipped, {xfail} failed as expected"
        )
    }
}

impl Report {
    /// How many checks ended how.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for result in &self.results {
            *match result.outcome {
                Outcome::Pass => &mut counts.pass,
                Outcome::Fail => &mut counts.fail,
                Outcome::Skip => &mut counts.skip,
                Outcome::ExpectedFailure => &mut counts.xfail,
            } += 1;
        }
        counts
    }

    /// Whether nothing failed.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.counts().fail == 0
    }

    /// The result of a check by its identity, if it ran.
    #[must_use]
    pub fn result(&self, id: &str) -> Option<&CheckResult> {
        self.results.iter().find(|result| result.check.id == id)
    }

    /// As JSON: `plugin`, `counts`, and `checks` with `id`, `name`, `tier`, `group`, `outcome`,
    /// `text` and `duration_ms`.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let counts = self.counts();
        let checks: Vec<Value> = self.results.iter().map(CheckResult::to_json).collect();
        json!({
            "plugin": self.subject.to_string(),
            "counts": {
                "pass": counts.pass,
                "fail": counts.fail,
                "skip": counts.skip,
                "xfail": counts.xfail,
            },
            "checks": checks,
        })
    }

    /// As JUnit XML: one test case for each check; an expected failure is skipped, with its text.
    #[must_use]
    pub fn to_junit(&self) -> String {
        junit::write(self)
    }
}

impl CheckResult {
    fn to_json(&self) -> Value {
        json!({
            "id": self.check.id,
            "name": self.check.name,
            "tier": self.check.tier.number(),
            "group": self.check.group.letters(),
            "outcome": self.outcome.as_str().to_lowercase(),
            "text": self.text,
            "duration_ms": u64::try_from(self.duration.as_millis()).unwrap_or(u64::MAX),
        })
    }
}

/// A table with a line for each check, and the counts.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        let mut style = UTF8_HORIZONTAL_ONLY;
        style.row_separator = LineStyle::none();
        table
            .load_style(style)
            .set_header(["check", "", "what", "why"]);
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(TABLE_WIDTH);
        for result in &self.results {
            let cells = [
                result.check.id,
                result.outcome.as_str(),
                result.check.name,
                &result.text,
            ];
            table.add_row(cells);
        }
        writeln!(f, "{}\n{table}", self.subject)?;
        write!(f, "{}", self.counts())
    }
}

/// Wide enough for a reason, narrow enough for a terminal.
const TABLE_WIDTH: u16 = 120;
