//! Gradients, which are PyTorch's own business: stepmesh-lazy alone has none.

use tch::{IndexOp, Reduction, Tensor};

use super::{Kinds, Row, attention, batch_norm, gradient};

pub(super) const ROWS: &[Row] = &[
    (
        "relu gradient",
        Kinds::Floats,
        |x| gradient(&x[0], Tensor::relu),
        None,
    ),
    (
        "sigmoid gradient",
        Kinds::Floats,
        |x| gradient(&x[0], Tensor::sigmoid),
        None,
    ),
    (
        "tanh gradient",
        Kinds::Floats,
        |x| gradient(&x[0], Tensor::tanh),
        None,
    ),
    (
        "silu gradient",
        Kinds::Floats,
        |x| gradient(&x[0], Tensor::silu),
        None,
    ),
    (
        "gelu gradient",
        Kinds::Floats,
        |x| gradient(&x[0], |x| x.gelu("none")),
        None,
    ),
    (
        "gelu tanh gradient",
        Kinds::Floats,
        |x| gradient(&x[0], |x| x.gelu("tanh")),
        None,
    ),
    (
        "leaky_relu gradient",
        Kinds::Floats,
        |x| gradient(&x[0], Tensor::leaky_relu),
        None,
    ),
    (
        "softmax gradient",
        Kinds::Floats,
        |x| gradient(&x[0], |x| x.softmax(1, None)),
        None,
    ),
    (
        "log_softmax gradient",
        Kinds::Floats,
        |x| gradient(&x[0], |x| x.log_softmax(1, None)),
        None,
    ),
    (
        "layer_norm gradient",
        Kinds::Floats,
        |x| {
            let normalised = |input: &Tensor, weight: &Tensor| {
                input.layer_norm([6], Some(weight), Some(&x[1].i(1)), 1e-5, false)
            };
            let weight = x[1].i(0);
            let of_input = gradient(&x[0], |input| normalised(input, &weight));
            of_input + gradient(&weight, |weight| normalised(&x[0], weight))
        },
        None,
    ),
    (
        "embedding gradient",
        Kinds::Floats,
        |x| {
            gradient(&x[0], |weight| {
                Tensor::embedding(weight, &x[4], 3, false, false)
            })
        },
        None,
    ),
    (
        "nll_loss gradient",
        Kinds::Floats,
        |x| {
            let loss = |reduction| {
                gradient(&x[0], |x0| {
                    x0.g_nll_loss(&x[5], Some(x[1].i(1)), reduction, 2)
                })
            };
            loss(Reduction::Mean) + loss(Reduction::Sum) + loss(Reduction::None)
        },
        None,
    ),
    (
        "cross entropy gradient",
        Kinds::Floats,
        |x| {
            gradient(&x[0], |x0| {
                x0.cross_entropy_loss::<Tensor>(&x[5], None, Reduction::Mean, -100, 0.0)
            })
        },
        None,
    ),
    (
        "gather gradient",
        Kinds::Floats,
        |x| gradient(&x[0], |x0| x0.gather(0, &x[4], false)),
        None,
    ),
    (
        "where gradient",
        Kinds::Floats,
        |x| gradient(&x[0], |y| y.where_self(&x[0].gt(0), &x[1])),
        None,
    ),
    (
        "clamp gradient",
        Kinds::Floats,
        |x| gradient(&x[0], |y| y.clamp(-1, 1)),
        None,
    ),
    (
        "max gradient",
        Kinds::Floats,
        |x| gradient(&x[0], |y| y.max()),
        None,
    ),
    (
        "amax gradient",
        Kinds::Floats,
        |x| gradient(&x[0], |y| y.amax([1_i64].as_slice(), false)),
        None,
    ),
    (
        "max dim gradient",
        Kinds::Floats,
        |x| gradient(&x[0], |y| y.max_dim(1, false).0),
        None,
    ),
    (
        "hardtanh gradient",
        Kinds::Floats,
        |x| gradient(&x[0], Tensor::hardtanh),
        None,
    ),
    (
        "prelu gradient",
        Kinds::Floats,
        |x| gradient(&x[0], |y| y.prelu(&x[1].i(0))),
        None,
    ),
    (
        "glu gradient",
        Kinds::Floats,
        |x| gradient(&x[0], |y| y.glu(1)),
        None,
    ),
    (
        "var gradient",
        Kinds::Floats,
        |x| gradient(&x[0], |y| y.var(true)),
        None,
    ),
    (
        "std gradient",
        Kinds::Floats,
        |x| gradient(&x[0], |y| y.std(true)),
        None,
    ),
    (
        "norm gradient",
        Kinds::Floats,
        |x| gradient(&x[0], Tensor::norm),
        None,
    ),
    (
        "logsumexp gradient",
        Kinds::Floats,
        |x| gradient(&x[0], |y| y.logsumexp([1_i64].as_slice(), false)),
        None,
    ),
    (
        "mse_loss gradient",
        Kinds::Floats,
        |x| gradient(&x[0], |y| y.mse_loss(&x[1], Reduction::Mean)),
        None,
    ),
    (
        "smooth_l1_loss gradient",
        Kinds::Floats,
        |x| gradient(&x[0], |y| y.smooth_l1_loss(&x[1], Reduction::Sum, 0.75)),
        None,
    ),
    (
        "huber_loss gradient",
        Kinds::Floats,
        |x| gradient(&x[0], |y| y.huber_loss(&x[1], Reduction::Mean, 0.75)),
        None,
    ),
    (
        "batch_norm gradient",
        Kinds::Floats,
        |x| {
            let weight = x[1].i(2);
            let of_weight = gradient(&weight, |weight| {
                let (shift, running) = (Some(x[1].i(3)), None::<Tensor>);
                let weight = Some(weight.shallow_clone());
                x[0].batch_norm(
                    weight,
                    shift,
                    running.as_ref().map(Tensor::shallow_clone),
                    running,
                    true,
                    0.1,
                    1e-5,
                    false,
                )
            });
            gradient(&x[0], |y| batch_norm(y, x, true)) + of_weight
        },
        None,
    ),
    (
        "batch_norm evaluated gradient",
        Kinds::Floats,
        |x| gradient(&x[0], |y| batch_norm(y, x, false)),
        None,
    ),
    (
        "group_norm gradient",
        Kinds::Floats,
        |x| {
            let shift = x[1].i(1);
            let norm = |y: &Tensor, weight: &Tensor| {
                y.group_norm(3, Some(weight), Some(&shift), 1e-5, false)
            };
            let weight = x[1].i(0);
            gradient(&x[0], |y| norm(y, &weight)) + gradient(&weight, |weight| norm(&x[0], weight))
        },
        None,
    ),
    (
        "attention gradient",
        Kinds::Floats,
        |x| gradient(&x[0], |y| attention(y, x)),
        None,
    ),
    (
        "index gradient",
        Kinds::Floats,
        |x| gradient(&x[0], |y| y.index(&[None, Some(&x[4])])),
        None,
    ),
    (
        "index by two gradient",
        Kinds::Floats,
        |x| gradient(&x[0], |y| y.index(&[Some(&x[3].unsqueeze(1)), Some(&x[5])])),
        None,
    ),
    (
        "index_select gradient",
        Kinds::Floats,
        |x| gradient(&x[0], |y| y.index_select(1, &x[3])),
        None,
    ),
    (
        "slice gradient",
        Kinds::Floats,
        |x| gradient(&x[0], |y| y.slice(1, 1, 6, 2)),
        None,
    ),
    (
        "softplus gradient",
        Kinds::Floats,
        |x| gradient(&(&x[0] * 16), Tensor::softplus),
        None,
    ),
    (
        "log_sigmoid gradient",
        Kinds::Floats,
        |x| gradient(&x[0], Tensor::log_sigmoid),
        None,
    ),
    (
        "elu gradient",
        Kinds::Floats,
        |x| gradient(&x[0], Tensor::elu),
        None,
    ),
    (
        "mish gradient",
        Kinds::Floats,
        |x| gradient(&x[0], Tensor::mish),
        None,
    ),
    (
        "binary_cross_entropy gradient",
        Kinds::Floats,
        |x| {
            gradient(&x[0], |y| {
                y.sigmoid()
                    .binary_cross_entropy::<Tensor>(&x[6], None, Reduction::Sum)
            })
        },
        None,
    ),
    (
        "binary_cross_entropy_with_logits gradient",
        Kinds::Floats,
        |x| {
            gradient(&x[0], |y| {
                y.binary_cross_entropy_with_logits::<Tensor>(&x[6], None, None, Reduction::Mean)
            })
        },
        None,
    ),
];
