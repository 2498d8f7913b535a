//! The table of operations: what each is in PyTorch, in which types it is tried, and what it is in
//! stepmesh-lazy alone.

mod arrange;
mod elements;
mod gradients;
mod reduce;

use stepmesh_lazy::{Error, LazyTensor};
use tch::{IndexOp, Kind, Tensor};

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

/// Batch norm of x, with weights, and from running values unless it is training.
fn batch_norm(x: &Tensor, inputs: &[Tensor], is_training: bool) -> Tensor {
    let [mean, variance, weight, shift] = [0, 1, 2, 3].map(|row| Some(&inputs[1].i(row) + 0));
    x.batch_norm(weight, shift, mean, variance, is_training, 0.1, 1e-5, false)
}

/// Attention of three words with two heads, each of which may look at itself and those before.
fn attention(x: &Tensor, inputs: &[Tensor]) -> Tensor {
    let heads = |matrix: &Tensor| matrix.reshape([1, 2, 3, 4]);
    let (query, key, value) = (heads(x), heads(&inputs[1]), heads(&inputs[6]));
    let mask = None::<Tensor>;
    Tensor::scaled_dot_product_attention(&query, &key, &value, mask, 0.0, true, None, false)
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

/// Name, types, PyTorch, and the same with stepmesh-lazy if it is compared.
pub(crate) type Row = (&'static str, Kinds, Operation, Option<Alone>);

/// Every row.
pub(crate) fn operations() -> impl Iterator<Item = &'static Row> {
    let groups = [elements::ROWS, reduce::ROWS, arrange::ROWS, gradients::ROWS];
    groups.into_iter().flatten()
}
