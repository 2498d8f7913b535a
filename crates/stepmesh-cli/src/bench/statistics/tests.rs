//! Statistics on samples whose answers are known.

use super::{Distribution, Recorder, block_median, median, ratio_of_pairs};

fn distribution(values: impl IntoIterator<Item = u64>) -> Distribution {
    let mut recorder = Recorder::new().unwrap();
    for value in values {
        recorder.record(value);
    }
    recorder.distribution()
}

#[test]
fn percentiles_are_values_that_occurred() {
    let hundred = distribution(1..=100);
    assert_eq!(hundred.count(), 100);
    assert_eq!(hundred.percentile_ns(50.0), 50);
    assert_eq!(hundred.percentile_ns(99.0), 99);
    assert_eq!(hundred.percentile_ns(99.9), 100);
    assert_eq!(hundred.percentile_ns(100.0), 100);
    assert_eq!(hundred.percentile_ns(0.0), 1);
    assert_eq!(hundred.max_ns(), 100);
    assert!((hundred.mean_ns() - 50.5).abs() < 1e-9);
}

#[test]
fn large_values_keep_three_digits() {
    let one = distribution([14_680_064]);
    let error = one.percentile_ns(50.0).abs_diff(14_680_064);
    assert!(error < 14_680, "off by {error}");
}

#[test]
fn no_samples_are_no_reason_to_fail() {
    let empty = distribution([]);
    assert_eq!(empty.count(), 0);
    assert_eq!(empty.percentile_ns(99.0), 0);
    assert!(empty.mean_ns().abs() < f64::EPSILON);
    assert_eq!(median(&[]), None);
    assert_eq!(ratio_of_pairs(&[]), None);
    assert!(block_median(&mut []).abs() < f64::EPSILON);
}

#[test]
fn a_distribution_survives_the_way_between_processes() {
    let before = distribution([1, 1, 5, 900, 70_000]);
    let text = serde_json::to_string(&before).unwrap();
    let after: Distribution = serde_json::from_str(&text).unwrap();
    assert_eq!(before, after);
}

#[test]
fn the_median_of_an_even_number_lies_between_the_two_in_the_middle() {
    assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
    assert_eq!(median(&[9.0, 1.0, 3.0]), Some(3.0));
}

#[test]
fn a_machine_that_slows_down_halfway_does_not_move_the_ratio() {
    let mut pairs = vec![(300.0, 100.0); 5];
    pairs.extend(vec![(1200.0, 400.0); 6]);
    assert_eq!(ratio_of_pairs(&pairs), Some(3.0));
}

#[test]
fn a_block_without_a_floor_is_left_out_of_the_ratio() {
    assert_eq!(ratio_of_pairs(&[(5.0, 0.0), (6.0, 3.0)]), Some(2.0));
}
