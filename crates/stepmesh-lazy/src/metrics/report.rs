//! The text of a report, in the reference's format.

use std::fmt::Write;

use stepmesh_graph::OpKind;

use super::{Counter, Metric, Metrics, Samples, Unit};

impl Metrics {
    /// Metrics that have samples, then counters that are not zero.
    #[must_use]
    pub fn report(&self) -> String {
        let mut text = String::new();
        for metric in Metric::ALL {
            let samples = self.read(*metric);
            if samples.total() > 0 {
                // Writing to a string cannot fail.
                let _ = write_metric(&mut text, *metric, &samples);
            }
        }
        for counter in Counter::ALL {
            write_counter(&mut text, counter.name(), self.counter(*counter));
        }
        for op in OpKind::ALL {
            write_counter(&mut text, &format!("lazy::{op}"), self.lowered(*op));
        }
        for op in OpKind::ALL {
            write_counter(&mut text, &format!("aten::{op}"), self.fell_back(*op));
        }
        text
    }
}

fn write_counter(text: &mut String, name: &str, value: u64) {
    if value > 0 {
        let _ = write!(text, "Counter: {name}\n  Value: {value}\n");
    }
}

fn write_metric(text: &mut String, metric: Metric, samples: &Samples) -> std::fmt::Result {
    let unit = metric.unit();
    writeln!(text, "Metric: {}", metric.name())?;
    writeln!(text, "  TotalSamples: {}", samples.total())?;
    writeln!(text, "  Accumulator: {}", unit.text(samples.accumulator()))?;
    let ring = samples.ring();
    let (Some(first), Some(last)) = (ring.front(), ring.back()) else {
        return Ok(());
    };
    let delta_us = (last.at_ns - first.at_ns) / 1000;
    if delta_us > 0 {
        #[expect(clippy::cast_precision_loss, reason = "for people to read")]
        let (seconds, count) = (delta_us as f64 / 1e6, ring.len() as f64);
        let sum: f64 = ring.iter().map(|sample| sample.value).sum();
        writeln!(text, "  ValueRate: {} / second", unit.text(sum / seconds))?;
        writeln!(text, "  Rate: {} / second", count / seconds)?;
    }
    let mut values: Vec<f64> = ring.iter().map(|sample| sample.value).collect();
    values.sort_by(f64::total_cmp);
    let shown: Vec<String> = PERCENTILES
        .iter()
        .map(|percent| {
            let value = values[percent * values.len() / 100];
            format!("{percent}%={}", unit.text(value))
        })
        .collect();
    writeln!(text, "  Percentiles: {}", shown.join("; "))
}

impl Unit {
    /// `06m09s401ms746.001us`, `1.00KB` or `3.00`.
    pub(super) fn text(self, value: f64) -> String {
        match self {
            Self::Nanoseconds => time_text(value),
            Self::Bytes => bytes_text(value),
            Self::Number => format!("{value:.2}"),
        }
    }
}

fn time_text(mut value: f64) -> String {
    let mut text = String::new();
    for (suffix, scale, width) in TIME_PARTS {
        let part = (value / scale).floor();
        if part >= 1.0 || !text.is_empty() {
            let _ = write!(text, "{part:0width$}{suffix}");
            value -= part * scale;
        }
    }
    let _ = write!(text, "{:07.3}us", value / 1e3);
    text
}

fn bytes_text(mut value: f64) -> String {
    let mut suffixes = ["B", "KB", "MB", "GB", "TB"].into_iter();
    let mut suffix = suffixes.next().unwrap_or_default();
    while value >= 1024.0 {
        let Some(next) = suffixes.next() else { break };
        suffix = next;
        value /= 1024.0;
    }
    format!("{value:.2}{suffix}")
}

/// The reference's.
const PERCENTILES: [usize; 9] = [1, 5, 10, 20, 50, 80, 90, 95, 99];
/// Suffix, nanoseconds and width of each part of a time but the last.
const TIME_PARTS: [(&str, f64, usize); 5] = [
    ("d", 86_400e9, 2),
    ("h", 3_600e9, 2),
    ("m", 60e9, 2),
    ("s", 1e9, 2),
    ("ms", 1e6, 3),
];
