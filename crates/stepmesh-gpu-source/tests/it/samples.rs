//! The small cases of every operation and type by which plugins are judged.

use stepmesh_gpu_source::Program;
use stepmesh_graph::samples::samples;
use stepmesh_graph::{DType, OpKind};

use crate::bench::judge;

#[test]
fn every_sample_is_within_its_bounds() {
    let mut cases = Vec::new();
    for op in OpKind::ALL {
        for dtype in DType::ALL {
            let samples = samples(*op, dtype).expect("samples are valid");
            assert_eq!(
                samples.is_empty(),
                !Program::supported(*op, dtype),
                "{op} {dtype}"
            );
            cases.extend(samples);
        }
    }
    assert!(cases.len() > 300, "only {} samples", cases.len());
    let wrong = judge(&cases);
    assert!(
        wrong.is_empty(),
        "{} of {} samples:\n{}",
        wrong.len(),
        cases.len(),
        wrong[..wrong.len().min(10)].join("\n")
    );
}
