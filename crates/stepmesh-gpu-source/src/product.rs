//! Products of matrices: for the vendor's library where it has the type and memory lies as it wants it,
//! after a copy where not; a kernel for the types that it has not.

use stepmesh_fusion::{Class, Items, Kind, Placement, Scalar, Source, View, Walk, merge};
use stepmesh_graph::{DType, OpKind};

use crate::element::{computed, narrowed, widened};
use crate::index::{Width, of_view, reach};
use crate::indexed::{Target, copy};
use crate::source::{Kernel, Launched, THREADS, blocks_of};

/// What a product becomes.
#[derive(Debug)]
pub(crate) enum Made {
    Launched(Launched),
    Product(Multiplied),
}

/// A product before it is known where buffers lie.
#[derive(Debug)]
pub(crate) struct Multiplied {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) depth: usize,
    pub(crate) batch: usize,
    pub(crate) dtype: DType,
    pub(crate) left: Side,
    pub(crate) right: Side,
    pub(crate) out: usize,
}

/// An operand, as it lies in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Side {
    pub(crate) buffer: usize,
    pub(crate) start: usize,
    pub(crate) leading: usize,
    pub(crate) batch_stride: usize,
    pub(crate) is_transposed: bool,
}

/// The steps of a product, which is the step at `position`.
pub(crate) fn emit(
    items: &Items,
    places: &mut Placement,
    item: usize,
    position: usize,
    name: &str,
    source: &mut String,
) -> Vec<Made> {
    let own = &items.list[item];
    let rank = own.dims.len();
    let [Source::View(left), Source::View(right)] = &own.operands[..] else {
        return Vec::new();
    };
    let (rows, columns) = (own.dims[rank - 2], own.dims[rank - 1]);
    let (depth, batch) = (
        left.dims[rank - 1].extent,
        own.dims[..rank - 2].iter().product::<usize>(),
    );
    if batch * rows * columns == 0 {
        return Vec::new();
    }
    if depth == 0 {
        // A sum of nothing.
        let target = Target::whole(places.buffer(item), own.dtype, &own.dims);
        let zero = Source::Splat(own.dtype, Scalar::Int(0));
        let filled = copy(items, places, name.to_owned(), &zero, &target, source);
        return filled.map(Made::Launched).into_iter().collect();
    }
    let sizes = [rows, columns, depth, batch];
    if !is_multiplied(own.dtype) || sizes.iter().any(|size| *size > SIZE_MAX) {
        let launched = by_kernel(items, places, item, (left, right), name, source);
        return vec![Made::Launched(launched)];
    }
    let mut made = Vec::new();
    let [left, right] = [(left, "left"), (right, "right")].map(|(view, which)| {
        let is_constant = matches!(items.list[view.item].kind, Kind::Data(_));
        let lies = as_it_lies(view, places.buffer(view.item));
        lies.filter(|_| !is_constant).unwrap_or_else(|| {
            let name = format!("{name}_{which}");
            let (side, copied) = dense(items, places, view, position, name, source);
            made.extend(copied.map(Made::Launched));
            side
        })
    });
    made.push(Made::Product(Multiplied {
        rows,
        columns,
        depth,
        batch,
        dtype: own.dtype,
        left,
        right,
        out: places.buffer(item),
    }));
    made
}

/// Whether the libraries have it.
fn is_multiplied(dtype: DType) -> bool {
    crate::Program::needs_products(OpKind::Matmul, dtype)
}

/// An operand that is copied first.
fn dense(
    items: &Items,
    places: &mut Placement,
    view: &View,
    position: usize,
    name: String,
    source: &mut String,
) -> (Side, Option<Launched>) {
    let dtype = items.list[view.item].dtype;
    let dims: Vec<usize> = view.dims.iter().map(|dim| dim.extent).collect();
    let len_bytes = view.element_count() * dtype.size_bytes();
    let buffer = places.buffers.add_part(len_bytes, position, position);
    let target = Target::whole(buffer, dtype, &dims);
    let from = Source::View(view.clone());
    let copied = copy(items, places, name, &from, &target, source);
    let (rows, columns) = (dims[dims.len() - 2], dims[dims.len() - 1]);
    let side = Side {
        buffer,
        start: 0,
        leading: columns,
        batch_stride: rows * columns,
        is_transposed: false,
    };
    (side, copied)
}

/// The matrices of a view as the libraries take them, if they lie so.
fn as_it_lies(view: &View, buffer: usize) -> Option<Side> {
    let (batch, [row, column]) = view.dims.split_last_chunk()?;
    let (leading, is_transposed) = if is_run(column) {
        (leading(row, column.extent)?, false)
    } else if is_run(row) {
        (leading(column, row.extent)?, true)
    } else {
        return None;
    };
    let batch_stride = match merge(batch.iter().copied())[..] {
        [] => 0,
        [walk] => walk.stride,
        _ => return None,
    };
    Some(Side {
        buffer,
        start: view.start,
        leading,
        batch_stride,
        is_transposed,
    })
}

/// Whether its elements lie one after another.
fn is_run(dim: &Walk) -> bool {
    dim.extent == 1 || dim.stride == 1
}

/// Elements from one line of a matrix to the next, whose lines have `len`.
fn leading(lines: &Walk, len: usize) -> Option<usize> {
    if lines.extent == 1 {
        return Some(len);
    }
    (lines.stride >= len && lines.stride <= SIZE_MAX).then_some(lines.stride)
}

/// A thread for each element, for what the libraries have not.
fn by_kernel(
    items: &Items,
    places: &Placement,
    item: usize,
    (left, right): (&View, &View),
    name: &str,
    source: &mut String,
) -> Launched {
    let own = &items.list[item];
    let rank = own.dims.len();
    let depth = left.dims[rank - 1];
    // Of each element of the result, where its row and its column begin.
    let whole = |view: &View, fixed: usize| {
        let mut dims = view.dims.clone();
        dims[fixed] = Walk {
            extent: own.dims[fixed],
            stride: 0,
        };
        View {
            dims,
            ..view.clone()
        }
    };
    let (row, column) = (whole(left, rank - 1), whole(right, rank - 2));
    let count: usize = own.dims.iter().product();
    let width = Width::of(count)
        .max(Width::of(reach(left)))
        .max(Width::of(reach(right)));
    let mut kernel = Kernel::new(name.to_owned());
    let from = [left, right].map(|view| kernel.read(items, view.item, places.buffer(view.item)));
    let to = kernel.written(places.buffer(item), own.dtype);
    kernel.open_elements(width, "i", count);
    let (number, class) = (width.name(), computed(Class::of(own.dtype)));
    let starts = [&row, &column].map(|view| of_view(view, "i", None, width));
    kernel.body.line(format!(
        "const {number} row = {}, column = {};",
        starts[0], starts[1]
    ));
    kernel.body.line(format!("{class} sum = 0;"));
    kernel.body.open(format!(
        "for ({number} k = 0; k < {}; ++k)",
        width.literal(depth.extent)
    ));
    let steps = [depth.stride, right.dims[rank - 2].stride].map(|stride| width.literal(stride));
    let elements = [
        format!("{}[row + k * {}]", from[0], steps[0]),
        format!("{}[column + k * {}]", from[1], steps[1]),
    ];
    let [a, b] = elements.map(|element| widened(own.dtype, &element));
    kernel.body.line(format!("sum = add(sum, mul({a}, {b}));"));
    kernel.body.close();
    kernel
        .body
        .line(format!("{to}[i] = {};", narrowed(own.dtype, "sum")));
    kernel.body.close();
    kernel.body.close();
    kernel.finish(blocks_of(count), THREADS, source)
}

/// Largest size that the libraries take.
const SIZE_MAX: usize = 0x7FFF_FFFF;

#[cfg(test)]
mod tests {
    //! Which matrices the libraries take as they lie.

    use stepmesh_fusion::{View, Walk};

    use super::as_it_lies;

    fn side(dims: &[(usize, usize)]) -> Option<(usize, usize, bool)> {
        let walk = |(extent, stride): &(usize, usize)| Walk {
            extent: *extent,
            stride: *stride,
        };
        let view = View {
            item: 0,
            start: 3,
            dims: dims.iter().map(walk).collect(),
        };
        let side = as_it_lies(&view, 7)?;
        assert_eq!((side.buffer, side.start), (7, 3));
        Some((side.leading, side.batch_stride, side.is_transposed))
    }

    #[test]
    fn rows_and_columns_that_lie_in_a_run_are_taken() {
        assert_eq!(side(&[(4, 8), (8, 1)]), Some((8, 0, false)));
        assert_eq!(side(&[(4, 1), (8, 4)]), Some((4, 0, true)));
        assert_eq!(side(&[(4, 100), (8, 1)]), Some((100, 0, false)));
        assert_eq!(side(&[(1, 0), (8, 1)]), Some((8, 0, false)));
        assert_eq!(side(&[(5, 32), (4, 8), (8, 1)]), Some((8, 32, false)));
        assert_eq!(side(&[(5, 0), (4, 8), (8, 1)]), Some((8, 0, false)));
        assert_eq!(
            side(&[(2, 96), (3, 32), (4, 8), (8, 1)]),
            Some((8, 32, false))
        );
    }

    #[test]
    fn others_are_copied() {
        assert_eq!(side(&[(4, 16), (8, 2)]), None, "every second column");
        assert_eq!(side(&[(4, 0), (8, 1)]), None, "one row, repeated");
        assert_eq!(
            side(&[(2, 0), (3, 32), (4, 8), (8, 1)]),
            None,
            "two batches"
        );
    }
}
