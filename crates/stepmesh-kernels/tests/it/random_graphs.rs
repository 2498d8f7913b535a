//! Graphs of up to 60 nodes at random, compared with the interpreter.

use stepmesh_graph::DType;
use stepmesh_graph::samples::composed;

use crate::support::check;

fn check_seeds(dtype: DType, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let sample = composed(dtype, seed).expect("a float type");
        check(&sample.graph, &sample.arguments());
    }
}

#[test]
fn of_f64() {
    check_seeds(DType::F64, 0..40);
}

#[test]
fn of_f32() {
    check_seeds(DType::F32, 1000..1040);
}

#[test]
fn of_f16_and_bf16() {
    check_seeds(DType::F16, 2000..2020);
    check_seeds(DType::BF16, 3000..3020);
}
