//! The loss of log probabilities, which cross entropy ends with, and its gradient.
//!
//! A class out of range has no probability: its loss is 0, as on devices, where no operation can
//! refuse its input.

use stepmesh_graph::{CompareDirection, DType, NodeId, Op};

use super::super::error::LoweringError;
use super::shape::iota;
use super::{Call, Translation, Value, one};

type Translated = Result<Vec<Value>, LoweringError>;

pub(super) const TABLE: &[(&str, Translation)] = &[
    ("aten::nll_loss_forward", forward),
    ("aten::nll_loss_backward", backward),
];

/// What is done with the losses of a batch, by the number that PyTorch gives it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reduction {
    None,
    Mean,
    Sum,
}

/// What both directions look at.
struct Batch {
    /// Whether an element is the one of its row's class, as the input is shaped.
    is_target: NodeId,
    /// What each row counts: 0 where it is ignored. Without the dimension of classes.
    weight: NodeId,
    /// The dimension of classes.
    dim: usize,
}

/// self, target, weight, reduction, ignored class: loss, and what all rows count.
fn forward(call: &mut Call<'_>) -> Translated {
    let x = call.tensor(0)?;
    let dtype = call.ty(x)?.dtype();
    let x = call.wide(x)?;
    let reduction = reduction(call, 3)?;
    let batch = batch(call, x, 2, 4)?;
    let rows = call.shape(batch.weight)?;
    let zero = call.like(x, 0.0)?;
    let picked = call.node(Op::Select, &[batch.is_target, x, zero])?;
    let picked = {
        let dims = vec![batch.dim];
        call.node(Op::Sum { dims }, &[picked])?
    };
    let product = call.node(Op::Mul, &[picked, batch.weight])?;
    let losses = call.node(Op::Neg, &[product])?;
    let all: Vec<usize> = (0..rows.rank()).collect();
    let total = call.node(Op::Sum { dims: all.clone() }, &[batch.weight])?;
    let (loss, total) = match reduction {
        // PyTorch counts nothing where nothing is reduced; a single row is reduced.
        Reduction::None if rows.rank() > 0 => (losses, call.like(total, 0.0)?),
        Reduction::None | Reduction::Sum => (call.node(Op::Sum { dims: all }, &[losses])?, total),
        Reduction::Mean => {
            let sum = call.node(Op::Sum { dims: all }, &[losses])?;
            (call.node(Op::Div, &[sum, total])?, total)
        }
    };
    let results = [call.cast(loss, dtype)?, call.cast(total, dtype)?];
    Ok(results.map(Value::Tensor).to_vec())
}

/// grad, self, target, weight, reduction, ignored class, what all rows count.
fn backward(call: &mut Call<'_>) -> Translated {
    let x = call.tensor(1)?;
    let ty = call.ty(x)?;
    let x = call.wide(x)?;
    let wide = call.ty(x)?.dtype();
    let reduction = reduction(call, 4)?;
    let batch = batch(call, x, 3, 5)?;
    let rows = call.shape(batch.weight)?;
    let grad = call.operand(0, wide, rows)?;
    let mut factor = call.node(Op::Mul, &[grad, batch.weight])?;
    if reduction == Reduction::Mean {
        let total = call.operand(6, wide, rows)?;
        factor = call.node(Op::Div, &[factor, total])?;
    }
    let factor = call.node(Op::Neg, &[factor])?;
    let column = {
        let mut extents = rows.dims().to_vec();
        extents.push(1);
        let column = call.shape_of(&extents)?;
        call.reshape(factor, column)?
    };
    let spread = call.broadcast(column, ty.shape())?;
    let zero = call.like(x, 0.0)?;
    let result = call.node(Op::Select, &[batch.is_target, spread, zero])?;
    one(call.cast(result, ty.dtype())?)
}

fn reduction(call: &Call<'_>, index: usize) -> Result<Reduction, LoweringError> {
    match call.int(index)? {
        0 => Ok(Reduction::None),
        1 => Ok(Reduction::Mean),
        2 => Ok(Reduction::Sum),
        other => Err(call.fault(format!("has no reduction {other}"))),
    }
}

/// `x` has classes in its last dimension; the target is input `weight - 1`.
fn batch(
    call: &mut Call<'_>,
    x: NodeId,
    weight: usize,
    ignored: usize,
) -> Result<Batch, LoweringError> {
    let ty = call.ty(x)?;
    let shape = ty.shape();
    let Some((classes, rows)) = shape.dims().split_last() else {
        return Err(call.fault("has no dimension of classes"));
    };
    let dim = rows.len();
    let (classes, rows) = (*classes, call.shape_of(rows)?);
    let target = call.tensor(weight - 1)?;
    let target = call.cast(target, DType::I64)?;
    let target = call.reshape(target, rows)?;
    let is_target = {
        let mut extents = rows.dims().to_vec();
        extents.push(1);
        let column = call.shape_of(&extents)?;
        let column = call.reshape(target, column)?;
        let column = call.broadcast(column, shape)?;
        let numbers = iota(call, classes)?;
        let numbers = call.broadcast(numbers, shape)?;
        call.node(Op::Compare(CompareDirection::Eq), &[column, numbers])?
    };
    // 1 for each row but those of the ignored class.
    let ignored = call.operand(ignored, DType::I64, rows)?;
    let counts = call.node(Op::Compare(CompareDirection::Ne), &[target, ignored])?;
    let mut counted = call.cast(counts, ty.dtype())?;
    if !call.is_none(weight) {
        let given = call.tensor(weight)?;
        let given = call.cast(given, ty.dtype())?;
        let taken = call.node(Op::Gather { dim: 0 }, &[given, target])?;
        counted = call.node(Op::Mul, &[taken, counted])?;
    }
    Ok(Batch {
        is_target,
        weight: counted,
        dim,
    })
}
