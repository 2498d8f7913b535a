//! The core counts the same on both backends.

use stepmesh_torch::lazy::counter;
use tch::{Device, Kind, Tensor};

use crate::{Mode, Turn, value};

/// Three steps of one shape, then one of another.
fn program(turn: &Turn) {
    for (round, size) in [3, 3, 3, 4].into_iter().enumerate() {
        let a = turn.tensor(&Tensor::ones([size, size], (Kind::Float, Device::Cpu)));
        let b = (a.mm(&a) + 1.0).relu();
        turn.mark_step();
        let expected = f64::from(i32::try_from(size).unwrap()) + 1.0;
        assert_eq!(value(&b).double_value(&[0, 0]), expected, "{round}");
    }
}

const COUNTERS: [&str; 7] = [
    "CachedCompile",
    "UncachedCompile",
    "MarkStep",
    "CreateLtcTensor",
    "lazy::mm",
    "lazy::add",
    "lazy::relu",
];

#[test]
fn compilations_steps_and_operations_are_counted_alike() {
    let counted = |mode| {
        let turn = Turn::new(mode);
        program(&turn);
        COUNTERS.map(|name| (name, counter(name).unwrap()))
    };
    let (reference, ours) = (counted(Mode::Reference), counted(Mode::Ours));
    assert_eq!(ours, reference);
    let of = |name| ours.iter().find(|(known, _)| *known == name).unwrap().1;
    assert!(of("CachedCompile") >= 2, "{ours:?}");
    assert!(of("UncachedCompile") >= 2, "{ours:?}");
    assert_eq!(of("MarkStep"), 4);
    assert_eq!(of("lazy::mm"), 4);
}

#[test]
fn what_runs_eagerly_is_counted_by_its_name() {
    let turn = Turn::new(Mode::Ours);
    let x = turn.tensor(&Tensor::ones([4], (Kind::Float, Device::Cpu)));
    let sums = value(&x.cumsum(0, None));
    assert_eq!(Vec::<f32>::try_from(sums).unwrap(), [1.0, 2.0, 3.0, 4.0]);
    assert!(counter("aten::cumsum").unwrap() >= 1);
}

#[test]
fn random_values_differ_from_step_to_step_though_the_graph_is_cached() {
    let turn = Turn::new(Mode::Ours);
    let draw = || {
        let mut x = turn.tensor(&Tensor::zeros([64], (Kind::Float, Device::Cpu)));
        let drawn = x.uniform_(0.0, 1.0);
        turn.mark_step();
        value(&drawn)
    };
    let (first, second) = (draw(), draw());
    assert!(!first.allclose(&second, 0.0, 0.0, false));
    for drawn in [&first, &second] {
        assert!(drawn.min().double_value(&[]) >= 0.0 && drawn.max().double_value(&[]) < 1.0);
    }
    assert_eq!(counter("UncachedCompile").unwrap(), 1);
}
