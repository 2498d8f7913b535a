//! Where an element lies, as an expression of the number by which a kernel counts elements.

use stepmesh_fusion::{View, Walk, merge};

/// The type of the numbers by which a kernel counts: 32 bits where they are enough, for division of 64
/// bits takes several times as long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    W32,
    W64,
}

/// A number whose division by `extent` a kernel has already done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Split<'a> {
    pub(crate) extent: usize,
    pub(crate) quotient: &'a str,
    pub(crate) remainder: &'a str,
}

impl Width {
    /// That of numbers up to `most`.
    pub(crate) fn of(most: usize) -> Self {
        // Adding the threads of a whole grid must not overflow.
        if most < 1 << 31 { Self::W32 } else { Self::W64 }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::W32 => "u32",
            Self::W64 => "u64",
        }
    }

    /// A number of this type.
    pub(crate) fn literal(self, number: usize) -> String {
        match self {
            Self::W32 => format!("{number}u"),
            Self::W64 => format!("{number}ull"),
        }
    }

    pub(crate) fn max(self, other: Self) -> Self {
        if self == Self::W64 { self } else { other }
    }
}

/// The greatest index that a view has, in its value's memory.
pub(crate) fn reach(view: &View) -> usize {
    let steps = view
        .dims
        .iter()
        .map(|dim| dim.extent.saturating_sub(1) * dim.stride);
    view.start + steps.sum::<usize>()
}

/// Where element `number` of a view lies.
pub(crate) fn of_view(view: &View, number: &str, split: Option<Split<'_>>, width: Width) -> String {
    of_walks(view.start, &view.dims, number, split, width)
}

/// Where element `number` lies of what begins at `start` and goes on in steps.
pub(crate) fn of_walks(
    start: usize,
    dims: &[Walk],
    number: &str,
    split: Option<Split<'_>>,
    width: Width,
) -> String {
    let walks = merge(dims.iter().copied());
    let mut terms: Vec<String> = Vec::new();
    if start > 0 {
        terms.push(width.literal(start));
    }
    let mut behind = Behind::None;
    for (position, walk) in walks.iter().enumerate().rev() {
        let is_outermost = position == 0;
        let coordinate = behind.coordinate(walk.extent, is_outermost, number, split, width);
        if walk.stride > 0 {
            terms.push(match walk.stride {
                1 => coordinate,
                stride => format!("{coordinate} * {}", width.literal(stride)),
            });
        }
        behind = behind.with(walk.extent, split);
    }
    if terms.is_empty() {
        return "0".to_owned();
    }
    terms.join(" + ")
}

/// The dimensions behind the one in hand: by what the number is to be divided.
#[derive(Clone, Copy)]
enum Behind {
    None,
    /// Exactly what a kernel has split off.
    Split,
    Elements(usize),
}

impl Behind {
    fn with(self, extent: usize, split: Option<Split<'_>>) -> Self {
        match (self, split) {
            (Self::None, Some(split)) if split.extent == extent => Self::Split,
            (Self::None, _) => Self::Elements(extent),
            (Self::Split, split) => {
                Self::Elements(split.map_or(1, |split| split.extent).saturating_mul(extent))
            }
            (Self::Elements(behind), _) => Self::Elements(behind.saturating_mul(extent)),
        }
    }

    fn coordinate(
        self,
        extent: usize,
        is_outermost: bool,
        number: &str,
        split: Option<Split<'_>>,
        width: Width,
    ) -> String {
        let whole = match (self, split) {
            (Self::None, Some(split)) if split.extent == extent && !is_outermost => {
                return split.remainder.to_owned();
            }
            (Self::None, _) => number.to_owned(),
            (Self::Split, Some(split)) => split.quotient.to_owned(),
            (Self::Split, None) => number.to_owned(),
            (Self::Elements(behind), _) => format!("{number} / {}", width.literal(behind)),
        };
        if is_outermost {
            return match self {
                Self::Elements(_) => format!("({whole})"),
                _ => whole,
            };
        }
        format!("({whole} % {})", width.literal(extent))
    }
}

#[cfg(test)]
mod tests;
