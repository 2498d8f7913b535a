//! A computation of the lazy core: our graph, and what devices made of it.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use stepmesh_graph::Graph;
use stepmesh_lazy::ComputationPtr;

/// A graph that was taken from PyTorch.
#[derive(Debug)]
pub(super) struct Program {
    /// What it was traced for, and is compiled for at first.
    pub(super) device: usize,
    pub(super) graph: Graph,
    /// Its last two parameters are seed and offset of random numbers.
    pub(super) is_random: bool,
    /// How many random elements an execution draws.
    pub(super) drawn: u64,
    /// By device: the core has one computation for equal graphs, whichever device they are for.
    executables: Mutex<BTreeMap<usize, ComputationPtr>>,
}

impl Program {
    pub(super) fn new(device: usize, graph: Graph, is_random: bool, drawn: u64) -> Self {
        Self {
            device,
            graph,
            is_random,
            drawn,
            executables: Mutex::new(BTreeMap::new()),
        }
    }

    /// What a device made of it, made by `compile` if it is asked for first.
    pub(super) fn executable(
        &self,
        device: usize,
        compile: impl FnOnce() -> Result<ComputationPtr, String>,
    ) -> Result<ComputationPtr, String> {
        let lock = || {
            self.executables
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        };
        let known = lock().get(&device).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        // Without the lock, for it takes a while. If another thread is faster, its own is as good.
        let made = compile()?;
        Ok(lock().entry(device).or_insert(made).clone())
    }

    /// The graph as text, as it will be compiled.
    pub(super) fn text(&self) -> String {
        self.graph.to_string()
    }
}
