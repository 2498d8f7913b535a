//! What is told of a run: the table, and the summary for programs.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table};
use serde_json::{Map, Value, json};

use crate::bench::case::{Case, Measured, Note};
use crate::bench::statistics::to_f64;
use crate::report;

/// One case and what came of it.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) case: Case,
    pub(crate) outcome: Result<Measured>,
}

/// Each case with its numbers beside the aim.
pub(crate) fn table(rows: &[Row]) -> Table {
    let mut table = report::table(["name", "value", "floor", "ratio", "aim", "met"]);
    for Row { case, outcome } in rows {
        let (cells, met) = match outcome {
            Ok(measured) => (measured.cells.clone(), met(case, measured)),
            Err(_) => (["failed".into(), String::new(), String::new()], ""),
        };
        let [value, floor, ratio] = cells;
        let aim = case.aim.map_or_else(String::new, |aim| format!("≤ {aim}"));
        table.add_row([case.name.into(), value, floor, ratio, aim, met.into()]);
    }
    for column in table.column_iter_mut().skip(1).take(4) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Distributions in microseconds: where the time of the original's workload went.
pub(crate) fn notes_table(notes: &[Note]) -> Table {
    let mut table = report::table(["afd, µs", "mean", "p50", "p99", "p99.9", "max"]);
    for Note { name, distribution } in notes {
        let us = |value_ns: f64| format!("{:.1}", value_ns / 1e3);
        let percentile = |percent| us(to_f64(distribution.percentile_ns(percent)));
        table.add_row([
            (*name).to_owned(),
            us(distribution.mean_ns()),
            percentile(50.0),
            percentile(99.0),
            percentile(99.9),
            us(to_f64(distribution.max_ns())),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// A flat map of every number by its name; what failed is not in it.
pub(crate) fn summary(rows: &[Row]) -> Value {
    let measured = rows.iter().filter_map(|row| row.outcome.as_ref().ok());
    let numbers = measured.flat_map(|measured| &measured.numbers);
    let numbers = numbers.map(|(name, number)| (name.clone(), json!(number)));
    Value::Object(numbers.collect::<Map<_, _>>())
}

/// Writes `summary.json` into a directory.
pub(crate) fn write(rows: &[Row], dir: &Path) -> Result<()> {
    let path = dir.join(FILE_NAME);
    fs::write(&path, format!("{:#}\n", summary(rows)))
        .with_context(|| format!("cannot write {}", path.display()))
}

fn met(case: &Case, measured: &Measured) -> &'static str {
    match case.aim {
        Some(aim) if measured.number <= aim => "yes",
        Some(_) => "no",
        None => "",
    }
}

const FILE_NAME: &str = "summary.json";

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::{Row, summary, table, write};
    use crate::bench::case::{CASES, Case, Measured};

    fn case(name: &str) -> Case {
        *CASES.iter().find(|case| case.name == name).unwrap()
    }

    fn rows() -> Vec<Row> {
        let measured = |number: f64| {
            Ok(Measured {
                number,
                numbers: vec![("a.ratio".into(), number), ("a.raw_ns".into(), 250.0)],
                cells: ["v".into(), "f".into(), "r".into()],
                ..Measured::default()
            })
        };
        vec![
            Row {
                case: case("shm.rtt_8b_over_floor"),
                outcome: measured(5.5),
            },
            Row {
                case: case("shm.rtt_896k_over_floor"),
                outcome: Err(anyhow!("no")),
            },
        ]
    }

    #[test]
    fn the_summary_is_a_flat_map_of_what_was_measured() {
        let dir = tempfile::tempdir().unwrap();
        write(&rows(), dir.path()).unwrap();
        let text = std::fs::read_to_string(dir.path().join("summary.json")).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value, summary(&rows()));
        assert_eq!(
            value,
            serde_json::json!({"a.ratio": 5.5, "a.raw_ns": 250.0})
        );
    }

    #[test]
    fn a_directory_that_is_not_there_is_named() {
        let error = write(&rows(), std::path::Path::new("/nowhere")).unwrap_err();
        assert!(error.to_string().contains("/nowhere/summary.json"));
    }

    #[test]
    fn the_table_says_what_was_met_and_what_failed() {
        let text = table(&rows()).to_string();
        let line = |name: &str| {
            let lines = text.lines().filter(|line| line.contains(name));
            lines.collect::<Vec<_>>().join("")
        };
        assert!(line("shm.rtt_8b_over_floor").contains("yes"), "{text}");
        assert!(line("shm.rtt_896k_over_floor").contains("failed"), "{text}");
    }
}
