//! Broadcasting: the shape that operands repeat to. Types are in `promote`.

use stepmesh_graph::{RANK_MAX, Shape};

/// The shape that both repeat to, as PyTorch and NumPy say: aligned at the last dimension, extents
/// that are equal or 1. `None` if there is none.
#[must_use]
pub fn broadcast_shapes(a: Shape, b: Shape) -> Option<Shape> {
    if a == b {
        return Some(a);
    }
    let rank = a.rank().max(b.rank());
    let mut dims = [0; RANK_MAX];
    for (idx, dim) in dims.iter_mut().enumerate().take(rank) {
        let (of_a, of_b) = (aligned(a, rank, idx), aligned(b, rank, idx));
        *dim = match (of_a, of_b) {
            (1, other) | (other, 1) => other,
            (same, other) if same == other => same,
            _ => return None,
        };
    }
    Shape::new(&dims[..rank]).ok()
}

/// Which dimension of a shape of rank `to` each of one of rank `from` is.
pub(crate) fn aligned_dims(from: usize, to: usize) -> Vec<usize> {
    (to - from..to).collect()
}

/// The extent at `idx` of a rank that may be greater: 1 where the shape has none.
fn aligned(shape: Shape, rank: usize, idx: usize) -> usize {
    let missing = rank - shape.rank();
    idx.checked_sub(missing).map_or(1, |idx| shape.dims()[idx])
}

#[cfg(test)]
mod tests {
    use stepmesh_graph::Shape;

    use super::broadcast_shapes;

    type Case = (&'static [usize], &'static [usize], Option<&'static [usize]>);

    const CASES: &[Case] = &[
        (&[], &[], Some(&[])),
        (&[], &[2, 3], Some(&[2, 3])),
        (&[3], &[2, 3], Some(&[2, 3])),
        (&[1], &[2, 3], Some(&[2, 3])),
        (&[5, 1, 4, 1], &[3, 1, 1], Some(&[5, 3, 4, 1])),
        (&[2, 1], &[1, 3], Some(&[2, 3])),
        (&[0], &[1], Some(&[0])),
        (&[0, 3], &[1, 3], Some(&[0, 3])),
        (&[0], &[2], None),
        (&[2], &[3], None),
        (&[5, 2, 4, 1], &[3, 1, 1], None),
        (&[2, 3], &[2], None),
    ];

    #[test]
    fn shapes_repeat_as_in_pytorch() {
        for (a, b, expected) in CASES {
            let [a, b] = [a, b].map(|dims| Shape::new(dims).unwrap());
            let expected = expected.map(|dims| Shape::new(dims).unwrap());
            assert_eq!(broadcast_shapes(a, b), expected, "{a} {b}");
            assert_eq!(broadcast_shapes(b, a), expected, "{b} {a}");
        }
    }
}
