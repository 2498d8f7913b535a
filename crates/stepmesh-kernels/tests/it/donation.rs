//! Results that replace arguments: the same values, wherever the memory allows it and where not.

use stepmesh_graph::reference::Tensor;
use stepmesh_graph::{DType, GraphBuilder, NodeId, Op};
use stepmesh_kernels::Pool;

use crate::support::{Memory, compare, compile, regions, shape, tensor, to_memory};

/// Runs with the donated argument's memory as the result's, and compares.
#[track_caller]
fn check(build: impl Fn(&mut GraphBuilder, &[NodeId]) -> Vec<NodeId>, donations: &[(u32, u32)]) {
    let dims = [30, 30];
    let mut builder = GraphBuilder::new("donation");
    let params = [0; 2].map(|_| builder.parameter(DType::F32, shape(&dims)).expect("small"));
    let results = build(&mut builder, &params);
    for (param, result) in donations {
        builder.donate(*param, *result);
    }
    let graph = builder.build(&results).expect("a valid graph");
    let args = [1, 5].map(|seed| {
        let number = |idx: u32| f64::from((idx * 7 + seed) % 17) / 16.0;
        let numbers: Vec<f64> = (0..900).map(number).collect();
        Tensor::from_f64(tensor(DType::F32, &dims), &numbers)
    });
    let mut memory: Vec<Memory> = args.iter().map(|arg| to_memory(&arg.to_bytes())).collect();
    let mut outs: Vec<Memory> = results.iter().map(|_| vec![0; 450]).collect();
    let arg_regions = regions(&mut memory);
    let mut out_regions = regions(&mut outs);
    let index = |number: u32| usize::try_from(number).expect("a small number");
    for (param, result) in donations {
        out_regions[index(*result)] = arg_regions[index(*param)];
    }
    let executable = compile(&graph);
    let pool = Pool::new(2).expect("two threads");
    let done = executable.run(&pool, &arg_regions, &out_regions);
    done.expect("regions of the right size");
    for (param, result) in donations {
        outs[index(*result)] = memory[index(*param)].clone();
    }
    compare(&graph, &args, &outs, executable.text());
}

#[test]
fn an_update_in_place() {
    check(
        |graph, params| {
            let sum = graph.node(Op::Add, params).expect("a valid node");
            vec![graph.node(Op::Tanh, &[sum]).expect("a valid node")]
        },
        &[(0, 0)],
    );
}

#[test]
fn an_argument_that_is_read_later_is_not_overwritten_early() {
    check(
        |graph, params| {
            let sum = graph.node(Op::Add, params).expect("a valid node");
            let product = graph
                .node(Op::MATMUL, &[sum, params[0]])
                .expect("a valid node");
            vec![sum, product]
        },
        &[(0, 0), (1, 1)],
    );
}

#[test]
fn an_argument_that_is_read_elsewhere_is_not_overwritten_before() {
    check(
        |graph, params| {
            let turned = graph
                .node(Op::Transpose { dims: vec![1, 0] }, &[params[0]])
                .expect("a valid node");
            vec![
                graph
                    .node(Op::Add, &[turned, params[0]])
                    .expect("a valid node"),
            ]
        },
        &[(0, 0)],
    );
    check(
        |graph, params| {
            vec![
                graph
                    .node(Op::Softmax { dim: 1 }, &[params[0]])
                    .expect("a valid node"),
            ]
        },
        &[(0, 0)],
    );
    check(
        |graph, params| vec![graph.node(Op::MATMUL, params).expect("a valid node")],
        &[(1, 0)],
    );
}

#[test]
fn two_arguments_are_exchanged() {
    check(
        |graph, params| {
            let first = graph.node(Op::Neg, &[params[1]]).expect("a valid node");
            let second = graph.node(Op::Neg, &[params[0]]).expect("a valid node");
            vec![first, second]
        },
        &[(0, 0), (1, 1)],
    );
    check(|_, params| vec![params[1], params[0]], &[(0, 0), (1, 1)]);
}
