//! Each operation for each type that it is for, alone and on enough elements for several tiles.

use stepmesh_graph::{CompareDirection, DType, F64, Op, OpKind};

use crate::support::{Model, shape, tensor};

const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::BF16];

#[test]
fn operations_of_one_operand() {
    let ops = [
        Op::Neg,
        Op::Exp,
        Op::Log,
        Op::Sqrt,
        Op::Rsqrt,
        Op::Tanh,
        Op::Sigmoid,
        Op::Relu,
        Op::Silu,
        Op::GeluErf,
        Op::GeluTanh,
    ];
    for op in ops {
        for dtype in DType::ALL {
            if !op.kind().allows(dtype) {
                continue;
            }
            let mut model = Model::new();
            let x = model.param(dtype, &[3, 401]);
            let y = model.node(op.clone(), &[x]);
            model.check(&[y]);
        }
    }
}

#[test]
fn operations_of_two_operands() {
    let ops = [
        Op::Add,
        Op::Sub,
        Op::Mul,
        Op::Div,
        Op::Pow,
        Op::Max,
        Op::Min,
    ];
    for op in ops {
        for dtype in DType::ALL {
            if !op.kind().allows(dtype) {
                continue;
            }
            let mut model = Model::new();
            let (x, y) = (model.param(dtype, &[1201]), model.param(dtype, &[1201]));
            let z = model.node(op.clone(), &[x, y]);
            model.check(&[z]);
        }
    }
}

#[test]
fn comparisons_selections_and_clamps() {
    for dtype in DType::ALL {
        for direction in CompareDirection::ALL {
            let op = Op::Compare(direction);
            if !op.kind().allows(dtype) {
                continue;
            }
            let mut model = Model::new();
            let (x, y) = (model.param(dtype, &[700]), model.param(dtype, &[700]));
            let is_so = model.node(op, &[x, y]);
            let chosen = model.node(Op::Select, &[is_so, y, x]);
            model.check(&[chosen, is_so]);
        }
        if OpKind::Clamp.allows(dtype) {
            let mut model = Model::new();
            let operands = [0; 3].map(|_| model.param(dtype, &[700]));
            let clamped = model.node(Op::Clamp, &operands);
            model.check(&[clamped]);
        }
    }
}

#[test]
fn casts_between_all_types() {
    let numbers = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        1.5,
        2.5,
        -2.75,
        447.9,
        448.0,
        465.0,
        1e-9,
        3.1e-5,
        65504.0,
        65519.9,
        65520.0,
        1e6,
        -1e6,
        300.0,
        -300.0,
        2_147_483_648.0,
        1e20,
        -1e20,
        57345.0,
        61440.0,
        2049.0,
        2_051.0,
        1.000_000_059_604_645,
        257.0,
    ];
    for from in DType::ALL {
        for to in DType::ALL {
            let mut model = Model::new();
            let x = model.param_of(from, &[29], |idx| numbers[idx]);
            let y = model.node(Op::Cast { dtype: to }, &[x]);
            model.check(&[y]);
        }
    }
}

#[test]
fn large_integers_are_rounded_once() {
    for to in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        let mut model = Model::new();
        // Near the middle between two floats of each type, and large.
        let number = |idx: usize| {
            let idx = i32::try_from(idx).map_or(0, |idx| idx);
            2_f64.powi(8 + idx) + 2_f64.powi(idx - 1).floor() + f64::from(idx % 3)
        };
        let x = model.param_of(DType::I64, &[40], number);
        let y = model.node(Op::Cast { dtype: to }, &[x]);
        model.check(&[y]);
    }
}

#[test]
fn reductions_over_every_choice_of_dimensions() {
    for dtype in [
        DType::F32,
        DType::F64,
        DType::F16,
        DType::I32,
        DType::I64,
        DType::U8,
    ] {
        for over in [
            vec![0],
            vec![1],
            vec![2],
            vec![0, 1],
            vec![1, 2],
            vec![0, 2],
            vec![0, 1, 2],
            vec![],
        ] {
            let mut model = Model::new();
            let x = model.param(dtype, &[5, 7, 601]);
            let mut results = vec![model.node(Op::Sum { dims: over.clone() }, &[x])];
            if OpKind::Mean.allows(dtype) {
                results.push(model.node(Op::Mean { dims: over.clone() }, &[x]));
            }
            results.push(model.node(Op::ReduceMax { dims: over.clone() }, &[x]));
            model.check(&results);
        }
        for dim in 0..3 {
            let mut model = Model::new();
            let x = model.param(dtype, &[5, 7, 601]);
            let place = model.node(Op::Argmax { dim }, &[x]);
            model.check(&[place]);
        }
    }
    let mut model = Model::new();
    let x = model.param(DType::Bool, &[4, 5]);
    let any = model.node(Op::ReduceMax { dims: vec![1] }, &[x]);
    model.check(&[any]);
}

#[test]
fn a_long_row_is_reduced_in_parts() {
    for dtype in [DType::F32, DType::I32, DType::F16] {
        let mut model = Model::new();
        let x = model.param(dtype, &[2, 150_001]);
        let max = model.node(Op::ReduceMax { dims: vec![1] }, &[x]);
        let place = model.node(Op::Argmax { dim: 1 }, &[x]);
        let sum = model.node(Op::Cast { dtype: DType::F64 }, &[x]);
        let sum = model.node(Op::Sum { dims: vec![1] }, &[sum]);
        let text = model.check(&[max, place, sum]);
        assert!(text.contains("parts"), "{text}");
    }
    let mut model = Model::new();
    let x = model.param(DType::F32, &[60_001, 3]);
    let sum = model.node(Op::Sum { dims: vec![0] }, &[x]);
    let place = model.node(Op::Argmax { dim: 0 }, &[x]);
    let text = model.check(&[sum, place]);
    assert!(text.contains("parts"), "{text}");
}

#[test]
fn products_of_every_type_and_orientation() {
    for dtype in [
        DType::F32,
        DType::F64,
        DType::F16,
        DType::BF16,
        DType::I32,
        DType::I64,
        DType::U8,
    ] {
        for (rows, depth, columns) in [(1, 1, 1), (3, 5, 7), (17, 64, 33), (65, 9, 1), (1, 130, 70)]
        {
            for turn in 0..4 {
                let (transpose_a, transpose_b) = (turn & 1 == 1, turn & 2 == 2);
                let mut model = Model::new();
                let a = if transpose_a {
                    [2, depth, rows]
                } else {
                    [2, rows, depth]
                };
                let b = if transpose_b {
                    [2, columns, depth]
                } else {
                    [2, depth, columns]
                };
                let (a, b) = (model.param(dtype, &a), model.param(dtype, &b));
                let op = Op::Matmul {
                    transpose_a,
                    transpose_b,
                };
                let product = model.node(op, &[a, b]);
                model.check(&[product]);
            }
        }
    }
}

#[test]
fn products_of_several_blocks() {
    for dtype in [DType::F32, DType::BF16, DType::I32] {
        let mut model = Model::new();
        let a = model.param(dtype, &[258, 1030]);
        let b = model.param(dtype, &[1030, 20]);
        let product = model.node(Op::MATMUL, &[a, b]);
        let relu = model.node(Op::Relu, &[product]);
        let a = model.param(dtype, &[2, 3]);
        let b = model.param(dtype, &[3, 1030]);
        let wide = model.node(Op::MATMUL, &[a, b]);
        let wide = model.node(Op::Relu, &[wide]);
        model.check(&[relu, wide]);
    }
}

#[test]
fn softmax_and_norms() {
    for dtype in FLOATS {
        for dim in 0..3 {
            let mut model = Model::new();
            let x = model.param(dtype, &[3, 40, 50]);
            let y = model.node(Op::Softmax { dim }, &[x]);
            model.check(&[y]);
            for count in 1..=3 {
                let epsilon = F64::new(1e-5);
                let mut model = Model::new();
                let dims = [3, 40, 50];
                let x = model.param(dtype, &dims);
                let weight = model.param(dtype, &dims[dim..]);
                let bias = model.param(dtype, &dims[dim..]);
                let operands = &[x, weight, bias][..count];
                let mut results = vec![model.node(Op::LayerNorm { dim, epsilon }, operands)];
                if count < 3 {
                    results.push(model.node(Op::RmsNorm { dim, epsilon }, operands));
                }
                model.check(&results);
            }
        }
    }
}

#[test]
fn a_long_softmax_is_not_walked_several_times() {
    let mut model = Model::new();
    let x = model.param(DType::F32, &[2, 70_000]);
    let y = model.node(Op::Softmax { dim: 1 }, &[x]);
    model.check(&[y]);
}

#[test]
fn elements_are_moved_whatever_their_type() {
    for dtype in DType::ALL {
        let mut model = Model::new();
        let x = model.param(dtype, &[4, 6, 5]);
        let turned = model.node(
            Op::Transpose {
                dims: vec![2, 0, 1],
            },
            &[x],
        );
        let flat = model.node(
            Op::Reshape {
                shape: shape(&[10, 12]),
            },
            &[turned],
        );
        let (starts, limits, strides) = (vec![1, 2], vec![9, 12], vec![3, 2]);
        let part = model.node(
            Op::Slice {
                starts,
                limits,
                strides,
            },
            &[flat],
        );
        let to = shape(&[2, 3, 5]);
        let wide = model.node(
            Op::Broadcast {
                shape: to,
                dims: vec![1, 2],
            },
            &[part],
        );
        let both = model.node(Op::Concat { dim: 1 }, &[wide, wide]);
        model.check(&[turned, flat, part, wide, both]);
    }
}

#[test]
fn gather_and_index_add() {
    for dtype in DType::ALL {
        for indices in [DType::I32, DType::I64] {
            for dim in 0..3 {
                let mut model = Model::new();
                let data = model.param(dtype, &[5, 6, 7]);
                let index = |idx: usize| [0.0, 4.0, -3.0, 2.0, 9.0, 2.0][idx];
                let square = model.param_of(indices, &[2, 3], index);
                let taken = model.node(Op::Gather { dim }, &[data, square]);
                let mut results = vec![taken];
                if OpKind::IndexAdd.allows(dtype) {
                    let row = model.param_of(indices, &[6], index);
                    let mut dims = [5, 6, 7];
                    dims[dim] = 6;
                    let updates = model.param(dtype, &dims);
                    results.push(model.node(Op::IndexAdd { dim }, &[data, row, updates]));
                }
                model.check(&results);
            }
        }
    }
}

#[test]
fn random_numbers_are_those_of_the_abi() {
    for dtype in FLOATS {
        for offset in [0.0, 5.0] {
            let mut model = Model::new();
            let seed = model.param_of(DType::I64, &[], |_| 1234.0);
            let offset = model.param_of(DType::I64, &[], |_| offset);
            let ty = tensor(dtype, &[3, 701]);
            let uniform = model.node(Op::RngUniform { ty }, &[seed, offset]);
            let normal = model.node(Op::RngNormal { ty }, &[seed, offset]);
            model.check(&[uniform, normal]);
            let mut model = Model::new();
            let seed = model.param_of(DType::I64, &[], |_| -7.0);
            let normal = model.node(Op::RngNormal { ty }, &[seed, seed]);
            let sum_of = model.node(Op::Sum { dims: vec![1] }, &[normal]);
            model.check(&[normal, sum_of]);
        }
    }
}

#[test]
fn not_a_number_and_infinity_go_where_they_should() {
    let numbers = [
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        0.0,
        -0.0,
        1.0,
        -1.0,
    ];
    for dtype in FLOATS {
        let mut model = Model::new();
        let x = model.param_of(dtype, &[7, 7], |idx| numbers[idx / 7]);
        let y = model.param_of(dtype, &[7, 7], |idx| numbers[idx % 7]);
        let mut results = Vec::new();
        for op in [
            Op::Add,
            Op::Sub,
            Op::Mul,
            Op::Div,
            Op::Pow,
            Op::Max,
            Op::Min,
        ] {
            results.push(model.node(op, &[x, y]));
        }
        for op in [
            Op::Exp,
            Op::Log,
            Op::Sqrt,
            Op::Rsqrt,
            Op::Tanh,
            Op::Sigmoid,
            Op::Relu,
        ] {
            results.push(model.node(op, &[x]));
        }
        for direction in CompareDirection::ALL {
            results.push(model.node(Op::Compare(direction), &[x, y]));
        }
        results.push(model.node(Op::Clamp, &[x, y, x]));
        for dim in 0..2 {
            results.push(model.node(Op::Softmax { dim }, &[x]));
            results.push(model.node(Op::Argmax { dim }, &[x]));
            results.push(model.node(Op::ReduceMax { dims: vec![dim] }, &[y]));
            results.push(model.node(Op::Sum { dims: vec![dim] }, &[y]));
        }
        model.check(&results);
    }
}
