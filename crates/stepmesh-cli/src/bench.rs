//! `stepmesh bench`: this library beside the floor that it stands on, in one run and on the same
//! cores. What is measured is in `case`; each measurement runs in processes of its own (`peer`).

mod afd;
mod allocations;
mod case;
mod duel;
mod floor;
mod lazy;
mod loader;
mod mem_event;
mod mesh;
mod pair;
mod peer;
mod picture;
mod scale;
mod spin;
mod statistics;
mod summary;
#[cfg(feature = "rdma")]
pub(crate) mod verbs;
mod vtable;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use stepmesh_core::config::{Config, MeshConfig};

use crate::args::Global;
use crate::exit::Exit;
use crate::{config, report};
use case::{CASES, Case};
use peer::Setup;
use summary::Row;

/// What `stepmesh bench` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Fewer round trips: ends within 50 seconds
    #[arg(long)]
    quick: bool,

    /// Only what has a number of this name; `*` and `?` stand for others, as in `shm.*`
    #[arg(long, value_name = "GLOB", default_value = "*")]
    only: String,

    /// Where latency.svg and summary.json go
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    out: PathBuf,

    /// Prints the summary, a flat map of name to number, in place of the table
    #[arg(long)]
    json: bool,

    /// What a process of the benchmark does; the program starts itself with it
    #[arg(long, hide = true, value_name = "JSON", exclusive = true)]
    task: Option<String>,
}

/// Measures, prints the table, and writes the picture and the summary.
pub(crate) fn run(global: &Global, options: &Options) -> Result<Exit> {
    if let Some(task) = &options.task {
        // The process that started this one tells the reason.
        return match peer::perform(task) {
            Ok(()) => Ok(Exit::Done),
            Err(error) => peer::tell_failure(&error).map(|()| Exit::Failed),
        };
    }
    let chosen = CASES.iter().filter(|case| case.matches(&options.only));
    let chosen: Vec<Case> = chosen.copied().collect();
    ensure!(
        !chosen.is_empty(),
        "nothing is called {}; the names are {}",
        options.only,
        CASES.map(|case| case.name).join(", ")
    );
    fs::create_dir_all(&options.out)
        .with_context(|| format!("cannot create {}", options.out.display()))?;
    let mut config = config::load_quietly(global)?.config;
    // Each measurement has a mesh of its own; the user's secret has no business in their arguments.
    config.mesh = MeshConfig::default();
    let rows = measure(&chosen, config, options.quick);
    tell(&rows, options)?;
    let failed: Vec<String> = rows
        .iter()
        .filter_map(|row| {
            Some(format!(
                "{}: {:#}",
                row.case.name,
                row.outcome.as_ref().err()?
            ))
        })
        .collect();
    if failed.is_empty() {
        return Ok(Exit::Done);
    }
    Err(anyhow!("{}", failed.join("\n")))
}

fn measure(cases: &[Case], config: Config, quick: bool) -> Vec<Row> {
    let (stretch, longest) = if quick {
        (1, QUICK_LONGEST)
    } else {
        (FULL_STRETCH, FULL_LONGEST)
    };
    let setup = Setup {
        config,
        deadline: Instant::now() + longest,
        stretch,
    };
    let bar = progress(cases.len());
    let rows = cases.iter().map(|case| {
        bar.set_message(case.name);
        let outcome = case.run(&setup);
        bar.inc(1);
        Row {
            case: *case,
            outcome,
        }
    });
    let rows = rows.collect();
    bar.finish_and_clear();
    rows
}

/// Shows how far it is, on a terminal.
fn progress(cases: usize) -> ProgressBar {
    let bar = ProgressBar::new(cases as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:20} {pos}/{len} {msg} {elapsed}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

fn tell(rows: &[Row], options: &Options) -> Result<()> {
    summary::write(rows, &options.out)?;
    let measured = || rows.iter().filter_map(|row| row.outcome.as_ref().ok());
    let panels: Vec<_> = measured().filter_map(|one| one.panel.as_ref()).collect();
    let picture = options.out.join(PICTURE_NAME);
    if !panels.is_empty() {
        picture::write(&panels, &picture)?;
    }
    if options.json {
        return report::print_json(&summary::summary(rows));
    }
    report::print(summary::table(rows))?;
    for notes in measured()
        .map(|one| &one.notes)
        .filter(|notes| !notes.is_empty())
    {
        report::print(summary::notes_table(notes))?;
    }
    if panels.is_empty() {
        return Ok(());
    }
    report::print(format_args!("picture: {}", Path::new(&picture).display()))
}

const PICTURE_NAME: &str = "latency.svg";

/// Everything of a quick run ends by then, whatever the machine does: what has no time left says
/// so.
const QUICK_LONGEST: Duration = Duration::from_secs(48);

/// How much longer than a quick run a full one measures.
const FULL_STRETCH: u64 = 5;

const FULL_LONGEST: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::Options;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn parse(line: &[&str]) -> Result<Options, String> {
        let line = [&["bench"], line].concat();
        let parsed = Line::try_parse_from(line).map_err(|error| error.to_string());
        Ok(parsed?.options)
    }

    #[test]
    fn everything_is_measured_unless_told_otherwise() {
        let options = parse(&[]).unwrap();
        assert_eq!((options.quick, options.only.as_str()), (false, "*"));
        assert_eq!(options.out.to_str(), Some("target/bench"));
    }

    #[test]
    fn options_are_taken_by_name() {
        let options = parse(&["--quick", "--only", "shm.*", "--out", "/o", "--json"]).unwrap();
        assert!(options.quick && options.json);
        assert_eq!(options.only, "shm.*");
        assert_eq!(options.out.to_str(), Some("/o"));
    }

    #[test]
    fn a_task_goes_with_nothing_else() {
        let error = parse(&["--task", "{}", "--quick"]).unwrap_err();
        assert!(
            error.contains("--quick") || error.contains("--task"),
            "{error}"
        );
        assert_eq!(
            parse(&["--task", "{}"]).unwrap().task.as_deref(),
            Some("{}")
        );
    }

    #[test]
    fn a_task_that_is_no_task_is_refused() {
        let error = super::peer::perform("{}").unwrap_err();
        assert!(error.to_string().contains("--task"), "{error:#}");
    }
}
