//! Kernels that move elements: copies from one order to another, slices that indices name, and slices
//! that are added where indices say. Indices are data: one out of range is taken to the nearest bound,
//! or left out, and never followed.

use stepmesh_fusion::{Class, Items, Placement, Source, View, Walk, dense_dims, element_count};
use stepmesh_graph::DType;

use crate::element::{computed, literal, narrowed, widened};
use crate::index::{Width, of_view, of_walks, reach};
use crate::source::{Kernel, Launched, THREADS, blocks_of};

/// Where a copy writes.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) buffer: usize,
    pub(crate) dtype: DType,
    pub(crate) start: usize,
    pub(crate) dims: Vec<Walk>,
}

impl Target {
    /// All of a value.
    pub(crate) fn whole(buffer: usize, dtype: DType, dims: &[usize]) -> Self {
        Self {
            buffer,
            dtype,
            start: 0,
            dims: dense_dims(dims),
        }
    }

    fn element_count(&self) -> usize {
        self.dims.iter().map(|dim| dim.extent).product()
    }

    fn view(&self) -> View {
        View {
            item: 0,
            start: self.start,
            dims: self.dims.clone(),
        }
    }
}

/// Writes elements of one type from where `from` has them, or one number.
pub(crate) fn copy(
    items: &Items,
    places: &Placement,
    name: String,
    from: &Source,
    to: &Target,
    source: &mut String,
) -> Option<Launched> {
    let buffer = match from {
        Source::View(view) => places.buffer(view.item),
        Source::Splat(..) => 0,
    };
    copy_from(items, name, from, buffer, to, source)
}

/// The same, from a buffer that need not be the item's own.
pub(crate) fn copy_from(
    items: &Items,
    name: String,
    from: &Source,
    buffer: usize,
    to: &Target,
    source: &mut String,
) -> Option<Launched> {
    let count = to.element_count();
    if count == 0 {
        return None;
    }
    let mut width = Width::of(count).max(Width::of(reach(&to.view())));
    if let Source::View(view) = from {
        width = width.max(Width::of(reach(view)));
    }
    let mut kernel = Kernel::new(name);
    kernel.open_elements(width, "i", count);
    let value = match from {
        Source::Splat(dtype, value) => narrowed(to.dtype, &literal(Class::of(*dtype), *value)),
        Source::View(view) => {
            let name = kernel.read(items, view.item, buffer);
            format!("{name}[{}]", of_view(view, "i", None, width))
        }
    };
    let place = of_walks(to.start, &to.dims, "i", None, width);
    let written = kernel.written(to.buffer, to.dtype);
    kernel.body.line(format!("{written}[{place}] = {value};"));
    kernel.body.close();
    kernel.body.close();
    Some(kernel.finish(blocks_of(count), THREADS, source))
}

/// A buffer as outer × extent × inner elements.
struct Slices {
    start: usize,
    outer: usize,
    extent: usize,
    inner: usize,
}

impl Slices {
    fn of(view: &View, dim: usize) -> Self {
        let dims: Vec<usize> = view.dims.iter().map(|dim| dim.extent).collect();
        Self {
            start: view.start,
            outer: element_count(&dims[..dim]),
            extent: dims[dim],
            inner: element_count(&dims[dim + 1..]),
        }
    }

    fn reach(&self) -> usize {
        self.start + self.outer * self.extent * self.inner
    }
}

/// The slices of dense `data` that dense `indices` name.
pub(crate) fn gather(
    items: &Items,
    places: &Placement,
    name: String,
    item: usize,
    dim: usize,
    source: &mut String,
) -> Option<Launched> {
    let own = &items.list[item];
    let [Source::View(data), Source::View(indices)] = &own.operands[..] else {
        return None;
    };
    let slices = Slices::of(data, dim);
    let (named, count) = (indices.element_count(), element_count(&own.dims));
    if count == 0 || slices.extent == 0 {
        return None;
    }
    let width = Width::of(count)
        .max(Width::of(slices.reach()))
        .max(Width::of(reach(indices)));
    let n = |number| width.literal(number);
    let mut kernel = Kernel::new(name);
    let from = kernel.read(items, data.item, places.buffer(data.item));
    let by = kernel.read(items, indices.item, places.buffer(indices.item));
    let to = kernel.written(places.buffer(item), own.dtype);
    kernel.open_elements(width, "i", count);
    let (inner, name) = (n(slices.inner), width.name());
    kernel.body.line(format!(
        "const {name} column = i % {inner}, place = i / {inner} % {named}, outer = i / {inner} / {named};",
        named = n(named)
    ));
    kernel.body.line(format!(
        "const i64 index = min(max((i64){by}[{}place], 0ll), {}ll);",
        plus(indices.start, width),
        slices.extent - 1
    ));
    kernel.body.line(format!(
        "{to}[i] = {from}[{}(outer * {} + ({name})index) * {inner} + column];",
        plus(slices.start, width),
        n(slices.extent)
    ));
    kernel.body.close();
    kernel.body.close();
    Some(kernel.finish(blocks_of(count), THREADS, source))
}

/// Adds the slices of dense `updates` to a value that already holds `data`. A thread goes through all
/// indices for its place in a slice, so that the order of additions is always the same.
pub(crate) fn index_add(
    items: &Items,
    places: &Placement,
    name: String,
    item: usize,
    dim: usize,
    source: &mut String,
) -> Option<Launched> {
    let own = &items.list[item];
    let [_, Source::View(indices), Source::View(updates)] = &own.operands[..] else {
        return None;
    };
    let whole = View {
        item,
        start: 0,
        dims: dense_dims(&own.dims),
    };
    let slices = Slices::of(&whole, dim);
    let (named, threads) = (indices.element_count(), slices.outer * slices.inner);
    if named == 0 || threads == 0 || slices.extent == 0 {
        return None;
    }
    let width = Width::of(slices.reach())
        .max(Width::of(reach(indices)))
        .max(Width::of(reach(updates)));
    let n = |number| width.literal(number);
    let inner = n(slices.inner);
    let (number, class) = (width.name(), computed(Class::of(own.dtype)));
    let mut kernel = Kernel::new(name);
    let by = kernel.read(items, indices.item, places.buffer(indices.item));
    let from = kernel.read(items, updates.item, places.buffer(updates.item));
    let to = kernel.written(places.buffer(item), own.dtype);
    kernel.open_elements(width, "i", threads);
    kernel.body.line(format!(
        "const {number} column = i % {inner}, outer = i / {inner};"
    ));
    kernel.body.open(format!(
        "for ({number} place = 0; place < {}; ++place)",
        n(named)
    ));
    kernel.body.line(format!(
        "const i64 index = (i64){by}[{}place];",
        plus(indices.start, width)
    ));
    kernel.body.line(format!(
        "if (index < 0 || index >= {}ll) continue;",
        slices.extent
    ));
    kernel.body.line(format!(
        "const {number} at = (outer * {} + ({number})index) * {inner} + column;",
        n(slices.extent)
    ));
    let update = format!(
        "{from}[{}(outer * {} + place) * {inner} + column]",
        plus(updates.start, width),
        n(named)
    );
    let (update, so_far) = (
        widened(own.dtype, &update),
        widened(own.dtype, &format!("{to}[at]")),
    );
    kernel
        .body
        .line(format!("const {class} sum = add({so_far}, {update});"));
    kernel
        .body
        .line(format!("{to}[at] = {};", narrowed(own.dtype, "sum")));
    kernel.body.close();
    kernel.body.close();
    kernel.body.close();
    Some(kernel.finish(blocks_of(threads), THREADS, source))
}

/// The first summand of an index, if there is one.
fn plus(start: usize, width: Width) -> String {
    match start {
        0 => String::new(),
        start => format!("{} + ", width.literal(start)),
    }
}
