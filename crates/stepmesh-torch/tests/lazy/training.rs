//! A training run: the losses are those of PyTorch eager.

use tch::{Device, Kind, Tensor};

use crate::{Mode, Turn, value};

/// Two layers, SGD, 50 steps; the loss of each.
fn losses(mode: Mode) -> Vec<f64> {
    let turn = Turn::new(mode);
    let numbers = |rows: i64, columns: i64, step: i64| {
        let all = Tensor::arange(rows * columns, (Kind::Int64, Device::Cpu));
        let small = (all * step).remainder(17) - 8;
        small.to_kind(Kind::Float).reshape([rows, columns]) / 20.0
    };
    let leaf = |tensor: Tensor| turn.tensor(&tensor).set_requires_grad(true);
    let x = turn.tensor(&numbers(16, 8, 5));
    let target = turn.tensor(&numbers(16, 4, 3));
    let mut weights = [
        leaf(numbers(8, 32, 7)),
        leaf(numbers(1, 32, 11)),
        leaf(numbers(32, 4, 13)),
        leaf(numbers(1, 4, 2)),
    ];
    let mut losses = Vec::new();
    for _ in 0..50 {
        let hidden = (x.mm(&weights[0]) + &weights[1]).relu();
        let output = hidden.mm(&weights[2]) + &weights[3];
        let error = &output - &target;
        let loss = (&error * &error).mean(None);
        loss.backward();
        tch::no_grad(|| {
            for weight in &mut weights {
                let step = weight.grad() * 0.1;
                let _ = weight.g_sub_(&step);
                weight.zero_grad();
            }
        });
        turn.mark_step();
        losses.push(value(&loss).double_value(&[]));
    }
    losses
}

#[test]
fn a_training_run_has_the_same_losses_everywhere() {
    let eager = losses(Mode::Eager);
    assert!(eager[49] < eager[0] / 4.0, "it learns: {eager:?}");
    for mode in [Mode::Reference, Mode::Ours] {
        let found = losses(mode);
        assert_eq!(found.len(), eager.len());
        for (step, (found, expected)) in found.iter().zip(&eager).enumerate() {
            let difference = (found - expected).abs();
            assert!(
                difference <= 1e-5 * expected.abs().max(1e-2),
                "step {step} of {mode:?}: {found}, eager {expected}"
            );
        }
    }
}
