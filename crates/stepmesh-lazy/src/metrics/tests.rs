//! The format of reports, against what the reference prints.

use stepmesh_graph::OpKind;

use super::{Counter, Metric, Metrics, Unit};

#[test]
fn times_and_bytes_are_written_as_the_reference_writes_them() {
    let time = |ns: f64| Unit::Nanoseconds.text(ns);
    assert_eq!(
        time(369.0 * 1e9 + 401.0 * 1e6 + 746_001.0),
        "06m09s401ms746.001us"
    );
    assert_eq!(time(0.0), "000.000us");
    assert_eq!(time(1_001.0), "001.001us");
    assert_eq!(time(86_400e9), "01d00h00m00s000ms000.000us");
    assert_eq!(Unit::Bytes.text(1024.0), "1.00KB");
    assert_eq!(Unit::Bytes.text(1000.0), "1000.00B");
    assert_eq!(Unit::Number.text(3.0), "3.00");
}

#[test]
fn a_report_has_what_was_sampled_and_counted_and_nothing_else() {
    let metrics = Metrics::default();
    assert_eq!(metrics.report(), "");
    metrics.count_many(Counter::CachedCompile, 2);
    let _ = metrics.count_lowered(OpKind::Matmul);
    metrics.count_fallback(OpKind::Gather);
    metrics.sample(Metric::TensorsGraphSize, 3.0);
    assert_eq!(
        metrics.report(),
        "Metric: TensorsGraphSize\n  TotalSamples: 1\n  Accumulator: 3.00\n  Percentiles: \
         1%=3.00; 5%=3.00; 10%=3.00; 20%=3.00; 50%=3.00; 80%=3.00; 90%=3.00; 95%=3.00; 99%=3.00\n\
         Counter: CachedCompile\n  Value: 2\n\
         Counter: lazy::matmul\n  Value: 1\n\
         Counter: aten::gather\n  Value: 1\n"
    );
}

#[test]
fn the_history_is_bounded_and_the_sum_is_not() {
    let metrics = Metrics::default();
    for _ in 0..3000 {
        metrics.sample(Metric::InboundData, 1.0);
    }
    let samples = metrics.read(Metric::InboundData);
    assert_eq!(samples.ring().len(), 1024);
    assert_eq!(samples.total(), 3000);
    assert!((samples.accumulator() - 3000.0).abs() < 0.5);
}

#[test]
fn advice_names_frequent_compilations_and_fallbacks() {
    let metrics = Metrics::default();
    assert!(metrics.advice().is_empty());
    metrics.count_many(Counter::MarkStep, 11);
    for _ in 0..21 {
        metrics.sample(Metric::CompileTime, 1e6);
    }
    metrics.sample(Metric::CompileTime, 301e9);
    metrics.count_fallback(OpKind::Argmax);
    let advice = metrics.advice().join("\n");
    for part in [
        "CompileTime too frequent: 22 counts during 11 steps",
        "CompileTime too slow",
        "Op(s) not lowered: argmax",
    ] {
        assert!(advice.contains(part), "{advice}");
    }
}
