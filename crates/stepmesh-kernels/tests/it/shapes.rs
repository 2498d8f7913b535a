//! Shapes at the edge: nothing, one element, every rank, odd sizes, large steps.

use stepmesh_graph::{DType, F64, Op};

use crate::support::{Model, shape};

#[test]
fn values_without_elements() {
    for dims in [[0, 5], [5, 0], [0, 0]] {
        let mut model = Model::new();
        let x = model.param(DType::F32, &dims);
        let y = model.node(Op::Tanh, &[x]);
        let both = model.node(Op::Concat { dim: 0 }, &[y, x]);
        let turned = model.node(Op::Transpose { dims: vec![1, 0] }, &[y]);
        let softmax = model.node(Op::Softmax { dim: 1 }, &[y]);
        let norm = model.node(
            Op::RmsNorm {
                dim: 0,
                epsilon: F64::new(1e-5),
            },
            &[x],
        );
        let product = model.node(Op::MATMUL, &[x, turned]);
        let mut results = vec![y, both, turned, softmax, norm, product];
        for over in [vec![0], vec![1], vec![0, 1]] {
            results.push(model.node(Op::Sum { dims: over.clone() }, &[x]));
            results.push(model.node(Op::Mean { dims: over.clone() }, &[y]));
            results.push(model.node(Op::ReduceMax { dims: over }, &[y]));
        }
        model.check(&results);
    }
    for dtype in [DType::F32, DType::F16, DType::I32] {
        let mut model = Model::new();
        let (a, b) = (model.param(dtype, &[3, 0]), model.param(dtype, &[0, 4]));
        let zero = model.node(Op::MATMUL, &[a, b]);
        let zero = model.node(Op::Neg, &[zero]);
        let max = model.node(Op::ReduceMax { dims: vec![1] }, &[a]);
        let data = model.param(dtype, &[0, 4]);
        let none = model.param(DType::I32, &[0]);
        let gathered = model.node(Op::Gather { dim: 0 }, &[data, none]);
        let added = model.node(Op::IndexAdd { dim: 1 }, &[a, none, a]);
        model.check(&[zero, max, gathered, added]);
    }
}

#[test]
fn every_rank_from_scalars_on() {
    for rank in 0..=8 {
        let dims: Vec<usize> = (0..rank).map(|dim| 1 + (dim * 5 + rank) % 3).collect();
        let mut model = Model::new();
        let (x, y) = (
            model.param(DType::F32, &dims),
            model.param(DType::F32, &dims),
        );
        let sum = model.node(Op::Add, &[x, y]);
        let order: Vec<usize> = (0..rank).rev().collect();
        let turned = model.node(Op::Transpose { dims: order }, &[sum]);
        let over: Vec<usize> = (0..rank).filter(|dim| dim % 2 == 0).collect();
        let total = model.node(Op::Sum { dims: over }, &[turned]);
        let all = model.node(
            Op::Sum {
                dims: (0..rank).collect(),
            },
            &[turned],
        );
        let to = shape(&dims);
        let wide = model.node(
            Op::Broadcast {
                shape: to,
                dims: vec![],
            },
            &[all],
        );
        let y = model.node(Op::Mul, &[wide, sum]);
        model.check(&[turned, total, y]);
    }
}

#[test]
fn sizes_around_those_of_tiles_and_tasks() {
    for len in [
        1, 2, 31, 32, 33, 511, 512, 513, 1023, 16_383, 16_384, 16_385,
    ] {
        let mut model = Model::new();
        let x = model.param(DType::F32, &[len]);
        let y = model.node(Op::Exp, &[x]);
        let sum = model.node(Op::Sum { dims: vec![0] }, &[y]);
        let column = model.param(DType::F32, &[3, len]);
        let sums = model.node(Op::Sum { dims: vec![0] }, &[column]);
        let z = model.node(Op::Mul, &[sums, y]);
        let soft = model.node(Op::Softmax { dim: 0 }, &[column]);
        model.check(&[y, sum, z, soft]);
    }
}

#[test]
fn broadcasts_and_steps_are_read_in_place() {
    let mut model = Model::new();
    let big = model.param(DType::F32, &[9, 50, 70]);
    let (starts, limits, strides) = (vec![1, 3, 5], vec![9, 50, 69], vec![4, 7, 9]);
    let part = model.node(
        Op::Slice {
            starts,
            limits,
            strides,
        },
        &[big],
    );
    assert_eq!(model.dims(part), [2, 7, 8]);
    let turned = model.node(
        Op::Transpose {
            dims: vec![2, 1, 0],
        },
        &[part],
    );
    let row = model.param(DType::F32, &[7]);
    let to = shape(&[8, 7, 2]);
    let row = model.node(
        Op::Broadcast {
            shape: to,
            dims: vec![1],
        },
        &[row],
    );
    let sum = model.node(Op::Add, &[turned, row]);
    let total = model.node(Op::Sum { dims: vec![1] }, &[sum]);
    let text = model.check(&[total]);
    assert!(text.contains("workspace 0 bytes"), "{text}");
}

#[test]
fn a_product_reads_views() {
    let mut model = Model::new();
    let x = model.param(DType::F32, &[6, 20, 30]);
    let (starts, limits, strides) = (vec![0, 2, 1], vec![6, 20, 30], vec![2, 3, 2]);
    let part = model.node(
        Op::Slice {
            starts,
            limits,
            strides,
        },
        &[x],
    );
    let w = model.param(DType::F32, &[15, 4]);
    let to = shape(&[3, 15, 4]);
    let w = model.node(
        Op::Broadcast {
            shape: to,
            dims: vec![1, 2],
        },
        &[w],
    );
    let product = model.node(Op::MATMUL, &[part, w]);
    let text = model.check(&[product]);
    assert!(text.contains("workspace 0 bytes"), "{text}");
}
