//! A block of a transformer, forward and backward, with cross entropy and two optimisers: the losses
//! are those of PyTorch eager, every operation is compiled by the plugin, and nothing runs eagerly.

use stepmesh_torch::lazy::metrics_report;
use tch::{Device, Kind, Reduction, Tensor};

use crate::{Mode, Turn, counted, value};

const BATCH: i64 = 3;
const LENGTH: i64 = 6;
const WIDTH: i64 = 8;
const HEADS: i64 = 2;
const WORDS: i64 = 11;
const STEPS: usize = 20;

/// How weights change.
#[derive(Clone, Copy, Debug)]
enum Optimiser {
    Sgd,
    Adam,
}

/// Small numbers of both signs, the same each time.
fn numbers(dims: &[i64], step: i64) -> Tensor {
    let all = Tensor::arange(dims.iter().product::<i64>(), (Kind::Int64, Device::Cpu));
    let small = (all * step + step).remainder(23) - 11;
    small.to_kind(Kind::Float).reshape(dims) / 40.0
}

/// Embedding, position; norm; projections; norm; two layers; words.
fn weights() -> Vec<Tensor> {
    let ones = || Tensor::ones([WIDTH], (Kind::Float, Device::Cpu));
    vec![
        numbers(&[WORDS, WIDTH], 7),
        numbers(&[LENGTH, WIDTH], 5),
        ones(),
        numbers(&[WIDTH], 3),
        numbers(&[3 * WIDTH, WIDTH], 9),
        numbers(&[3 * WIDTH], 4),
        numbers(&[WIDTH, WIDTH], 10),
        numbers(&[WIDTH], 2),
        ones(),
        numbers(&[WIDTH], 13),
        numbers(&[4 * WIDTH, WIDTH], 8),
        numbers(&[4 * WIDTH], 6),
        numbers(&[WIDTH, 4 * WIDTH], 12),
        numbers(&[WIDTH], 14),
        numbers(&[WORDS, WIDTH], 15),
    ]
}

/// The loss of predicting the next word; `hidden` is where a word may not look.
fn loss(weights: &[Tensor], words: &Tensor, next: &Tensor, hidden: &Tensor) -> Tensor {
    let [
        embedding,
        position,
        norm1,
        shift1,
        qkv,
        qkv_bias,
        out,
        out_bias,
        norm2,
        shift2,
        up,
        up_bias,
        down,
        down_bias,
        head,
    ] = weights
    else {
        panic!("as many weights as there are")
    };
    let x = Tensor::embedding(embedding, words, -1, false, false) + position;
    let normal = x.layer_norm([WIDTH], Some(norm1), Some(shift1), 1e-5, false);
    let parts = normal.linear(qkv, Some(qkv_bias)).chunk(3, -1);
    let heads = |part: &Tensor| {
        let split = part.reshape([BATCH, LENGTH, HEADS, WIDTH / HEADS]);
        split.transpose(1, 2)
    };
    let [query, key, values] = [heads(&parts[0]), heads(&parts[1]), heads(&parts[2])];
    let scores = query.matmul(&key.transpose(-2, -1)) / 2.0;
    let scores = scores.masked_fill(hidden, f64::NEG_INFINITY);
    let mixed = scores.softmax(-1, None).matmul(&values);
    let mixed = mixed.transpose(1, 2).reshape([BATCH, LENGTH, WIDTH]);
    let x = x + mixed.linear(out, Some(out_bias));
    let normal = x.layer_norm([WIDTH], Some(norm2), Some(shift2), 1e-5, false);
    let wide = normal.linear(up, Some(up_bias)).gelu("none");
    let x = x + wide.linear(down, Some(down_bias));
    let logits = x.linear::<Tensor>(head, None).reshape([-1, WORDS]);
    logits.cross_entropy_loss::<Tensor>(next, None, Reduction::Mean, -100, 0.0)
}

/// Changes weights by their gradients; `moments` are Adam's, two for each weight.
fn learn(optimiser: Optimiser, step: usize, weights: &mut [Tensor], moments: &mut [[Tensor; 2]]) {
    let step = i32::try_from(step + 1).unwrap();
    for (weight, [mean, square]) in weights.iter_mut().zip(moments) {
        let gradient = weight.grad();
        match optimiser {
            Optimiser::Sgd => {
                let _ = weight.g_sub_(&(gradient * 0.5));
            }
            Optimiser::Adam => {
                let (beta1, beta2): (f64, f64) = (0.9, 0.999);
                *mean = &*mean * beta1 + &gradient * (1.0 - beta1);
                *square = &*square * beta2 + &gradient * &gradient * (1.0 - beta2);
                let scale = (1.0 - beta2.powi(step)).sqrt();
                let rate = 0.01 / (1.0 - beta1.powi(step));
                let divisor = square.sqrt() / scale + 1e-8;
                let _ = weight.g_sub_(&(&*mean / divisor * rate));
            }
        }
        weight.zero_grad();
    }
}

fn losses(turn: &Turn, optimiser: Optimiser) -> Vec<f64> {
    let words = Tensor::arange(BATCH * (LENGTH + 1), (Kind::Int64, Device::Cpu));
    let words = (&words * &words * 3 + 1).remainder(WORDS);
    let words = words.reshape([BATCH, LENGTH + 1]);
    let next = words.narrow(1, 1, LENGTH).reshape([-1]);
    let words = turn.tensor(&words.narrow(1, 0, LENGTH).contiguous());
    let next = turn.tensor(&next);
    let hidden = Tensor::ones([LENGTH, LENGTH], (Kind::Bool, Device::Cpu)).triu(1);
    let hidden = turn.tensor(&hidden);
    let mut moments: Vec<[Tensor; 2]> = weights()
        .iter()
        .map(|weight| {
            [
                turn.tensor(&weight.zeros_like()),
                turn.tensor(&weight.zeros_like()),
            ]
        })
        .collect();
    let mut weights: Vec<Tensor> = weights()
        .iter()
        .map(|weight| turn.tensor(weight).set_requires_grad(true))
        .collect();
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let loss = loss(&weights, &words, &next, &hidden);
        loss.backward();
        tch::no_grad(|| learn(optimiser, step, &mut weights, &mut moments));
        turn.mark_step();
        losses.push(value(&loss).double_value(&[]));
    }
    losses
}

#[test]
fn a_transformer_learns_as_in_eager_and_nothing_of_it_runs_eagerly() {
    for optimiser in [Optimiser::Sgd, Optimiser::Adam] {
        let eager = losses(&Turn::new(Mode::Eager), optimiser);
        assert!(eager[STEPS - 1] < eager[0] * 0.8, "it learns: {eager:?}");
        let [reference, ours] = [Mode::Reference, Mode::Ours].map(|mode| {
            let turn = Turn::new(mode);
            let losses = losses(&turn, optimiser);
            for (step, (found, expected)) in losses.iter().zip(&eager).enumerate() {
                assert!(
                    (found - expected).abs() <= 1e-4 * expected,
                    "{optimiser:?}, {mode:?}, step {step}: {found}, eager {expected}"
                );
            }
            counted()
        });
        assert_eq!(ours, reference, "{optimiser:?}: the core counts alike");
        let of = |name| {
            ours.iter()
                .find(|(known, _)| known == name)
                .map(|(_, count)| *count)
        };
        let fell_back = ours.iter().filter(|(name, _)| name.starts_with("aten::"));
        assert_eq!(fell_back.count(), 0, "{optimiser:?}: {ours:?}");
        // The first step has its inputs in other places of the graph than those that follow.
        let (steps, compiles) = (
            i64::try_from(STEPS).unwrap(),
            of("UncachedCompile").unwrap(),
        );
        assert!(compiles <= 3, "{optimiser:?}: {compiles} compilations");
        assert_eq!(of("MarkStep"), Some(steps));
        assert!(of("CachedCompile").unwrap() >= steps - compiles, "{ours:?}");
    }
}

#[test]
fn dropout_keeps_its_share_and_its_gradient_has_the_same_mask() {
    let turn = Turn::new(Mode::Ours);
    let x = turn.tensor(&Tensor::ones([4096], (Kind::Float, Device::Cpu)));
    let x = x.set_requires_grad(true);
    let y = x.dropout(0.25, true);
    y.sum(None).backward();
    turn.mark_step();
    let (y, gradient) = (value(&y), value(&x.grad()));
    assert!(y.allclose(&gradient, 0.0, 0.0, false));
    let elements = Vec::<f32>::try_from(&y).unwrap();
    let kept = elements.iter().filter(|element| **element != 0.0).count();
    assert!((2900..3250).contains(&kept), "{kept} of 4096");
    assert!(
        elements
            .iter()
            .all(|element| [0.0, 4.0 / 3.0].contains(element))
    );
    let report = metrics_report().unwrap();
    assert!(!report.contains("aten::"), "{report}");
}
