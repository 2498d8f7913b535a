//! Turns the nodes of a graph into items. What only moves elements becomes a view where steps through
//! memory can say so, and a copy where not. Norms are taken apart in the norm module.
use std::sync::Arc;

use stepmesh_graph::{CompareDirection, DType, Graph, Node, Op};

use crate::item::{Item, Items, Kind, Source, Space, View, element_count};
use crate::ops::{Binary, Fold, Order, Scalar, Unary};

/// The items of a graph, and of each result the item that has it.
pub fn lower(graph: &Graph) -> (Items, Vec<usize>) {
    let mut lowering = Lowering {
        items: Items::default(),
        node: 0,
    };
    let mut values: Vec<Source> = Vec::with_capacity(graph.nodes().len());
    for (idx, node) in graph.nodes().iter().enumerate() {
        lowering.node = idx;
        let operands = node.operands().iter().map(|id| Operand {
            source: values[id.index()].clone(),
            dtype: graph.node(*id).dtype(),
            dims: graph.node(*id).shape().dims().to_vec(),
        });
        let value = lowering.lower(node, operands.collect());
        values.push(value);
    }
    let mut results: Vec<usize> = Vec::with_capacity(graph.results().len());
    for id in graph.results() {
        lowering.node = id.index();
        let node = graph.node(*id);
        let source = values[id.index()].clone();
        let item = match lowering.own_item(&source) {
            Some(item) if !results.contains(&item) => item,
            _ => {
                lowering
                    .copy(source, node.dtype(), node.shape().dims())
                    .item
            }
        };
        results.push(item);
    }
    (lowering.items, results)
}

/// Adds the items of one node after another.
pub(crate) struct Lowering {
    items: Items,
    /// The node in hand.
    node: usize,
}

/// An operand of a node.
pub(crate) struct Operand {
    pub(crate) source: Source,
    dtype: DType,
    dims: Vec<usize>,
}

impl Lowering {
    fn lower(&mut self, node: &Node, operands: Vec<Operand>) -> Source {
        let (dtype, shape) = (node.dtype(), node.shape());
        let dims = shape.dims();
        if let Some(kind) = plain_kind(node.op()) {
            return self.add(kind, dtype, dims, sources(operands));
        }
        match node.op() {
            Op::Parameter { number, .. } => {
                let number = usize::try_from(*number).unwrap_or(usize::MAX);
                self.add(Kind::Param(number), dtype, dims, Vec::new())
            }
            Op::Constant { data, .. } => self.constant(data, dtype, dims),
            Op::RngUniform { .. } | Op::RngNormal { .. } => {
                let normal = matches!(node.op(), Op::RngNormal { .. });
                self.add(Kind::Random { normal }, dtype, dims, sources(operands))
            }
            Op::Clamp => {
                let mut operands = sources(operands);
                let high = operands.pop();
                let raised = self.add(Kind::Binary(Binary::Max), dtype, dims, operands);
                let operands = [raised].into_iter().chain(high).collect();
                self.add(Kind::Binary(Binary::Min), dtype, dims, operands)
            }
            Op::Concat { dim } => {
                let operands = operands.into_iter().map(|x| self.viewed(x)).collect();
                self.add(Kind::Concat { dim: *dim }, dtype, dims, operands)
            }
            Op::Gather { dim } => {
                let operands = operands.into_iter().map(|x| self.dense(x)).collect();
                self.add(Kind::Gather { dim: *dim }, dtype, dims, operands)
            }
            Op::IndexAdd { dim } => {
                let mut dense: Vec<Source> = Vec::new();
                for (place, operand) in operands.into_iter().enumerate() {
                    // The data is copied anyway, by a kernel that takes any view.
                    dense.push(if place == 0 {
                        operand.source
                    } else {
                        self.dense(operand)
                    });
                }
                self.add(Kind::IndexAdd { dim: *dim }, dtype, dims, dense)
            }
            Op::Matmul {
                transpose_a,
                transpose_b,
            } => {
                let exchanged = [*transpose_a, *transpose_b].into_iter().zip(operands);
                let operands = exchanged
                    .map(|(exchanged, x)| self.matrix(x, exchanged))
                    .collect();
                self.add(Kind::Product, dtype, dims, operands)
            }
            Op::LayerNorm { dim, epsilon } => {
                let operands = sources(operands);
                self.norm(&operands, true, (*dim, epsilon.value()), dtype, dims)
            }
            Op::RmsNorm { dim, epsilon } => {
                let operands = sources(operands);
                self.norm(&operands, false, (*dim, epsilon.value()), dtype, dims)
            }
            op => match operands.into_iter().next() {
                Some(x) => self.lower_unary(op, x, dtype, dims),
                None => self.add(Kind::Move, dtype, dims, Vec::new()),
            },
        }
    }

    /// Operations of one operand that are not one item.
    fn lower_unary(&mut self, op: &Op, x: Operand, dtype: DType, dims: &[usize]) -> Source {
        match op {
            Op::Cast { .. } => self.cast(x, dtype, dims),
            Op::Sum { dims: over } => self.reduce(Fold::Sum, x.source, &x.dims, over, dtype),
            Op::ReduceMax { dims: over } => self.reduce(Fold::Max, x.source, &x.dims, over, dtype),
            Op::Argmax { dim } => self.reduce(Fold::ArgMax, x.source, &x.dims, &[*dim], dtype),
            Op::Mean { dims: over } => {
                let count: usize = over.iter().map(|dim| x.dims[*dim]).product();
                let sum = self.reduce(Fold::Sum, x.source, &x.dims, over, wide(dtype));
                self.divide(sum, count, dtype, dims)
            }
            Op::Softmax { dim } => self.softmax(x.source, *dim, dtype, dims),
            Op::Reshape { .. } => {
                let Source::View(view) = x.source else {
                    return x.source;
                };
                let reshaped = view.reshaped(dims).or_else(|| {
                    let copied = self.copy(Source::View(view), dtype, &x.dims);
                    copied.reshaped(dims)
                });
                match reshaped {
                    Some(view) => Source::View(view),
                    // A dense view has every shape.
                    None => Source::Splat(dtype, Scalar::Int(0)),
                }
            }
            Op::Transpose { dims: order } => map_view(x.source, |view| view.transposed(order)),
            Op::Broadcast { dims: places, .. } => {
                map_view(x.source, |view| view.broadcast(dims, places))
            }
            Op::Slice {
                starts, strides, ..
            } => map_view(x.source, |view| view.sliced(starts, strides, dims)),
            _ => self.add(Kind::Move, dtype, dims, vec![x.source]),
        }
    }

    pub(crate) fn add(
        &mut self,
        kind: Kind,
        dtype: DType,
        dims: &[usize],
        operands: Vec<Source>,
    ) -> Source {
        Source::View(self.items.add(Item {
            kind,
            dtype,
            dims: dims.to_vec(),
            operands,
            node: self.node,
        }))
    }

    /// The item of which a source is all, if that is one that computes.
    fn own_item(&self, source: &Source) -> Option<usize> {
        let Source::View(view) = source else {
            return None;
        };
        let kind = &self.items.list[view.item].kind;
        let is_given = matches!(kind, Kind::Param(_) | Kind::Data(_));
        (!is_given && self.items.is_whole(view)).then_some(view.item)
    }

    fn copy(&mut self, source: Source, dtype: DType, dims: &[usize]) -> View {
        self.items.add(Item {
            kind: Kind::Move,
            dtype,
            dims: dims.to_vec(),
            operands: vec![source],
            node: self.node,
        })
    }

    fn constant(&mut self, data: &Arc<[u8]>, dtype: DType, dims: &[usize]) -> Source {
        if data.len() == dtype.size_bytes() {
            return Source::Splat(dtype, Scalar::of_bytes(dtype, data));
        }
        let number = self.items.constants.len();
        self.items.constants.push(Arc::clone(data));
        self.add(Kind::Data(number), dtype, dims, Vec::new())
    }

    /// An operand that has a shape of its own.
    fn viewed(&mut self, x: Operand) -> Source {
        match x.source {
            view @ Source::View(_) => view,
            splat @ Source::Splat(..) => Source::View(self.copy(splat, x.dtype, &x.dims)),
        }
    }

    fn dense(&mut self, x: Operand) -> Source {
        match x.source {
            Source::View(view) if view.is_dense() => Source::View(view),
            other => Source::View(self.copy(other, x.dtype, &x.dims)),
        }
    }

    fn cast(&mut self, x: Operand, to: DType, dims: &[usize]) -> Source {
        let is_narrow =
            |dtype| matches!(dtype, DType::F8E4M3 | DType::F8E5M2) || wide(dtype) != dtype;
        let kind = match (x.dtype, to) {
            (from, to) if from == to => return x.source,
            (from, DType::F32) if is_narrow(from) => Kind::Move,
            (DType::Bool, DType::U8) => Kind::Move,
            (_, to) if is_narrow(to) => Kind::Round,
            _ => Kind::Cast,
        };
        self.add(kind, to, dims, vec![x.source])
    }

    pub(crate) fn divide(
        &mut self,
        x: Source,
        count: usize,
        dtype: DType,
        dims: &[usize],
    ) -> Source {
        let count = Source::Splat(dtype, Scalar::Float(count as f64));
        self.add(Kind::Binary(Binary::Div), dtype, dims, vec![x, count])
    }

    /// Reduces over dimensions, one run of neighbours at a time, the last ones first.
    fn reduce(
        &mut self,
        fold: Fold,
        x: Source,
        dims: &[usize],
        over: &[usize],
        dtype: DType,
    ) -> Source {
        let (mut x, mut dims, mut over) = (x, dims.to_vec(), over.to_vec());
        if over.is_empty() {
            return self.add(Kind::Move, dtype, &dims, vec![x]);
        }
        while let Some(last) = over.pop() {
            let mut first = last;
            while over.last().is_some_and(|next| next + 1 == first) {
                first = over.pop().unwrap_or(first);
            }
            let space = Space {
                outer: element_count(&dims[..first]),
                inner: element_count(&dims[first..=last]),
                columns: element_count(&dims[last + 1..]),
            };
            dims.drain(first..=last);
            let own = if over.is_empty() { dtype } else { wide(dtype) };
            x = self.add(Kind::Reduce { fold, space }, own, &dims, vec![x]);
        }
        x
    }

    /// An operand of a product, its matrices as they are multiplied.
    fn matrix(&mut self, x: Operand, is_exchanged: bool) -> Source {
        let rank = x.dims.len();
        let view = match x.source {
            Source::View(view) => view,
            splat @ Source::Splat(..) => self.copy(splat, x.dtype, &x.dims),
        };
        let mut order: Vec<usize> = (0..rank).collect();
        if is_exchanged {
            order.swap(rank - 2, rank - 1);
        }
        Source::View(view.transposed(&order))
    }
}

fn sources(operands: Vec<Operand>) -> Vec<Source> {
    operands.into_iter().map(|operand| operand.source).collect()
}

fn map_view(source: Source, map: impl FnOnce(&View) -> View) -> Source {
    match source {
        Source::View(view) => Source::View(map(&view)),
        splat @ Source::Splat(..) => splat,
    }
}

/// Operations that are one item with the node's own operands.
fn plain_kind(op: &Op) -> Option<Kind> {
    let binary = |op| Some(Kind::Binary(op));
    let unary = |op| Some(Kind::Unary(op));
    match op {
        Op::Add => binary(Binary::Add),
        Op::Sub => binary(Binary::Sub),
        Op::Mul => binary(Binary::Mul),
        Op::Div => binary(Binary::Div),
        Op::Pow => binary(Binary::Pow),
        Op::Max => binary(Binary::Max),
        Op::Min => binary(Binary::Min),
        Op::Neg => unary(Unary::Neg),
        Op::Exp => unary(Unary::Exp),
        Op::Log => unary(Unary::Log),
        Op::Sqrt => unary(Unary::Sqrt),
        Op::Rsqrt => unary(Unary::Rsqrt),
        Op::Tanh => unary(Unary::Tanh),
        Op::Sigmoid => unary(Unary::Sigmoid),
        Op::Relu => unary(Unary::Relu),
        Op::Silu => unary(Unary::Silu),
        Op::GeluErf => unary(Unary::GeluErf),
        Op::GeluTanh => unary(Unary::GeluTanh),
        Op::Select => Some(Kind::Select),
        Op::Compare(direction) => Some(Kind::Compare(match direction {
            CompareDirection::Eq => Order::Eq,
            CompareDirection::Ne => Order::Ne,
            CompareDirection::Lt => Order::Lt,
            CompareDirection::Le => Order::Le,
            CompareDirection::Gt => Order::Gt,
            CompareDirection::Ge => Order::Ge,
        })),
        _ => None,
    }
}

/// The type in which values between the items of one node are kept.
pub(crate) fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        other => other,
    }
}
