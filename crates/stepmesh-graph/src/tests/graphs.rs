//! Valid graphs, and everything that is none.

use crate::{
    Alias, Attribute, DType, Error, Graph, GraphBuilder, NodeId, Op, OpKind, RawGraph, RawNode,
    RawValue, Shape, TensorType, infer,
};
use stepmesh_abi::compute::{SM_ATTR_DIM, SM_ATTR_DIMS, SM_OP_ADD, SM_OP_NEG, SM_OP_SUM};

fn ty(dtype: DType, dims: &[usize]) -> TensorType {
    TensorType::new(dtype, Shape::new(dims).unwrap()).unwrap()
}

fn f32s(dims: &[usize]) -> TensorType {
    ty(DType::F32, dims)
}

/// Two parameters, their sum and a reduction of it.
fn graph() -> Graph {
    let mut builder = GraphBuilder::new("g");
    builder.set_location(Some("model.rs:7".into()));
    let a = builder
        .parameter(DType::F32, Shape::new(&[2, 3]).unwrap())
        .unwrap();
    let b = builder
        .parameter(DType::F32, Shape::new(&[2, 3]).unwrap())
        .unwrap();
    let sum = builder.node(Op::Add, &[a, b]).unwrap();
    let result = builder.node(Op::Sum { dims: vec![1] }, &[sum]).unwrap();
    builder.donate(1, 1);
    builder.build(&[result, sum]).unwrap()
}

fn fault(spoil: impl FnOnce(&mut RawGraph)) -> Error {
    let mut raw = graph().to_raw();
    spoil(&mut raw);
    Graph::from_raw(raw).unwrap_err()
}

#[test]
fn a_graph_is_its_own_raw_form() {
    assert_eq!(Graph::from_raw(graph().to_raw()).unwrap(), graph());
}

#[test]
fn a_graph_reads_as_text() {
    let text = graph().to_string();
    assert!(
        text.starts_with("graph g(%0: f32[2,3], %1: f32[2,3]) {\n"),
        "{text}"
    );
    assert!(
        text.contains("  %3 = sum(%2, dims=[1]) : f32[2]    // model.rs:7\n"),
        "{text}"
    );
    assert!(text.ends_with("  return %3, %2\n}"), "{text}");
}

#[test]
fn operands_must_be_earlier_nodes() {
    for operand in [2, 3, 4, u32::MAX] {
        let error = fault(|raw| raw.nodes[2].operands[0].node = operand);
        let expected = format!("node 2 (model.rs:7): operand {operand} is no earlier node");
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn an_output_beyond_the_first_is_refused() {
    let error = fault(|raw| raw.nodes[2].operands[0].output = 1);
    assert!(
        error
            .to_string()
            .contains("output 1 of node 0, which has one"),
        "{error}"
    );
    fault(|raw| raw.results[0].output = 7);
}

#[test]
fn what_is_unknown_is_told_apart_from_what_is_wrong() {
    assert!(fault(|raw| raw.nodes[2].op = 9999).is_unknown());
    assert!(fault(|raw| raw.nodes[2].dtype = 77).is_unknown());
    let attribute = (4711, Attribute::Int(1));
    assert!(fault(|raw| raw.nodes[2].attributes.push(attribute)).is_unknown());
    assert!(!fault(|raw| raw.nodes[3].attributes.clear()).is_unknown());
}

#[test]
fn a_type_or_shape_that_the_rules_do_not_give_is_refused() {
    let error = fault(|raw| raw.nodes[2].dims = vec![3, 2]);
    assert!(
        error
            .to_string()
            .contains("says it is f32[3,2], but add gives f32[2,3]"),
        "{error}"
    );
    fault(|raw| raw.nodes[2].dtype = DType::F64.number());
    fault(|raw| raw.nodes[3].dims = vec![3]);
}

#[test]
fn ranks_and_extents_have_bounds() {
    fault(|raw| raw.nodes[0].dims = vec![1; 9]);
    fault(|raw| raw.nodes[0].dims = vec![u64::MAX]);
    fault(|raw| raw.nodes[0].dims = vec![1 << 32, 1 << 32]);
    // An extent of 0 does not hide the others.
    fault(|raw| raw.nodes[0].dims = vec![0, 1 << 62, 1 << 62]);
    Shape::new(&[1 << 62]).unwrap();
    TensorType::new(DType::F64, Shape::new(&[1 << 60]).unwrap()).unwrap_err();
}

#[test]
fn attributes_have_their_kind_and_range() {
    for value in [
        Attribute::Int(1),
        Attribute::Ints(vec![-1]),
        Attribute::Ints(vec![2]),
        Attribute::Ints(vec![0, 0]),
        Attribute::Ints(vec![1, 0]),
        Attribute::Ints(vec![i64::MAX]),
        Attribute::Ints(vec![0; 9]),
        Attribute::Bytes(vec![1].into()),
    ] {
        fault(|raw| raw.nodes[3].attributes = vec![(SM_ATTR_DIMS, value)]);
    }
    let twice = vec![
        (SM_ATTR_DIMS, Attribute::Ints(vec![1])),
        (SM_ATTR_DIMS, Attribute::Ints(vec![1])),
    ];
    fault(|raw| raw.nodes[3].attributes = twice);
    fault(|raw| raw.nodes[3].attributes = vec![(SM_ATTR_DIM, Attribute::Int(1))]);
}

#[test]
fn parameters_are_listed_once_each() {
    fault(|raw| raw.params = vec![0]);
    fault(|raw| raw.params = vec![0, 0]);
    fault(|raw| raw.params = vec![0, 1, 2]);
    fault(|raw| raw.params = vec![0, 9]);
    // In another order they are numbered otherwise, which is fine.
    let mut raw = graph().to_raw();
    raw.params = vec![1, 0];
    assert_eq!(
        Graph::from_raw(raw).unwrap().params(),
        [NodeId(1), NodeId(0)]
    );
}

#[test]
fn results_exist() {
    fault(|raw| raw.results.clear());
    fault(|raw| raw.results.push(RawValue { node: 4, output: 0 }));
}

#[test]
fn donations_are_of_one_type_and_once() {
    for (param, result) in [(2, 1), (0, 2), (0, 0), (0, 1)] {
        fault(|raw| raw.aliases.push(Alias { param, result }));
    }
}

#[test]
fn many_nodes_and_operands_are_refused() {
    let node = RawNode {
        op: SM_OP_NEG,
        dtype: DType::F32.number(),
        dims: vec![2, 3],
        operands: vec![RawValue::default()],
        ..RawNode::default()
    };
    fault(|raw| raw.nodes.extend(vec![node; 1 << 20]));
    fault(|raw| raw.nodes[2].operands = vec![RawValue::default(); (1 << 16) + 1]);
    fault(|raw| raw.nodes[2].op = SM_OP_SUM);
    fault(|raw| raw.nodes[3].op = SM_OP_ADD);
}

#[test]
#[expect(clippy::too_many_lines, reason = "a line for each case")]
fn operations_refuse_operands_that_do_not_fit() {
    let (a, b) = (f32s(&[2, 3]), f32s(&[3, 2]));
    let (ints, bools) = (ty(DType::I32, &[2]), ty(DType::Bool, &[2, 3]));
    let seed = ty(DType::I64, &[]);
    let shape = Shape::new(&[2, 3]).unwrap();
    let slice = |starts: &[usize], limits: &[usize], strides: &[usize]| Op::Slice {
        starts: starts.to_vec(),
        limits: limits.to_vec(),
        strides: strides.to_vec(),
    };
    let norm = |dim, epsilon: f64| Op::LayerNorm {
        dim,
        epsilon: epsilon.into(),
    };
    let cases: Vec<(Op, Vec<TensorType>)> = vec![
        (Op::Add, vec![a]),
        (Op::Add, vec![a, b]),
        (Op::Add, vec![bools, bools]),
        (Op::Exp, vec![ints]),
        (Op::Neg, vec![ty(DType::F8E4M3, &[2])]),
        (Op::Select, vec![a, a, a]),
        (Op::Select, vec![bools, a, b]),
        (Op::Clamp, vec![a, a]),
        (Op::Mean { dims: vec![0] }, vec![ints]),
        (Op::Sum { dims: vec![2] }, vec![a]),
        (Op::Argmax { dim: 1 }, vec![f32s(&[2, 0])]),
        (Op::MATMUL, vec![a, a]),
        (Op::MATMUL, vec![f32s(&[3]), f32s(&[3])]),
        (Op::MATMUL, vec![f32s(&[2, 2, 3]), f32s(&[3, 3, 2])]),
        (Op::Softmax { dim: 2 }, vec![a]),
        (norm(1, -1.0), vec![a]),
        (norm(1, f64::NAN), vec![a]),
        (norm(1, 1e-5), vec![a, f32s(&[2])]),
        (norm(1, 1e-5), vec![]),
        (norm(2, 1e-5), vec![a]),
        (Op::Reshape { shape }, vec![f32s(&[5])]),
        (Op::Transpose { dims: vec![0, 0] }, vec![a]),
        (Op::Transpose { dims: vec![0] }, vec![a]),
        (
            Op::Broadcast {
                shape,
                dims: vec![0],
            },
            vec![f32s(&[3])],
        ),
        (
            Op::Broadcast {
                shape,
                dims: vec![1, 0],
            },
            vec![a],
        ),
        (slice(&[0, 0], &[2, 4], &[1, 1]), vec![a]),
        (slice(&[2, 0], &[1, 3], &[1, 1]), vec![a]),
        (slice(&[0, 0], &[2, 3], &[1, 0]), vec![a]),
        (slice(&[0], &[2], &[1]), vec![a]),
        (Op::Concat { dim: 0 }, vec![]),
        (Op::Concat { dim: 0 }, vec![a, b]),
        (Op::Concat { dim: 2 }, vec![a, a]),
        (Op::Gather { dim: 0 }, vec![a, a]),
        (Op::Gather { dim: 0 }, vec![f32s(&[0]), ints]),
        (Op::Gather { dim: 2 }, vec![a, ints]),
        (Op::IndexAdd { dim: 0 }, vec![a, ints, b]),
        (Op::IndexAdd { dim: 0 }, vec![a, ty(DType::I32, &[2, 1]), a]),
        (Op::RngUniform { ty: ints }, vec![seed, seed]),
        (Op::RngUniform { ty: a }, vec![seed]),
        (Op::RngNormal { ty: a }, vec![seed, ints]),
        (
            Op::Constant {
                ty: a,
                data: vec![0; 8].into(),
            },
            vec![],
        ),
        (
            Op::Constant {
                ty: ty(DType::Bool, &[]),
                data: vec![2].into(),
            },
            vec![],
        ),
    ];
    for (op, operands) in cases {
        let answer = infer(&op, &operands);
        assert!(answer.is_err(), "{op:?} of {operands:?} gave {answer:?}");
    }
}

#[test]
fn gathered_ranks_have_a_bound_too() {
    let data = f32s(&[1; 5]);
    let indices = ty(DType::I32, &[1; 5]);
    infer(&Op::Gather { dim: 0 }, &[data, indices]).unwrap_err();
}

#[test]
fn numbers_and_names_are_each_ones_own() {
    let mut numbers: Vec<u32> = OpKind::ALL.iter().map(|op| op.number()).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), OpKind::ALL.len());
    for op in OpKind::ALL {
        assert_eq!(OpKind::from_number(op.number()), Some(*op));
        let is_for_something = DType::ALL.into_iter().any(|dtype| op.allows(dtype));
        assert!(is_for_something, "{op}");
    }
    for dtype in DType::ALL {
        assert_eq!(DType::from_number(dtype.number()), Some(dtype));
    }
}

#[test]
fn the_first_lacking_operation_is_found_with_its_type() {
    let graph = graph();
    let no_sum = graph.first_unsupported(|op, _| op != OpKind::Sum);
    assert_eq!(no_sum, Some((NodeId(3), DType::F32)));
    assert_eq!(graph.first_unsupported(|_, _| true), None);
}
