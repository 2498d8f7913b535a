//! The numbers that bench.sh left behind, as the rows of the table.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use crate::table::Table;

/// What was aimed at, and what was reached.
#[derive(Debug, PartialEq)]
pub(super) struct Row {
    name: &'static str,
    value: f64,
    aim: Aim,
    unit: &'static str,
    /// What was measured. Without perftest beside it, the value is one of these.
    ours: Vec<f64>,
    perftest: Vec<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Aim {
    AtMost(f64),
    AtLeast(f64),
    /// Nothing is aimed at.
    Reported,
}

impl Aim {
    fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtMost(aim) => value <= aim,
            Self::AtLeast(aim) => value >= aim,
            Self::Reported => true,
        }
    }

    fn text(self) -> String {
        match self {
            Self::AtMost(aim) => format!("<= {aim}"),
            Self::AtLeast(aim) => format!(">= {aim}"),
            Self::Reported => "reported".to_owned(),
        }
    }

    /// The least disturbed of what was measured.
    fn best(self, values: &[f64]) -> f64 {
        match self {
            Self::AtLeast(_) => values.iter().copied().fold(f64::MIN, f64::max),
            _ => least(values),
        }
    }
}

impl Row {
    /// A ratio of what ours and perftest reached in their best rounds.
    fn ratio(
        name: &'static str,
        aim: Aim,
        unit: &'static str,
        ours: Vec<f64>,
        perftest: Vec<f64>,
    ) -> Self {
        Self {
            name,
            value: aim.best(&ours) / aim.best(&perftest),
            aim,
            unit,
            ours,
            perftest,
        }
    }

    pub(super) fn as_json(&self) -> Value {
        json!({
            "name": self.name,
            "value": self.value,
            "aim": self.aim.text(),
            "is_met": self.aim.is_met(self.value),
            "unit": self.unit,
            "ours": self.ours,
            "perftest": self.perftest,
        })
    }

    /// The best of a side, and in which range its rounds were.
    fn side(&self, values: &[f64]) -> String {
        if values.is_empty() {
            return String::new();
        }
        let (least, most) = (
            least(values),
            values.iter().copied().fold(f64::MIN, f64::max),
        );
        if self.perftest.is_empty() {
            return format!("{least:.3} to {most:.3} {}", self.unit);
        }
        let best = self.aim.best(values);
        format!("{best:.1} {} ({least:.1} to {most:.1})", self.unit)
    }
}

/// Reads what `rounds` rounds left in `dir`.
pub(super) fn read(dir: &Path, rounds: u32) -> Result<Vec<Row>> {
    let each = |number: &dyn Fn(u32) -> Result<f64>| -> Result<Vec<f64>> {
        (0..rounds).map(number).collect()
    };
    // Of `stepmesh rdma bench`.
    let ours = |file: &str, name: &str| {
        each(&|round| number(&read_file(dir, &format!("{file}-{round}.json"))?, name))
    };
    let perftest = |file: &str, column| {
        each(&|round| perftest_column(&read_file(dir, &format!("{file}-{round}.out"))?, column))
    };
    let round_trip = |name, aim, ours, file: &str| -> Result<Row> {
        // One way; a push_pull goes both.
        let perftest = perftest(file, TYPICAL)?.into_iter().map(|time| 2.0 * time);
        Ok(Row::ratio(name, aim, "us", ours, perftest.collect()))
    };
    let counted = |name, what: &str, aim| -> Result<Row> {
        let mut values = Vec::new();
        for size in ["8k", "896k", "14m"] {
            for end in ["caller", "echo"] {
                let name = format!("verbs.{what}_per_request_{end}_{size}");
                values.extend(ours(&format!("ours-{size}"), &name)?);
            }
        }
        Ok(worst(name, aim, "", values))
    };
    let seconds = ours("ours-14m", "verbs.rtt_us_14m")?;
    let seconds = seconds.iter().map(|time| time / 1e6);
    let bandwidth = seconds.map(|seconds| 2.0 * f64::from(LARGE_LEN_BYTES) / seconds / MIB);
    let small = ours("ours-8k", "verbs.rtt_us_8k")?;
    let medium = ours("ours-896k", "verbs.rtt_us_896k")?;
    let asleep = ours("ours-asleep-8k", "verbs.rtt_us_8k")?;
    let hit = number(&read_file(dir, "host-hit.json")?, "verbs.mr_hit_ns")?;
    let emulated_hits = ours("ours-hit", "verbs.mr_hit_ns")?;
    Ok(vec![
        round_trip(
            "verbs.rtt_8k_over_perftest",
            Aim::AtMost(2.0),
            small,
            "lat-8k",
        )?,
        round_trip(
            "verbs.rtt_896k_over_perftest",
            Aim::AtMost(1.15),
            medium,
            "lat-896k",
        )?,
        Row::ratio(
            "verbs.bw_14m_over_perftest",
            Aim::AtLeast(0.9),
            "MiB/s",
            bandwidth.collect(),
            perftest("bw-14m", BANDWIDTH_AVERAGE)?,
        ),
        counted("verbs.posts_per_request", "posts", Aim::AtMost(1.0))?,
        counted("verbs.signalled_per_request", "signalled", Aim::AtMost(1.0))?,
        counted("verbs.alloc_per_request", "alloc", Aim::AtMost(0.0))?,
        worst("verbs.mr_hit_ns", Aim::AtMost(100.0), "ns", vec![hit]),
        worst(
            "verbs.mr_hit_emulated_ns",
            Aim::Reported,
            "ns",
            emulated_hits,
        ),
        round_trip(
            "verbs.rtt_8k_asleep_over_perftest",
            Aim::Reported,
            asleep,
            "lat-asleep-8k",
        )?,
    ])
}

/// What has nothing beside it: the worst that was seen counts.
fn worst(name: &'static str, aim: Aim, unit: &'static str, values: Vec<f64>) -> Row {
    Row {
        name,
        value: values.iter().copied().fold(f64::MIN, f64::max),
        aim,
        unit,
        ours: values,
        perftest: Vec::new(),
    }
}

/// How much perftest's small round trips differ between the rounds, if that is by more than work of
/// the guest's own explains.
pub(super) fn disturbance(rows: &[Row]) -> Option<f64> {
    let times = &rows.first()?.perftest;
    let spread = times.iter().copied().fold(f64::MIN, f64::max) / least(times);
    (spread > DISTURBED).then_some(spread)
}

/// The rows for people.
pub(super) fn table(rows: &[Row]) -> Table<5> {
    let mut table = Table::new(["name", "value", "aim", "ours", "perftest"]);
    for row in rows {
        let aim = row.aim.text();
        let aim = if row.aim.is_met(row.value) {
            aim
        } else {
            format!("{aim} MISSED")
        };
        table.row([
            row.name.into(),
            format!("{:.3}", row.value),
            aim,
            row.side(&row.ours),
            row.side(&row.perftest),
        ]);
    }
    table
}

fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::MAX, f64::min)
}

fn read_file(dir: &Path, name: &str) -> Result<String> {
    let path = dir.join(name);
    fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
}

/// A number of the flat map that `stepmesh rdma bench` prints.
fn number(page: &str, name: &str) -> Result<f64> {
    let page: Map<String, Value> =
        serde_json::from_str(page).context("`stepmesh rdma bench` printed no JSON")?;
    let number = page.get(name).and_then(Value::as_f64);
    number.with_context(|| format!("`stepmesh rdma bench` printed no {name}"))
}

/// A column of the line of numbers that perftest prints below its headings.
fn perftest_column(text: &str, column: usize) -> Result<f64> {
    let mut lines = text
        .lines()
        .skip_while(|line| !line.trim_start().starts_with("#bytes"));
    let numbers = lines.nth(1).context("perftest printed no numbers")?;
    let word = numbers.split_whitespace().nth(column);
    word.and_then(|word| word.parse().ok())
        .filter(|number: &f64| number.is_finite() && *number > 0.0)
        .with_context(|| format!("no number in column {column} of `{numbers}`"))
}

/// Of `ib_send_lat`: the median, `t_typical`.
const TYPICAL: usize = 4;

/// Of `ib_write_bw`.
const BANDWIDTH_AVERAGE: usize = 3;

/// Bytes of [1024, 7168] in bf16.
const LARGE_LEN_BYTES: u32 = 1024 * 7168 * 2;

/// perftest's MB are these.
const MIB: f64 = (1 << 20) as f64;

/// Medians of a guest that has its processors for itself differ by some tenths.
const DISTURBED: f64 = 3.0;

#[cfg(test)]
mod tests {
    //! The numbers in what the programs print.

    use super::{Aim, BANDWIDTH_AVERAGE, Row, TYPICAL, disturbance, number, perftest_column};

    #[test]
    fn perftests_numbers_are_below_their_headings() {
        let text = "----\n #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]\n \
                    8192    500          101.20         900.10       108.45  110.2 1.0 2.0 3.0\n--";
        assert_eq!(perftest_column(text, TYPICAL).unwrap(), 108.45);
        let text = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate\n \
                    14680064   20   75.10   73.02  0.000005\n";
        assert_eq!(perftest_column(text, BANDWIDTH_AVERAGE).unwrap(), 73.02);
        perftest_column("Couldn't connect", TYPICAL).unwrap_err();
        perftest_column(" #bytes x\n 8192 300 inf inf inf\n", TYPICAL).unwrap_err();
    }

    #[test]
    fn a_number_of_ours_has_its_name() {
        let page = r#"{"verbs.rtt_us_8k": 12.5}"#;
        assert_eq!(number(page, "verbs.rtt_us_8k").unwrap(), 12.5);
        number(page, "verbs.rtt_us_14m").unwrap_err();
        number("error: no adapter", "verbs.rtt_us_8k").unwrap_err();
    }

    #[test]
    fn an_aim_has_a_side() {
        assert!(Aim::AtMost(2.0).is_met(2.0) && !Aim::AtMost(2.0).is_met(2.1));
        assert!(Aim::AtLeast(0.9).is_met(0.9) && !Aim::AtLeast(0.9).is_met(0.8));
    }

    #[test]
    fn the_best_round_of_each_side_counts() {
        let rows = |unit, aim, ours: [f64; 2], perftest: [f64; 2]| {
            [Row::ratio("x", aim, unit, ours.into(), perftest.into())]
        };
        let times = rows("us", Aim::AtMost(2.0), [9.0, 3.0], [2.0, 2.5]);
        assert_eq!(times[0].value, 1.5);
        assert_eq!(disturbance(&times), None);
        let rates = rows("MiB/s", Aim::AtLeast(0.9), [9.0, 3.0], [10.0, 1.0]);
        assert_eq!(rates[0].value, 0.9);
        assert_eq!(disturbance(&rates), Some(10.0));
    }
}
