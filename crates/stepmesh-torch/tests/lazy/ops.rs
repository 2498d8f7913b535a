//! Each operation, in each type that it is for: eager, reference and ours agree.

use stepmesh_torch::lazy::metrics_report;
use tch::{Device, IndexOp, Kind, Tensor};

use crate::{Mode, Turn, difference};

type Operation = fn(&[Tensor]) -> Tensor;

/// Which types an operation is tried in.
#[derive(Clone, Copy)]
enum Kinds {
    Floats,
    Numbers,
}

impl Kinds {
    fn list(self) -> &'static [Kind] {
        match self {
            Self::Floats => FLOATS,
            Self::Numbers => NUMBERS,
        }
    }
}

const FLOATS: &[Kind] = &[Kind::Float, Kind::Double, Kind::BFloat16, Kind::Half];
const NUMBERS: &[Kind] = &[
    Kind::Float,
    Kind::Double,
    Kind::BFloat16,
    Kind::Half,
    Kind::Int64,
    Kind::Int,
];

const OPERATIONS: &[(&str, Kinds, Operation)] = &[
    ("neg", Kinds::Numbers, |x| x[0].neg()),
    ("exp", Kinds::Floats, |x| x[0].exp()),
    ("log", Kinds::Floats, |x| x[1].log()),
    ("sqrt", Kinds::Floats, |x| x[1].sqrt()),
    ("rsqrt", Kinds::Floats, |x| x[1].rsqrt()),
    ("tanh", Kinds::Floats, |x| x[0].tanh()),
    ("sigmoid", Kinds::Floats, |x| x[0].sigmoid()),
    ("relu", Kinds::Numbers, |x| x[0].relu()),
    ("silu", Kinds::Floats, |x| x[0].silu()),
    ("gelu", Kinds::Floats, |x| x[0].gelu("none")),
    ("gelu tanh", Kinds::Floats, |x| x[0].gelu("tanh")),
    ("abs", Kinds::Numbers, |x| x[0].abs()),
    ("reciprocal", Kinds::Floats, |x| x[1].reciprocal()),
    ("add", Kinds::Numbers, |x| &x[0] + &x[1]),
    ("add scalar", Kinds::Numbers, |x| &x[0] + 2),
    ("sub", Kinds::Numbers, |x| &x[0] - &x[1]),
    ("rsub scalar", Kinds::Numbers, |x| 3 - &x[0]),
    ("mul", Kinds::Numbers, |x| &x[0] * &x[1]),
    ("mul fraction", Kinds::Numbers, |x| &x[0] * 0.5),
    ("div", Kinds::Numbers, |x| &x[0] / &x[1]),
    ("div scalar", Kinds::Numbers, |x| &x[0] / 4),
    ("pow", Kinds::Floats, |x| x[1].pow_tensor_scalar(2)),
    ("maximum", Kinds::Numbers, |x| x[0].maximum(&x[1])),
    ("minimum", Kinds::Numbers, |x| x[0].minimum(&x[1])),
    ("eq", Kinds::Numbers, |x| x[0].eq_tensor(&x[1])),
    ("ne scalar", Kinds::Numbers, |x| x[0].ne(1)),
    ("lt", Kinds::Numbers, |x| x[0].lt_tensor(&x[1])),
    ("le scalar", Kinds::Numbers, |x| x[0].le(0.5)),
    ("gt", Kinds::Numbers, |x| x[0].gt_tensor(&x[1])),
    ("ge scalar", Kinds::Numbers, |x| x[0].ge(1)),
    ("clamp", Kinds::Numbers, |x| x[0].clamp(-1, 1)),
    ("clamp_min", Kinds::Numbers, |x| x[0].clamp_min(0)),
    ("masked_fill", Kinds::Numbers, |x| {
        x[0].masked_fill(&x[0].gt(0), 7)
    }),
    ("addcmul", Kinds::Floats, |x| x[0].addcmul(&x[1], &x[1])),
    ("broadcast row", Kinds::Numbers, |x| &x[0] + x[1].i(0)),
    ("broadcast column", Kinds::Numbers, |x| {
        &x[0] * x[1].i((.., 0)).unsqueeze(1)
    }),
    ("sum", Kinds::Numbers, |x| x[0].sum(None)),
    ("sum dim", Kinds::Numbers, |x| {
        x[0].sum_dim_intlist(1, false, None)
    }),
    ("sum keep", Kinds::Floats, |x| {
        x[0].sum_dim_intlist([0_i64, -1].as_slice(), true, None)
    }),
    ("mean", Kinds::Floats, |x| x[0].mean(None)),
    ("mean dim", Kinds::Floats, |x| x[0].mean_dim(0, true, None)),
    ("max", Kinds::Numbers, |x| x[0].max()),
    ("min", Kinds::Numbers, |x| x[0].min()),
    ("softmax", Kinds::Floats, |x| x[0].softmax(-1, None)),
    ("log_softmax", Kinds::Floats, |x| x[0].log_softmax(0, None)),
    ("layer_norm", Kinds::Floats, |x| {
        x[0].layer_norm([6], Some(x[1].i(0)), Some(x[1].i(1)), 1e-5, false)
    }),
    ("mm", Kinds::Floats, |x| x[0].mm(&x[1].tr())),
    ("addmm", Kinds::Floats, |x| x[2].addmm(&x[0], &x[1].tr())),
    ("bmm", Kinds::Floats, |x| {
        x[0].reshape([2, 2, 6]).bmm(&x[1].reshape([2, 6, 2]))
    }),
    ("mv", Kinds::Floats, |x| x[0].mv(&x[1].i(2))),
    ("view", Kinds::Numbers, |x| x[0].view([2, -1]) + 1),
    ("transpose", Kinds::Numbers, |x| x[0].transpose(0, 1) + 1),
    ("permute", Kinds::Numbers, |x| {
        x[0].reshape([2, 2, 6]).permute([2, 0, 1]) + 1
    }),
    ("select", Kinds::Numbers, |x| x[0].select(1, -2) + 1),
    ("slice", Kinds::Numbers, |x| x[0].slice(1, 1, 6, 2) + 1),
    ("narrow", Kinds::Numbers, |x| x[0].narrow(0, 1, 2) + 1),
    ("expand", Kinds::Numbers, |x| {
        x[0].i(0).expand([3, 6], false) + 1
    }),
    ("squeeze", Kinds::Numbers, |x| {
        x[0].unsqueeze(0).squeeze_dim(0) + 1
    }),
    ("cat", Kinds::Numbers, |x| Tensor::cat(&[&x[0], &x[1]], 1)),
    ("stack", Kinds::Numbers, |x| {
        Tensor::stack(&[&x[0], &x[1]], 1)
    }),
    ("index_select", Kinds::Numbers, |x| {
        x[0].index_select(1, &x[3])
    }),
    ("embedding", Kinds::Floats, |x| {
        Tensor::embedding(&x[0], &x[3], -1, false, false)
    }),
    ("tril", Kinds::Numbers, |x| x[0].tril(1)),
    ("triu", Kinds::Numbers, |x| x[0].triu(-1)),
    ("cast", Kinds::Numbers, |x| x[0].to_kind(Kind::Float) * 0.25),
    ("in place", Kinds::Numbers, |x| {
        let mut y = &x[0] + 0;
        let _ = y.i(1).fill_(5);
        let _ = y.g_add_(&x[1]);
        y
    }),
    ("in place, by steps", Kinds::Numbers, |x| {
        let y = &x[0] + 0;
        let _ = y.slice(1, 1, 6, 2).g_add_(&x[1].slice(1, 0, 3, 1));
        y
    }),
    ("fallback", Kinds::Floats, |x| x[0].cumsum(1, None) + 1),
];

/// Two matrices of 4 by 6, a square one of 4, and indices. The second is above zero.
fn inputs(kind: Kind) -> Vec<Tensor> {
    let numbers = |count: i64, step: i64, low: i64| {
        let all = Tensor::arange(count, (Kind::Int64, Device::Cpu));
        (all * step).remainder(11) + low
    };
    let halves = |tensor: Tensor| {
        if FLOATS.contains(&kind) {
            (tensor.to_kind(Kind::Double) / 4.0).to_kind(kind)
        } else {
            tensor.to_kind(kind)
        }
    };
    vec![
        halves(numbers(24, 7, -5).reshape([4, 6])),
        halves(numbers(24, 5, 1).reshape([4, 6])),
        halves(numbers(16, 3, -3).reshape([4, 4])),
        Tensor::from_slice(&[2i64, 0, 3]),
    ]
}

/// The value, or why there is none.
fn run(mode: Mode, operation: Operation, kind: Kind) -> Result<Tensor, String> {
    let turn = Turn::new(mode);
    let inputs: Vec<Tensor> = inputs(kind)
        .iter()
        .map(|input| turn.tensor(input))
        .collect();
    let result = operation(&inputs).f_to_device(Device::Cpu);
    result.map_err(|error| {
        error
            .to_string()
            .lines()
            .next()
            .unwrap_or_default()
            .to_owned()
    })
}

#[test]
fn eager_reference_and_ours_agree_on_every_operation_and_type() {
    let mut faults = Vec::new();
    for (name, kinds, operation) in OPERATIONS {
        for kind in kinds.list() {
            let eager = run(Mode::Eager, *operation, *kind).unwrap();
            for mode in [Mode::Reference, Mode::Ours] {
                let fault = match run(mode, *operation, *kind) {
                    Ok(found) => difference(&found, &eager),
                    Err(fault) => Some(fault),
                };
                faults.extend(fault.map(|fault| format!("{name} of {kind:?}, {mode:?}: {fault}")));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn nothing_of_the_table_but_the_fallback_runs_eagerly() {
    let mut faults = Vec::new();
    for (name, _, operation) in OPERATIONS {
        let turn = Turn::new(Mode::Ours);
        let inputs = inputs(Kind::Float);
        let inputs: Vec<Tensor> = inputs.iter().map(|input| turn.tensor(input)).collect();
        drop(operation(&inputs).f_to_device(Device::Cpu).unwrap());
        let report = metrics_report().unwrap();
        let eager: Vec<&str> = report
            .lines()
            .filter(|line| line.contains("aten::"))
            .collect();
        if eager.is_empty() == (*name == "fallback") {
            faults.push(format!("{name}: {eager:?}"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
