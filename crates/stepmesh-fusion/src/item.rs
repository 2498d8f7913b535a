//! What a graph is made of before it is cut into kernels: operations of one kind each, with operands
//! that are views of what others store. Norms and the like are several items, so that fusing knows
//! them no better than what users write out.
use std::sync::Arc;

use stepmesh_graph::DType;

use crate::ops::{Binary, Fold, Order, Scalar, Unary};

/// An operation and its value, which is dense if it is stored.
#[derive(Clone, Debug)]
pub struct Item {
    /// What it does.
    pub kind: Kind,
    /// Type of the value.
    pub dtype: DType,
    /// Shape of the value.
    pub dims: Vec<usize>,
    /// What it is of, in the order of the operation.
    pub operands: Vec<Source>,
    /// The node it is of.
    pub node: usize,
}

/// What an item does.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// An argument of the graph.
    Param(usize),
    /// A constant of several elements, by its number.
    Data(usize),
    /// The operand as it is: a copy, or another width of the same number.
    Move,
    /// Of one operand.
    Unary(Unary),
    /// Of two.
    Binary(Binary),
    /// Compares two, giving 0 or 1.
    Compare(Order),
    /// Condition, then what is taken where it is true, then the other.
    Select,
    /// To another class of numbers.
    Cast,
    /// To a narrower float.
    Round,
    /// Random numbers of a seed and an offset.
    Random {
        /// Normal, else uniform.
        normal: bool,
    },
    /// One number of many.
    Reduce {
        /// How.
        fold: Fold,
        /// Of which.
        space: Space,
    },
    /// Product of matrices, as the views of its operands have them.
    Product,
    /// Slices that indices name.
    Gather {
        /// Along which dimension.
        dim: usize,
    },
    /// Slices added where indices say.
    IndexAdd {
        /// Along which dimension.
        dim: usize,
    },
    /// One after another.
    Concat {
        /// Along which dimension.
        dim: usize,
    },
}

/// What a reduction goes through: over `inner`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// What is before the reduced dimensions.
    pub outer: usize,
    /// What is reduced.
    pub inner: usize,
    /// What is behind them.
    pub columns: usize,
}

/// An operand.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// One number, as often as need be.
    Splat(DType, Scalar),
    /// Elements of an item.
    View(View),
}

/// Elements of an item's value, in another order or number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Whose.
    pub item: usize,
    /// The first element.
    pub start: usize,
    /// How it goes on from there, outermost first.
    pub dims: Vec<Walk>,
}

/// A dimension of a view: a walk through memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walk {
    /// How many elements.
    pub extent: usize,
    /// Elements from one to the next; 0 where they repeat.
    pub stride: usize,
}

/// The items of a graph.
#[derive(Debug, Default)]
pub struct Items {
    /// All, operands before those that use them.
    pub list: Vec<Item>,
    /// Bytes of constants of several elements.
    pub constants: Vec<Arc<[u8]>>,
}

impl Items {
    /// Adds an item and gives all of its value.
    pub fn add(&mut self, item: Item) -> View {
        let dims = dense_dims(&item.dims);
        self.list.push(item);
        View {
            item: self.list.len() - 1,
            start: 0,
            dims,
        }
    }

    /// Whether a view is all of a value in its order.
    pub fn is_whole(&self, view: &View) -> bool {
        view.start == 0
            && view.is_dense()
            && view.element_count() == element_count(&self.list[view.item].dims)
    }
}

impl Kind {
    /// Whether it may be part of a fused kernel.
    pub fn is_fusible(&self) -> bool {
        !matches!(
            self,
            Self::Param(_)
                | Self::Data(_)
                | Self::Gather { .. }
                | Self::IndexAdd { .. }
                | Self::Concat { .. }
        )
    }
}

impl Space {
    /// Elements that it goes through.
    pub fn element_count(self) -> usize {
        self.outer * self.inner * self.columns
    }

    /// Elements of what a reduction gives.
    pub fn kept(self) -> usize {
        self.outer * self.columns
    }

    /// The dimensions of a kept value as often as it is used.
    pub fn spread_dims(self) -> [Walk; 3] {
        let dim = |extent, stride| Walk { extent, stride };
        [
            dim(self.outer, self.columns),
            dim(self.inner, 0),
            dim(self.columns, 1),
        ]
    }
}

impl View {
    /// How many elements it has.
    pub fn element_count(&self) -> usize {
        self.dims.iter().map(|dim| dim.extent).product()
    }

    /// The steps through memory, merged where that changes nothing.
    pub fn walks(&self) -> Vec<Walk> {
        merge(self.dims.iter().copied())
    }

    /// Whether elements lie one after another.
    pub fn is_dense(&self) -> bool {
        match self.walks()[..] {
            [] => true,
            [dim] => dim.stride == 1,
            _ => self.element_count() == 0,
        }
    }

    fn with(&self, start: usize, dims: Vec<Walk>) -> Self {
        Self {
            item: self.item,
            start,
            dims,
        }
    }

    /// The same elements in another shape, if steps through memory can say so.
    pub fn reshaped(&self, to: &[usize]) -> Option<Self> {
        if self.element_count() == 0 {
            return Some(self.with(self.start, dense_dims(to)));
        }
        let mut walks = self.walks();
        let mut dims = Vec::with_capacity(to.len());
        for extent in to.iter().rev() {
            if *extent == 1 {
                dims.push(Walk {
                    extent: 1,
                    stride: 0,
                });
                continue;
            }
            let walk = walks.last_mut()?;
            if walk.extent % extent != 0 {
                return None;
            }
            dims.push(Walk {
                extent: *extent,
                stride: walk.stride,
            });
            walk.extent /= extent;
            walk.stride *= extent;
            if walk.extent == 1 {
                walks.pop();
            }
        }
        dims.reverse();
        Some(self.with(self.start, dims))
    }

    /// With its dimensions in another order.
    pub fn transposed(&self, order: &[usize]) -> Self {
        let dims = order.iter().map(|from| self.dims[*from]).collect();
        self.with(self.start, dims)
    }

    /// Repeated to a shape; `places` says which of its dimensions each of the view's is.
    pub fn broadcast(&self, to: &[usize], places: &[usize]) -> Self {
        let repeated = |extent: &usize| Walk {
            extent: *extent,
            stride: 0,
        };
        let mut dims: Vec<Walk> = to.iter().map(repeated).collect();
        for (place, own) in places.iter().zip(&self.dims) {
            if own.extent == to[*place] {
                dims[*place] = *own;
            }
        }
        self.with(self.start, dims)
    }

    /// The part from `starts` on, by steps, of the shape that comes of it.
    pub fn sliced(&self, starts: &[usize], steps: &[usize], to: &[usize]) -> Self {
        if to.contains(&0) {
            return self.with(0, dense_dims(to));
        }
        let offsets = self.dims.iter().zip(starts);
        let offset: usize = offsets.map(|(dim, start)| dim.stride * start).sum();
        let dims = self.dims.iter().zip(steps).zip(to);
        let step = |((dim, step), extent): ((&Walk, &usize), &usize)| Walk {
            extent: *extent,
            stride: dim.stride.saturating_mul(*step),
        };
        self.with(self.start + offset, dims.map(step).collect())
    }
}

/// Makes one of neighbouring dimensions that are one walk through memory; none are left for a single
/// element. Outermost first.
pub fn merge(dims: impl IntoIterator<Item = Walk>) -> Vec<Walk> {
    let mut merged: Vec<Walk> = Vec::new();
    for dim in dims {
        if dim.extent == 1 {
            continue;
        }
        match merged.last_mut() {
            Some(outer) if outer.stride == dim.stride * dim.extent => {
                outer.extent *= dim.extent;
                outer.stride = dim.stride;
            }
            _ => merged.push(dim),
        }
    }
    merged
}

/// The dimensions of a dense value.
pub fn dense_dims(dims: &[usize]) -> Vec<Walk> {
    let mut stride = 1;
    let mut dense: Vec<Walk> = Vec::with_capacity(dims.len());
    for extent in dims.iter().rev() {
        dense.push(Walk {
            extent: *extent,
            stride,
        });
        stride *= (*extent).max(1);
    }
    dense.reverse();
    dense
}

/// How many elements a shape has.
pub fn element_count(dims: &[usize]) -> usize {
    dims.iter().product()
}
