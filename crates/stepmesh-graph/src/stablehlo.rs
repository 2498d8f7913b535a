//! Graphs as StableHLO text, for compilers that take it and for people who compare.
//!
//! f16 and bf16 are computed in f32 wherever an operation is made of several. `erf` is the dialect
//! CHLO's, which XLA and what builds on it take along.

mod compose;
mod random;
mod write;

use std::fmt::Write as _;

use crate::{Graph, NodeId, Op};
use write::{Writer, type_of};

/// The graph as a module with one public function, `main`, from its parameters to its results.
///
/// Donations are left out: they are the caller's business.
#[must_use]
pub fn stablehlo(graph: &Graph) -> String {
    let mut writer = Writer::default();
    let mut names: Vec<String> = Vec::with_capacity(graph.nodes().len());
    for node in graph.nodes() {
        let operand = |id: &NodeId| (names[id.index()].clone(), graph.node(*id).ty());
        let operands: Vec<_> = node.operands().iter().map(operand).collect();
        let name = match node.op() {
            Op::Parameter { number, .. } => format!("%arg{number}"),
            op => compose::node(&mut writer, op, node.ty(), &operands),
        };
        names.push(name);
    }
    let list = |items: Vec<String>| items.join(", ");
    let params = graph.param_types().enumerate();
    let params = list(
        params
            .map(|(n, ty)| format!("%arg{n}: {}", type_of(ty)))
            .collect(),
    );
    let types = list(graph.result_types().map(type_of).collect());
    let results = graph.results().iter().map(|id| names[id.index()].clone());
    let results = list(results.collect());
    let mut text = format!("module @{} {{\n", symbol(graph.name()));
    // Writing to a string does not fail.
    let _ = writeln!(text, "  func.func public @main({params}) -> ({types}) {{");
    text.push_str(writer.text());
    let _ = writeln!(text, "    return {results} : {types}\n  }}\n}}");
    text
}

/// A name as MLIR takes it without quotes.
fn symbol(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    format!("g_{}", name.chars().map(plain).collect::<String>())
}
