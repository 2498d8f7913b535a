//! What the numbers say: rules over metrics, as torch_xla's analyser has them.

use stepmesh_graph::OpKind;

use super::{Counter, Metric, Metrics, Unit};

impl Metrics {
    /// One line for each thing that a user should look at; none if all is well.
    #[must_use]
    pub fn advice(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let steps = self.counter(Counter::MarkStep);
        let compiles = self.samples(Metric::CompileTime);
        if steps > STEPS_MIN && compiles * COMPILES_PER_STEP_DIVISOR > steps {
            lines.push(format!(
                "CompileTime too frequent: {compiles} counts during {steps} steps; see what differs \
                 from step to step in `LazyDevice::recompilations`"
            ));
        }
        let executions = self.samples(Metric::ExecuteTime);
        if steps > STEPS_MIN && executions > EXECUTIONS_PER_STEP_MAX * steps {
            lines.push(format!(
                "ExecuteTime too frequent: {executions} counts during {steps} steps; values that are \
                 read within a step cut its graph in pieces"
            ));
        }
        for (metric, limit_ns) in [
            (Metric::CompileTime, COMPILE_SLOW_NS),
            (Metric::ExecuteTime, EXECUTE_SLOW_NS),
        ] {
            let samples = self.read(metric);
            let slowest = samples.ring().iter().map(|sample| sample.value);
            let slowest = slowest.fold(0.0, f64::max);
            if slowest > limit_ns {
                lines.push(format!(
                    "{} too slow: longest {}",
                    metric.name(),
                    Unit::Nanoseconds.text(slowest)
                ));
            }
        }
        let fell_back: Vec<&str> = OpKind::ALL
            .iter()
            .filter(|op| self.fell_back(**op) > 0)
            .map(|op| op.name())
            .collect();
        if !fell_back.is_empty() {
            lines.push(format!(
                "Op(s) not lowered: {}; each call waits for the device and computes on the host",
                fell_back.join(", ")
            ));
        }
        let trims = self.counter(Counter::TrimIrGraph);
        if trims > 0 {
            lines.push(format!(
                "TrimIrGraph: {trims} graphs grew too large and were cut; end steps more often"
            ));
        }
        lines
    }
}

/// The first steps compile, whatever one does.
const STEPS_MIN: u64 = 10;
/// The reference's threshold is half a compilation for each step.
const COMPILES_PER_STEP_DIVISOR: u64 = 2;
/// A step has its graph, and perhaps a value or two that are read within.
const EXECUTIONS_PER_STEP_MAX: u64 = 4;
/// The reference's 300 s.
const COMPILE_SLOW_NS: f64 = 300e9;
/// The reference's 30 s.
const EXECUTE_SLOW_NS: f64 = 30e9;
