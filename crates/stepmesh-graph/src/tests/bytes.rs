//! Graphs through bytes: what was written comes back, and what was not is refused.

use crate::samples::samples;
use crate::{DType, Graph, OpKind};

#[test]
fn every_sample_comes_back_from_its_bytes() {
    for op in OpKind::ALL {
        for dtype in DType::ALL {
            for sample in samples(*op, dtype).unwrap() {
                let bytes = sample.graph.encode();
                assert_eq!(
                    Graph::decode(&bytes).unwrap(),
                    sample.graph,
                    "{}",
                    sample.name
                );
            }
        }
    }
}

#[test]
fn cut_and_changed_bytes_give_no_panic_and_no_invalid_graph() {
    let mut accepted = 0;
    for op in [
        OpKind::Matmul,
        OpKind::Slice,
        OpKind::Constant,
        OpKind::LayerNorm,
    ] {
        let sample = samples(op, DType::F32).unwrap().swap_remove(0);
        let bytes = sample.graph.encode();
        for len in 0..bytes.len() {
            assert!(Graph::decode(&bytes[..len]).is_err(), "{len} bytes of {op}");
        }
        for place in 0..bytes.len() {
            for flip in [1, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[place] ^= flip;
                // A changed name or number may be another valid graph; then it is one indeed.
                if let Ok(graph) = Graph::decode(&changed) {
                    assert_eq!(Graph::from_raw(graph.to_raw()).as_ref(), Ok(&graph));
                    accepted += 1;
                }
            }
        }
        Graph::decode(&[bytes.as_slice(), &[0]].concat()).unwrap_err();
    }
    assert!(accepted > 0, "the name at least can change");
}
