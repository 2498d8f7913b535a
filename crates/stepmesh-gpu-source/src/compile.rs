//! Goes through the clusters of a graph, and puts together what each becomes.

use std::fmt::Write as _;

use stepmesh_fusion::{
    Cluster, Items, Kind, Limits, Placement, Source, View, cut, dense_dims, item_text, lower, place,
};
use stepmesh_graph::Graph;

use crate::indexed::{Target, copy, copy_from, gather, index_add};
use crate::product::{Made, Side};
use crate::program::{ALIGN_LEN, Error, Launch, Matrix, Place, Product, Program, Step};
use crate::source::Launched;
use crate::{kernel, product};

/// Compiles.
pub(crate) fn compile(graph: &Graph) -> Result<Program, Error> {
    let too_large = |reason| Error::TooLarge {
        graph: graph.name().to_owned(),
        reason,
    };
    let (items, results) = lower(graph);
    let clusters = cut(&items, &results, LIMITS);
    let places = place(graph, &items, &results, &clusters)
        .map_err(|error| too_large(format!("{:?} are too many elements", error.dims)))?;
    let mut compiler = Compiler {
        graph,
        items: &items,
        places,
        source: source_head(&items),
        text: format!(
            "program of `{}`, {} nodes\n",
            graph.name(),
            graph.nodes().len()
        ),
        made: Vec::new(),
        computed: 0,
    };
    for (position, cluster) in clusters.list.iter().enumerate() {
        compiler.cluster(position, cluster);
    }
    compiler.copies();
    let Compiler {
        mut places,
        mut source,
        mut text,
        made,
        ..
    } = compiler;
    let placed = places.buffers.place(clusters.list.len(), ALIGN_LEN);
    placed.ok_or_else(|| {
        too_large("its values are more bytes than there are addresses".to_owned())
    })?;
    source.push_str("} // namespace stepmesh\n");
    let scratch_len_bytes = places.buffers.workspace_len as u64;
    // Writing to a string cannot fail.
    let _ = writeln!(text, "scratch memory {scratch_len_bytes} bytes");
    Ok(Program {
        source,
        steps: made.into_iter().map(|made| step(&places, made)).collect(),
        scratch_len_bytes,
        text,
    })
}

struct Compiler<'a> {
    graph: &'a Graph,
    items: &'a Items,
    places: Placement,
    source: String,
    text: String,
    made: Vec<Made>,
    /// Clusters so far that compute something.
    computed: usize,
}

impl Compiler<'_> {
    fn cluster(&mut self, position: usize, cluster: &Cluster) {
        let Some(first) = cluster.members.first().map(|member| member.item) else {
            return;
        };
        let items = self.items;
        if matches!(items.list[first].kind, Kind::Param(_) | Kind::Data(_)) {
            return;
        }
        let (before, name) = (self.made.len(), self.name(cluster));
        self.computed += 1;
        match items.list[first].kind {
            Kind::Gather { dim } => {
                let launched = gather(items, &self.places, name, first, dim, &mut self.source);
                self.made.extend(launched.map(Made::Launched));
            }
            Kind::IndexAdd { dim } => self.index_add(first, dim, name),
            Kind::Concat { dim } => self.concat(first, dim, &name),
            Kind::Product => {
                let (places, source) = (&mut self.places, &mut self.source);
                let made = product::emit(items, places, first, position, &name, source);
                self.made.extend(made);
            }
            _ => {
                let (places, source) = (&mut self.places, &mut self.source);
                let launched = kernel::emit(items, cluster, places, position, &name, source);
                self.made.extend(launched.into_iter().map(Made::Launched));
            }
        }
        self.describe(before, cluster);
    }

    fn index_add(&mut self, item: usize, dim: usize, name: String) {
        let own = &self.items.list[item];
        let target = Target::whole(self.places.buffer(item), own.dtype, &own.dims);
        let (from, source) = (&own.operands[0], &mut self.source);
        let data = format!("{name}_data");
        let copied = copy(self.items, &self.places, data, from, &target, source);
        let added = index_add(self.items, &self.places, name, item, dim, source);
        let launched = copied.into_iter().chain(added);
        self.made.extend(launched.map(Made::Launched));
    }

    fn concat(&mut self, item: usize, dim: usize, name: &str) {
        let own = &self.items.list[item];
        let mut offset = 0;
        for (number, operand) in own.operands.iter().enumerate() {
            let Source::View(view) = operand else {
                continue;
            };
            let mut dims = dense_dims(&own.dims);
            let stride = dims[dim].stride;
            dims[dim].extent = view.dims[dim].extent;
            let target = Target {
                buffer: self.places.buffer(item),
                dtype: own.dtype,
                start: offset * stride,
                dims,
            };
            offset += view.dims[dim].extent;
            let (name, source) = (format!("{name}_{number}"), &mut self.source);
            let copied = copy(self.items, &self.places, name, operand, &target, source);
            self.made.extend(copied.map(Made::Launched));
        }
    }

    /// Moves the results that could not be made where they are to be.
    fn copies(&mut self) {
        for moved in std::mem::take(&mut self.places.copies) {
            let own = &self.items.list[moved.item];
            let from = Source::View(View {
                item: moved.item,
                start: 0,
                dims: dense_dims(&own.dims),
            });
            let target = Target::whole(moved.to, own.dtype, &own.dims);
            let name = format!("copy_v{}", moved.item);
            let source = &mut self.source;
            let copied = copy_from(self.items, name, &from, moved.from, &target, source);
            let _ = writeln!(
                self.text,
                "step {}: copy v{} to the result that replaces an argument",
                self.made.len(),
                moved.item
            );
            self.made.extend(copied.map(Made::Launched));
        }
    }

    /// A number that no other kernel has, and what profilers are to show: the nodes.
    fn name(&self, cluster: &Cluster) -> String {
        let mut name = format!("k{}", self.computed);
        let mut nodes: Vec<usize> = Vec::new();
        for member in &cluster.members {
            let node = self.items.list[member.item].node;
            if !nodes.contains(&node) && nodes.len() < NAMED_MAX {
                nodes.push(node);
                name.push('_');
                name.push_str(self.graph.nodes()[node].kind().name());
            }
        }
        name
    }

    fn describe(&mut self, before: usize, cluster: &Cluster) {
        for (number, made) in self.made.iter().enumerate().skip(before) {
            let what = match made {
                Made::Launched(launched) => format!(
                    "{}, {} blocks of {} threads",
                    launched.function, launched.blocks, launched.threads
                ),
                Made::Product(product) => format!(
                    "product {} of {} x {} x {}, {} of them",
                    product.dtype, product.rows, product.depth, product.columns, product.batch
                ),
            };
            let _ = writeln!(self.text, "step {number}: {what}");
        }
        for member in &cluster.members {
            let item = &self.items.list[member.item];
            let node = &self.graph.nodes()[item.node];
            let is_stored = self.places.is_stored(member.item);
            let stored = if is_stored { " -> memory" } else { "" };
            let location = node
                .location()
                .map_or(String::new(), |at| format!("  # {at}"));
            let _ = writeln!(
                self.text,
                "    {} of %{} {}{stored}{location}",
                item_text(member.item, item),
                item.node,
                node.kind().name(),
            );
        }
    }
}

/// What is in front of all kernels: the functions that they use, and constants of several elements.
fn source_head(items: &Items) -> String {
    let mut source = PROLOGUE.to_owned();
    for (number, bytes) in items.constants.iter().enumerate() {
        let _ = write!(source, "STEPMESH_CONSTANT u64 data{number}[] = {{");
        for (position, chunk) in bytes.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            let line = if position % 4 == 0 { "\n    " } else { " " };
            let _ = write!(source, "{line}{:#x}ull,", u64::from_le_bytes(word));
        }
        // An empty constant is read by nobody.
        let filler = if bytes.is_empty() { "0" } else { "" };
        let _ = writeln!(source, "{filler}\n}};\n");
    }
    source
}

fn step(places: &Placement, made: Made) -> Step {
    let made = match made {
        Made::Launched(launched) => return Step::Launch(launch(places, launched)),
        Made::Product(product) => product,
    };
    let size = made.dtype.size_bytes();
    let matrix = |side: Side| Matrix {
        place: offset(at(places, side.buffer), side.start * size),
        leading: side.leading as u64,
        batch_stride: side.batch_stride as u64,
        is_transposed: side.is_transposed,
    };
    Step::Product(Product {
        rows: made.rows as u64,
        columns: made.columns as u64,
        depth: made.depth as u64,
        batch: made.batch as u64,
        dtype: made.dtype,
        left: matrix(made.left),
        right: matrix(made.right),
        out: matrix(Side {
            buffer: made.out,
            start: 0,
            leading: made.columns,
            batch_stride: made.rows * made.columns,
            is_transposed: false,
        }),
    })
}

fn launch(places: &Placement, launched: Launched) -> Launch {
    let buffers = launched.buffers.iter();
    Launch {
        function: launched.function,
        grid: [launched.blocks, 1, 1],
        block: [launched.threads, 1, 1],
        arguments: buffers.map(|buffer| at(places, *buffer)).collect(),
    }
}

/// Where a buffer begins. Constants have no place: kernels know them.
fn at(places: &Placement, buffer: usize) -> Place {
    let buffers = &places.buffers;
    let results = buffers.args.len();
    let parts = buffers.constant(buffers.constants.len());
    if buffer < results {
        Place::Argument {
            index: buffer,
            offset_bytes: 0,
        }
    } else if buffer < results + buffers.results.len() {
        Place::Result {
            index: buffer - results,
            offset_bytes: 0,
        }
    } else {
        let part = buffer
            .checked_sub(parts)
            .and_then(|part| buffers.parts.get(part));
        Place::Scratch {
            offset_bytes: part.map_or(0, |part| part.offset as u64),
        }
    }
}

fn offset(place: Place, more: usize) -> Place {
    let more = more as u64;
    match place {
        Place::Argument {
            index,
            offset_bytes,
        } => Place::Argument {
            index,
            offset_bytes: offset_bytes + more,
        },
        Place::Result {
            index,
            offset_bytes,
        } => Place::Result {
            index,
            offset_bytes: offset_bytes + more,
        },
        Place::Scratch { offset_bytes } => Place::Scratch {
            offset_bytes: offset_bytes + more,
        },
    }
}

const PROLOGUE: &str = include_str!("prologue.cpp");
/// A thread keeps what members give each other in its registers, of which it has some two hundred.
/// Rows that are walked twice stay in the second cache. Products are the library's.
const LIMITS: Limits = Limits {
    members_max: 64,
    staged_len_max: 1 << 16,
    joins_products: false,
};
/// Nodes in the name of a kernel.
const NAMED_MAX: usize = 4;
