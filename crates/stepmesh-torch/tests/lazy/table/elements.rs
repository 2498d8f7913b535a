//! Operations on each element.

use stepmesh_lazy::DType;
use tch::{IndexOp, Kind};

use super::{Kinds, Row};

pub(super) const ROWS: &[Row] = &[
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
        "cast",
        Kinds::Numbers,
        |x| x[0].to_kind(Kind::Float) * 0.25,
        Some(|x| x[0].cast(DType::F32)?.mul(0.25)),
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
        "where",
        Kinds::Numbers,
        |x| x[0].where_self(&x[0].gt(0), &x[1]),
        Some(|x| x[0].gt(0)?.select(&x[0], &x[1])),
    ),
    (
        "logical_not",
        Kinds::Numbers,
        |x| x[0].logical_not(),
        Some(|x| x[0].eq(0)),
    ),
    (
        "logical_and",
        Kinds::Numbers,
        |x| x[0].logical_and(&x[6]),
        None,
    ),
    (
        "logical_or",
        Kinds::Numbers,
        |x| x[0].logical_or(&x[6]),
        None,
    ),
    (
        "logical_xor",
        Kinds::Numbers,
        |x| x[0].logical_xor(&x[6]),
        None,
    ),
    (
        "bitwise_not of bool",
        Kinds::Numbers,
        |x| x[0].gt(0).bitwise_not(),
        None,
    ),
    (
        "bitwise_and of bool",
        Kinds::Numbers,
        |x| x[0].gt(0).bitwise_and_tensor(&x[1].gt(5)),
        None,
    ),
    (
        "bitwise_or of bool",
        Kinds::Numbers,
        |x| x[0].gt(0).bitwise_or_tensor(&x[1].gt(5)),
        None,
    ),
    (
        "bitwise_xor of bool",
        Kinds::Numbers,
        |x| x[0].gt(0).bitwise_xor_tensor(&x[1].gt(5)),
        None,
    ),
    (
        "isnan",
        Kinds::Floats,
        |x| (x[0].zeros_like() / &x[0]).isnan(),
        Some(|x| {
            let y = x[0].mul(0)?.div(&x[0])?;
            y.ne(&y)
        }),
    ),
    (
        "isneginf",
        Kinds::Floats,
        |x| (&x[0] / 0).isneginf(),
        Some(|x| x[0].div(0)?.eq(f64::NEG_INFINITY)),
    ),
    (
        "clamp_max",
        Kinds::Numbers,
        |x| x[0].clamp_max(1),
        Some(|x| x[0].minimum(1)),
    ),
    (
        "clamp by tensors",
        Kinds::Numbers,
        |x| x[0].clamp_tensor(Some(x[0].neg()), Some(&x[1] - 2)),
        Some(|x| x[0].maximum(&x[0].neg()?)?.minimum(&x[1].sub(2)?)),
    ),
    (
        "hardtanh",
        Kinds::Floats,
        |x| x[0].hardtanh(),
        Some(|x| x[0].clamp(-1, 1)),
    ),
    ("prelu", Kinds::Floats, |x| x[0].prelu(&x[1].i(0)), None),
    ("glu", Kinds::Floats, |x| x[0].glu(1), None),
    ("sign", Kinds::Numbers, |x| x[0].sign(), None),
    (
        "lerp",
        Kinds::Floats,
        |x| x[0].lerp(&x[1], 0.25) + x[0].lerp(&x[1], 0.75),
        None,
    ),
    (
        "log1p",
        Kinds::Floats,
        |x| (x[0].abs() * 1e-4).log1p() + x[1].log1p(),
        None,
    ),
    (
        "expm1",
        Kinds::Floats,
        |x| (&x[0] * 1e-4).expm1() + x[0].expm1(),
        None,
    ),
    ("softplus", Kinds::Floats, |x| (&x[0] * 16).softplus(), None),
    (
        "log_sigmoid",
        Kinds::Floats,
        |x| (&x[0] * 16).log_sigmoid(),
        None,
    ),
    ("elu", Kinds::Floats, |x| x[0].elu() + x[0].selu(), None),
    ("mish", Kinds::Floats, |x| x[0].mish(), None),
];
