//! What the threads of this backend's streams do. When its turn comes is the kit's business.
#![expect(unsafe_code, reason = "touches the memory that submitters vouched for")]

use std::sync::Arc;

use stepmesh_plugin::software::{Engine, Worker, copy, fill};
use stepmesh_plugin::{CopyRequest, FillRequest, Result};

use crate::buffer::Memory;

/// Copies and fills by the processor.
#[derive(Debug)]
pub(crate) struct Processor {
    // Stays mapped while there is work on it.
    _memory: Arc<Memory>,
}

impl Processor {
    pub(crate) fn new(memory: Arc<Memory>) -> Self {
        Self { _memory: memory }
    }
}

impl Engine for Processor {
    const THREAD_NAME: &'static str = "sm-cpu";

    unsafe fn copy(&self, _worker: &Worker<'_>, request: &CopyRequest) -> Result<()> {
        // SAFETY: this method's contract.
        unsafe { copy(request.dst, request.src, request.len_bytes) };
        Ok(())
    }

    unsafe fn fill(&self, _worker: &Worker<'_>, request: &FillRequest) -> Result<()> {
        let (width, len) = (request.width_bytes, request.len_bytes);
        // SAFETY: this method's contract; the kit checked width, size and alignment.
        unsafe { fill(request.dst, request.value, width, len) };
        Ok(())
    }
}
