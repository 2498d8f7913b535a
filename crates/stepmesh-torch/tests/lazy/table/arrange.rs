//! Operations that move elements, and those in place.

use stepmesh_lazy::LazyTensor;
use tch::{IndexOp, Tensor};

use super::{Kinds, Row, row};

pub(super) const ROWS: &[Row] = &[
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
        "zero_",
        Kinds::Numbers,
        |x| (&x[0] + 1).zero_(),
        Some(|x| x[0].mul(0)),
    ),
    (
        "fill_ by a tensor",
        Kinds::Numbers,
        |x| (&x[0] + 1).fill_tensor_(&x[1].i((0, 0))),
        None,
    ),
    (
        "copy_",
        Kinds::Numbers,
        |x| {
            let mut y = &x[0] + 1;
            y.copy_(&x[1].i(0));
            y
        },
        None,
    ),
    (
        "index",
        Kinds::Numbers,
        |x| x[0].index(&[None, Some(&(&x[4] - 4))]),
        None,
    ),
    (
        "index by two",
        Kinds::Numbers,
        |x| x[0].index(&[Some(&(&x[3] - 4).unsqueeze(1)), Some(&x[5])]),
        None,
    ),
    (
        "index by the last two of three",
        Kinds::Numbers,
        |x| {
            let three = x[0].reshape([2, 2, 6]);
            three.index(&[None, Some(&x[3].clamp(0, 1)), Some(&x[3])])
        },
        None,
    ),
    (
        "index_add",
        Kinds::Numbers,
        |x| x[0].index_add(1, &x[3], &x[1].narrow(1, 0, 3)),
        None,
    ),
    (
        "index_put that adds",
        Kinds::Numbers,
        |x| (&x[0] + 1).index_put_(&[Some(&x[5].i(0..2))], &x[1].i(0), true),
        None,
    ),
    (
        "scatter a value",
        Kinds::Numbers,
        |x| x[0].scatter_value(0, &x[4], 7),
        None,
    ),
    (
        "scatter one of each",
        Kinds::Numbers,
        |x| x[0].scatter(0, &x[4].i(0..1), &x[1]),
        None,
    ),
];
