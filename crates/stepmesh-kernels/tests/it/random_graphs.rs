//! Graphs of up to 60 nodes at random, compared with plain loops.

use stepmesh_graph::{CompareDirection, DType, F64, NodeId, Op};

use crate::support::{Dice, Model, shape};

fn alike(model: &Model, pool: &[NodeId], x: NodeId, dice: &mut Dice) -> NodeId {
    let dims = model.dims(x);
    let same: Vec<NodeId> = pool
        .iter()
        .copied()
        .filter(|y| model.dims(*y) == dims)
        .collect();
    same[dice.roll(same.len())]
}

/// Adds a node on values of the pool; all are of one type and of moderate size.
fn grow(model: &mut Model, pool: &[NodeId], dice: &mut Dice) -> NodeId {
    let x = pool[dice.roll(pool.len())];
    let made = match dice.roll(3) {
        0 => {
            let ops = [Op::Add, Op::Sub, Op::Mul, Op::Max, Op::Min];
            let y = alike(model, pool, x, dice);
            model.node(ops[dice.roll(ops.len())].clone(), &[x, y])
        }
        1 => computed(model, pool, x, dice),
        _ => moved(model, pool, x, dice),
    };
    // Values stay small, so that errors do.
    if dice.roll(2) == 0 {
        made
    } else {
        model.node(Op::Tanh, &[made])
    }
}

fn computed(model: &mut Model, pool: &[NodeId], x: NodeId, dice: &mut Dice) -> NodeId {
    let rank = model.dims(x).len();
    let (dim, epsilon) = (dice.roll(rank.max(1)), F64::new(0.1));
    let y = alike(model, pool, x, dice);
    match dice.roll(7) {
        0 => {
            let ops = [
                Op::Sigmoid,
                Op::Relu,
                Op::Neg,
                Op::Silu,
                Op::GeluErf,
                Op::GeluTanh,
            ];
            model.node(ops[dice.roll(ops.len())].clone(), &[x])
        }
        1 => {
            let order = CompareDirection::ALL[2 + dice.roll(4)];
            let is_so = model.node(Op::Compare(order), &[x, y]);
            model.node(Op::Select, &[is_so, y, x])
        }
        2 => {
            let over: Vec<usize> = (0..rank).filter(|_| dice.roll(2) == 0).collect();
            model.node(Op::Mean { dims: over }, &[x])
        }
        3 if rank > 0 => model.node(Op::ReduceMax { dims: vec![dim] }, &[x]),
        4 if rank > 0 => model.node(Op::Softmax { dim }, &[x]),
        5 if rank > 0 => model.node(Op::LayerNorm { dim, epsilon }, &[x]),
        6 if rank >= 2 => {
            let (transpose_a, transpose_b) = (true, false);
            model.node(
                Op::Matmul {
                    transpose_a,
                    transpose_b,
                },
                &[x, y],
            )
        }
        _ => model.node(Op::Neg, &[x]),
    }
}

fn moved(model: &mut Model, pool: &[NodeId], x: NodeId, dice: &mut Dice) -> NodeId {
    let dims = model.dims(x);
    let (rank, count) = (dims.len(), dims.iter().product::<usize>());
    match dice.roll(5) {
        0 => {
            let mut order: Vec<usize> = (0..rank).collect();
            for idx in (1..rank).rev() {
                order.swap(idx, dice.roll(idx + 1));
            }
            model.node(Op::Transpose { dims: order }, &[x])
        }
        1 => {
            let to = if count % 2 == 0 {
                shape(&[count / 2, 2])
            } else {
                shape(&[count])
            };
            model.node(Op::Reshape { shape: to }, &[x])
        }
        2 if rank < 4 && count <= 600 => {
            let extent = 1 + dice.roll(3);
            let mut to = dims.clone();
            let at = dice.roll(rank + 1);
            to.insert(at, extent);
            let places = (0..=rank).filter(|dim| *dim != at).collect();
            let to = shape(&to);
            model.node(
                Op::Broadcast {
                    shape: to,
                    dims: places,
                },
                &[x],
            )
        }
        3 if rank > 0 => {
            let starts: Vec<usize> = dims.iter().map(|dim| dice.roll(dim / 2 + 1)).collect();
            let strides = vec![1 + dice.roll(2); rank];
            model.node(
                Op::Slice {
                    starts,
                    limits: dims,
                    strides,
                },
                &[x],
            )
        }
        4 if rank > 0 && count <= 600 => {
            let y = alike(model, pool, x, dice);
            model.node(
                Op::Concat {
                    dim: dice.roll(rank),
                },
                &[x, y],
            )
        }
        _ => model.node(Op::Neg, &[x]),
    }
}

fn check(dtype: DType, seed: u64) {
    let mut dice = Dice::new(seed);
    let mut model = Model::new();
    let shapes = [
        vec![4, 9],
        vec![2, 3, 5],
        vec![7],
        vec![],
        vec![4, 9],
        vec![1, 530],
    ];
    let mut pool: Vec<NodeId> = shapes.iter().map(|dims| model.param(dtype, dims)).collect();
    for _ in 0..8 + dice.roll(20) {
        let made = grow(&mut model, &pool, &mut dice);
        pool.push(made);
    }
    let last = pool[pool.len() - 1];
    let results = [last, pool[dice.roll(pool.len())], pool[pool.len() - 2]];
    model.check(&results);
}

#[test]
fn of_f64() {
    for seed in 0..40 {
        check(DType::F64, seed);
    }
}

#[test]
fn of_f32() {
    for seed in 1000..1040 {
        check(DType::F32, seed);
    }
}
