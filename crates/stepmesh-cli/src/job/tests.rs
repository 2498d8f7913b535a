//! Shares, changing rows, and answers that are wrong.

use stepmesh::{DType, Tensor};
use stepmesh_core::config::Config;
use stepmesh_core::{Backend, Device};

use super::{Job, Reference, Rows};
use crate::input::tests::layer_path;

#[test]
fn shares_cover_every_row_once() {
    let reference = Reference::read(&layer_path()).unwrap();
    let device = device();
    for count in [1, 2, 3, 5, 98] {
        let shares = (0..count).map(|index| reference.share(index, count, &device).unwrap());
        let values: Vec<f32> = shares
            .flat_map(|job| job.pushed().to_vec::<f32>().unwrap())
            .collect();
        assert_eq!(values, reference.x.as_slice().unwrap(), "{count} workers");
    }
    let error = reference.share(0, 99, &device).unwrap_err().to_string();
    assert!(error.contains("98 rows for 99 workers"), "{error}");
}

#[test]
fn the_first_iteration_pushes_all_rows_and_later_ones_every_count() {
    let job = Job::synthetic(7, 3, DType::F32, 0, &device()).unwrap();
    assert_eq!(job.rows(0), Rows { start: 0, count: 7 });
    let mut seen = [false; 8];
    for iteration in 0..100 {
        let rows = job.rows(iteration);
        assert!(rows.start + rows.count <= 7, "{rows:?}");
        seen[usize::try_from(rows.count).unwrap()] = true;
    }
    assert_eq!(seen, [true; 8]);
}

#[test]
fn an_echo_must_be_the_same_bytes() {
    let job = Job::synthetic(4, 3, DType::U8, 1, &device()).unwrap();
    let rows = Rows { start: 1, count: 2 };
    let answer = job.pushed().rows(1, 2).unwrap();
    assert_eq!(job.check(rows, &answer).unwrap(), 0.0);
    let other = job.pushed().rows(2, 2).unwrap();
    let error = job.check(rows, &other).unwrap_err().to_string();
    assert!(error.contains("row 0 of 2 came back changed"), "{error}");
}

#[test]
fn workers_push_different_bytes() {
    let device = device();
    let bytes = |seed| {
        let job = Job::synthetic(4, 8, DType::U32, seed, &device).unwrap();
        job.pushed().to_vec::<u32>().unwrap()
    };
    let (a, b) = (bytes(0), bytes(1));
    assert!(a.iter().all(|word| !b.contains(word)));
}

#[test]
fn the_largest_error_is_found_and_not_a_number_is_infinite() {
    let device = device();
    let reference = Reference::read(&layer_path()).unwrap();
    let job = reference.share(1, 2, &device).unwrap();
    let rows = Rows { start: 3, count: 1 };
    let mut right: Vec<f32> = reference.y.row(49 + 3).to_vec();
    let check = |values: &[f32]| {
        let answer = Tensor::from_slice(&device, &[1, 384], values).unwrap();
        job.check(rows, &answer).unwrap()
    };
    assert_eq!(check(&right), 0.0);
    right[100] += 0.5;
    assert!((check(&right) - 0.5).abs() < 1e-6);
    right[7] = f32::NAN;
    assert_eq!(check(&right), f32::INFINITY);
}

fn device() -> Device {
    let config = Config {
        backend: "cpu".into(),
        ..Config::default()
    };
    Backend::open(&config).unwrap().device(0).unwrap()
}
