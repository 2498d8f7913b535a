//! Traced graphs as text and as Graphviz, for people; the form is that of PyTorch's dumps.

use std::fmt::Write;

use stepmesh_graph::{DType, TensorType};

use super::{EmissionMap, Node, NodeKind, NodePtr, post_order};

/// The graph that the roots need, one line for each node:
///
/// ```text
/// IR {
///   %0 = [Float[3,3]] lazy::device_data(), location=src/model.rs:10
///   %1 = [Float[3,3]] lazy::matmul(%0, %0), location=src/model.rs:12, ROOT=0
/// }
/// ```
#[must_use]
pub fn ir_text(roots: &[NodePtr]) -> String {
    let mut emission = EmissionMap::default();
    let order = post_order(roots, &mut emission);
    let mut text = String::from("IR {\n");
    for (place, node) in order.iter().enumerate() {
        let operands: Vec<String> = node
            .operands()
            .iter()
            .map(|operand| format!("%{}", emission.place(operand).unwrap_or_default()))
            .collect();
        let location = node.location();
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "  %{place} = [{}] lazy::{}({}){}, location={}:{}",
            type_text(node.ty()),
            node.name(),
            operands.join(", "),
            attributes(node),
            location.file(),
            location.line(),
        );
        for (number, _) in roots
            .iter()
            .enumerate()
            .filter(|(_, root)| std::sync::Arc::ptr_eq(root, node))
        {
            let _ = write!(text, ", ROOT={number}");
        }
        text.push('\n');
    }
    text.push_str("}\n");
    text
}

/// The graph that the roots need, for Graphviz' `dot`.
#[must_use]
pub fn ir_dot(roots: &[NodePtr]) -> String {
    let mut emission = EmissionMap::default();
    let order = post_order(roots, &mut emission);
    let mut text = String::from("digraph G {\n");
    for (place, node) in order.iter().enumerate() {
        let location = node.location();
        let label = format!(
            "{}{}\n{}\n{}:{}",
            node.name(),
            attributes(node),
            type_text(node.ty()),
            location.file(),
            location.line()
        );
        let shape = if node.op().is_some() {
            "ellipse"
        } else {
            "box"
        };
        let label = label
            .replace('\\', "\\\\")
            .replace('"', "\\\"")
            .replace('\n', "\\n");
        let _ = writeln!(text, "  node{place} [label=\"{label}\", shape={shape}]");
    }
    for (place, node) in order.iter().enumerate() {
        for (number, operand) in node.operands().iter().enumerate() {
            let from = emission.place(operand).unwrap_or_default();
            let _ = writeln!(text, "  node{from} -> node{place} [label=\"i={number}\"]");
        }
    }
    for (number, root) in roots.iter().enumerate() {
        let place = emission.place(root).unwrap_or_default();
        let _ = writeln!(text, "  root{number} [shape=plaintext]");
        let _ = writeln!(text, "  node{place} -> root{number}");
    }
    text.push_str("}\n");
    text
}

/// Attributes as `Debug` writes them, short ones only.
fn attributes(node: &Node) -> String {
    let NodeKind::Op(op) = node.kind() else {
        return String::new();
    };
    let text = format!("{op:?}");
    match text.find([' ', '(']) {
        Some(at) if text.len() - at <= ATTRIBUTES_SHOWN_BYTES => {
            format!(" {}", text[at..].trim())
        }
        Some(_) => " {..}".to_owned(),
        None => String::new(),
    }
}

/// As PyTorch writes it: `Float[3,3]`.
pub(crate) fn type_text(ty: TensorType) -> String {
    let name = match ty.dtype() {
        DType::F32 => "Float",
        DType::F16 => "Half",
        DType::BF16 => "BFloat16",
        DType::F64 => "Double",
        DType::I32 => "Int",
        DType::I64 => "Long",
        DType::U8 => "Byte",
        DType::Bool => "Bool",
        DType::F8E4M3 => "Float8_e4m3fn",
        DType::F8E5M2 => "Float8_e5m2",
    };
    format!("{name}{}", ty.shape())
}

/// The attributes of a slice of rank 8 fit; the elements of a constant do not.
const ATTRIBUTES_SHOWN_BYTES: usize = 200;
