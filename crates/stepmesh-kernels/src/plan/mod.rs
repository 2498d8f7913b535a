//! Compiles a graph into steps: items, clusters of them, programs, and where values lie. How steps
//! run lives beside this module.
#![forbid(unsafe_code)]

mod allocate;
mod chain;
mod emit;
mod text;

use std::sync::Arc;

use stepmesh_fusion::{
    Binary, Buffers, Class, Cluster, Clusters, Item, Items, Kind, Limits, Placement, Source,
    TooLarge, View, Walk, cut, dense_dims, element_count, lower, place,
};
use stepmesh_graph::{DType, Graph};

use self::emit::emit;
use crate::Error;
use crate::indexing::{Gather, IndexAdd, Indices, Slices};
use crate::kernel::{Kernel, Stage};
use crate::product::{BatchDim, Operand, Product, Then};
use crate::scratch::LINE_LEN;
use crate::tile::{Access, Instr, Reg};

/// A compiled graph.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) steps: Vec<Step>,
    pub(crate) buffers: Buffers,
    /// The bytes of constants.
    pub(crate) constants: Vec<Arc<[u8]>>,
    pub(crate) text: String,
}

/// One step: everything before it is done when it starts.
#[derive(Debug)]
pub(crate) enum Step {
    Kernel(Kernel),
    Product(Product),
    Gather(Gather),
    IndexAdd(IndexAdd),
}

/// Compiles.
pub(crate) fn compile(graph: &Graph) -> Result<Plan, Error> {
    let (items, results) = lower(graph);
    let clusters = cut(&items, &results, LIMITS);
    let mut builder = Builder::new(graph, &items, &results, &clusters)?;
    let mut text = text::Text::new(graph, &items);
    for (position, cluster) in clusters.list.iter().enumerate() {
        let before = builder.steps.len();
        builder.build(position, cluster);
        let made = &builder.steps[before..];
        text.cluster(cluster, &builder.places, made);
    }
    let end = clusters.list.len();
    for copy in std::mem::take(&mut builder.places.copies) {
        let step = move_kernel(&items.list[copy.item], copy.from, copy.to);
        text.copy(copy.item);
        builder.steps.push(Step::Kernel(step));
    }
    let too_large = || Error::Invalid(format!("graph `{}` needs too much memory", graph.name()));
    let mut buffers = builder.places.buffers;
    buffers.place(end, LINE_LEN).ok_or_else(too_large)?;
    Ok(Plan {
        text: text.finish(&buffers),
        steps: builder.steps,
        buffers,
        constants: items.constants,
    })
}

struct Builder<'a> {
    items: &'a Items,
    places: Placement,
    steps: Vec<Step>,
}

impl<'a> Builder<'a> {
    fn new(
        graph: &Graph,
        items: &'a Items,
        results: &[usize],
        clusters: &Clusters,
    ) -> Result<Self, Error> {
        let placed = place(graph, items, results, clusters);
        let places = placed.map_err(|TooLarge { dims }| {
            Error::Invalid(format!("{dims:?} are too many elements"))
        })?;
        Ok(Self {
            items,
            places,
            steps: Vec::new(),
        })
    }

    fn build(&mut self, position: usize, cluster: &Cluster) {
        let Some(first) = cluster.members.first().map(|member| member.item) else {
            return;
        };
        let own = &self.items.list[first];
        match &own.kind {
            Kind::Param(_) | Kind::Data(_) => {}
            Kind::Gather { dim } => self.gather(first, *dim),
            Kind::IndexAdd { dim } => self.index_add(first, *dim),
            Kind::Concat { dim } => self.concat(first, *dim),
            _ => match cluster.product(self.items) {
                Some(item) => self.product(cluster, item),
                None => {
                    let mut kernel = emit(self.items, cluster, &self.places);
                    let len = kernel.partials_len_bytes();
                    if len > 0 {
                        let part = self.places.buffers.add_part(len, position, position);
                        kernel.partials = part;
                    }
                    self.steps.push(Step::Kernel(kernel));
                }
            },
        }
    }

    fn product(&mut self, cluster: &Cluster, item: usize) {
        let own = &self.items.list[item];
        let rank = own.dims.len();
        let (rows, columns) = (own.dims[rank - 2], own.dims[rank - 1]);
        let [left, right] = [0, 1].map(|place| operand_view(own, place));
        let (Some(left), Some(right)) = (left, right) else {
            return;
        };
        let batch = (0..rank - 2).map(|dim| BatchDim {
            extent: own.dims[dim],
            left_stride: left.dims[dim].stride,
            right_stride: right.dims[dim].stride,
        });
        let matrix = |view: &View| Operand {
            buffer: self.places.buffer(view.item),
            start: view.start,
            row_stride: view.dims[rank - 2].stride,
            column_stride: view.dims[rank - 1].stride,
        };
        let is_direct = cluster.members.len() == 1 && matches!(own.dtype, DType::F32 | DType::F64);
        let then = if is_direct {
            Then::Store {
                buffer: self.places.buffer(item),
            }
        } else {
            Then::Run(Box::new(emit(self.items, cluster, &self.places)))
        };
        self.steps.push(Step::Product(Product {
            dtype: own.dtype,
            batch: batch.collect(),
            rows,
            columns,
            depth: left.dims[rank - 1].extent,
            left: matrix(left),
            right: matrix(right),
            then,
        }));
    }

    fn gather(&mut self, item: usize, dim: usize) {
        let own = &self.items.list[item];
        let (Some(data), Some(indices)) = (operand_view(own, 0), operand_view(own, 1)) else {
            return;
        };
        self.steps.push(Step::Gather(Gather {
            data: self.slices(data, dim),
            indices: self.indices(indices),
            to: self.places.buffer(item),
            element_len: own.dtype.size_bytes(),
        }));
    }

    fn index_add(&mut self, item: usize, dim: usize) {
        let own = &self.items.list[item];
        let (Some(indices), Some(updates)) = (operand_view(own, 1), operand_view(own, 2)) else {
            return;
        };
        let to = self.places.buffer(item);
        let data = own.operands[0].clone();
        let copy = self.copy_kernel(&data, own.dtype, to, 0, &dense_dims(&own.dims));
        self.steps.push(Step::Kernel(copy));
        let whole = View {
            item,
            start: 0,
            dims: dense_dims(&own.dims),
        };
        let mut program = Kernel::default();
        let class = Class::of(own.dtype);
        let [update, sum, slot] = [0; 3].map(|_| program.needs.add(class));
        let count = |view: &View| Walk {
            extent: view.element_count(),
            stride: 1,
        };
        let from = self.places.buffer(updates.item);
        program.accesses = vec![
            Access::new(from, own.dtype, updates.start, [count(updates)]),
            Access::new(to, own.dtype, 0, [count(&whole)]),
        ];
        let stage = |full| Stage {
            full,
            ..Stage::default()
        };
        program.stages = vec![
            stage(vec![Instr::Load {
                access: 0,
                to: update,
            }]),
            stage(vec![
                Instr::Load {
                    access: 1,
                    to: slot,
                },
                Instr::Binary {
                    op: Binary::Add,
                    a: slot,
                    b: update,
                    to: sum,
                },
                Instr::Store {
                    access: 1,
                    from: sum,
                },
            ]),
        ];
        self.steps.push(Step::IndexAdd(IndexAdd {
            to: self.slices(&whole, dim),
            indices: self.indices(indices),
            program,
        }));
    }

    fn concat(&mut self, item: usize, dim: usize) {
        let own = &self.items.list[item];
        let to = self.places.buffer(item);
        let mut offset = 0;
        for operand in &own.operands {
            let Source::View(view) = operand else {
                continue;
            };
            let mut dims = dense_dims(&own.dims);
            let stride = dims[dim].stride;
            dims[dim].extent = view.dims[dim].extent;
            let kernel = self.copy_kernel(operand, own.dtype, to, offset * stride, &dims);
            offset += dims[dim].extent;
            self.steps.push(Step::Kernel(kernel));
        }
    }

    fn slices(&self, view: &View, dim: usize) -> Slices {
        let dims: Vec<usize> = view.dims.iter().map(|dim| dim.extent).collect();
        Slices {
            buffer: self.places.buffer(view.item),
            start: view.start,
            outer: element_count(&dims[..dim]),
            extent: dims[dim],
            inner: element_count(&dims[dim + 1..]),
        }
    }

    fn indices(&self, view: &View) -> Indices {
        Indices {
            buffer: self.places.buffer(view.item),
            start: view.start,
            count: view.element_count(),
            dtype: self.items.list[view.item].dtype,
        }
    }

    /// Writes an operand to a part of a buffer.
    fn copy_kernel(
        &self,
        operand: &Source,
        dtype: DType,
        to: usize,
        start: usize,
        dims: &[Walk],
    ) -> Kernel {
        let mut kernel = Kernel {
            outer: 1,
            inner: 1,
            columns: dims.iter().map(|dim| dim.extent).product(),
            parts: 1,
            ..Kernel::default()
        };
        let tile = kernel.needs.add(Class::of(dtype));
        let mut full = Vec::new();
        match operand {
            Source::Splat(_, value) => kernel.constants.push(Instr::Constant {
                value: *value,
                to: tile,
            }),
            Source::View(view) => {
                let from = self.places.buffer(view.item);
                let dims = view.dims.iter().copied();
                kernel
                    .accesses
                    .push(Access::new(from, dtype, view.start, dims));
                full.push(Instr::Load {
                    access: 0,
                    to: tile,
                });
            }
        }
        store_all(
            &mut kernel,
            full,
            Access::new(to, dtype, start, dims.iter().copied()),
            tile,
        );
        kernel
    }
}

/// Adds the store to the program of a kernel that copies.
fn store_all(kernel: &mut Kernel, mut full: Vec<Instr>, access: Access, from: Reg) {
    kernel.accesses.push(access);
    full.push(Instr::Store {
        access: kernel.accesses.len() - 1,
        from,
    });
    kernel.stages.push(Stage {
        full,
        ..Stage::default()
    });
}

/// Copies all of an item's value from one buffer to another.
fn move_kernel(item: &Item, from: usize, to: usize) -> Kernel {
    let mut kernel = Kernel {
        outer: 1,
        inner: 1,
        columns: element_count(&item.dims),
        parts: 1,
        ..Kernel::default()
    };
    let tile = kernel.needs.add(Class::of(item.dtype));
    let dims = dense_dims(&item.dims);
    kernel
        .accesses
        .push(Access::new(from, item.dtype, 0, dims.iter().copied()));
    let full = vec![Instr::Load {
        access: 0,
        to: tile,
    }];
    store_all(
        &mut kernel,
        full,
        Access::new(to, item.dtype, 0, dims),
        tile,
    );
    kernel
}

fn operand_view(item: &Item, place: usize) -> Option<&View> {
    match item.operands.get(place)? {
        Source::View(view) => Some(view),
        Source::Splat(..) => None,
    }
}

/// Items whose registers stay in the nearest cache, and rows of f32 of 256 KiB, which stay in the
/// second.
const LIMITS: Limits = Limits {
    members_max: 96,
    staged_len_max: 1 << 16,
    joins_products: true,
};
