//! What a graph is made of before it is cut into kernels: operations of one kind each, with operands
//! that are views of what others store. Norms and the like are several items, so that fusing knows
//! them no better than what users write out.
#![forbid(unsafe_code)]

use std::sync::Arc;

use stepmesh_graph::DType;

use crate::tile::{Access, AccessDim, Binary, Fold, Order, Scalar, Unary};

/// An operation and its value, which is dense if it is stored.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) kind: Kind,
    pub(crate) dtype: DType,
    pub(crate) dims: Vec<usize>,
    pub(crate) operands: Vec<Source>,
    /// The node it is of.
    pub(crate) node: usize,
}

/// What an item does.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind {
    Param(usize),
    /// A constant of several elements, by its number.
    Data(usize),
    Move,
    Unary(Unary),
    Binary(Binary),
    Compare(Order),
    Select,
    Cast,
    /// To a narrower float.
    Round,
    Random {
        normal: bool,
    },
    Reduce {
        fold: Fold,
        space: Space,
    },
    Product,
    Gather {
        dim: usize,
    },
    IndexAdd {
        dim: usize,
    },
    Concat {
        dim: usize,
    },
}

/// What a reduction goes through: over `inner`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Space {
    pub(crate) outer: usize,
    pub(crate) inner: usize,
    pub(crate) columns: usize,
}

/// An operand.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Source {
    /// One number, as often as need be.
    Splat(DType, Scalar),
    View(View),
}

/// Elements of an item's value, in another order or number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) item: usize,
    pub(crate) start: usize,
    pub(crate) dims: Vec<AccessDim>,
}

/// The items of a graph.
#[derive(Debug, Default)]
pub(crate) struct Items {
    pub(crate) list: Vec<Item>,
    pub(crate) constants: Vec<Arc<[u8]>>,
}

impl Items {
    /// Adds an item and gives all of its value.
    pub(crate) fn add(&mut self, item: Item) -> View {
        let dims = dense_dims(&item.dims);
        self.list.push(item);
        View {
            item: self.list.len() - 1,
            start: 0,
            dims,
        }
    }

    /// Whether a view is all of a value in its order.
    pub(crate) fn is_whole(&self, view: &View) -> bool {
        view.start == 0
            && view.is_dense()
            && view.element_count() == element_count(&self.list[view.item].dims)
    }
}

impl Kind {
    /// Whether it may be part of a fused kernel.
    pub(crate) fn is_fusible(&self) -> bool {
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
    pub(crate) fn element_count(self) -> usize {
        self.outer * self.inner * self.columns
    }

    /// Elements of what a reduction gives.
    pub(crate) fn kept(self) -> usize {
        self.outer * self.columns
    }

    /// The dimensions of a kept value as often as it is used.
    pub(crate) fn spread_dims(self) -> [AccessDim; 3] {
        let dim = |extent, stride| AccessDim { extent, stride };
        [
            dim(self.outer, self.columns),
            dim(self.inner, 0),
            dim(self.columns, 1),
        ]
    }
}

impl View {
    pub(crate) fn element_count(&self) -> usize {
        self.dims.iter().map(|dim| dim.extent).product()
    }

    /// The steps through memory, merged where that changes nothing.
    pub(crate) fn walks(&self) -> Vec<AccessDim> {
        Access::new(0, DType::U8, 0, self.dims.iter().copied()).dims
    }

    /// Whether elements lie one after another.
    pub(crate) fn is_dense(&self) -> bool {
        match self.walks()[..] {
            [] => true,
            [dim] => dim.stride == 1,
            _ => self.element_count() == 0,
        }
    }

    fn with(&self, start: usize, dims: Vec<AccessDim>) -> Self {
        Self {
            item: self.item,
            start,
            dims,
        }
    }

    /// The same elements in another shape, if steps through memory can say so.
    pub(crate) fn reshaped(&self, to: &[usize]) -> Option<Self> {
        if self.element_count() == 0 {
            return Some(self.with(self.start, dense_dims(to)));
        }
        let mut walks = self.walks();
        let mut dims = Vec::with_capacity(to.len());
        for extent in to.iter().rev() {
            if *extent == 1 {
                dims.push(AccessDim {
                    extent: 1,
                    stride: 0,
                });
                continue;
            }
            let walk = walks.last_mut()?;
            if walk.extent % extent != 0 {
                return None;
            }
            dims.push(AccessDim {
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

    pub(crate) fn transposed(&self, order: &[usize]) -> Self {
        let dims = order.iter().map(|from| self.dims[*from]).collect();
        self.with(self.start, dims)
    }

    pub(crate) fn broadcast(&self, to: &[usize], places: &[usize]) -> Self {
        let repeated = |extent: &usize| AccessDim {
            extent: *extent,
            stride: 0,
        };
        let mut dims: Vec<AccessDim> = to.iter().map(repeated).collect();
        for (place, own) in places.iter().zip(&self.dims) {
            if own.extent == to[*place] {
                dims[*place] = *own;
            }
        }
        self.with(self.start, dims)
    }

    /// The part from `starts` on, by steps, of the shape that comes of it.
    pub(crate) fn sliced(&self, starts: &[usize], steps: &[usize], to: &[usize]) -> Self {
        if to.contains(&0) {
            return self.with(0, dense_dims(to));
        }
        let offsets = self.dims.iter().zip(starts);
        let offset: usize = offsets.map(|(dim, start)| dim.stride * start).sum();
        let dims = self.dims.iter().zip(steps).zip(to);
        let step = |((dim, step), extent): ((&AccessDim, &usize), &usize)| AccessDim {
            extent: *extent,
            stride: dim.stride.saturating_mul(*step),
        };
        self.with(self.start + offset, dims.map(step).collect())
    }
}

/// The dimensions of a dense value.
pub(crate) fn dense_dims(dims: &[usize]) -> Vec<AccessDim> {
    let mut stride = 1;
    let mut dense: Vec<AccessDim> = Vec::with_capacity(dims.len());
    for extent in dims.iter().rev() {
        dense.push(AccessDim {
            extent: *extent,
            stride,
        });
        stride *= (*extent).max(1);
    }
    dense.reverse();
    dense
}

pub(crate) fn element_count(dims: &[usize]) -> usize {
    dims.iter().product()
}
