//! The table of operations: what each is in PyTorch, in which types it is tried, and what it is in
//! stepmesh-lazy alone.

use stepmesh_lazy::{DType, Error, LazyTensor};
use tch::{IndexOp, Kind, Reduction, Tensor};

/// An operation of PyTorch, on the inputs of `ops`.
pub(crate) type Operation = fn(&[Tensor]) -> Tensor;

/// The same with stepmesh-lazy.
pub(crate) type Alone = fn(&[LazyTensor]) -> Result<LazyTensor, Error>;

/// Which types an operation is tried in.
#[derive(Clone, Copy)]
pub(crate) enum Kinds {
    Floats,
    Numbers,
}

impl Kinds {
    pub(crate) fn list(self) -> &'static [Kind] {
        match self {
            Self::Floats => FLOATS,
            Self::Numbers => NUMBERS,
        }
    }
}

/// The gradient of x, where the sum of the result's squares is the loss.
fn gradient(x: &Tensor, operation: impl Fn(&Tensor) -> Tensor) -> Tensor {
    let x = x.detach().set_requires_grad(true);
    let y = operation(&x);
    (&y * &y).sum(None).backward();
    x.grad()
}

/// One row of a matrix.
fn row(matrix: &LazyTensor, number: usize) -> Result<LazyTensor, Error> {
    matrix.narrow(0, number..number + 1)?.flatten()
}

pub(crate) const FLOATS: &[Kind] = &[Kind::Float, Kind::Double, Kind::BFloat16, Kind::Half];
const NUMBERS: &[Kind] = &[
    Kind::Float,
    Kind::Double,
    Kind::BFloat16,
    Kind::Half,
    Kind::Int64,
    Kind::Int,
];

/// Name, types, PyTorch, and stepmesh-lazy; gradients are PyTorch's own business.
pub(crate) const OPERATIONS: &[(&str, Kinds, Operation, Option<Alone>)] = &[
    ("neg", Kinds::Numbers, |x| x[0].neg(), Some(|x| x[0].neg())),
    ("exp", Kinds::Floats, |x| x[0].exp(), Some(|x| x[0].exp())),
    ("log", Kinds::Floats, |x| x[1].log(), Some(|x| x[1].log())),
    (
        "sqrt",
        Kinds::Floats,
        |x| x[1].sqrt(),
        Some(|x| x[1].sqrt()),
    ),
    (
        "rsqrt",
        Kinds::Floats,
        |x| x[1].rsqrt(),
        Some(|x| x[1].rsqrt()),
    ),
    (
        "tanh",
        Kinds::Floats,
        |x| x[0].tanh(),
        Some(|x| x[0].tanh()),
    ),
    (
        "sigmoid",
        Kinds::Floats,
        |x| x[0].sigmoid(),
        Some(|x| x[0].sigmoid()),
    ),
    (
        "relu",
        Kinds::Numbers,
        |x| x[0].relu(),
        Some(|x| x[0].relu()),
    ),
    (
        "silu",
        Kinds::Floats,
        |x| x[0].silu(),
        Some(|x| x[0].silu()),
    ),
    (
        "gelu",
        Kinds::Floats,
        |x| x[0].gelu("none"),
        Some(|x| x[0].gelu()),
    ),
    (
        "gelu tanh",
        Kinds::Floats,
        |x| x[0].gelu("tanh"),
        Some(|x| x[0].gelu_tanh()),
    ),
    (
        "abs",
        Kinds::Numbers,
        |x| x[0].abs(),
        Some(|x| x[0].maximum(&x[0].neg()?)),
    ),
    (
        "reciprocal",
        Kinds::Floats,
        |x| x[1].reciprocal(),
        Some(|x| x[1].rdiv(1)),
    ),
    (
        "add",
        Kinds::Numbers,
        |x| &x[0] + &x[1],
        Some(|x| x[0].add(&x[1])),
    ),
    (
        "add scalar",
        Kinds::Numbers,
        |x| &x[0] + 2,
        Some(|x| x[0].add(2)),
    ),
    (
        "sub",
        Kinds::Numbers,
        |x| &x[0] - &x[1],
        Some(|x| x[0].sub(&x[1])),
    ),
    (
        "rsub scalar",
        Kinds::Numbers,
        |x| 3 - &x[0],
        Some(|x| x[0].rsub(3)),
    ),
    (
        "mul",
        Kinds::Numbers,
        |x| &x[0] * &x[1],
        Some(|x| x[0].mul(&x[1])),
    ),
    (
        "mul fraction",
        Kinds::Numbers,
        |x| &x[0] * 0.5,
        Some(|x| x[0].mul(0.5)),
    ),
    (
        "div",
        Kinds::Numbers,
        |x| &x[0] / &x[1],
        Some(|x| x[0].div(&x[1])),
    ),
    (
        "div scalar",
        Kinds::Numbers,
        |x| &x[0] / 4,
        Some(|x| x[0].div(4)),
    ),
    (
        "pow",
        Kinds::Floats,
        |x| x[1].pow_tensor_scalar(2),
        Some(|x| x[1].pow(2)),
    ),
    (
        "maximum",
        Kinds::Numbers,
        |x| x[0].maximum(&x[1]),
        Some(|x| x[0].maximum(&x[1])),
    ),
    (
        "minimum",
        Kinds::Numbers,
        |x| x[0].minimum(&x[1]),
        Some(|x| x[0].minimum(&x[1])),
    ),
    (
        "eq",
        Kinds::Numbers,
        |x| x[0].eq_tensor(&x[1]),
        Some(|x| x[0].eq(&x[1])),
    ),
    (
        "ne scalar",
        Kinds::Numbers,
        |x| x[0].ne(1),
        Some(|x| x[0].ne(1)),
    ),
    (
        "lt",
        Kinds::Numbers,
        |x| x[0].lt_tensor(&x[1]),
        Some(|x| x[0].lt(&x[1])),
    ),
    (
        "le scalar",
        Kinds::Numbers,
        |x| x[0].le(0.5),
        Some(|x| x[0].le(0.5)),
    ),
    (
        "gt",
        Kinds::Numbers,
        |x| x[0].gt_tensor(&x[1]),
        Some(|x| x[0].gt(&x[1])),
    ),
    (
        "ge scalar",
        Kinds::Numbers,
        |x| x[0].ge(1),
        Some(|x| x[0].ge(1)),
    ),
    (
        "clamp",
        Kinds::Numbers,
        |x| x[0].clamp(-1, 1),
        Some(|x| x[0].clamp(-1, 1)),
    ),
    (
        "clamp_min",
        Kinds::Numbers,
        |x| x[0].clamp_min(0),
        Some(|x| x[0].maximum(0)),
    ),
    (
        "masked_fill",
        Kinds::Numbers,
        |x| x[0].masked_fill(&x[0].gt(0), 7),
        Some(|x| x[0].gt(0)?.select(7, &x[0])),
    ),
    (
        "addcmul",
        Kinds::Floats,
        |x| x[0].addcmul(&x[1], &x[1]),
        Some(|x| x[0].add(&x[1].mul(&x[1])?)),
    ),
    (
        "broadcast row",
        Kinds::Numbers,
        |x| &x[0] + x[1].i(0),
        Some(|x| x[0].add(&x[1].narrow(0, 0..1)?)),
    ),
    (
        "broadcast column",
        Kinds::Numbers,
        |x| &x[0] * x[1].i((.., 0)).unsqueeze(1),
        Some(|x| x[0].mul(&x[1].narrow(1, 0..1)?)),
    ),
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
        "view",
        Kinds::Numbers,
        |x| x[0].view([2, -1]) + 1,
        Some(|x| x[0].reshape(&[2, 12])?.add(1)),
    ),
    (
        "transpose",
        Kinds::Numbers,
        |x| x[0].transpose(0, 1) + 1,
        Some(|x| x[0].transpose(0, 1)?.add(1)),
    ),
    (
        "permute",
        Kinds::Numbers,
        |x| x[0].reshape([2, 2, 6]).permute([2, 0, 1]) + 1,
        Some(|x| x[0].reshape(&[2, 2, 6])?.permute(&[2, 0, 1])?.add(1)),
    ),
    (
        "select",
        Kinds::Numbers,
        |x| x[0].select(1, -2) + 1,
        Some(|x| x[0].narrow(1, 4..5)?.squeeze(1)?.add(1)),
    ),
    (
        "slice",
        Kinds::Numbers,
        |x| x[0].slice(1, 1, 6, 2) + 1,
        Some(|x| x[0].slice(1, 1..6, 2)?.add(1)),
    ),
    (
        "narrow",
        Kinds::Numbers,
        |x| x[0].narrow(0, 1, 2) + 1,
        Some(|x| x[0].narrow(0, 1..3)?.add(1)),
    ),
    (
        "expand",
        Kinds::Numbers,
        |x| x[0].i(0).expand([3, 6], false) + 1,
        Some(|x| row(&x[0], 0)?.broadcast_to(&[3, 6])?.add(1)),
    ),
    (
        "squeeze",
        Kinds::Numbers,
        |x| x[0].unsqueeze(0).squeeze_dim(0) + 1,
        Some(|x| x[0].unsqueeze(0)?.squeeze(0)?.add(1)),
    ),
    (
        "cat",
        Kinds::Numbers,
        |x| Tensor::cat(&[&x[0], &x[1]], 1),
        Some(|x| LazyTensor::concat(&[&x[0], &x[1]], 1)),
    ),
    (
        "stack",
        Kinds::Numbers,
        |x| Tensor::stack(&[&x[0], &x[1]], 1),
        Some(|x| LazyTensor::concat(&[&x[0].unsqueeze(1)?, &x[1].unsqueeze(1)?], 1)),
    ),
    (
        "index_select",
        Kinds::Numbers,
        |x| x[0].index_select(1, &x[3]),
        Some(|x| x[0].gather(1, &x[3])),
    ),
    (
        "embedding",
        Kinds::Floats,
        |x| Tensor::embedding(&x[0], &x[3], -1, false, false),
        Some(|x| x[0].embedding(&x[3])),
    ),
    ("tril", Kinds::Numbers, |x| x[0].tril(1), None),
    ("triu", Kinds::Numbers, |x| x[0].triu(-1), None),
    (
        "cast",
        Kinds::Numbers,
        |x| x[0].to_kind(Kind::Float) * 0.25,
        Some(|x| x[0].cast(DType::F32)?.mul(0.25)),
    ),
    (
        "in place",
        Kinds::Numbers,
        |x| {
            let mut y = &x[0] + 0;
            let _ = y.i(1).fill_(5);
            let _ = y.g_add_(&x[1]);
            y
        },
        Some(|x| {
            let filled = x[0].narrow(0, 1..2)?.mul(0)?.add(5)?;
            let y = [&x[0].narrow(0, 0..1)?, &filled, &x[0].narrow(0, 2..4)?];
            LazyTensor::concat(&y, 0)?.add(&x[1])
        }),
    ),
    (
        "in place by steps",
        Kinds::Numbers,
        |x| {
            let y = &x[0] + 0;
            let _ = y.slice(1, 1, 6, 2).g_add_(&x[1].slice(1, 0, 3, 1));
            y
        },
        None,
    ),
    (
        "log2",
        Kinds::Floats,
        |x| x[1].log2(),
        Some(|x| x[1].log()?.mul(std::f64::consts::LOG2_E)),
    ),
    (
        "sgn",
        Kinds::Numbers,
        |x| x[0].sgn(),
        Some(|x| {
            x[0].gt(0)?
                .select(1, &x[0].lt(0)?.select(-1, &x[0].mul(0)?)?)
        }),
    ),
    (
        "leaky_relu",
        Kinds::Floats,
        |x| x[0].leaky_relu(),
        Some(|x| x[0].gt(0)?.select(&x[0], &x[0].mul(0.01)?)),
    ),
    (
        "threshold",
        Kinds::Numbers,
        |x| x[0].threshold(1, 2),
        Some(|x| x[0].le(1)?.select(2, &x[0])),
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
    ("flip", Kinds::Numbers, |x| x[0].flip([0, 1]), None),
    (
        "repeat",
        Kinds::Numbers,
        |x| x[0].repeat([2, 3, 1]),
        Some(|x| {
            LazyTensor::concat(
                &[&LazyTensor::concat(&[&x[0], &x[0], &x[0]], 0)?.unsqueeze(0)?; 2],
                0,
            )
        }),
    ),
    (
        "pad",
        Kinds::Numbers,
        |x| x[0].constant_pad_nd([1, 2, -1, 0]),
        Some(|x| {
            let cut = x[0].narrow(0, 1..4)?;
            let zero = cut.narrow(1, 0..1)?.mul(0)?;
            LazyTensor::concat(&[&zero, &cut, &zero, &zero], 1)
        }),
    ),
    (
        "gather",
        Kinds::Numbers,
        |x| x[0].gather(0, &x[4], false),
        None,
    ),
    (
        "scatter_add",
        Kinds::Numbers,
        |x| x[0].scatter_add(0, &x[4], &x[1]),
        None,
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
        "chunk",
        Kinds::Numbers,
        |x| {
            let parts = x[0].chunk(2, 1);
            &parts[0] * 2 + &parts[1]
        },
        Some(|x| x[0].narrow(1, 0..3)?.mul(2)?.add(&x[0].narrow(1, 3..6)?)),
    ),
    (
        "split by sizes",
        Kinds::Numbers,
        |x| {
            let parts = x[0].split_sizes([1, 3], 0);
            &parts[0] + &parts[1]
        },
        Some(|x| x[0].narrow(0, 0..1)?.add(&x[0].narrow(0, 1..4)?)),
    ),
    (
        "unbind",
        Kinds::Numbers,
        |x| {
            let parts = x[0].unbind(0);
            &parts[0] - &parts[3]
        },
        Some(|x| row(&x[0], 0)?.sub(&row(&x[0], 3)?)),
    ),
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
        "cumsum (eagerly)",
        Kinds::Floats,
        |x| x[0].cumsum(1, None) + 1,
        None,
    ),
];
