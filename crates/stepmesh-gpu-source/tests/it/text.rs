//! The source as people read it.

use stepmesh_gpu_source::Program;
use stepmesh_graph::{CompileOptions, DType, GraphBuilder, Op, Shape};

use crate::joined::MARK;

#[test]
fn the_source_of_a_small_graph_is_readable() {
    let mut graph = GraphBuilder::new("scores");
    let (rows, columns) = (Shape::new(&[6, 300]).unwrap(), Shape::new(&[300]).unwrap());
    let x = graph.parameter(DType::BF16, rows).unwrap();
    let bias = graph.parameter(DType::BF16, columns).unwrap();
    let spread = Op::Broadcast {
        shape: rows,
        dims: vec![1],
    };
    let spread = graph.node(spread, &[bias]).unwrap();
    let biased = graph.node(Op::Add, &[x, spread]).unwrap();
    let active = graph.node(Op::Silu, &[biased]).unwrap();
    let greatest = graph
        .node(Op::ReduceMax { dims: vec![1] }, &[active])
        .unwrap();
    let graph = graph.build(&[active, greatest]).unwrap();
    let program = Program::compile(&graph, &CompileOptions::default()).unwrap();
    let (_, kernels) = program.source.split_once(MARK).unwrap();
    let wanted = include_str!("scores.cpp");
    assert_eq!(kernels, wanted, "the new text is:\n{kernels}");
    let plan = program.text();
    assert!(
        plan.contains("step 0: k0_add_silu_reduce_max, 6 blocks of 64 threads"),
        "{plan}"
    );
}
