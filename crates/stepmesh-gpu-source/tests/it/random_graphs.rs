//! Graphs of up to 60 nodes at random.

use stepmesh_graph::DType;
use stepmesh_graph::samples::composed;

use crate::bench::judge;

#[test]
fn many_operations_together_are_within_their_bounds() {
    let types = [DType::F64, DType::F32, DType::F16, DType::BF16];
    let mut cases = Vec::new();
    for (number, dtype) in types.into_iter().enumerate() {
        for seed in 0..30 {
            cases.push(composed(dtype, number as u64 * 1000 + seed).expect("a float type"));
        }
    }
    let wrong = judge(&cases);
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        cases.len(),
        wrong[..wrong.len().min(3)].join("\n")
    );
}
