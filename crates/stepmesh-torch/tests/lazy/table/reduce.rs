//! Operations that many elements of the input have a part in: sums, norms, products of matrices, losses.

use tch::{IndexOp, Reduction, Tensor};

use super::{Kinds, Row, attention, batch_norm, row};

pub(super) const ROWS: &[Row] = &[
    (
        "sum",
        Kinds::Numbers,
        |x| x[0].sum(None),
        Some(|x| x[0].sum(&[], false)),
    ),
    (
        "sum dim",
        Kinds::Numbers,
        |x| x[0].sum_dim_intlist(1, false, None),
        Some(|x| x[0].sum(&[1], false)),
    ),
    (
        "sum keep",
        Kinds::Floats,
        |x| x[0].sum_dim_intlist([0_i64, -1].as_slice(), true, None),
        Some(|x| x[0].sum(&[0, -1], true)),
    ),
    (
        "mean",
        Kinds::Floats,
        |x| x[0].mean(None),
        Some(|x| x[0].mean(&[], false)),
    ),
    (
        "mean dim",
        Kinds::Floats,
        |x| x[0].mean_dim(0, true, None),
        Some(|x| x[0].mean(&[0], true)),
    ),
    (
        "max",
        Kinds::Numbers,
        |x| x[0].max(),
        Some(|x| x[0].amax(&[], false)),
    ),
    (
        "min",
        Kinds::Numbers,
        |x| x[0].min(),
        Some(|x| x[0].neg()?.amax(&[], false)?.neg()),
    ),
    (
        "softmax",
        Kinds::Floats,
        |x| x[0].softmax(-1, None),
        Some(|x| x[0].softmax(-1)),
    ),
    (
        "log_softmax",
        Kinds::Floats,
        |x| x[0].log_softmax(0, None),
        Some(|x| x[0].softmax(0)?.log()),
    ),
    (
        "layer_norm",
        Kinds::Floats,
        |x| x[0].layer_norm([6], Some(x[1].i(0)), Some(x[1].i(1)), 1e-5, false),
        Some(|x| x[0].layer_norm(-1, Some(&row(&x[1], 0)?), Some(&row(&x[1], 1)?), 1e-5)),
    ),
    (
        "mm",
        Kinds::Floats,
        |x| x[0].mm(&x[1].tr()),
        Some(|x| x[0].matmul(&x[1].t()?)),
    ),
    (
        "addmm",
        Kinds::Floats,
        |x| x[2].addmm(&x[0], &x[1].tr()),
        Some(|x| x[0].matmul(&x[1].t()?)?.add(&x[2])),
    ),
    (
        "bmm",
        Kinds::Floats,
        |x| x[0].reshape([2, 2, 6]).bmm(&x[1].reshape([2, 6, 2])),
        Some(|x| x[0].reshape(&[2, 2, 6])?.matmul(&x[1].reshape(&[2, 6, 2])?)),
    ),
    (
        "mv",
        Kinds::Floats,
        |x| x[0].mv(&x[1].i(2)),
        Some(|x| x[0].matmul(&row(&x[1], 2)?.reshape(&[6, 1])?)?.flatten()),
    ),
    (
        "max dim",
        Kinds::Numbers,
        |x| {
            let (greatest, at) = x[0].max_dim(1, true);
            greatest * 8 + at
        },
        Some(|x| x[0].amax(&[1], true)?.mul(8)?.add(&x[0].argmax(1, true)?)),
    ),
    (
        "any",
        Kinds::Numbers,
        |x| x[0].any(),
        Some(|x| x[0].ne(0)?.amax(&[], false)),
    ),
    (
        "all",
        Kinds::Numbers,
        |x| x[0].all(),
        Some(|x| x[0].eq(0)?.amax(&[], false)?.eq(false)),
    ),
    (
        "nll_loss",
        Kinds::Floats,
        |x| x[0].g_nll_loss::<Tensor>(&x[5], None, Reduction::Mean, -100),
        Some(|x| x[0].mul(&x[6])?.sum(&[], false)?.div(-4)),
    ),
    (
        "nll_loss weighted",
        Kinds::Floats,
        |x| {
            let losses = x[0].g_nll_loss(&x[5], Some(x[1].i(0)), Reduction::None, 2);
            losses
                + x[0].g_nll_loss(&x[5], Some(x[1].i(0)), Reduction::Mean, 2)
                + x[0].g_nll_loss(&x[5], Some(x[1].i(0)), Reduction::Sum, 0)
        },
        None,
    ),
    (
        "baddbmm",
        Kinds::Floats,
        |x| {
            let a = x[0].reshape([2, 2, 6]);
            x[2].reshape([2, 2, 4])
                .narrow(2, 0, 2)
                .baddbmm(&a, &x[1].reshape([2, 6, 2]), 0.5, 2.0)
        },
        Some(|x| {
            let product = x[0]
                .reshape(&[2, 2, 6])?
                .matmul(&x[1].reshape(&[2, 6, 2])?)?;
            let addend = x[2].reshape(&[2, 2, 4])?.narrow(2, 0..2)?;
            product.mul(2)?.add(&addend.mul(0.5)?)
        }),
    ),
    (
        "any dim",
        Kinds::Numbers,
        |x| x[6].any_dim(0, true),
        Some(|x| x[6].ne(0)?.amax(&[0], true)),
    ),
    (
        "all dim",
        Kinds::Numbers,
        |x| x[0].all_dim(1, false),
        Some(|x| x[0].eq(0)?.amax(&[1], false)?.eq(false)),
    ),
    (
        "min dim",
        Kinds::Numbers,
        |x| {
            let (least, at) = x[0].min_dim(1, false);
            least * 8 + at
        },
        None,
    ),
    (
        "amax",
        Kinds::Numbers,
        |x| x[0].reshape([2, 2, 6]).amax([0_i64, 2].as_slice(), false),
        Some(|x| x[0].reshape(&[2, 2, 6])?.amax(&[0, 2], false)),
    ),
    (
        "amin",
        Kinds::Numbers,
        |x| x[0].reshape([2, 2, 6]).amin([0_i64, 2].as_slice(), true),
        Some(|x| x[0].reshape(&[2, 2, 6])?.neg()?.amax(&[0, 2], true)?.neg()),
    ),
    (
        "argmax",
        Kinds::Numbers,
        |x| x[0].argmax(None, true) + x[0].argmax(1, true),
        None,
    ),
    (
        "argmin",
        Kinds::Numbers,
        |x| x[0].argmin(None, false) + x[0].argmin(1, false),
        None,
    ),
    (
        "var",
        Kinds::Floats,
        |x| x[0].var(true) + x[0].var_dim(1, false, false),
        None,
    ),
    (
        "var_mean",
        Kinds::Floats,
        |x| {
            let (var, mean) = x[0].var_mean(true);
            var + mean
        },
        None,
    ),
    (
        "std",
        Kinds::Floats,
        |x| x[0].std(true) + x[0].std_dim(1, false, false),
        None,
    ),
    (
        "norm",
        Kinds::Floats,
        |x| x[0].norm() + x[0].norm_scalaropt_dim(1, [1_i64].as_slice(), false),
        None,
    ),
    (
        "linalg_norm",
        Kinds::Floats,
        |x| x[0].linalg_norm(f64::INFINITY, [1_i64].as_slice(), false, None),
        None,
    ),
    (
        "logsumexp",
        Kinds::Floats,
        |x| x[0].logsumexp([1_i64].as_slice(), false),
        Some(|x| x[0].exp()?.sum(&[1], false)?.log()),
    ),
    ("dot", Kinds::Numbers, |x| x[0].i(0).dot(&x[1].i(1)), None),
    (
        "addmv",
        Kinds::Floats,
        |x| x[2].i(0).addmv(&x[0], &x[1].i(1)),
        None,
    ),
    (
        "mse_loss",
        Kinds::Floats,
        |x| x[0].mse_loss(&x[1], Reduction::Mean) + x[0].mse_loss(&x[1], Reduction::None),
        None,
    ),
    (
        "smooth_l1_loss",
        Kinds::Floats,
        |x| x[0].smooth_l1_loss(&x[1], Reduction::Mean, 0.75),
        None,
    ),
    (
        "huber_loss",
        Kinds::Floats,
        |x| x[0].huber_loss(&x[1], Reduction::Sum, 0.75),
        None,
    ),
    (
        "batch_norm",
        Kinds::Floats,
        |x| batch_norm(&x[0], x, true),
        None,
    ),
    (
        "batch_norm's running values",
        Kinds::Floats,
        |x| {
            let running = [&x[1].i(2) + 0, &x[1].i(3) + 0];
            let [mean, variance] = running.each_ref().map(Tensor::shallow_clone);
            let _ = x[0].batch_norm::<Tensor>(
                None,
                None,
                Some(mean),
                Some(variance),
                true,
                0.25,
                1e-5,
                false,
            );
            Tensor::stack(&running, 0)
        },
        None,
    ),
    (
        "batch_norm evaluated",
        Kinds::Floats,
        |x| batch_norm(&x[0], x, false),
        None,
    ),
    (
        "group_norm",
        Kinds::Floats,
        |x| x[0].group_norm(3, Some(x[1].i(0)), Some(x[1].i(1)), 1e-5, false),
        None,
    ),
    (
        "instance_norm",
        Kinds::Floats,
        |x| {
            let x = x[0].reshape([2, 3, 4]);
            x.instance_norm::<Tensor>(None, None, None, None, true, 0.1, 1e-5, false)
        },
        None,
    ),
    ("attention", Kinds::Floats, |x| attention(&x[0], x), None),
    (
        "cumsum (eagerly)",
        Kinds::Floats,
        |x| x[0].cumsum(1, None) + 1,
        None,
    ),
    (
        "binary_cross_entropy",
        Kinds::Floats,
        |x| {
            x[0].sigmoid()
                .binary_cross_entropy(&x[6], Some(x[1].i(0)), Reduction::Mean)
        },
        None,
    ),
    (
        "binary_cross_entropy_with_logits",
        Kinds::Floats,
        |x| x[0].binary_cross_entropy_with_logits::<Tensor>(&x[6], None, None, Reduction::Mean),
        None,
    ),
];
