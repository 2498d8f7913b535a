//! The small cases of every operation and type that plugins are judged by.

use stepmesh_graph::{DType, OpKind};

use crate::support::check;

#[test]
fn every_sample_is_within_its_bounds() {
    let mut count = 0;
    for op in OpKind::ALL {
        for dtype in DType::ALL {
            for sample in stepmesh_graph::samples::samples(*op, dtype).expect("samples are valid") {
                check(&sample.graph, &sample.arguments());
                count += 1;
            }
        }
    }
    assert!(count > 300, "only {count} samples");
}
