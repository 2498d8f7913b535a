//! Expressions, and that they say where elements lie.

use stepmesh_fusion::{View, Walk, dense_dims};

use super::{Split, Width, of_view, reach};

fn view(start: usize, dims: &[(usize, usize)]) -> View {
    let walk = |(extent, stride): &(usize, usize)| Walk {
        extent: *extent,
        stride: *stride,
    };
    View {
        item: 0,
        start,
        dims: dims.iter().map(walk).collect(),
    }
}

fn text(view: &View) -> String {
    of_view(view, "i", None, Width::W32)
}

#[test]
fn a_dense_view_is_the_number_itself() {
    let dense = View {
        item: 0,
        start: 0,
        dims: dense_dims(&[3, 4, 5]),
    };
    assert_eq!(text(&dense), "i");
    assert_eq!(reach(&dense), 59);
}

#[test]
fn repeated_and_transposed_dimensions_are_divided() {
    assert_eq!(text(&view(0, &[(4, 0), (8, 1)])), "(i % 8u)");
    assert_eq!(text(&view(0, &[(4, 1), (8, 0)])), "(i / 8u)");
    assert_eq!(
        text(&view(0, &[(4, 1), (8, 4)])),
        "(i % 8u) * 4u + (i / 8u)"
    );
    assert_eq!(text(&view(7, &[])), "7u");
    assert_eq!(text(&view(0, &[(3, 0)])), "0");
}

#[test]
fn what_a_kernel_has_divided_is_used() {
    let split = Some(Split {
        extent: 8,
        quotient: "row",
        remainder: "k",
    });
    let of = |dims| of_view(&view(0, dims), "i", split, Width::W32);
    assert_eq!(of(&[(4, 0), (8, 1)]), "k");
    assert_eq!(of(&[(4, 1), (8, 0)]), "row");
    assert_eq!(of(&[(2, 1), (2, 0), (8, 0)]), "(i / 16u)");
    assert_eq!(of(&[(2, 0), (2, 5), (8, 0)]), "(row % 2u) * 5u");
}

#[test]
fn many_elements_are_counted_in_64_bits() {
    assert_eq!(Width::of((1 << 31) - 1), Width::W32);
    assert_eq!(Width::of(1 << 31), Width::W64);
    let far = view(1 << 40, &[(1 << 33, 2)]);
    let text = of_view(&far, "i", None, Width::W64);
    assert_eq!(text, "1099511627776ull + i * 2ull");
}
