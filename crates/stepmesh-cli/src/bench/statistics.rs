//! What is computed from samples: distributions, percentiles, medians of pairs. Nothing here
//! measures.

use anyhow::{Result, anyhow};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Durations in nanoseconds, to three digits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Distribution {
    /// Each value with how often it occurred, in rising order.
    buckets: Vec<(u64, u64)>,
}

/// Collects samples. Not meant for the inside of a timed loop.
#[derive(Debug)]
pub(crate) struct Recorder(Histogram<u64>);

impl Recorder {
    pub(crate) fn new() -> Result<Self> {
        let histogram = Histogram::new_with_bounds(1, LONGEST_NS, DIGITS);
        Ok(Self(histogram.map_err(|error| {
            anyhow!("the histogram refuses its bounds: {error}")
        })?))
    }

    pub(crate) fn record(&mut self, duration_ns: u64) {
        self.0.saturating_record(duration_ns.max(1));
    }

    pub(crate) fn distribution(&self) -> Distribution {
        let recorded = self.0.iter_recorded();
        let buckets = recorded
            .map(|value| (value.value_iterated_to(), value.count_at_value()))
            .collect();
        Distribution { buckets }
    }
}

impl Distribution {
    pub(crate) fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }

    /// Each value in nanoseconds with how often it occurred, in rising order.
    pub(crate) fn buckets(&self) -> &[(u64, u64)] {
        &self.buckets
    }

    /// The value that `percent` of the samples do not exceed; 0 if there are none.
    pub(crate) fn percentile_ns(&self, percent: f64) -> u64 {
        let wanted = (percent / 100.0 * to_f64(self.count())).max(1.0);
        let mut seen = 0;
        for (value, count) in &self.buckets {
            seen += count;
            // Half a sample absorbs the rounding of the product above.
            if to_f64(seen) + 0.5 > wanted {
                return *value;
            }
        }
        self.max_ns()
    }

    pub(crate) fn max_ns(&self) -> u64 {
        self.buckets.last().map_or(0, |(value, _)| *value)
    }

    pub(crate) fn mean_ns(&self) -> f64 {
        let sum: f64 = self
            .buckets
            .iter()
            .map(|(value, count)| to_f64(*value) * to_f64(*count))
            .sum();
        sum / to_f64(self.count().max(1))
    }
}

/// The middle of `values`, or the mean of the two in the middle.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    let lower = sorted.get(sorted.len() / 2 - 1)?;
    Some(f64::midpoint(*lower, upper))
}

/// The median of `ours / floor` over neighbouring blocks, each given by its own median.
///
/// What a cache line between two cores costs changes while we measure, by more than the difference
/// between ours and the floor; within a pair of neighbours it hardly does.
pub(crate) fn ratio_of_pairs(pairs: &[(f64, f64)]) -> Option<f64> {
    let ratios: Vec<f64> = pairs
        .iter()
        .filter(|(_, floor)| *floor > 0.0)
        .map(|(ours, floor)| ours / floor)
        .collect();
    median(&ratios)
}

/// The median of a block's samples. Reorders them.
pub(crate) fn block_median(samples: &mut [u64]) -> f64 {
    if samples.is_empty() {
        return 0.0;
    }
    let middle = samples.len() / 2;
    let (_, value, _) = samples.select_nth_unstable(middle);
    to_f64(*value)
}

/// Counts and durations are far below the 2^53 from which on this would round.
#[expect(clippy::cast_precision_loss, reason = "values are far below 2^53")]
pub(crate) fn to_f64(value: u64) -> f64 {
    value as f64
}

/// No sample is longer: every wait of the benchmark has a lower bound.
const LONGEST_NS: u64 = 60_000_000_000;

/// Digits that are kept of each sample: more than the noise leaves meaningful.
const DIGITS: u8 = 3;

#[cfg(test)]
mod tests;
