//! Products of matrices.

use stepmesh_graph::{NodeId, Op};

use super::super::error::LoweringError;
use super::{Call, Translation, Value, one};

type Translated = Result<Vec<Value>, LoweringError>;

pub(super) const TABLE: &[(&str, Translation)] = &[
    ("aten::mm", product),
    ("aten::bmm", product),
    ("aten::mv", matrix_vector),
    ("aten::addmm", add_product),
    ("aten::baddbmm", add_product),
];

fn product(call: &mut Call<'_>) -> Translated {
    let (a, b) = (call.tensor(0)?, call.tensor(1)?);
    one(call.node(Op::MATMUL, &[a, b])?)
}

fn matrix_vector(call: &mut Call<'_>) -> Translated {
    let (matrix, vector) = (call.tensor(0)?, call.tensor(1)?);
    let len = call.shape(vector)?.element_count();
    let column = call.shape_of(&[len, 1])?;
    let vector = call.reshape(vector, column)?;
    let product = call.node(Op::MATMUL, &[matrix, vector])?;
    let rows = call.shape(product)?.dims().first().copied().unwrap_or(0);
    let shape = call.shape_of(&[rows])?;
    one(call.reshape(product, shape)?)
}

/// self, a, b, beta, alpha: beta * self + alpha * (a @ b).
fn add_product(call: &mut Call<'_>) -> Translated {
    let (a, b) = (call.tensor(1)?, call.tensor(2)?);
    let product = call.node(Op::MATMUL, &[a, b])?;
    let ty = call.ty(product)?;
    let addend = call.operand(0, ty.dtype(), ty.shape())?;
    // beta = 0 means that the addend does not count, not even its NaNs.
    if matches!(call.inputs.get(3), Some(Value::Int(0))) {
        let result = times(call, product, 4)?;
        return one(result);
    }
    let addend = times(call, addend, 3)?;
    let product = times(call, product, 4)?;
    one(call.node(Op::Add, &[addend, product])?)
}

/// A value times an input that is a number, unless that is known to be one.
fn times(call: &mut Call<'_>, id: NodeId, index: usize) -> Result<NodeId, LoweringError> {
    if call.is_none(index) || matches!(call.inputs[index], Value::Int(1)) {
        return Ok(id);
    }
    let ty = call.ty(id)?;
    let factor = call.operand(index, ty.dtype(), ty.shape())?;
    call.node(Op::Mul, &[factor, id])
}
