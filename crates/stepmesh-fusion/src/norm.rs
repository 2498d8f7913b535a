//! Softmax and norms, taken apart into reductions and what is done element by element with what they
//! give.
use stepmesh_graph::DType;

use crate::item::{Kind, Source, Space, View, element_count};
use crate::lower::{Lowering, wide};
use crate::ops::{Binary, Fold, Scalar, Unary};

impl Lowering {
    pub(crate) fn softmax(
        &mut self,
        x: Source,
        dim: usize,
        dtype: DType,
        dims: &[usize],
    ) -> Source {
        let space = Space {
            outer: element_count(&dims[..dim]),
            inner: dims[dim],
            columns: element_count(&dims[dim + 1..]),
        };
        let mut kept_dims = dims.to_vec();
        kept_dims.remove(dim);
        let wide = wide(dtype);
        let fold = |fold| Kind::Reduce { fold, space };
        let max = self.add(fold(Fold::Max), wide, &kept_dims, vec![x.clone()]);
        let max = spread(max, space, dims);
        let shifted = self.add(Kind::Binary(Binary::Sub), wide, dims, vec![x, max]);
        let exp = self.add(Kind::Unary(Unary::Exp), wide, dims, vec![shifted]);
        let sum = self.add(fold(Fold::Sum), wide, &kept_dims, vec![exp.clone()]);
        let sum = spread(sum, space, dims);
        self.add(Kind::Binary(Binary::Div), dtype, dims, vec![exp, sum])
    }

    /// Of x, and optionally a weight and a bias, over the dimensions from `dim` on.
    pub(crate) fn norm(
        &mut self,
        operands: &[Source],
        is_centred: bool,
        (dim, epsilon): (usize, f64),
        dtype: DType,
        dims: &[usize],
    ) -> Source {
        let space = Space {
            outer: element_count(&dims[..dim]),
            inner: element_count(&dims[dim..]),
            columns: 1,
        };
        let (wide, kept_dims) = (wide(dtype), &dims[..dim]);
        let sum = Kind::Reduce {
            fold: Fold::Sum,
            space,
        };
        let mut x = operands[0].clone();
        if is_centred {
            let total = self.add(sum.clone(), wide, kept_dims, vec![x.clone()]);
            let mean = self.divide(total, space.inner, wide, kept_dims);
            let mean = spread(mean, space, dims);
            x = self.add(Kind::Binary(Binary::Sub), wide, dims, vec![x, mean]);
        }
        let both = vec![x.clone(), x.clone()];
        let square = self.add(Kind::Binary(Binary::Mul), wide, dims, both);
        let total = self.add(sum, wide, kept_dims, vec![square]);
        let mean = self.divide(total, space.inner, wide, kept_dims);
        let epsilon = Source::Splat(wide, Scalar::Float(epsilon));
        let raised = self.add(
            Kind::Binary(Binary::Add),
            wide,
            kept_dims,
            vec![mean, epsilon],
        );
        let root = self.add(Kind::Unary(Unary::Sqrt), wide, kept_dims, vec![raised]);
        let root = spread(root, space, dims);
        let places: Vec<usize> = (dim..dims.len()).collect();
        let ops = [Binary::Div, Binary::Mul, Binary::Add];
        for (idx, op) in ops.into_iter().enumerate().take(operands.len()) {
            let other = match &operands[idx] {
                _ if idx == 0 => root.clone(),
                Source::View(view) => Source::View(view.broadcast(dims, &places)),
                splat @ Source::Splat(..) => splat.clone(),
            };
            let is_last = idx + 1 == operands.len();
            let own = if is_last { dtype } else { wide };
            x = self.add(Kind::Binary(op), own, dims, vec![x, other]);
        }
        x
    }
}

/// A kept value as often as the space has elements, in the shape of the whole.
fn spread(kept: Source, space: Space, dims: &[usize]) -> Source {
    let Source::View(view) = kept else {
        return kept;
    };
    let spread = View {
        dims: space.spread_dims().to_vec(),
        ..view
    };
    Source::View(spread.reshaped(dims).unwrap_or(spread))
}
