//! `vm bench`: push_pull over real verbs beside perftest, in one boot of one guest. What is run is
//! written in bench.sh; here its numbers become ratios.

use std::{fs, path::Path, process::Command, time::Duration};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{
    Lab, MachineOptions,
    steps::{self, Step},
};
use crate::{
    demo, plugins,
    table::Table,
    workspace::{Profile, Workspace},
};

/// How much is measured.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    machine: MachineOptions,

    /// Round trips of 8 KiB; the larger sizes take a tenth and a fiftieth of it
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    rounds: u32,
}

/// Builds, measures, prints the table, and writes target/bench/vm.json.
pub(super) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let plugin_options = plugins::Options {
        only: Vec::new(),
        release: true,
    };
    plugins::build(workspace, &plugin_options)?;
    let stepmesh = demo::build_program(workspace, Profile::Release)?;
    let lab = Lab::open(workspace, options.machine)?;
    let dir = lab.site.out_dir.join("bench-results");
    prepare(&dir).with_context(|| format!("cannot write {}", dir.display()))?;
    let mut command = Command::new("sh");
    command.arg("bench.sh").arg(&stepmesh);
    command.arg(options.rounds.to_string()).current_dir(&dir);
    let steps = [Step {
        name: "bench".into(),
        command,
        limit: LIMIT,
    }];
    let (ended, guest) = steps::run(&lab, "bench", &steps, |_, _| {})?;
    guest?;
    for end in ended.into_iter().flatten() {
        let log = end.log_text();
        ensure!(
            end.status == 0 && !log.contains("failed"),
            "in the guest: {log}"
        );
    }
    let rows = rows(&dir)?;
    println!("{}", table(&rows));
    let out = workspace.metadata()?.target_dir()?.join("bench");
    fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    let out = out.join("vm.json");
    let page = json!({ "rows": rows.iter().map(Row::as_json).collect::<Vec<_>>() });
    fs::write(&out, format!("{page:#}\n"))
        .with_context(|| format!("cannot write {}", out.display()))?;
    println!("results: {}", workspace.relative(&out).display());
    Ok(())
}

fn prepare(dir: &Path) -> std::io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => fs::create_dir_all(dir)?,
    }
    fs::write(dir.join("bench.sh"), SCRIPT)
}

/// One ratio, and the numbers that it is of.
#[derive(Debug, PartialEq)]
struct Row {
    name: &'static str,
    value: f64,
    aim: Aim,
    ours: f64,
    perftest: f64,
    unit: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Aim {
    AtMost(f64),
    AtLeast(f64),
}

impl Aim {
    fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtMost(aim) => value <= aim,
            Self::AtLeast(aim) => value >= aim,
        }
    }

    fn text(self) -> String {
        match self {
            Self::AtMost(aim) => format!("<= {aim}"),
            Self::AtLeast(aim) => format!(">= {aim}"),
        }
    }
}

impl Row {
    fn as_json(&self) -> Value {
        json!({
            "name": self.name,
            "value": self.value,
            "aim": self.aim.text(),
            "is_met": self.aim.is_met(self.value),
            "ours": self.ours,
            "perftest": self.perftest,
            "unit": self.unit,
        })
    }
}

fn rows(dir: &Path) -> Result<Vec<Row>> {
    let round_trip = |name: &'static str, size: &str, aim| -> Result<Row> {
        let ours = total_p50_us(&read(dir, &format!("rtt-{size}.json"))?)?;
        // One way; a push_pull goes both.
        let perftest = 2.0 * perftest_column(&read(dir, &format!("lat-{size}.out"))?, TYPICAL)?;
        Ok(Row {
            name,
            value: ours / perftest,
            aim: Aim::AtMost(aim),
            ours,
            perftest,
            unit: "us",
        })
    };
    let seconds = total_p50_us(&read(dir, "rtt-14m.json")?)? / 1e6;
    let ours = 2.0 * f64::from(LARGE_LEN_BYTES) / seconds / MIB;
    let perftest = perftest_column(&read(dir, "bw-14m.out")?, BANDWIDTH_AVERAGE)?;
    Ok(vec![
        round_trip("verbs.rtt_8k_over_perftest", "8k", 2.0)?,
        round_trip("verbs.rtt_896k_over_perftest", "896k", 1.15)?,
        Row {
            name: "verbs.bw_14m_over_perftest",
            value: ours / perftest,
            aim: Aim::AtLeast(0.9),
            ours,
            perftest,
            unit: "MiB/s",
        },
    ])
}

fn read(dir: &Path, name: &str) -> Result<String> {
    let path = dir.join(name);
    fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
}

/// The median of the whole round trip in a worker's JSON.
fn total_p50_us(json: &str) -> Result<f64> {
    let page: Value = serde_json::from_str(json).context("the worker printed no JSON")?;
    let p50 = page["servers"][0]["latency_us"]["total"]["p50"].as_f64();
    p50.context("the worker's JSON has no servers[0].latency_us.total.p50")
}

/// A column of the line of numbers that perftest prints below its headings.
fn perftest_column(text: &str, column: usize) -> Result<f64> {
    let mut lines = text
        .lines()
        .skip_while(|line| !line.trim_start().starts_with("#bytes"));
    let numbers = lines.nth(1).context("perftest printed no numbers")?;
    let word = numbers.split_whitespace().nth(column);
    word.and_then(|word| word.parse().ok())
        .with_context(|| format!("no number in column {column} of `{numbers}`"))
}

fn table(rows: &[Row]) -> Table<5> {
    let mut table = Table::new(["in the guest", "ratio", "aim", "ours", "perftest"]);
    for row in rows {
        let aim = row.aim.text();
        let aim = if row.aim.is_met(row.value) {
            aim
        } else {
            format!("{aim} MISSED")
        };
        table.row([
            row.name.into(),
            format!("{:.2}", row.value),
            aim,
            format!("{:.1} {}", row.ours, row.unit),
            format!("{:.1} {}", row.perftest, row.unit),
        ]);
    }
    table
}

const SCRIPT: &str = include_str!("bench.sh");
/// Of `ib_send_lat`: the median, `t_typical`.
const TYPICAL: usize = 4;
/// Of `ib_write_bw`.
const BANDWIDTH_AVERAGE: usize = 3;
/// Bytes of [1024, 7168] in bf16.
const LARGE_LEN_BYTES: u32 = 1024 * 7168 * 2;
/// perftest's MB are these.
const MIB: f64 = (1 << 20) as f64;
/// Several times what it takes.
const LIMIT: Duration = Duration::from_secs(400);

#[cfg(test)]
mod tests {
    //! The numbers in what the programs print.

    use super::{Aim, BANDWIDTH_AVERAGE, TYPICAL, perftest_column, total_p50_us};

    #[test]
    fn perftests_numbers_are_below_their_headings() {
        let text = "----\n #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]\n \
                    8192    500          101.20         900.10       108.45  110.2 1.0 2.0 3.0\n--";
        assert_eq!(perftest_column(text, TYPICAL).unwrap(), 108.45);
        let text = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate\n \
                    14680064   20   75.10   73.02  0.000005\n";
        assert_eq!(perftest_column(text, BANDWIDTH_AVERAGE).unwrap(), 73.02);
        perftest_column("Couldn't connect", TYPICAL).unwrap_err();
    }

    #[test]
    fn the_workers_median_is_that_of_the_whole() {
        let json = r#"{"servers":[{"latency_us":{"total":{"p50":12.5},"net":{"p50":1}}}]}"#;
        assert_eq!(total_p50_us(json).unwrap(), 12.5);
        total_p50_us("{}").unwrap_err();
    }

    #[test]
    fn an_aim_has_a_side() {
        assert!(Aim::AtMost(2.0).is_met(2.0) && !Aim::AtMost(2.0).is_met(2.1));
        assert!(Aim::AtLeast(0.9).is_met(0.9) && !Aim::AtLeast(0.9).is_met(0.8));
    }
}
