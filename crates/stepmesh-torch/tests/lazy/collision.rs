//! pytorch/xla#8353, side by side: two graphs whose leaves have equal shapes and equal first uses, and
//! which differ only in which leaf is multiplied with which. PyTorch's core hashes them alike and takes
//! the second for the first, whichever backend serves it; stepmesh-lazy compares graphs.

use stepmesh_lazy::{Counter, Error, LazyDevice};
use stepmesh_torch::lazy::counter;
use tch::{Kind, Tensor};

use crate::{Mode, Turn, alone, value};

const LEAVES: [[f32; 4]; 3] = [
    [1.0, 2.0, 3.0, 4.0],
    [5.0, 6.0, 7.0, 8.0],
    [9.0, 10.0, 11.0, 12.0],
];
/// t0 * t1 + t2.
const FIRST: [f32; 4] = [14.0, 22.0, 32.0, 44.0];
/// t0 * t2 + t1.
const SECOND: [f32; 4] = [14.0, 26.0, 40.0, 56.0];

/// The last of {t0', t1', t2', t0 * t1 + t2}, or with t1 and t2 exchanged in the last.
fn by_core(turn: &Turn, is_exchanged: bool) -> Vec<f32> {
    let leaves = LEAVES.map(|leaf| turn.tensor(&Tensor::from_slice(&leaf).reshape([2, 2])));
    let [t0, t1, t2] = &leaves;
    // They are results of the step too, in an order that fixes that of the parameters.
    let transposed = [t0.tr(), t1.tr(), t2.tr()];
    let (by, plus) = if is_exchanged { (t2, t1) } else { (t1, t2) };
    let last = t0 * by + plus;
    turn.mark_step();
    let last = value(&last).to_kind(Kind::Float).flatten(0, -1);
    drop(transposed);
    Vec::try_from(last).unwrap()
}

fn by_ours(device: &LazyDevice, is_exchanged: bool) -> Vec<f32> {
    let [t0, t1, t2] = LEAVES.map(|leaf| device.from_slice(&[2, 2], &leaf).unwrap());
    let step = device.step(|_| {
        let transposed = [t0.t()?, t1.t()?, t2.t()?];
        let (by, plus) = if is_exchanged { (&t2, &t1) } else { (&t1, &t2) };
        Ok::<_, Error>((transposed, (&t0 * by + plus)?))
    });
    step.unwrap().1.to_vec().unwrap()
}

#[test]
fn the_core_confuses_two_graphs_that_stepmesh_lazy_tells_apart() {
    {
        let eager = Turn::new(Mode::Eager);
        assert_eq!(by_core(&eager, false), FIRST);
        assert_eq!(by_core(&eager, true), SECOND);
    }
    for mode in [Mode::Reference, Mode::Ours] {
        let turn = Turn::new(mode);
        assert_eq!(by_core(&turn, false), FIRST, "{mode:?}");
        let compiles = counter("UncachedCompile").unwrap();
        let wrong = by_core(&turn, true);
        assert_ne!(
            wrong, SECOND,
            "{mode:?}: the core is right now; say so in docs/torch.md"
        );
        assert_eq!(counter("UncachedCompile").unwrap(), compiles, "{mode:?}");
    }
    for (name, device) in alone() {
        assert_eq!(by_ours(&device, false), FIRST, "{name}");
        assert_eq!(by_ours(&device, true), SECOND, "{name}");
        let compiles = device.metrics().counter(Counter::UncachedCompile);
        assert_eq!(compiles, 2, "{name}");
    }
}
