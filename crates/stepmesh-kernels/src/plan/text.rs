//! The plan as text: which nodes each step computes, and what goes to memory.
#![forbid(unsafe_code)]

use std::fmt::Write as _;

use stepmesh_fusion::{Buffers, Cluster, Items, Placement, item_text};
use stepmesh_graph::Graph;

use super::Step;
use crate::product::Then;

/// The text of a plan that is being made.
pub(super) struct Text<'a> {
    graph: &'a Graph,
    items: &'a Items,
    out: String,
    step: usize,
}

impl<'a> Text<'a> {
    pub(super) fn new(graph: &'a Graph, items: &'a Items) -> Self {
        let out = format!(
            "plan of `{}`, {} nodes\n",
            graph.name(),
            graph.nodes().len()
        );
        Self {
            graph,
            items,
            out,
            step: 0,
        }
    }

    pub(super) fn cluster(&mut self, cluster: &Cluster, places: &Placement, steps: &[Step]) {
        for step in steps {
            self.line(&describe(step));
        }
        if steps.is_empty() {
            return;
        }
        for member in &cluster.members {
            let item = &self.items.list[member.item];
            let stored = if places.is_stored(member.item) {
                " -> memory"
            } else {
                ""
            };
            let node = &self.graph.nodes()[item.node];
            let location = node
                .location()
                .map_or(String::new(), |at| format!("  # {at}"));
            // Writing to a string cannot fail.
            let _ = writeln!(
                self.out,
                "    {} of %{} {}{stored}{location}",
                item_text(member.item, item),
                item.node,
                node.kind().name(),
            );
        }
    }

    pub(super) fn copy(&mut self, item: usize) {
        self.line(&format!(
            "copy v{item} to the result that replaces an argument"
        ));
    }

    pub(super) fn finish(mut self, buffers: &Buffers) -> String {
        let _ = writeln!(self.out, "workspace {} bytes", buffers.workspace_len);
        self.out
    }

    fn line(&mut self, what: &str) {
        let _ = writeln!(self.out, "step {}: {what}", self.step);
        self.step += 1;
    }
}

fn describe(step: &Step) -> String {
    match step {
        Step::Kernel(kernel) => format!(
            "fused kernel over {} x {} x {}, {} walk(s), {} instructions{}",
            kernel.outer,
            kernel.inner,
            kernel.columns,
            kernel.stages.len(),
            kernel
                .stages
                .iter()
                .map(|stage| stage.full.len())
                .sum::<usize>(),
            if kernel.parts > 1 {
                format!(", in {} parts", kernel.parts)
            } else {
                String::new()
            }
        ),
        Step::Product(product) => format!(
            "product {} of {} x {} x {}, {}",
            product.dtype,
            product.rows,
            product.depth,
            product.columns,
            match &product.then {
                Then::Store { .. } => "stored".to_owned(),
                Then::Run(kernel) => {
                    format!("then {} instructions", kernel.stages[0].full.len())
                }
            }
        ),
        Step::Gather(gather) => format!("gather {} slices", gather.indices.count),
        Step::IndexAdd(add) => format!("add {} slices", add.indices.count),
    }
}
