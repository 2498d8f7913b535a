//! Items as text, for dumps of plans.

use crate::item::{Item, Kind, Source};

/// `v3 = mul(v1[8, 1], v2[0, 1]) f32[4, 8]`: strides are in elements.
#[must_use]
pub fn item_text(number: usize, item: &Item) -> String {
    let operands: Vec<String> = item.operands.iter().map(operand).collect();
    let (name, operands) = (item_name(item), operands.join(", "));
    format!(
        "v{number} = {name}({operands}) {}{:?}",
        item.dtype, item.dims
    )
}

/// What it does, in lower case.
#[must_use]
pub fn item_name(item: &Item) -> String {
    match &item.kind {
        Kind::Unary(op) => format!("{op:?}").to_lowercase(),
        Kind::Binary(op) => format!("{op:?}").to_lowercase(),
        Kind::Compare(order) => format!("compare_{order:?}").to_lowercase(),
        Kind::Reduce { fold, .. } => format!("reduce_{fold:?}").to_lowercase(),
        Kind::Random { normal: true } => "random_normal".to_owned(),
        Kind::Random { normal: false } => "random_uniform".to_owned(),
        other => {
            let name = format!("{other:?}").to_lowercase();
            name.split([' ', '(']).next().unwrap_or_default().to_owned()
        }
    }
}

fn operand(operand: &Source) -> String {
    match operand {
        Source::Splat(_, value) => format!("{value:?}"),
        Source::View(view) => {
            let strides: Vec<usize> = view.dims.iter().map(|dim| dim.stride).collect();
            format!("v{}{strides:?}", view.item)
        }
    }
}
