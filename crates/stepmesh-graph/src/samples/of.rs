//! The samples of each operation.

use super::sample::{Builder, Sample, plain, special, typed};
use crate::{CompareDirection, DType, Error, F64, NodeId, Op, OpKind, Shape};

/// Small cases of an operation for a type (that of the value; of the operand for `compare` and
/// `argmax`), among them the strange ones: empty values, NaN, overflow, indices out of range. None
/// where the operation is not for the type. A cast is in those of both of its types.
///
/// # Errors
/// None that a caller could cause.
pub fn samples(op: OpKind, dtype: DType) -> Result<Vec<Sample>, Error> {
    if !op.allows(dtype) {
        return Ok(Vec::new());
    }
    match op {
        OpKind::Parameter | OpKind::Constant => leaves(op, dtype),
        OpKind::Cast => casts(dtype),
        OpKind::Neg
        | OpKind::Exp
        | OpKind::Log
        | OpKind::Sqrt
        | OpKind::Rsqrt
        | OpKind::Tanh
        | OpKind::Sigmoid
        | OpKind::Relu
        | OpKind::Silu
        | OpKind::GeluErf
        | OpKind::GeluTanh => unary(op, dtype),
        OpKind::Add
        | OpKind::Sub
        | OpKind::Mul
        | OpKind::Div
        | OpKind::Pow
        | OpKind::Max
        | OpKind::Min
        | OpKind::Compare => binary(op, dtype),
        OpKind::Select | OpKind::Clamp => ternary(op, dtype),
        OpKind::Sum | OpKind::Mean | OpKind::ReduceMax | OpKind::Argmax => reductions(op, dtype),
        OpKind::Matmul => matmuls(dtype),
        OpKind::Softmax => softmaxes(dtype),
        OpKind::LayerNorm | OpKind::RmsNorm => norms(op, dtype),
        OpKind::Reshape
        | OpKind::Transpose
        | OpKind::Broadcast
        | OpKind::Slice
        | OpKind::Concat => moves(op, dtype),
        OpKind::Gather | OpKind::IndexAdd => indexed(op, dtype),
        OpKind::RngUniform | OpKind::RngNormal => random(op, dtype),
    }
}

/// One operation on operands that a closure adds.
fn one(
    name: String,
    op: Op,
    operands: impl FnOnce(&mut Builder) -> Result<Vec<NodeId>, Error>,
) -> Result<Sample, Error> {
    let mut builder = Builder::new(name);
    let operands = operands(&mut builder)?;
    let result = builder.node(op, &operands)?;
    builder.build(result)
}

fn leaves(op: OpKind, dtype: DType) -> Result<Vec<Sample>, Error> {
    let mut samples = Vec::new();
    for dims in [&[][..], &[2, 3], &[0, 2]] {
        let ty = typed(dtype, dims)?;
        let name = format!("{op} {ty}");
        let mut builder = Builder::new(name.clone());
        if op == OpKind::Parameter {
            let param = builder.plain(dtype, dims)?;
            samples.push(builder.build(param)?);
            continue;
        }
        for data in [plain(ty, 7), plain(typed(dtype, &[])?, 8)] {
            let data = data.into();
            samples.push(one(name.clone(), Op::Constant { ty, data }, |_| {
                Ok(Vec::new())
            })?);
        }
    }
    Ok(samples)
}

fn casts(dtype: DType) -> Result<Vec<Sample>, Error> {
    let mut samples = Vec::new();
    for other in DType::ALL {
        for (from, to) in [(dtype, other), (other, dtype)] {
            let name = format!("cast {from} to {to}");
            samples.push(one(name.clone(), Op::Cast { dtype: to }, |b| {
                Ok(vec![b.plain(from, &[3, 5])?])
            })?);
            let special = special(from);
            samples.push(one(
                format!("{name}, special"),
                Op::Cast { dtype: to },
                |b| {
                    Ok(vec![
                        b.param(typed(from, &[special.len()])?, special.concat())?,
                    ])
                },
            )?);
        }
    }
    Ok(samples)
}

fn unary(kind: OpKind, dtype: DType) -> Result<Vec<Sample>, Error> {
    let op = || match kind {
        OpKind::Neg => Op::Neg,
        OpKind::Exp => Op::Exp,
        OpKind::Log => Op::Log,
        OpKind::Sqrt => Op::Sqrt,
        OpKind::Rsqrt => Op::Rsqrt,
        OpKind::Tanh => Op::Tanh,
        OpKind::Sigmoid => Op::Sigmoid,
        OpKind::Relu => Op::Relu,
        OpKind::Silu => Op::Silu,
        OpKind::GeluErf => Op::GeluErf,
        _ => Op::GeluTanh,
    };
    let mut samples = Vec::new();
    for dims in [&[][..], &[3, 5], &[0, 3], &[1031]] {
        let name = format!("{kind} {}", typed(dtype, dims)?);
        samples.push(one(name, op(), |b| Ok(vec![b.plain(dtype, dims)?]))?);
    }
    let special = special(dtype);
    samples.push(one(format!("{kind} {dtype}, special"), op(), |b| {
        Ok(vec![b.param(
            typed(dtype, &[special.len()])?,
            special.concat(),
        )?])
    })?);
    Ok(samples)
}

fn binary(kind: OpKind, dtype: DType) -> Result<Vec<Sample>, Error> {
    let ops: Vec<Op> = match kind {
        OpKind::Add => vec![Op::Add],
        OpKind::Sub => vec![Op::Sub],
        OpKind::Mul => vec![Op::Mul],
        OpKind::Div => vec![Op::Div],
        OpKind::Pow => vec![Op::Pow],
        OpKind::Max => vec![Op::Max],
        OpKind::Min => vec![Op::Min],
        _ => CompareDirection::ALL.into_iter().map(Op::Compare).collect(),
    };
    let mut samples = Vec::new();
    let special = special(dtype);
    let count = special.len();
    for op in ops {
        let of = match &op {
            Op::Compare(direction) => format!("{kind} {}", direction.name()),
            _ => kind.to_string(),
        };
        for dims in [&[][..], &[3, 5], &[2, 0], &[517]] {
            let name = format!("{of} {}", typed(dtype, dims)?);
            samples.push(one(name, op.clone(), |b| {
                Ok(vec![b.plain(dtype, dims)?, b.plain(dtype, dims)?])
            })?);
        }
        // Each with each.
        samples.push(one(format!("{of} {dtype}, special"), op.clone(), |b| {
            let ty = typed(dtype, &[count, count])?;
            let rows: Vec<u8> = special.iter().flat_map(|row| row.repeat(count)).collect();
            Ok(vec![
                b.param(ty, rows)?,
                b.param(ty, special.concat().repeat(count))?,
            ])
        })?);
    }
    Ok(samples)
}

fn ternary(kind: OpKind, dtype: DType) -> Result<Vec<Sample>, Error> {
    let (op, first) = match kind {
        OpKind::Select => (Op::Select, DType::Bool),
        _ => (Op::Clamp, dtype),
    };
    let mut samples = Vec::new();
    for dims in [&[][..], &[4, 5], &[0]] {
        let name = format!("{kind} {}", typed(dtype, dims)?);
        samples.push(one(name, op.clone(), |b| {
            let operands = [first, dtype, dtype];
            operands
                .into_iter()
                .map(|dtype| b.plain(dtype, dims))
                .collect()
        })?);
    }
    Ok(samples)
}

fn reductions(kind: OpKind, dtype: DType) -> Result<Vec<Sample>, Error> {
    let op = |dims: &[usize]| {
        let dims = dims.to_vec();
        match kind {
            OpKind::Sum => Op::Sum { dims },
            OpKind::Mean => Op::Mean { dims },
            OpKind::ReduceMax => Op::ReduceMax { dims },
            _ => Op::Argmax { dim: dims[0] },
        }
    };
    let mut cases: Vec<(&[usize], &[usize])> = vec![
        (&[3, 4, 5], &[0]),
        (&[3, 4, 5], &[1]),
        (&[3, 4, 5], &[2]),
        (&[1200], &[0]),
        (&[0, 3], &[1]),
    ];
    if kind != OpKind::Argmax {
        cases.extend::<[(&[usize], &[usize]); 5]>([
            (&[3, 4, 5], &[]),
            (&[3, 4, 5], &[0, 2]),
            (&[3, 4, 5], &[0, 1, 2]),
            (&[2, 0], &[1]),
            (&[], &[]),
        ]);
    }
    let mut samples = Vec::new();
    for (from, dims) in cases {
        let name = format!("{kind} {} over {dims:?}", typed(dtype, from)?);
        samples.push(one(name, op(dims), |b| Ok(vec![b.plain(dtype, from)?]))?);
    }
    // A row for each special element beside plain ones.
    let special = special(dtype);
    let count = special.len();
    samples.push(one(format!("{kind} {dtype}, special"), op(&[1]), |b| {
        let ones = plain(typed(dtype, &[2])?, 3);
        let rows = special
            .iter()
            .flat_map(|row| [ones.clone(), row.clone()].concat());
        Ok(vec![b.param(typed(dtype, &[count, 3])?, rows.collect())?])
    })?);
    Ok(samples)
}

fn matmuls(dtype: DType) -> Result<Vec<Sample>, Error> {
    let mut samples = Vec::new();
    let cases: [(&[usize], usize, usize, usize); 6] = [
        (&[], 3, 4, 5),
        (&[2], 3, 4, 5),
        (&[2, 3], 2, 3, 1),
        (&[], 17, 33, 9),
        (&[], 2, 0, 3),
        (&[0], 2, 2, 2),
    ];
    for (batch, m, k, n) in cases {
        for exchanged in 0..4 {
            let (transpose_a, transpose_b) = (exchanged & 1 != 0, exchanged & 2 != 0);
            let a = if transpose_a { [k, m] } else { [m, k] };
            let b = if transpose_b { [n, k] } else { [k, n] };
            let (a, b) = ([batch, &a].concat(), [batch, &b].concat());
            let op = Op::Matmul {
                transpose_a,
                transpose_b,
            };
            let name = format!("matmul {dtype} {a:?} {b:?}, exchanged {transpose_a} {transpose_b}");
            samples.push(one(name, op, |builder| {
                Ok(vec![builder.plain(dtype, &a)?, builder.plain(dtype, &b)?])
            })?);
        }
    }
    Ok(samples)
}

fn softmaxes(dtype: DType) -> Result<Vec<Sample>, Error> {
    let mut samples = Vec::new();
    for (dims, dim) in [
        (&[3, 4, 5][..], 0),
        (&[3, 4, 5], 1),
        (&[3, 4, 5], 2),
        (&[0, 2], 0),
        (&[700], 0),
    ] {
        let name = format!("softmax {} along {dim}", typed(dtype, dims)?);
        samples.push(one(name, Op::Softmax { dim }, |b| {
            Ok(vec![b.plain(dtype, dims)?])
        })?);
    }
    let (inf, none) = (f64::INFINITY, f64::NEG_INFINITY);
    let rows = [
        [none, 1.0, 2.0],
        [none, none, none],
        [inf, 0.0, 1.0],
        [f64::NAN, 0.0, 1.0],
        [500.0, 499.0, 0.0],
        [-500.0, -499.0, -600.0],
    ];
    samples.push(one(
        format!("softmax {dtype}, special"),
        Op::Softmax { dim: 1 },
        |b| Ok(vec![b.numbers(dtype, &[6, 3], rows.as_flattened())?]),
    )?);
    Ok(samples)
}

fn norms(kind: OpKind, dtype: DType) -> Result<Vec<Sample>, Error> {
    let mut samples = Vec::new();
    let most = if kind == OpKind::LayerNorm { 3 } else { 2 };
    for (dims, dim) in [(&[3, 8][..], 1), (&[2, 3, 4], 1), (&[300], 0), (&[0, 4], 1)] {
        for count in 1..=most {
            let epsilon = F64::new(1e-5);
            let op = match kind {
                OpKind::LayerNorm => Op::LayerNorm { dim, epsilon },
                _ => Op::RmsNorm { dim, epsilon },
            };
            let name = format!(
                "{kind} {} from {dim}, {count} operands",
                typed(dtype, dims)?
            );
            samples.push(one(name, op, |b| {
                let mut operands = vec![b.plain(dtype, dims)?];
                for _ in 1..count {
                    operands.push(b.plain(dtype, &dims[dim..])?);
                }
                Ok(operands)
            })?);
        }
    }
    Ok(samples)
}

fn moves(kind: OpKind, dtype: DType) -> Result<Vec<Sample>, Error> {
    let mut cases: Vec<(&[usize], Op)> = Vec::new();
    match kind {
        OpKind::Reshape => {
            for (from, to) in [(&[2, 6][..], &[3, 4][..]), (&[1], &[]), (&[0, 5], &[7, 0])] {
                let shape = Shape::new(to)?;
                cases.push((from, Op::Reshape { shape }));
            }
        }
        OpKind::Transpose => {
            for dims in [&[0, 1, 2][..], &[2, 1, 0], &[1, 2, 0]] {
                let dims = dims.to_vec();
                cases.push((&[2, 3, 4], Op::Transpose { dims }));
            }
            cases.push((&[40, 33], Op::Transpose { dims: vec![1, 0] }));
        }
        OpKind::Broadcast => {
            let all: [(&[usize], &[usize], &[usize]); 5] = [
                (&[], &[2, 2], &[]),
                (&[3], &[2, 3], &[1]),
                (&[2], &[2, 3], &[0]),
                (&[2, 1], &[2, 4, 3], &[0, 2]),
                (&[1], &[0], &[0]),
            ];
            for (from, to, dims) in all {
                let (shape, dims) = (Shape::new(to)?, dims.to_vec());
                cases.push((from, Op::Broadcast { shape, dims }));
            }
        }
        OpKind::Slice => {
            for (starts, limits, strides) in [
                ([0, 0], [4, 7], [1, 1]),
                ([1, 2], [4, 7], [2, 3]),
                ([2, 3], [2, 7], [1, 9]),
            ] {
                let [starts, limits, strides] = [starts, limits, strides].map(|list| list.to_vec());
                cases.push((
                    &[4, 7],
                    Op::Slice {
                        starts,
                        limits,
                        strides,
                    },
                ));
            }
        }
        _ => return concats(dtype),
    }
    let mut samples = Vec::new();
    for (from, op) in cases {
        let name = format!("{op:?} of {}", typed(dtype, from)?);
        samples.push(one(name, op, |b| Ok(vec![b.plain(dtype, from)?]))?);
    }
    Ok(samples)
}

fn concats(dtype: DType) -> Result<Vec<Sample>, Error> {
    let mut samples = Vec::new();
    let cases: [(usize, &[&[usize]]); 3] = [
        (0, &[&[2, 3]]),
        (0, &[&[2, 3], &[0, 3], &[1, 3]]),
        (1, &[&[2, 3], &[2, 1], &[2, 2]]),
    ];
    for (dim, operands) in cases {
        let name = format!("concat {dtype} {operands:?} along {dim}");
        samples.push(one(name, Op::Concat { dim }, |b| {
            operands.iter().map(|dims| b.plain(dtype, dims)).collect()
        })?);
    }
    Ok(samples)
}

fn indexed(kind: OpKind, dtype: DType) -> Result<Vec<Sample>, Error> {
    let mut samples = Vec::new();
    // Twice the same, and beyond either end.
    let indices = [1.0, 3.0, -1.0, 1.0, 9.0, 0.0];
    for (dim, of) in [(0, DType::I32), (1, DType::I64), (2, DType::I64)] {
        let dims = [4, 4, 4];
        let name = format!("{kind} {dtype} {dims:?} by {of} along {dim}");
        if kind == OpKind::Gather {
            for list in [&[6][..], &[2, 3], &[0], &[]] {
                samples.push(one(format!("{name}, {list:?}"), Op::Gather { dim }, |b| {
                    Ok(vec![b.plain(dtype, &dims)?, b.numbers(of, list, &indices)?])
                })?);
            }
            continue;
        }
        let mut updates = dims;
        updates[dim] = indices.len();
        samples.push(one(name, Op::IndexAdd { dim }, |b| {
            Ok(vec![
                b.plain(dtype, &dims)?,
                b.numbers(of, &[indices.len()], &indices)?,
                b.plain(dtype, &updates)?,
            ])
        })?);
    }
    Ok(samples)
}

fn random(kind: OpKind, dtype: DType) -> Result<Vec<Sample>, Error> {
    let mut samples = Vec::new();
    for (dims, seed, offset) in [
        (&[7][..], 0.0, 0.0),
        (&[3, 5], 42.0, 1e12),
        (&[], -1.0, -1.0),
        (&[9], 5.0, -2.0),
    ] {
        let ty = typed(dtype, dims)?;
        let op = match kind {
            OpKind::RngUniform => Op::RngUniform { ty },
            _ => Op::RngNormal { ty },
        };
        samples.push(one(
            format!("{kind} {ty} seed {seed} offset {offset}"),
            op,
            |b| {
                Ok(vec![
                    b.numbers(DType::I64, &[], &[seed])?,
                    b.numbers(DType::I64, &[], &[offset])?,
                ])
            },
        )?);
    }
    Ok(samples)
}
