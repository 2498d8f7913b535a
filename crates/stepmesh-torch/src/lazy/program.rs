//! A computation of the lazy core: our graph, and what a device made of it.
#![forbid(unsafe_code)]

use std::sync::OnceLock;

use stepmesh_core::compute::Executable;
use stepmesh_graph::Graph;

/// A graph that was taken from PyTorch.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) device: usize,
    pub(super) graph: Graph,
    /// Its last two parameters are seed and offset of random numbers.
    pub(super) is_random: bool,
    /// How many random elements an execution draws.
    pub(super) drawn: u64,
    pub(super) executable: OnceLock<Executable>,
}

impl Program {
    pub(super) fn new(device: usize, graph: Graph, is_random: bool, drawn: u64) -> Self {
        Self {
            device,
            graph,
            is_random,
            drawn,
            executable: OnceLock::new(),
        }
    }

    /// The graph as text, as it will be compiled.
    pub(super) fn text(&self) -> String {
        self.graph.to_string()
    }
}
