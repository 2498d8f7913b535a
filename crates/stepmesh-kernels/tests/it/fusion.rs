//! What is fused, and that fusing changes nothing.

use stepmesh_graph::{DType, F64, Op};

use crate::support::{Model, shape, tensor};

fn steps(text: &str) -> usize {
    text.lines()
        .filter(|line| line.starts_with("step "))
        .count()
}

#[test]
fn a_chain_and_its_reduction_are_one_walk() {
    let mut model = Model::new();
    let (x, y) = (
        model.param(DType::F32, &[64, 1000]),
        model.param(DType::F32, &[64, 1000]),
    );
    let mut z = model.node(Op::Add, &[x, y]);
    for op in [Op::Tanh, Op::Relu, Op::Sigmoid, Op::Neg] {
        z = model.node(op, &[z]);
    }
    let sum = model.node(Op::Sum { dims: vec![1] }, &[z]);
    let text = model.check(&[sum]);
    assert_eq!(steps(&text), 1, "{text}");
    assert!(text.contains("workspace 0 bytes"), "{text}");
}

#[test]
fn softmax_and_norms_are_one_kernel_with_what_surrounds_them() {
    let mut model = Model::new();
    let x = model.param(DType::F32, &[8, 300]);
    let weight = model.param(DType::F32, &[300]);
    let y = model.node(Op::GeluErf, &[x]);
    let y = model.node(
        Op::LayerNorm {
            dim: 1,
            epsilon: F64::new(1e-5),
        },
        &[y, weight],
    );
    let y = model.node(Op::Softmax { dim: 1 }, &[y]);
    let y = model.node(Op::Tanh, &[y]);
    let text = model.check(&[y]);
    assert_eq!(steps(&text), 1, "{text}");
}

#[test]
fn bias_and_activation_go_with_the_product() {
    let mut model = Model::new();
    let (x, w) = (
        model.param(DType::F32, &[70, 40]),
        model.param(DType::F32, &[40, 90]),
    );
    let bias = model.param(DType::F32, &[90]);
    let product = model.node(Op::MATMUL, &[x, w]);
    let to = shape(&[70, 90]);
    let bias = model.node(
        Op::Broadcast {
            shape: to,
            dims: vec![1],
        },
        &[bias],
    );
    let sum = model.node(Op::Add, &[product, bias]);
    let y = model.node(Op::GeluTanh, &[sum]);
    let text = model.check(&[y]);
    assert_eq!(steps(&text), 1, "{text}");
    assert!(text.contains("workspace 0 bytes"), "{text}");
}

#[test]
fn a_result_in_the_middle_is_stored_and_the_chain_goes_on() {
    let mut model = Model::new();
    let x = model.param(DType::F32, &[2, 3, 500]);
    let a = model.node(Op::Sigmoid, &[x]);
    let b = model.node(Op::Tanh, &[a]);
    let c = model.node(Op::Mul, &[a, b]);
    let text = model.check(&[a, c, a, x]);
    // The parameter that is a result is copied by itself.
    assert_eq!(steps(&text), 2, "{text}");
}

#[test]
fn a_reshape_within_a_chain_costs_nothing() {
    let mut model = Model::new();
    let x = model.param(DType::F32, &[4, 6, 100]);
    let a = model.node(Op::Sigmoid, &[x]);
    let flat = model.node(
        Op::Reshape {
            shape: shape(&[24, 100]),
        },
        &[a],
    );
    let b = model.node(Op::Tanh, &[flat]);
    let sum = model.node(Op::Sum { dims: vec![1] }, &[b]);
    let text = model.check(&[sum]);
    assert_eq!(steps(&text), 1, "{text}");
}

#[test]
fn clusters_that_need_each_other_stay_apart() {
    // c needs a directly and by way of a product: one kernel of a and c would wait for itself.
    let mut model = Model::new();
    let x = model.param(DType::F32, &[40, 40]);
    let a = model.node(Op::Tanh, &[x]);
    let product = model.node(Op::MATMUL, &[a, a]);
    let c = model.node(Op::Add, &[a, product]);
    let d = model.node(Op::Sub, &[c, a]);
    model.check(&[d]);
}

#[test]
fn reductions_of_different_dimensions_stay_apart() {
    let mut model = Model::new();
    let x = model.param(DType::F32, &[30, 40]);
    let a = model.node(Op::Tanh, &[x]);
    let rows = model.node(Op::Sum { dims: vec![1] }, &[a]);
    let columns = model.node(Op::Sum { dims: vec![0] }, &[a]);
    let to = shape(&[30, 40]);
    let rows = model.node(
        Op::Broadcast {
            shape: to,
            dims: vec![0],
        },
        &[rows],
    );
    let columns = model.node(
        Op::Broadcast {
            shape: to,
            dims: vec![1],
        },
        &[columns],
    );
    let y = model.node(Op::Mul, &[rows, columns]);
    let y = model.node(Op::Sub, &[y, a]);
    model.check(&[y]);
}

#[test]
fn numbers_are_part_of_programs() {
    for dtype in [DType::F32, DType::BF16, DType::I32] {
        let mut model = Model::new();
        let x = model.param(dtype, &[3, 50]);
        let ty = tensor(dtype, &[3, 50]);
        let two = match dtype {
            DType::F32 => 2_f32.to_le_bytes().to_vec(),
            DType::BF16 => half::bf16::from_f32(2.0).to_le_bytes().to_vec(),
            _ => 2_i32.to_le_bytes().to_vec(),
        };
        let two = model.graph.splat(ty, &two).unwrap();
        let y = model.node(Op::Mul, &[x, two]);
        let both = model.node(Op::Concat { dim: 0 }, &[y, two]);
        let product = model.node(
            Op::Matmul {
                transpose_a: false,
                transpose_b: true,
            },
            &[y, two],
        );
        model.check(&[both, product, two]);
    }
}

#[test]
fn constants_of_several_elements_are_read() {
    let mut model = Model::new();
    let x = model.param(DType::F64, &[2, 3]);
    let ty = tensor(DType::F64, &[2, 3]);
    let data: Vec<u8> = (0..6).flat_map(|n| f64::from(n).to_le_bytes()).collect();
    let constant = model.node(
        Op::Constant {
            ty,
            data: data.into(),
        },
        &[],
    );
    let y = model.node(Op::Mul, &[x, constant]);
    model.check(&[y, constant]);
}
