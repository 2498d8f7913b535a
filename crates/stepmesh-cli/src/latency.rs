//! Where the time of requests went: histograms by server and stage, as a table and as JSON.

use std::time::Duration;

use comfy_table::{CellAlignment, Table};
use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};
use stepmesh::Trace;

use crate::report;

/// The times of many requests.
#[derive(Debug)]
pub(crate) struct Latencies {
    servers: Vec<Server>,
}

#[derive(Debug)]
struct Server {
    stages: [Histogram<u64>; STAGES.len()],
    rows: u64,
}

impl Latencies {
    /// For this many servers.
    pub(crate) fn new(servers: usize) -> Self {
        let stage = || {
            Histogram::new_with_bounds(1, LONGEST_NS, DIGITS)
                .expect("invariant: the bounds are constants")
        };
        let server = || Server {
            stages: [(); STAGES.len()].map(|()| stage()),
            rows: 0,
        };
        Self {
            servers: (0..servers).map(|_| server()).collect(),
        }
    }

    /// Adds a request that took `total` by the caller's clock: its times at each server.
    pub(crate) fn record(&mut self, total: Duration, traces: &[Trace], rows: u64) {
        let total_ns = u64::try_from(total.as_nanos()).unwrap_or(u64::MAX);
        // The caller has the request before the first mark and after the last one of any server.
        let marked_ns = traces.iter().map(Trace::total_ns).max().unwrap_or(0);
        for (server, trace) in self.servers.iter_mut().zip(traces) {
            let times_ns = [
                total_ns.saturating_sub(marked_ns),
                trace.request_ns(),
                trace.net_ns(),
                trace.receive_ns(),
                trace.process_ns(),
                trace.respond_ns(),
                total_ns,
            ];
            for (stage, ns) in server.stages.iter_mut().zip(times_ns) {
                stage.saturating_record(ns);
            }
            server.rows += rows;
        }
    }

    /// Microseconds, five lines for each server.
    pub(crate) fn table(&self) -> Table {
        let [request, send, net, receive, process, respond, total] = STAGES;
        let mut table = report::table([
            "server", "rows", "µs", request, send, net, receive, process, respond, total,
        ]);
        for (index, server) in self.servers.iter().enumerate() {
            for (line, (name, of)) in STATISTICS.iter().enumerate() {
                let is_first = line == 0;
                let mut cells = vec![
                    if is_first {
                        index.to_string()
                    } else {
                        String::new()
                    },
                    if is_first {
                        server.rows.to_string()
                    } else {
                        String::new()
                    },
                    (*name).to_owned(),
                ];
                cells.extend(
                    server
                        .stages
                        .iter()
                        .map(|stage| format!("{:.1}", us(of(stage)))),
                );
                table.add_row(cells);
            }
        }
        for column in table.column_iter_mut().skip(3) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table
    }

    /// The same numbers for programs.
    pub(crate) fn as_json(&self) -> Value {
        let servers = self.servers.iter().enumerate().map(|(index, server)| {
            let stages = STAGES.iter().zip(&server.stages).map(|(stage, times)| {
                let numbers = STATISTICS
                    .iter()
                    .map(|(name, of)| ((*name).to_owned(), json!(us(of(times)))));
                ((*stage).to_owned(), Value::Object(numbers.collect()))
            });
            let stages: Map<String, Value> = stages.collect();
            json!({ "server": index, "rows": server.rows, "latency_us": stages })
        });
        servers.collect()
    }
}

fn us(ns: f64) -> f64 {
    // Thousandths of a microsecond are what the clock tells.
    ns.round() / 1e3
}

#[expect(
    clippy::cast_precision_loss,
    reason = "the longest time has far fewer bits than an f64"
)]
fn quantile(times: &Histogram<u64>, quantile: f64) -> f64 {
    times.value_at_quantile(quantile) as f64
}

/// A statistic of a histogram, in its unit.
type Statistic = fn(&Histogram<u64>) -> f64;

/// The stages in the order in which they happen, named after the original's columns: `request` is
/// its python_req and python_rsp, `send` its req_send, `net` its net_cost, `receive` its req_recv,
/// `respond` its rsp_send.
const STAGES: [&str; 7] = [
    "request", "send", "net", "receive", "process", "respond", "total",
];

const STATISTICS: [(&str, Statistic); 5] = [
    ("mean", |times| times.mean()),
    ("p50", |times| quantile(times, 0.5)),
    ("p99", |times| quantile(times, 0.99)),
    ("p99.9", |times| quantile(times, 0.999)),
    ("max", |times| quantile(times, 1.0)),
];

/// Ten minutes: no request may take longer.
const LONGEST_NS: u64 = 600_000_000_000;

/// Significant digits: a thousandth is below what differs from run to run.
const DIGITS: u8 = 3;

#[cfg(test)]
mod tests {
    use super::Latencies;
    use std::time::Duration;
    use stepmesh::Trace;

    #[test]
    fn stages_are_told_apart_by_server() {
        let trace = |process_ns: u64| Trace {
            request_start_ns: 1_000,
            request_postsend_ns: 3_000,
            request_postrecv_ns: 70_000,
            request_process_ns: 74_000,
            response_start_ns: 74_000 + process_ns,
            response_postsend_ns: 80_000 + process_ns,
            response_postrecv_ns: 3_000 + 10_000 + process_ns + 20_000,
            response_process_ns: 3_000 + 10_000 + process_ns + 21_000,
            ..Trace::default()
        };
        let mut latencies = Latencies::new(2);
        let traces = [trace(5_000), trace(50_000)];
        latencies.record(Duration::from_micros(100), &traces, 7);
        let json = latencies.as_json();
        let p50 = |server: usize, stage: &str| {
            json[server]["latency_us"][stage]["p50"]
                .as_f64()
                .unwrap()
                .round()
        };
        assert_eq!(json[0]["rows"], 7);
        assert_eq!((p50(0, "process"), p50(1, "process")), (5.0, 50.0));
        assert_eq!((p50(0, "send"), p50(0, "receive")), (2.0, 4.0));
        assert_eq!((p50(0, "respond"), p50(0, "net")), (6.0, 20.0));
        assert_eq!((p50(0, "request"), p50(1, "request")), (17.0, 17.0));
        assert_eq!((p50(0, "total"), p50(1, "total")), (100.0, 100.0));
    }

    #[test]
    fn the_table_has_five_lines_for_each_server() {
        let mut latencies = Latencies::new(2);
        latencies.record(Duration::from_micros(9), &[Trace::default(); 2], 1);
        let table = latencies.table().to_string();
        for name in ["mean", "p50", "p99", "p99.9", "max"] {
            let lines = table.lines().filter(|l| l.contains(&format!(" {name} ")));
            assert_eq!(lines.count(), 2, "{name}\n{table}");
        }
    }
}
