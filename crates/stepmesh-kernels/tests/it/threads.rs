//! The same bits with any number of threads, and several runs at one time.

use crate::support::{Memory, compile, run, shape};
use stepmesh_graph::{DType, F64, GraphBuilder, Op};

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let mut graph = GraphBuilder::new("threads");
    let x = graph
        .parameter(DType::F32, shape(&[130, 1100]))
        .expect("a valid node");
    let w = graph
        .parameter(DType::F32, shape(&[1100, 600]))
        .expect("a valid node");
    let y = graph
        .node(
            Op::LayerNorm {
                dim: 1,
                epsilon: F64::new(1e-5),
            },
            &[x],
        )
        .expect("a valid node");
    let y = graph.node(Op::MATMUL, &[y, w]).expect("a valid node");
    let y = graph.node(Op::GeluErf, &[y]).expect("a valid node");
    let all = graph
        .node(Op::Sum { dims: vec![0, 1] }, &[y])
        .expect("a valid node");
    let graph = graph.build(&[y, all]).expect("a valid node");
    let executable = compile(&graph);
    let words = |count: u32| -> Memory {
        // Pairs of f32 around 1, with all bits of their mantissas in use.
        let half = |idx: u32| u64::from(0x3F00_0000 + idx.wrapping_mul(0x9E37_79B9) % 0x0100_0000);
        (0..count / 2)
            .map(|idx| half(idx * 2) | half(idx * 2 + 1) << 32)
            .collect()
    };
    let args = [words(130 * 1100), words(1100 * 600)];
    let alone = run(&executable, &graph, &args, 1);
    for threads in [2, 3, 7] {
        assert_eq!(
            run(&executable, &graph, &args, threads),
            alone,
            "{threads} threads"
        );
    }
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(run(&executable, &graph, &args, 2), alone));
        }
    });
}
