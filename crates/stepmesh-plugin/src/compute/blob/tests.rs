//! A frame comes back as it was written, or is refused.

use std::sync::Arc;

use stepmesh_abi::Code;
use stepmesh_graph::{CompileOptions, DType, GraphBuilder, Op, Shape};

use super::{Blob, fingerprint};

fn blob() -> Blob {
    let mut graph = GraphBuilder::new("neg");
    let x = graph.parameter(DType::F32, Shape::SCALAR).unwrap();
    let y = graph.node(Op::Neg, &[x]).unwrap();
    Blob {
        fingerprint: fingerprint(&["fake", "1.0"]),
        options: CompileOptions {
            is_deterministic: true,
            allows_tf32: false,
            threads_max: 3,
        },
        graph: Arc::new(graph.build(&[y]).unwrap()),
        payload: b"machine code".to_vec(),
    }
}

#[test]
fn what_was_written_comes_back() {
    let bytes = blob().write();
    let back = Blob::read(&bytes, blob().fingerprint).unwrap();
    assert_eq!(back.options, blob().options);
    assert_eq!(back.graph, blob().graph);
    assert_eq!(back.payload, blob().payload);
    assert_eq!(back.write(), bytes);
}

#[test]
fn another_build_is_told_apart_from_damage() {
    let bytes = blob().write();
    let code = |bytes: &[u8], texts: &[&str]| {
        let read = Blob::read(bytes, fingerprint(texts));
        read.err().map(|error| error.code())
    };
    assert_eq!(
        code(&bytes, &["fake", "1.1"]),
        Some(Code::FailedPrecondition)
    );
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        assert_eq!(
            code(&changed, &["fake", "1.0"]),
            Some(Code::DataLoss),
            "byte {at}"
        );
        assert_eq!(
            code(&bytes[..at], &["fake", "1.0"]),
            Some(Code::DataLoss),
            "{at} bytes"
        );
    }
}

#[test]
fn a_fingerprint_is_of_each_text_alone() {
    assert_eq!(fingerprint(&["a", "bc"]), fingerprint(&["a", "bc"]));
    assert_ne!(fingerprint(&["a", "bc"]), fingerprint(&["ab", "c"]));
    assert_ne!(fingerprint(&["a"]), fingerprint(&["a", ""]));
}
