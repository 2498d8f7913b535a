//! Order, canonical form and dumps of small graphs, and chains that recursion would not survive.

use std::panic::Location;
use std::sync::Arc;

use stepmesh_graph::{DType, Op, Shape, TensorType};

use super::{
    EmissionMap, LiveNodes, Node, NodeKind, NodePtr, Operands, canonical, ir_dot, ir_text,
    post_order,
};

fn node(live: &LiveNodes, op: Op, operands: &[NodePtr]) -> NodePtr {
    let ty = TensorType::new(DType::F32, Shape::new(&[2, 2]).unwrap()).unwrap();
    let kind = NodeKind::Op(op);
    Node::new(
        kind,
        Operands::from_slice(operands),
        ty,
        Location::caller(),
        live,
    )
}

/// Operations stand in for leaves here: data needs a device.
fn leaf(live: &LiveNodes) -> NodePtr {
    let ty = TensorType::new(DType::F32, Shape::new(&[2, 2]).unwrap()).unwrap();
    node(live, Op::Parameter { number: 0, ty }, &[])
}

fn form(roots: &[NodePtr]) -> super::Canonical {
    let mut emission = EmissionMap::default();
    let order = post_order(roots, &mut emission);
    canonical(&order, &emission, roots)
}

#[test]
fn operands_come_first_and_each_node_once() {
    let live = LiveNodes::default();
    let (a, b) = (leaf(&live), leaf(&live));
    let sum = node(&live, Op::Add, &[Arc::clone(&a), Arc::clone(&b)]);
    let twice = node(&live, Op::Mul, &[Arc::clone(&sum), Arc::clone(&sum)]);
    let mut emission = EmissionMap::default();
    let order = post_order(&[Arc::clone(&twice), Arc::clone(&sum)], &mut emission);
    let expected = [&a, &b, &sum, &twice];
    assert_eq!(order.len(), 4);
    for (place, (found, expected)) in (0..).zip(order.iter().zip(expected)) {
        assert!(Arc::ptr_eq(found, expected));
        assert_eq!(emission.place(found), Some(place));
    }
    // A second walk adds only what is new.
    let more = node(&live, Op::Neg, &[twice]);
    assert_eq!(post_order(&[more], &mut emission).len(), 1);
}

#[test]
fn a_chain_of_a_million_nodes_is_ordered_and_dropped() {
    let live = LiveNodes::default();
    let mut last = leaf(&live);
    for _ in 0..1_000_000 {
        last = node(&live, Op::Neg, &[last]);
    }
    let roots = [last];
    assert_eq!(
        post_order(&roots, &mut EmissionMap::default()).len(),
        1_000_001
    );
    assert_eq!(live.count(), 1_000_001);
    drop(roots);
    assert_eq!(live.count(), 0);
}

#[test]
fn forms_are_equal_for_equal_programs_and_only_for_them() {
    let live = LiveNodes::default();
    let program = |swap: bool, dims: usize, epsilon: f64| {
        let (a, b) = (leaf(&live), leaf(&live));
        let (x, y) = if swap { (&b, &a) } else { (&a, &b) };
        // The first use of the leaves is the same in both.
        let first = node(&live, Op::Add, &[Arc::clone(&a), Arc::clone(&b)]);
        let second = node(&live, Op::Sub, &[Arc::clone(x), Arc::clone(y)]);
        let sum = node(
            &live,
            Op::Sum { dims: vec![dims] },
            std::slice::from_ref(&second),
        );
        let norm = Op::RmsNorm {
            dim: 1,
            epsilon: epsilon.into(),
        };
        form(&[first, sum, node(&live, norm, &[second])])
    };
    assert_eq!(program(false, 0, 1e-5), program(false, 0, 1e-5));
    assert_ne!(program(false, 0, 1e-5), program(true, 0, 1e-5));
    assert_ne!(program(false, 0, 1e-5), program(false, 1, 1e-5));
    assert_ne!(program(false, 0, 1e-5), program(false, 0, 1e-6));
}

#[test]
fn other_results_of_the_same_nodes_are_another_form() {
    let live = LiveNodes::default();
    let a = leaf(&live);
    let b = node(&live, Op::Neg, &[Arc::clone(&a)]);
    let c = node(&live, Op::Exp, &[Arc::clone(&b)]);
    assert_ne!(form(std::slice::from_ref(&c)), form(&[Arc::clone(&c), b]));
    assert_ne!(form(std::slice::from_ref(&c)), form(&[Arc::clone(&c), c]));
}

#[test]
fn dumps_name_operations_types_places_and_roots() {
    let live = LiveNodes::default();
    let a = leaf(&live);
    let product = node(&live, Op::MATMUL, &[Arc::clone(&a), a]);
    let root = node(&live, Op::Sum { dims: vec![1] }, &[product]);
    let text = ir_text(std::slice::from_ref(&root));
    assert!(
        text.starts_with("IR {\n  %0 = [Float[2,2]] lazy::parameter("),
        "{text}"
    );
    for part in [
        "%1 = [Float[2,2]] lazy::matmul(%0, %0)",
        "lazy::sum(%1) { dims: [1] }, location=",
        "ir/tests.rs:",
        ", ROOT=0\n}",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let dot = ir_dot(&[root]);
    assert!(dot.starts_with("digraph G {\n"), "{dot}");
    assert!(
        dot.contains("node1 -> node2") && dot.contains("node2 -> root0"),
        "{dot}"
    );
}
