//! Graphs at random, in which many operations depend on each other: what fuses them is judged by these.

use super::sample::{Sample, plain, typed};
use crate::{CompareDirection, DType, Error, F64, GraphBuilder, NodeId, Op, Shape};

/// A graph of some 15 to 60 nodes of a float type, with three results and arguments of moderate size.
/// The same seed gives the same graph.
///
/// # Errors
/// If the type is no float that is computed with.
pub fn composed(dtype: DType, seed: u64) -> Result<Sample, Error> {
    let name = format!("composed_{dtype}_{seed}");
    let mut composer = Composer {
        graph: GraphBuilder::new(name.clone()),
        pool: Vec::new(),
        dice: Dice(seed),
    };
    let mut args = Vec::new();
    for dims in SHAPES {
        let ty = typed(dtype, dims)?;
        args.push(plain(ty, seed.wrapping_add(args.len() as u64)));
        let param = composer.graph.parameter(dtype, ty.shape())?;
        composer.pool.push(param);
    }
    for _ in 0..8 + composer.dice.roll(24) {
        let made = composer.grow()?;
        composer.pool.push(made);
    }
    let (any, count) = (composer.pick(), composer.pool.len());
    let results = [composer.pool[count - 1], any, composer.pool[count - 2]];
    Ok(Sample {
        name,
        graph: composer.graph.build(&results)?,
        args,
    })
}

struct Composer {
    graph: GraphBuilder,
    /// Values so far.
    pool: Vec<NodeId>,
    dice: Dice,
}

/// A small generator of its own, so that a failure names a seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % sides
    }
}

impl Composer {
    fn dims(&self, id: NodeId) -> Vec<usize> {
        let ty = self.graph.ty(id);
        ty.map_or(Vec::new(), |ty| ty.shape().dims().to_vec())
    }

    fn node(&mut self, op: Op, operands: &[NodeId]) -> Result<NodeId, Error> {
        self.graph.node(op, operands)
    }

    fn pick(&mut self) -> NodeId {
        self.pool[self.dice.roll(self.pool.len())]
    }

    /// One of the same shape.
    fn alike(&mut self, x: NodeId) -> NodeId {
        let dims = self.dims(x);
        let same = self.pool.iter().copied();
        let same: Vec<NodeId> = same.filter(|y| self.dims(*y) == dims).collect();
        same[self.dice.roll(same.len())]
    }

    fn grow(&mut self) -> Result<NodeId, Error> {
        let x = self.pick();
        let made = match self.dice.roll(3) {
            0 => {
                let ops = [Op::Add, Op::Sub, Op::Mul, Op::Max, Op::Min];
                let (op, y) = (self.dice.roll(ops.len()), self.alike(x));
                self.node(ops[op].clone(), &[x, y])?
            }
            1 => self.computed(x)?,
            _ => self.moved(x)?,
        };
        // Values stay small, so that errors do.
        match self.dice.roll(2) {
            0 => Ok(made),
            _ => self.node(Op::Tanh, &[made]),
        }
    }

    fn computed(&mut self, x: NodeId) -> Result<NodeId, Error> {
        let rank = self.dims(x).len();
        let (dim, epsilon) = (self.dice.roll(rank.max(1)), F64::new(0.1));
        let y = self.alike(x);
        match self.dice.roll(8) {
            0 => {
                let ops = [
                    Op::Sigmoid,
                    Op::Relu,
                    Op::Neg,
                    Op::Silu,
                    Op::GeluErf,
                    Op::GeluTanh,
                ];
                let op = self.dice.roll(ops.len());
                self.node(ops[op].clone(), &[x])
            }
            1 => {
                let order = CompareDirection::ALL[2 + self.dice.roll(4)];
                let is_so = self.node(Op::Compare(order), &[x, y])?;
                self.node(Op::Select, &[is_so, y, x])
            }
            2 => {
                let dims = (0..rank).filter(|_| self.dice.roll(2) == 0).collect();
                self.node(Op::Mean { dims }, &[x])
            }
            3 if rank > 0 => self.node(Op::ReduceMax { dims: vec![dim] }, &[x]),
            4 if rank > 0 => self.node(Op::Softmax { dim }, &[x]),
            5 if rank > 0 => self.node(Op::LayerNorm { dim, epsilon }, &[x]),
            6 if rank > 0 => self.node(Op::RmsNorm { dim, epsilon }, &[x]),
            7 if rank >= 2 && self.dims(x)[rank - 1] <= COLUMNS_MAX => {
                let product = Op::Matmul {
                    transpose_a: true,
                    transpose_b: false,
                };
                self.node(product, &[x, y])
            }
            _ => self.node(Op::Neg, &[x]),
        }
    }

    fn moved(&mut self, x: NodeId) -> Result<NodeId, Error> {
        let dims = self.dims(x);
        let (rank, count) = (dims.len(), dims.iter().product::<usize>());
        match self.dice.roll(5) {
            0 => {
                let mut order: Vec<usize> = (0..rank).collect();
                for idx in (1..rank).rev() {
                    order.swap(idx, self.dice.roll(idx + 1));
                }
                self.node(Op::Transpose { dims: order }, &[x])
            }
            1 => {
                let halves = [count / 2, 2];
                let to = if count % 2 == 0 {
                    &halves[..]
                } else {
                    &[count]
                };
                let shape = Shape::new(to)?;
                self.node(Op::Reshape { shape }, &[x])
            }
            2 if rank < 4 && count <= SPREAD_MAX => {
                let (extent, at) = (1 + self.dice.roll(3), self.dice.roll(rank + 1));
                let mut to = dims;
                to.insert(at, extent);
                let broadcast = Op::Broadcast {
                    shape: Shape::new(&to)?,
                    dims: (0..=rank).filter(|dim| *dim != at).collect(),
                };
                self.node(broadcast, &[x])
            }
            3 if rank > 0 => {
                let starts = dims.iter().map(|dim| self.dice.roll(dim / 2 + 1));
                let slice = Op::Slice {
                    starts: starts.collect(),
                    strides: vec![1 + self.dice.roll(2); rank],
                    limits: dims,
                };
                self.node(slice, &[x])
            }
            4 if rank > 0 && count <= SPREAD_MAX => {
                let (y, dim) = (self.alike(x), self.dice.roll(rank));
                self.node(Op::Concat { dim }, &[x, y])
            }
            _ => self.node(Op::Neg, &[x]),
        }
    }
}

/// Shapes of the parameters: two are alike, one has no dimensions, and one is a long row.
const SHAPES: [&[usize]; 6] = [&[4, 9], &[2, 3, 5], &[7], &[], &[4, 9], &[1, 530]];
/// Columns of what is multiplied with its transpose: the interpreter takes its time.
const COLUMNS_MAX: usize = 64;
/// Elements of a value that may be made larger.
const SPREAD_MAX: usize = 600;
