//! JUnit XML, as far as continuous integration reads it. Four elements: a library for it would be
//! longer than this.
#![forbid(unsafe_code)]

use std::fmt::Write;

use super::{CheckResult, Outcome, Report};

pub(super) fn write(report: &Report) -> String {
    let counts = report.counts();
    let suite = escaped(&report.subject.to_string());
    let seconds: f64 = report
        .results
        .iter()
        .map(|r| r.duration.as_secs_f64())
        .sum();
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n");
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "<testsuite name=\"{suite}\" tests=\"{}\" failures=\"{}\" skipped=\"{}\" \
         time=\"{seconds:.3}\">",
        report.results.len(),
        counts.fail,
        counts.skip + counts.xfail,
    );
    for result in &report.results {
        write_case(&mut out, result);
    }
    out.push_str("</testsuite>\n</testsuites>\n");
    out
}

fn write_case(out: &mut String, result: &CheckResult) {
    let name = escaped(&format!("{} {}", result.check.id, result.check.name));
    let class = format!("stepmesh.conformance.{}", result.check.group.letters());
    let seconds = result.duration.as_secs_f64();
    let text = escaped(&result.text);
    let _ = write!(
        out,
        "<testcase name=\"{name}\" classname=\"{class}\" time=\"{seconds:.3}\""
    );
    let _ = match result.outcome {
        Outcome::Pass if text.is_empty() => writeln!(out, "/>"),
        Outcome::Pass => writeln!(out, "><system-out>{text}</system-out></testcase>"),
        Outcome::Fail => writeln!(out, "><failure message=\"{text}\"/></testcase>"),
        Outcome::Skip => writeln!(out, "><skipped message=\"{text}\"/></testcase>"),
        Outcome::ExpectedFailure => writeln!(
            out,
            "><skipped message=\"expected failure: {text}\"/></testcase>"
        ),
    };
}

/// Text for an attribute or an element; characters that XML cannot hold become blanks.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push(' '),
            c => out.push(c),
        }
    }
    out
}
