//! The interpreter, against numbers written down by hand, and its bounds.

use crate::reference::{Tensor, evaluate};
use crate::samples::samples;
use crate::{CompareDirection, DType, GraphBuilder, NodeId, Op, OpKind, Shape, TensorType};

fn ty(dtype: DType, dims: &[usize]) -> TensorType {
    TensorType::new(dtype, Shape::new(dims).unwrap()).unwrap()
}

/// The values of one operation.
fn values(op: Op, args: &[(TensorType, &[f64])]) -> Tensor {
    let mut graph = GraphBuilder::new("one");
    let operands: Vec<NodeId> = args
        .iter()
        .map(|(ty, _)| graph.parameter(ty.dtype(), ty.shape()).unwrap())
        .collect();
    let result = graph.node(op, &operands).unwrap();
    let args: Vec<Tensor> = args
        .iter()
        .map(|(ty, list)| Tensor::from_f64(*ty, list))
        .collect();
    let mut results = evaluate(&graph.build(&[result]).unwrap(), &args).unwrap();
    results.swap_remove(0)
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    tensor
        .elements()
        .iter()
        .map(|element| element.value)
        .collect()
}

#[test]
fn every_sample_has_values_and_few_are_open() {
    let (mut all, mut open) = (0, 0);
    for op in OpKind::ALL {
        for dtype in DType::ALL {
            let samples = samples(*op, dtype).unwrap();
            assert_eq!(samples.is_empty(), !op.allows(dtype), "{op} {dtype}");
            for sample in samples {
                let expected = sample.expected().unwrap();
                let ty = sample.graph.result_types().next().unwrap();
                assert_eq!(expected[0].elements().len(), ty.shape().element_count());
                // Its own values, rounded, are right.
                let mismatch = expected[0].mismatch(&expected[0].to_bytes());
                assert_eq!(mismatch, None, "{}", sample.name);
                all += expected[0].elements().len();
                open += expected[0]
                    .elements()
                    .iter()
                    .filter(|e| e.is_open())
                    .count();
            }
        }
    }
    assert!(open * 100 < all, "{open} of {all} are open");
}

#[test]
fn integers_wrap_and_divide_as_written() {
    let i32s = ty(DType::I32, &[5]);
    let a: &[f64] = &[7.0, -7.0, 5.0, -2_147_483_648.0, 2_147_483_647.0];
    let b: &[f64] = &[2.0, 2.0, 0.0, -1.0, 1.0];
    let divided = numbers(&values(Op::Div, &[(i32s, a), (i32s, b)]));
    assert_eq!(
        divided,
        [3.0, -3.0, -1.0, -2_147_483_648.0, 2_147_483_647.0]
    );
    let sum = numbers(&values(Op::Add, &[(i32s, a), (i32s, b)]));
    assert_eq!(sum[4], -2_147_483_648.0);
    let powers = values(
        Op::Pow,
        &[
            (i32s, &[3.0, -1.0, 2.0, 0.0, 2.0]),
            (i32s, &[4.0, -3.0, -1.0, 0.0, 33.0]),
        ],
    );
    assert_eq!(numbers(&powers), [81.0, -1.0, 0.0, 1.0, 0.0]);
    let u8s = ty(DType::U8, &[1]);
    assert_eq!(
        numbers(&values(Op::Div, &[(u8s, &[3.0]), (u8s, &[0.0])])),
        [255.0]
    );
}

#[test]
fn casts_saturate_and_round() {
    let f32s = ty(DType::F32, &[5]);
    let list: &[f64] = &[-1.5, 300.0, f64::NAN, f64::NEG_INFINITY, 2.9];
    let cast = |dtype| numbers(&values(Op::Cast { dtype }, &[(f32s, list)]));
    assert_eq!(cast(DType::U8), [0.0, 255.0, 0.0, 0.0, 2.0]);
    assert_eq!(cast(DType::I32), [-1.0, 300.0, 0.0, -2_147_483_648.0, 2.0]);
    assert_eq!(cast(DType::Bool), [1.0, 1.0, 1.0, 1.0, 1.0]);
    // 2^53 + 1 to f32 is rounded once.
    let i64s = ty(DType::I64, &[1]);
    let exact = Tensor::from_bytes(i64s, &0x2000_0100_0000_0001_i64.to_le_bytes());
    let mut graph = GraphBuilder::new("cast");
    let x = graph
        .parameter(DType::I64, Shape::new(&[1]).unwrap())
        .unwrap();
    let y = graph.node(Op::Cast { dtype: DType::F32 }, &[x]).unwrap();
    let got = evaluate(&graph.build(&[y]).unwrap(), &[exact]).unwrap();
    assert_eq!(
        got[0].elements()[0].value,
        0x2000_0100_0000_0001_i64 as f32 as f64
    );
}

#[test]
fn nan_goes_through_extremes_and_first_wins_argmax() {
    let row = ty(DType::F32, &[4]);
    let list: &[f64] = &[1.0, f64::NAN, 3.0, f64::NAN];
    assert_eq!(
        numbers(&values(Op::Argmax { dim: 0 }, &[(row, list)])),
        [1.0]
    );
    assert!(numbers(&values(Op::ReduceMax { dims: vec![0] }, &[(row, list)]))[0].is_nan());
    assert_eq!(
        numbers(&values(
            Op::Argmax { dim: 0 },
            &[(row, &[5.0, 1.0, 5.0, 5.0])]
        )),
        [0.0]
    );
    let none = values(
        Op::Compare(CompareDirection::Ne),
        &[(row, list), (row, list)],
    );
    assert_eq!(numbers(&none), [0.0, 1.0, 0.0, 1.0]);
}

#[test]
fn indices_out_of_range_are_clamped_or_left_out() {
    let (data, of) = (ty(DType::F32, &[3]), ty(DType::I32, &[3]));
    let gathered = values(
        Op::Gather { dim: 0 },
        &[(data, &[1.0, 2.0, 3.0]), (of, &[-4.0, 1.0, 9.0])],
    );
    assert_eq!(numbers(&gathered), [1.0, 2.0, 3.0]);
    let added = values(
        Op::IndexAdd { dim: 0 },
        &[
            (data, &[1.0, 2.0, 3.0]),
            (of, &[-1.0, 1.0, 1.0]),
            (data, &[10.0, 20.0, 30.0]),
        ],
    );
    assert_eq!(numbers(&added), [1.0, 52.0, 3.0]);
}

#[test]
fn norms_and_products_are_the_textbook_ones() {
    let row = ty(DType::F64, &[1, 4]);
    let list: &[f64] = &[1.0, 2.0, 3.0, 4.0];
    let norm = Op::LayerNorm {
        dim: 1,
        epsilon: 0.0.into(),
    };
    let got = numbers(&values(norm, &[(row, list)]));
    let wanted = [-1.5, -0.5, 0.5, 1.5].map(|x| x / 1.25_f64.sqrt());
    assert!(
        got.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-15),
        "{got:?}"
    );
    let (a, b) = (ty(DType::F32, &[3, 2]), ty(DType::F32, &[2, 3]));
    let list: &[f64] = &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    let product = Op::Matmul {
        transpose_a: true,
        transpose_b: true,
    };
    // [[1,3,5],[2,4,6]] . [[1,4],[2,5],[3,6]]
    assert_eq!(
        numbers(&values(product, &[(a, list), (b, list)])),
        [22.0, 49.0, 28.0, 64.0]
    );
}

#[test]
fn a_wrong_answer_is_a_mismatch_and_a_close_one_is_not() {
    let row = ty(DType::F32, &[2]);
    let wanted = values(Op::Exp, &[(row, &[0.5, 1.0])]);
    let bytes = |list: [f32; 2]| list.map(f32::to_le_bytes).concat();
    let right = [0.5_f32.exp(), 1.0_f32.exp()];
    assert_eq!(wanted.mismatch(&bytes(right)), None);
    assert_eq!(
        wanted.mismatch(&bytes([right[0], right[1].next_up()])),
        None
    );
    let wrong = wanted
        .mismatch(&bytes([right[0], right[1] * 1.0001]))
        .unwrap();
    assert!(wrong.starts_with("element 1 of f32[2] is "), "{wrong}");
    assert!(wanted.mismatch(&bytes([right[0], f32::NAN])).is_some());
    assert!(wanted.mismatch(&[]).is_some());
}

#[test]
fn what_an_error_leaves_open_stays_open() {
    let mut graph = GraphBuilder::new("open");
    let shape = Shape::new(&[1]).unwrap();
    let x = graph.parameter(DType::F32, shape).unwrap();
    let y = graph.node(Op::Exp, &[x]).unwrap();
    let z = graph.node(Op::Log, &[y]).unwrap();
    // log(exp(x)) may be a little above x, or below.
    let is_less = graph
        .node(Op::Compare(CompareDirection::Lt), &[z, x])
        .unwrap();
    let as_number = graph
        .node(Op::Cast { dtype: DType::I32 }, &[is_less])
        .unwrap();
    let graph = graph.build(&[as_number, z]).unwrap();
    let got = evaluate(&graph, &[Tensor::from_f64(ty(DType::F32, &[1]), &[1.25])]).unwrap();
    assert!(got[0].elements()[0].is_open());
    assert!(got[1].elements()[0].error > 0.0 && got[1].elements()[0].error < 1e-4);
}
