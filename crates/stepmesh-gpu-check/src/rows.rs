//! The rows of the table, and what is computed of samples.
#![forbid(unsafe_code)]

use std::fmt;
use std::time::Duration;

use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{LineStyle, Table};

/// The table as it grows.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    rows: Vec<[String; 3]>,
    is_bad: bool,
}

impl Rows {
    /// What was measured, the backend's value, and what it is compared with.
    pub(crate) fn add(
        &mut self,
        what: impl Into<String>,
        value: impl Into<String>,
        beside: impl Into<String>,
    ) {
        self.rows.push([what.into(), value.into(), beside.into()]);
    }

    /// A row that makes the whole bad.
    pub(crate) fn add_bad(
        &mut self,
        what: impl Into<String>,
        value: impl Into<String>,
        beside: impl Into<String>,
    ) {
        self.add(what, value, beside);
        self.is_bad = true;
    }

    pub(crate) fn is_good(&self) -> bool {
        !self.is_bad
    }
}

impl fmt::Display for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        let mut style = UTF8_HORIZONTAL_ONLY;
        style.row_separator = LineStyle::none();
        table
            .load_style(style)
            .set_header(["what", "cuda backend", "beside it"]);
        for row in &self.rows {
            table.add_row(row);
        }
        table.fmt(f)
    }
}

/// Median and 99th percentile, in microseconds.
pub(crate) fn microseconds(samples: &mut [Duration]) -> String {
    samples.sort_unstable();
    let at = |part: usize| {
        let idx = (samples.len() * part / 100).min(samples.len().saturating_sub(1));
        samples
            .get(idx)
            .map_or(0.0, |sample| sample.as_secs_f64() * 1e6)
    };
    format!("{:.2} us, p99 {:.2} us", at(50), at(99))
}

/// Bytes in a time, as GB/s.
pub(crate) fn gigabytes_per_second(bytes: u64, took: Duration) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let bytes = bytes as f64;
    bytes / took.as_secs_f64().max(f64::EPSILON) / 1e9
}
