//! A training run: the losses are those of PyTorch eager, on the core's reference backend, on ours, and
//! with stepmesh-lazy alone, where the gradients are written by hand.

use stepmesh_lazy::{DType, Error, LazyDevice, LazyTensor};
use tch::{Device, Kind, Tensor};

use crate::{Mode, Turn, alone, counted, value};

/// Small numbers of both signs, the same each time.
fn numbers(rows: i64, columns: i64, step: i64) -> Tensor {
    let all = Tensor::arange(rows * columns, (Kind::Int64, Device::Cpu));
    let small = (all * step).remainder(17) - 8;
    small.to_kind(Kind::Float).reshape([rows, columns]) / 20.0
}

/// Input, target, and two weights, each with its bias.
fn tensors() -> [Tensor; 6] {
    [
        numbers(16, 8, 5),
        numbers(16, 4, 3),
        numbers(8, 32, 7),
        numbers(1, 32, 11),
        numbers(32, 4, 13),
        numbers(1, 4, 2),
    ]
}

/// Two layers, SGD, 50 steps; the loss of each.
fn losses(turn: &Turn) -> Vec<f64> {
    let [x, target, weights @ ..] = tensors();
    let (x, target) = (turn.tensor(&x), turn.tensor(&target));
    let mut weights = weights.map(|tensor| turn.tensor(&tensor).set_requires_grad(true));
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

/// One step of stepmesh-lazy alone: the new weights, and the loss before it.
fn step(
    x: &LazyTensor,
    target: &LazyTensor,
    weights: &[LazyTensor; 4],
) -> Result<([LazyTensor; 4], LazyTensor), Error> {
    let [w0, b0, w1, b1] = weights;
    let before = (x.matmul(w0)? + b0)?;
    let hidden = before.relu()?;
    let output = (hidden.matmul(w1)? + b1)?;
    let error = (&output - target)?;
    let loss = (&error * &error)?.mean(&[], false)?;
    // d loss / d output, of a mean of 64 squares.
    let of_output = (&error * (2.0 / 64.0))?;
    let is_on = before.gt(0.0)?.cast(DType::F32)?;
    let of_hidden = (of_output.matmul(&w1.t()?)? * &is_on)?;
    let gradients = [
        x.t()?.matmul(&of_hidden)?,
        of_hidden.sum(&[0], true)?,
        hidden.t()?.matmul(&of_output)?,
        of_output.sum(&[0], true)?,
    ];
    let next = |at: usize| &weights[at] - &gradients[at] * 0.1;
    Ok(([next(0)?, next(1)?, next(2)?, next(3)?], loss))
}

/// The same run with stepmesh-lazy alone.
fn losses_alone(device: &LazyDevice) -> Vec<f64> {
    let upload = |tensor: Tensor| {
        let dims: Vec<usize> = tensor
            .size()
            .iter()
            .map(|dim| usize::try_from(*dim).unwrap())
            .collect();
        let elements = Vec::<f32>::try_from(tensor.flatten(0, -1)).unwrap();
        device.from_slice(&dims, &elements).unwrap()
    };
    let [x, target, mut weights @ ..] = tensors().map(upload);
    let mut losses = Vec::new();
    for _ in 0..50 {
        let (next, loss) = device.step(|_| step(&x, &target, &weights)).unwrap();
        weights = next;
        losses.push(f64::from(loss.item::<f32>().unwrap()));
    }
    losses
}

#[test]
fn a_training_run_has_the_same_losses_everywhere() {
    let eager = losses(&Turn::new(Mode::Eager));
    assert!(eager[49] < eager[0] / 4.0, "it learns: {eager:?}");
    let [reference, ours] = [Mode::Reference, Mode::Ours].map(|mode| {
        let turn = Turn::new(mode);
        (losses(&turn), counted())
    });
    assert_eq!(ours.1, reference.1, "the core counts alike");
    let mut columns = vec![("reference", reference.0), ("ours", ours.0)];
    columns.extend(alone().map(|(name, device)| (name, losses_alone(&device))));
    for (name, found) in columns {
        assert_eq!(found.len(), eager.len());
        for (step, (found, expected)) in found.iter().zip(&eager).enumerate() {
            let difference = (found - expected).abs();
            assert!(
                difference <= 1e-5 * expected.abs().max(1e-2),
                "step {step} of {name}: {found}, eager {expected}"
            );
        }
    }
}
