//! Compiles a graph into steps: items, clusters of them, programs, and where values lie. How steps
//! run lives beside this module.
#![forbid(unsafe_code)]

pub(crate) mod buffers;

mod allocate;
mod cluster;
mod emit;
mod item;
mod lower;
mod norm;
mod text;

use stepmesh_graph::{DType, Graph};

use self::buffers::Buffers;
use self::cluster::{Cluster, Clusters, Level, cut, views};
use self::emit::{Places, emit};
use self::item::{Item, Items, Kind, Source, View, dense_dims, element_count};
use self::lower::lower;
use crate::Error;
use crate::indexing::{Gather, IndexAdd, Indices, Slices};
use crate::kernel::{Kernel, Stage};
use crate::product::{BatchDim, Operand, Product, Then};
use crate::tile::{Access, AccessDim, Binary, Class, Instr, Reg};

/// A compiled graph.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) steps: Vec<Step>,
    pub(crate) buffers: Buffers,
    /// The bytes of constants, each aligned.
    pub(crate) constants: Vec<u8>,
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
    let clusters = cut(&items, &results);
    let mut builder = Builder::new(graph, &items, &results, &clusters)?;
    let mut text = text::Text::new(graph, &items);
    for (position, cluster) in clusters.list.iter().enumerate() {
        let before = builder.steps.len();
        builder.build(position, cluster);
        let made = &builder.steps[before..];
        text.cluster(cluster, &builder.places, made);
    }
    let end = clusters.list.len();
    for (from, to, item) in std::mem::take(&mut builder.copies) {
        let step = move_kernel(&items.list[item], from, to);
        text.copy(item);
        builder.steps.push(Step::Kernel(step));
    }
    let too_large = || Error::Invalid(format!("graph `{}` needs too much memory", graph.name()));
    builder.places.buffers.place(end).ok_or_else(too_large)?;
    let buffers = builder.places.buffers;
    Ok(Plan {
        text: text.finish(&buffers),
        steps: builder.steps,
        buffers,
        constants: builder.constants,
    })
}

struct Builder<'a> {
    items: &'a Items,
    places: Placed,
    constants: Vec<u8>,
    steps: Vec<Step>,
    /// Results that must not be written before the end: from, to, and the item.
    copies: Vec<(usize, usize, usize)>,
}

/// The buffers of items.
#[derive(Debug, Default)]
pub(crate) struct Placed {
    buffers: Buffers,
    of_item: Vec<Option<usize>>,
}

impl Places for Placed {
    fn buffer(&self, item: usize) -> usize {
        // What is read or written is stored.
        self.of_item[item].unwrap_or(usize::MAX)
    }

    fn is_stored(&self, item: usize) -> bool {
        self.of_item[item].is_some()
    }
}

impl<'a> Builder<'a> {
    fn new(
        graph: &Graph,
        items: &'a Items,
        results: &[usize],
        clusters: &Clusters,
    ) -> Result<Self, Error> {
        let mut buffers = Buffers {
            args: graph.param_types().map(|ty| ty.len_bytes()).collect(),
            results: graph.result_types().map(|ty| ty.len_bytes()).collect(),
            ..Buffers::default()
        };
        let mut constants = Vec::new();
        for bytes in &items.constants {
            constants.resize(
                constants.len().next_multiple_of(crate::scratch::LINE_LEN),
                0,
            );
            buffers.constants.push((constants.len(), bytes.len()));
            constants.extend_from_slice(bytes);
        }
        let end = clusters.list.len();
        let mut of_item = vec![None; items.list.len()];
        let last_reads = last_reads(items, clusters);
        let mut copies = Vec::new();
        for (number, item) in results.iter().enumerate() {
            let to = buffers.result(number);
            of_item[*item] = Some(to);
            let donated = graph
                .aliases()
                .iter()
                .find(|alias| usize_of(alias.result) == number);
            if let Some(alias) = donated
                && !may_replace(items, clusters, usize_of(alias.param), *item)
            {
                let made = clusters.of_item[*item].unwrap_or(end);
                let len = len_bytes(&items.list[*item])?;
                let from = buffers.add_part(len, made, end);
                of_item[*item] = Some(from);
                copies.push((from, to, *item));
            }
        }
        for (item, own) in items.list.iter().enumerate() {
            match own.kind {
                Kind::Param(number) => of_item[item] = Some(Buffers::arg(number)),
                Kind::Data(number) => of_item[item] = Some(buffers.constant(number)),
                _ => {
                    if let (None, Some(made), Some(last)) =
                        (of_item[item], clusters.of_item[item], last_reads[item])
                    {
                        of_item[item] = Some(buffers.add_part(len_bytes(own)?, made, last));
                    }
                }
            }
        }
        Ok(Self {
            items,
            places: Placed { buffers, of_item },
            constants,
            steps: Vec::new(),
            copies,
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
        let count = |view: &View| AccessDim {
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
        dims: &[AccessDim],
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

/// Of each item, the last cluster beside its own that reads it.
fn last_reads(items: &Items, clusters: &Clusters) -> Vec<Option<usize>> {
    let mut last = vec![None; items.list.len()];
    for (position, cluster) in clusters.list.iter().enumerate() {
        for member in &cluster.members {
            for view in views(&items.list[member.item]) {
                if clusters.of_item[view.item] != Some(position) {
                    last[view.item] = Some(position);
                }
            }
        }
    }
    last
}

/// Whether a result may be written over the argument of its donation: nothing reads the argument
/// later, and what makes the result reads each element before it writes it.
fn may_replace(items: &Items, clusters: &Clusters, param: usize, result: usize) -> bool {
    let is_it = |item: &Item| item.kind == Kind::Param(param);
    let Some(param) = items.list.iter().position(is_it) else {
        return true;
    };
    let Some(made) = clusters.of_item[result] else {
        return false;
    };
    for (position, cluster) in clusters.list.iter().enumerate().skip(made) {
        for member in &cluster.members {
            let item = &items.list[member.item];
            for (place, operand) in item.operands.iter().enumerate() {
                let Source::View(view) = operand else {
                    continue;
                };
                if view.item != param {
                    continue;
                }
                let is_elementwise = member.level == Level::Full
                    && cluster.level(result) == Some(Level::Full)
                    && cluster.is_walked_once()
                    && item.kind.is_fusible()
                    && !matches!(item.kind, Kind::Product | Kind::Random { .. });
                let is_index_add = matches!(item.kind, Kind::IndexAdd { .. }) && place == 0;
                let reads_own = items.is_whole(view) && (is_elementwise || is_index_add);
                if position > made || !reads_own {
                    return false;
                }
            }
        }
    }
    true
}

fn len_bytes(item: &Item) -> Result<usize, Error> {
    let len = item
        .dims
        .iter()
        .try_fold(item.dtype.size_bytes(), |len, dim| len.checked_mul(*dim));
    len.filter(|len| isize::try_from(*len).is_ok())
        .ok_or_else(|| Error::Invalid(format!("{:?} are too many elements", item.dims)))
}

fn usize_of(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
