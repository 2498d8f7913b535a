//! What came of the commands that ran in guests: a line for each, and the end of what the failed ones
//! printed.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::steps::Ended;
use crate::table::Table;

/// What one line of the closing table says.
#[derive(Debug)]
pub(super) struct Row {
    name: String,
    passed: u32,
    took: Option<Duration>,
    /// Why it is not a success.
    problem: Option<String>,
    log: String,
}

impl Row {
    /// Something that did not even end; `reason` may have several lines.
    pub(super) fn failed(name: &str, reason: String) -> Self {
        Self {
            name: name.into(),
            passed: 0,
            took: None,
            problem: Some(reason.lines().next().unwrap_or_default().into()),
            log: reason,
        }
    }
}

pub(super) fn judge(name: &str, limit: Option<Duration>, ended: &Ended) -> Row {
    let log = ended.log_text();
    let counts = counts(&log);
    let problem = match (ended.status, limit) {
        (0, _) if counts.has_summary && counts.passed == 0 => Some("no test ran".into()),
        (0, _) => None,
        (124 | 137, Some(limit)) => Some(format!("not done after {} s", limit.as_secs())),
        _ if counts.failed > 0 => Some(format!("{} failed", counts.failed)),
        (status, _) => Some(format!("exit status {status}")),
    };
    Row {
        name: name.into(),
        passed: counts.passed,
        took: Some(ended.took),
        problem,
        log,
    }
}

pub(super) fn print(rows: &[Row]) -> Result<()> {
    let failed = || rows.iter().filter(|row| row.problem.is_some());
    for row in failed() {
        println!(
            "\n=== {} ===\n{}",
            row.name,
            last_lines(&row.log, LOG_LINES)
        );
    }
    let mut table = Table::new(["in the guest", "passed", "seconds", "result"]);
    for row in rows {
        let count = |count: u32| (count > 0).then(|| count.to_string());
        let seconds = row.took.map(|took| format!("{:.1}", took.as_secs_f64()));
        let failed = |problem| format!("FAILED: {problem}");
        table.row([
            row.name.clone(),
            count(row.passed).unwrap_or_default(),
            seconds.unwrap_or_default(),
            row.problem.as_ref().map_or_else(|| "passed".into(), failed),
        ]);
    }
    println!("\n{table}");
    let failed: Vec<&str> = failed().map(|row| row.name.as_str()).collect();
    ensure!(
        failed.is_empty(),
        "failed in the guest: {}",
        failed.join(", ")
    );
    Ok(())
}

/// The sums of libtest's closing lines.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    passed: u32,
    failed: u32,
    has_summary: bool,
}

fn counts(log: &str) -> Counts {
    let mut counts = Counts::default();
    for line in log.lines().filter(|line| line.starts_with("test result: ")) {
        counts.has_summary = true;
        let words: Vec<&str> = line.split_whitespace().collect();
        for pair in words.windows(2) {
            let count = pair[0].parse().unwrap_or(0);
            match pair[1] {
                "passed;" => counts.passed += count,
                "failed;" => counts.failed += count,
                _ => {}
            }
        }
    }
    counts
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// The failures of a few tests with their reasons.
const LOG_LINES: usize = 80;

#[cfg(test)]
mod tests {
    //! How a step is judged.

    use super::{Counts, Duration, Ended, counts, judge};

    #[test]
    fn counts_are_summed() {
        let log = "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured\nx\n\
                   test result: FAILED. 4 passed; 2 failed; 1 ignored; 0 measured\n";
        let sums = Counts {
            passed: 7,
            failed: 2,
            has_summary: true,
        };
        assert_eq!(counts(log), sums);
        assert_eq!(counts("no tests"), Counts::default());
    }

    #[test]
    fn a_success_without_a_test_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let problem = |status, log: &str| {
            let path = dir.path().join("log");
            std::fs::write(&path, log).unwrap();
            let took = Duration::from_secs(1);
            let ended = Ended {
                status,
                took,
                log: path,
            };
            judge("a", Some(Duration::from_secs(9)), &ended).problem
        };
        let none = "test result: ok. 0 passed; 0 failed; 0 ignored;";
        assert_eq!(problem(0, none).as_deref(), Some("no test ran"));
        assert_eq!(problem(0, "test result: ok. 1 passed; 0 failed;"), None);
        assert_eq!(problem(0, "a table"), None);
        assert_eq!(
            problem(101, "1 failed; no summary").as_deref(),
            Some("exit status 101")
        );
        assert_eq!(problem(124, none).as_deref(), Some("not done after 9 s"));
    }
}
