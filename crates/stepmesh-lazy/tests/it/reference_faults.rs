//! What PyTorch's lazy core gets wrong, or compiles again without need, with the right answers.

use stepmesh_lazy::{Counter, DifferenceKind, LazyDevice, LazyTensor};

use crate::common::interpreted;

fn compiles(device: &LazyDevice) -> u64 {
    device.metrics().counter(Counter::UncachedCompile)
}

fn three(device: &LazyDevice) -> [LazyTensor; 3] {
    let tensor = |values: &[f32]| device.from_slice(&[2, 2], values).unwrap();
    [
        tensor(&[1.0, 2.0, 3.0, 4.0]),
        tensor(&[5.0, 6.0, 7.0, 8.0]),
        tensor(&[9.0, 10.0, 11.0, 12.0]),
    ]
}

/// pytorch/xla#8353: two graphs whose leaves have equal shapes and equal first uses, and which differ
/// only in which leaf is multiplied with which. The reference takes the second for the first.
#[test]
fn graphs_that_differ_in_which_leaf_is_used_where_are_not_confused() {
    let device = interpreted(|_| {});
    let run = |swap: bool| {
        let [t0, t1, t2] = three(&device);
        device
            .step(|_| {
                let transposed = [t0.t()?, t1.t()?, t2.t()?];
                let (by, plus) = if swap { (&t2, &t1) } else { (&t1, &t2) };
                let last = (&t0 * by + plus)?;
                Ok::<_, stepmesh_lazy::Error>((transposed, last))
            })
            .unwrap()
            .1
            .to_vec::<f32>()
            .unwrap()
    };
    assert_eq!(run(false), [14.0, 22.0, 32.0, 44.0]);
    assert_eq!(run(true), [14.0, 26.0, 40.0, 56.0]);
    assert_eq!(compiles(&device), 2);
    // And each is found again.
    assert_eq!(run(false), [14.0, 22.0, 32.0, 44.0]);
    assert_eq!(run(true), [14.0, 26.0, 40.0, 56.0]);
    assert_eq!(compiles(&device), 2);
    let recompilations = device.recompilations();
    assert_eq!(recompilations.len(), 1);
    assert_eq!(recompilations[0].difference.kind, DifferenceKind::Operands);
    assert!(
        recompilations[0]
            .to_string()
            .contains("reference_faults.rs:")
    );
}

/// pytorch/xla#3604: numbers that happen to be equal share a buffer in the reference, so that the
/// graph has one parameter less.
#[test]
fn equal_numbers_are_no_other_graph() {
    let device = interpreted(|_| {});
    let x = device.from_slice(&[2], &[1.0_f32, 2.0]).unwrap();
    let run = |alpha: f64, beta: f64| {
        let sum = (&x * alpha + &(&x * beta).unwrap()).unwrap();
        sum.to_vec::<f32>().unwrap()
    };
    assert_eq!(run(0.5, 0.25), [0.75, 1.5]);
    assert_eq!(run(0.5, 0.5), [1.0, 2.0]);
    assert_eq!(run(1.0, 0.0), [1.0, 2.0]);
    assert_eq!(compiles(&device), 1);
}

/// pytorch/xla#2327: the first step of the reference also computes the inputs that were uploaded in
/// it, so that the second step is another graph.
#[test]
fn the_first_step_is_the_graph_of_all_steps() {
    let device = interpreted(|_| {});
    let x = device.from_slice(&[2], &[1.0_f32, 2.0]).unwrap();
    let mut w = device.from_slice(&[2], &[1.0_f32, 1.0]).unwrap();
    for _ in 0..5 {
        w = device.step(|_| &w - (&x * 0.5)).unwrap();
    }
    assert_eq!(w.to_vec::<f32>().unwrap(), [-1.5, -4.0]);
    assert_eq!(compiles(&device), 1);
    assert_eq!(device.metrics().counter(Counter::CachedCompile), 4);
}

/// pytorch/xla#4994: an optimiser whose state starts as zeros is the same graph from the second step
/// on, and the first differs only because its state is made in it.
#[test]
fn state_that_is_made_in_the_first_step_costs_one_compilation_more() {
    let device = interpreted(|_| {});
    let gradient = device.from_slice(&[2], &[1.0_f32, 2.0]).unwrap();
    let mut momentum = device.zeros(&[2], stepmesh_lazy::DType::F32).unwrap();
    for _ in 0..6 {
        momentum = device.step(|_| &momentum * 0.5 + &gradient).unwrap();
    }
    assert_eq!(momentum.to_vec::<f32>().unwrap(), [1.96875, 3.9375]);
    assert_eq!(compiles(&device), 2);
}

/// pytorch/xla#2783: random numbers are the same graph each time, and other numbers.
#[test]
fn random_numbers_are_other_numbers_of_one_graph() {
    let device = interpreted(|_| {});
    let draw = || {
        let numbers = device.randn(&[7], stepmesh_lazy::DType::F32).unwrap();
        numbers.to_vec::<f32>().unwrap()
    };
    let (first, second) = (draw(), draw());
    assert_ne!(first, second);
    assert_eq!(compiles(&device), 1);
    device.manual_seed(7);
    let (third, _) = (draw(), draw());
    device.manual_seed(7);
    assert_eq!(draw(), third);
    assert_eq!(compiles(&device), 1);
}

/// pytorch/xla#8422: reading a value, which computes a part of what is traced, donates nothing.
#[test]
fn reading_a_value_within_a_step_leaves_all_others_alone() {
    let device = interpreted(|_| {});
    let w = device.from_slice(&[2], &[1.0_f32, 2.0]).unwrap();
    let twice = (&w * 2.0).unwrap();
    let more = (&twice + &w).unwrap();
    drop(w);
    assert_eq!(twice.to_vec::<f32>().unwrap(), [2.0, 4.0]);
    assert_eq!(device.metrics().counter(Counter::InputOutputAliasCount), 0);
    assert_eq!(more.to_vec::<f32>().unwrap(), [3.0, 6.0]);
}
