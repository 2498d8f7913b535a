//! The original's workload: hidden states and a count of experts pushed, hidden states pulled,
//! three micro-batches in turn, one outstanding. Where the time of a round trip goes.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde::{Deserialize, Serialize};
use stepmesh::{DType, Trace};

use crate::bench::duel::{Baton, Turn};
use crate::bench::mesh::Caller;
use crate::bench::statistics::{Distribution, Recorder};

/// One distribution for each column of the table, and one of the whole.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct AfdOutcome {
    /// From the call to the worker's end of the request.
    pub(crate) total: Distribution,
    /// In the order of [`COLUMNS`].
    pub(crate) columns: Vec<Distribution>,
}

/// Runs blocks of round trips for about `budget`.
pub(crate) fn measure(
    baton: &mut Baton<'_>,
    ours: &mut Caller<2, 1>,
    budget: Duration,
) -> Result<AfdOutcome> {
    let mut total = Recorder::new()?;
    let mut columns = COLUMNS
        .iter()
        .map(|_| Recorder::new())
        .collect::<Result<Vec<_>>>()?;
    let mut samples = Vec::with_capacity(usize::try_from(BLOCK_ROUNDS)?);
    let deadline = Instant::now() + budget;
    while Instant::now() < deadline {
        baton.lead(Turn::Ours(BLOCK_ROUNDS));
        for _ in 0..BLOCK_ROUNDS {
            samples.push(ours.traced_round()?);
        }
        for (total_ns, trace) in samples.drain(..) {
            total.record(total_ns);
            for (recorder, value_ns) in columns.iter_mut().zip(split(total_ns, &trace)) {
                recorder.record(value_ns);
            }
        }
    }
    Ok(AfdOutcome {
        total: total.distribution(),
        columns: columns.iter().map(Recorder::distribution).collect(),
    })
}

/// A round trip's time by column. What the trace does not cover is the call's own: into the
/// library and, after the answer, back out of it.
fn split(total_ns: u64, trace: &Trace) -> [u64; COLUMNS.len()] {
    [
        total_ns.saturating_sub(trace.total_ns()),
        trace.request_ns(),
        trace.net_ns(),
        trace.receive_ns(),
        trace.process_ns(),
        trace.respond_ns(),
    ]
}

/// The original's columns; see the documentation of [`Trace`] for the words that they are made of.
pub(crate) const COLUMNS: [&str; 6] = ["request", "send", "net", "receive", "process", "respond"];

/// What is pushed; what is pulled is like the first.
pub(crate) const TENSORS: [(DType, &[u64]); 2] = [(DType::BF16, &[64, 7168]), (DType::I32, &[1])];

/// How many micro-batches take turns.
pub(crate) const MICRO_BATCHES: u64 = 3;

/// Round trips between two looks at the clock for the budget: all micro-batches as often.
const BLOCK_ROUNDS: u64 = 32 * MICRO_BATCHES;

#[cfg(test)]
mod tests {
    use stepmesh::Trace;

    use super::split;

    #[test]
    fn the_columns_add_up_to_the_whole_but_for_the_end() {
        let trace = Trace {
            request_start_ns: 100,
            request_postsend_ns: 110,
            request_postrecv_ns: 50_000,
            request_process_ns: 50_002,
            response_start_ns: 50_007,
            response_postsend_ns: 50_010,
            response_postrecv_ns: 160,
            response_process_ns: 164,
            ..Trace::default()
        };
        let columns = split(70, &trace);
        assert_eq!(columns, [6, 10, 40, 2, 5, 3]);
        // The last 4 ns are between the answer's arrival and the request's end.
        assert_eq!(columns.iter().sum::<u64>() + 4, 70);
    }
}
