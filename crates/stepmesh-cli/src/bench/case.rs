//! What is measured: the cases, the names of their numbers, and the aims.

use std::time::Duration;

use anyhow::Result;

use crate::bench::afd::{self, AfdOutcome};
use crate::bench::duel::{AllocationOutcome, DuelOutcome};
use crate::bench::lazy::{LazyOutcome, Subject};
use crate::bench::loader;
use crate::bench::mem_event::MemEventOutcome;
use crate::bench::mesh::FabricKind;
use crate::bench::pair::{self, PairJob, What};
use crate::bench::peer::{Part, Peer, Setup, cpus};
use crate::bench::scale;
use crate::bench::statistics::{Distribution, to_f64};
use crate::bench::vtable::VtableOutcome;

/// Something that is measured in one go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    /// The name of its main number.
    pub(crate) name: &'static str,
    /// What the main number may be at most; `None` if it is only reported.
    pub(crate) aim: Option<f64>,
    /// Its share of the time, in milliseconds of a quick run.
    quick_ms: u64,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Vtable,
    Loader,
    MemEvent,
    /// Round trips of so many bytes, under a name such as `8b`.
    Duel(FabricKind, u64, &'static str),
    Allocations(FabricKind),
    Scale,
    Afd,
    Lazy(Subject),
}

/// What came out of a case.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    /// The main number.
    pub(crate) number: f64,
    /// It, and the rest of the case's numbers, by their names in the summary.
    pub(crate) numbers: Vec<(String, f64)>,
    /// The cells of the table: what was measured, what it stands on, how they compare.
    pub(crate) cells: [String; 3],
    /// Lines below the table.
    pub(crate) notes: Vec<Note>,
    /// What the picture shows.
    pub(crate) panel: Option<Panel>,
}

/// A distribution that is told in full.
#[derive(Debug)]
pub(crate) struct Note {
    pub(crate) name: &'static str,
    pub(crate) distribution: Distribution,
}

/// A part of the picture: distributions of round trips on one axis.
#[derive(Debug)]
pub(crate) struct Panel {
    pub(crate) title: String,
    pub(crate) ours: Distribution,
    /// The name and the round trips of what ours stand on.
    pub(crate) floor: Option<(&'static str, Distribution)>,
}

impl Case {
    /// Whether one of its numbers is asked for.
    pub(crate) fn matches(&self, glob: &str) -> bool {
        let more = match self.kind {
            Kind::Afd => &["afd.p99_us"][..],
            Kind::Loader => &["loader.ms_10_plugins", "loader.ms_dlopen_only"],
            _ => &[],
        };
        matches_glob(glob, self.name) || more.iter().any(|name| matches_glob(glob, name))
    }

    /// Measures it.
    pub(crate) fn run(&self, setup: &Setup) -> Result<Measured> {
        let budget_ms = self.quick_ms * setup.stretch;
        match self.kind {
            Kind::Vtable => self.vtable(setup, budget_ms),
            Kind::Loader => self.loader(setup, Duration::from_millis(budget_ms)),
            Kind::MemEvent => self.mem_event(setup, budget_ms),
            Kind::Duel(fabric, len_bytes, size) => {
                let what = What::Duel { budget_ms };
                let job = PairJob {
                    fabric,
                    len_bytes,
                    what,
                };
                Ok(self.duel(job, size, &pair::run(setup, job)?))
            }
            Kind::Allocations(fabric) => self.allocations(setup, fabric),
            Kind::Lazy(subject) => self.lazy(setup, subject, budget_ms),
            Kind::Scale => self.scale(setup, Duration::from_millis(budget_ms)),
            Kind::Afd => {
                let job = PairJob {
                    fabric: FabricKind::Shm,
                    len_bytes: 0,
                    what: What::Afd { budget_ms },
                };
                Ok(self.afd(pair::run(setup, job)?))
            }
        }
    }

    fn vtable(&self, setup: &Setup, budget_ms: u64) -> Result<Measured> {
        let [cpu, _] = cpus()?;
        let mut peer = Peer::start("caller", setup, &[cpu], Part::Vtable { budget_ms })?;
        let outcome: VtableOutcome = peer.answer(setup.deadline)?;
        peer.finish(setup.deadline)?;
        let VtableOutcome {
            loaded_ns,
            direct_ns,
            extra_ns,
        } = outcome;
        Ok(Measured {
            number: extra_ns,
            numbers: vec![
                (self.name.into(), extra_ns),
                ("vtable.loaded_ns".into(), loaded_ns),
                ("vtable.direct_ns".into(), direct_ns),
            ],
            cells: [
                format!("{loaded_ns:.2} ns"),
                format!("{direct_ns:.2} ns"),
                format!("{extra_ns:+.2} ns"),
            ],
            ..Measured::default()
        })
    }

    fn loader(&self, setup: &Setup, budget: Duration) -> Result<Measured> {
        let outcome = loader::measure(setup, budget)?;
        Ok(Measured {
            number: outcome.ratio,
            numbers: vec![
                (self.name.into(), outcome.ratio),
                ("loader.ms_10_plugins".into(), outcome.ours_ns / 1e6),
                ("loader.ms_dlopen_only".into(), outcome.dlopen_ns / 1e6),
            ],
            cells: [
                duration(outcome.ours_ns),
                duration(outcome.dlopen_ns),
                format!("{:.2}", outcome.ratio),
            ],
            ..Measured::default()
        })
    }

    fn mem_event(&self, setup: &Setup, budget_ms: u64) -> Result<Measured> {
        let [cpu, _] = cpus()?;
        let mut peer = Peer::start("waiter", setup, &[cpu], Part::MemEvent { budget_ms })?;
        let outcome: MemEventOutcome = peer.answer(setup.deadline)?;
        peer.finish(setup.deadline)?;
        Ok(Measured {
            number: outcome.ratio,
            numbers: vec![
                (self.name.into(), outcome.ratio),
                ("memevent.wait_ns".into(), outcome.wait_ns),
                ("memevent.poll_ns".into(), outcome.poll_ns),
            ],
            cells: [
                duration(outcome.wait_ns),
                duration(outcome.poll_ns),
                format!("{:.2}", outcome.ratio),
            ],
            ..Measured::default()
        })
    }

    fn lazy(&self, setup: &Setup, subject: Subject, budget_ms: u64) -> Result<Measured> {
        // The caller traces on one core while the device's stream works on the other.
        let cores = cpus()?;
        let part = Part::Lazy { subject, budget_ms };
        let mut peer = Peer::start("tracer", setup, &cores, part)?;
        let LazyOutcome {
            ours_ns,
            floor_ns,
            ratio,
        } = peer.answer(setup.deadline)?;
        peer.finish(setup.deadline)?;
        let (number, floor, compared) = match subject {
            Subject::Hit => (ours_ns / 1e3, String::new(), String::new()),
            Subject::Compile => (ours_ns / 1e6, String::new(), String::new()),
            _ => (ratio, duration(floor_ns), format!("{ratio:.2}")),
        };
        let mut numbers = vec![(self.name.into(), number)];
        if floor_ns > 0.0 {
            let short = match subject {
                Subject::FusedChainByHand => self.name,
                _ => self.name.split("_over_").next().unwrap_or(self.name),
            };
            numbers.push((format!("{short}_ns"), ours_ns));
            numbers.push((format!("{short}_floor_ns"), floor_ns));
        }
        Ok(Measured {
            number,
            numbers,
            cells: [duration(ours_ns), floor, compared],
            ..Measured::default()
        })
    }

    fn duel(&self, job: PairJob, size: &str, outcome: &DuelOutcome) -> Measured {
        let DuelOutcome {
            ours,
            floor,
            ratio,
            pairs,
        } = outcome;
        let (fabric, floor_name) = match job.fabric {
            FabricKind::Shm => ("shm", "floor"),
            FabricKind::Tcp => ("tcp", "raw"),
        };
        let p50 = |of: &Distribution| of.percentile_ns(50.0);
        let raw = |what: &str, value_ns| (format!("{fabric}.rtt_{size}_{what}"), to_f64(value_ns));
        Measured {
            number: *ratio,
            numbers: vec![
                (self.name.into(), *ratio),
                raw("ns", p50(ours)),
                raw("p99_ns", ours.percentile_ns(99.0)),
                raw(&format!("{floor_name}_ns"), p50(floor)),
                raw(&format!("{floor_name}_p99_ns"), floor.percentile_ns(99.0)),
                raw("pairs", *pairs),
            ],
            cells: [
                duration(to_f64(p50(ours))),
                duration(to_f64(p50(floor))),
                format!("{ratio:.2}"),
            ],
            panel: Some(Panel {
                title: format!("{fabric}, {} each way", length(job.len_bytes)),
                ours: ours.clone(),
                floor: Some((
                    match job.fabric {
                        FabricKind::Shm => "bare shared memory",
                        FabricKind::Tcp => "bare TCP",
                    },
                    floor.clone(),
                )),
            }),
            ..Measured::default()
        }
    }

    fn allocations(&self, setup: &Setup, fabric: FabricKind) -> Result<Measured> {
        let job = PairJob {
            fabric,
            len_bytes: 8,
            what: What::Allocations {
                rounds: ALLOCATION_ROUNDS,
            },
        };
        let AllocationOutcome { on_the_way, in_all } = pair::run(setup, job)?;
        let each = |allocations| to_f64(allocations) / to_f64(ALLOCATION_ROUNDS);
        let name = |what| self.name.replace("per_push_pull", what);
        Ok(Measured {
            number: each(on_the_way),
            numbers: vec![
                (self.name.into(), each(on_the_way)),
                (name("with_background_per_push_pull"), each(in_all)),
            ],
            cells: [
                format!("{on_the_way} in {ALLOCATION_ROUNDS}"),
                String::new(),
                format!("{:.4}", each(on_the_way)),
            ],
            ..Measured::default()
        })
    }

    fn scale(&self, setup: &Setup, budget: Duration) -> Result<Measured> {
        let outcome = scale::measure(setup, budget)?;
        Ok(Measured {
            number: outcome.ratio,
            numbers: vec![
                (self.name.into(), outcome.ratio),
                ("scale.cpu_1x1_ns".into(), outcome.one_ns),
                ("scale.cpu_8x8_ns".into(), outcome.many_ns),
            ],
            cells: [
                duration(outcome.many_ns),
                duration(outcome.one_ns),
                format!("{:.2}", outcome.ratio),
            ],
            ..Measured::default()
        })
    }

    fn afd(&self, outcome: AfdOutcome) -> Measured {
        let us = |percent| to_f64(outcome.total.percentile_ns(percent)) / 1e3;
        let mut numbers = vec![
            (self.name.into(), us(50.0)),
            ("afd.p99_us".into(), us(99.0)),
            ("afd.p999_us".into(), us(99.9)),
            ("afd.max_us".into(), to_f64(outcome.total.max_ns()) / 1e3),
            ("afd.mean_us".into(), outcome.total.mean_ns() / 1e3),
        ];
        let mut notes = Vec::new();
        let columns = afd::COLUMNS.into_iter().zip(outcome.columns);
        for (name, distribution) in columns.chain([("total", outcome.total.clone())]) {
            if name != "total" {
                let p50_us = to_f64(distribution.percentile_ns(50.0)) / 1e3;
                numbers.push((format!("afd.{name}_p50_us"), p50_us));
            }
            notes.push(Note { name, distribution });
        }
        Measured {
            number: us(50.0),
            cells: [
                duration(us(50.0) * 1e3),
                String::new(),
                format!("p99 {}", duration(us(99.0) * 1e3)),
            ],
            numbers,
            notes,
            panel: Some(Panel {
                title: "afd: [64,7168] bf16 and int32[1] there, [64,7168] bf16 back".into(),
                ours: outcome.total,
                floor: None,
            }),
        }
    }
}

/// A duration with three digits and a fitting unit.
pub(crate) fn duration(value_ns: f64) -> String {
    let (value, unit) = match value_ns {
        ns if ns < 1e3 => (ns, "ns"),
        ns if ns < 1e6 => (ns / 1e3, "µs"),
        ns if ns < 1e9 => (ns / 1e6, "ms"),
        ns => (ns / 1e9, "s"),
    };
    let decimals = match value {
        value if value < 10.0 => 2,
        value if value < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$} {unit}")
}

fn length(len_bytes: u64) -> String {
    match len_bytes {
        bytes if bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        bytes if bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        bytes => format!("{bytes} B"),
    }
}

/// `*` stands for any characters, `?` for one.
fn matches_glob(glob: &str, text: &str) -> bool {
    let (Some(first), rest) = split_first(glob) else {
        return text.is_empty();
    };
    let (next, text_rest) = split_first(text);
    match (first, next) {
        ('*', None) => matches_glob(rest, text),
        ('*', Some(_)) => matches_glob(rest, text) || matches_glob(glob, text_rest),
        ('?', Some(_)) => matches_glob(rest, text_rest),
        (wanted, Some(found)) => wanted == found && matches_glob(rest, text_rest),
        (_, None) => false,
    }
}

fn split_first(text: &str) -> (Option<char>, &str) {
    let mut chars = text.chars();
    (chars.next(), chars.as_str())
}

const fn duel(
    name: &'static str,
    aim: f64,
    fabric: FabricKind,
    len_bytes: u64,
    size: &'static str,
) -> Case {
    Case {
        name,
        aim: Some(aim),
        quick_ms: 3000,
        kind: Kind::Duel(fabric, len_bytes, size),
    }
}

const fn other(name: &'static str, aim: Option<f64>, quick_ms: u64, kind: Kind) -> Case {
    Case {
        name,
        aim,
        quick_ms,
        kind,
    }
}

/// Every case, in the order of the table. The sizes are the original's: a hidden state of 64 tokens
/// of 7168 in bf16, and of 1024.
pub(crate) const CASES: [Case; 18] = [
    other("vtable.extra_ns", Some(2.0), 500, Kind::Vtable),
    other(
        "loader.ms_10_plugins_over_dlopen",
        Some(2.0),
        1500,
        Kind::Loader,
    ),
    other("memevent.wait_over_poll", Some(3.0), 500, Kind::MemEvent),
    duel("shm.rtt_8b_over_floor", 6.0, FabricKind::Shm, 8, "8b"),
    duel(
        "shm.rtt_896k_over_floor",
        1.2,
        FabricKind::Shm,
        917_504,
        "896k",
    ),
    duel(
        "shm.rtt_14m_over_floor",
        1.2,
        FabricKind::Shm,
        14_680_064,
        "14m",
    ),
    duel("tcp.rtt_8b_over_raw", 1.6, FabricKind::Tcp, 8, "8b"),
    duel(
        "tcp.rtt_896k_over_raw",
        1.3,
        FabricKind::Tcp,
        917_504,
        "896k",
    ),
    other(
        "alloc.per_push_pull",
        Some(0.0),
        0,
        Kind::Allocations(FabricKind::Shm),
    ),
    other(
        "alloc.tcp_per_push_pull",
        Some(0.0),
        0,
        Kind::Allocations(FabricKind::Tcp),
    ),
    other("scale.cpu_8x8_over_1x1", Some(1.5), 4000, Kind::Scale),
    other("afd.p50_us", None, 3000, Kind::Afd),
    other(
        "lazy.fused_chain_over_memcpy",
        Some(1.3),
        1500,
        Kind::Lazy(Subject::FusedChain),
    ),
    other(
        "lazy.fused_chain_over_hand",
        None,
        1000,
        Kind::Lazy(Subject::FusedChainByHand),
    ),
    other(
        "lazy.matmul_over_gemm",
        Some(1.1),
        1000,
        Kind::Lazy(Subject::Matmul),
    ),
    other(
        "lazy.ffn_over_hand",
        Some(1.1),
        1000,
        Kind::Lazy(Subject::Ffn),
    ),
    other(
        "lazy.hit_us_100_ops",
        Some(60.0),
        500,
        Kind::Lazy(Subject::Hit),
    ),
    other(
        "lazy.compile_ms_100_ops",
        None,
        500,
        Kind::Lazy(Subject::Compile),
    ),
];

/// Round trips in which allocations are counted: what happens once in a thousand shows.
const ALLOCATION_ROUNDS: u64 = 10_000;

#[cfg(test)]
mod tests;
