//! Executing a graph: where its arguments are, memory for its results, and the launch.

use std::sync::Arc;

use stepmesh_core::Stream;
use stepmesh_core::compute::Argument;
use stepmesh_graph::reference;

use super::lane::{Lane, Source};
use super::lowering::{GraphComputation, Program};
use super::memory::Memory;
use super::value::{Value, ValueState};
use crate::{BackendData, Computation, Error};

pub(super) fn execute(
    lane: &Lane,
    computation: &GraphComputation,
    arguments: &[&Value],
    results: &[&Value],
    donations: &[(usize, usize)],
) -> Result<(), Error> {
    let operation = "executing a graph";
    let (wanted, has) = (
        [
            computation.parameters_size(),
            computation.graph().results().len(),
        ],
        [arguments.len(), results.len()],
    );
    if has != wanted {
        let fault = format!("{has:?} arguments and results, it has {wanted:?}");
        return Err(Error::lowering(operation, fault));
    }
    let sources: Result<Vec<Source>, Error> =
        arguments.iter().map(|value| value.source()).collect();
    let sources = sources?;
    let is_interpreted = matches!(computation.program(), Some(Program::Interpreted));
    let mut memories = Vec::with_capacity(results.len());
    for (number, value) in results.iter().enumerate() {
        let len_bytes = value.ty().len_bytes();
        let donated = donations.iter().find(|(_, result)| *result == number);
        let donated = donated.and_then(|(param, _)| match sources.get(*param) {
            Some(Source::Memory(memory, _)) => Some(Arc::clone(memory)),
            _ => None,
        });
        let reserved = match &*value.state() {
            ValueState::Reserved(memory) => Some(Arc::clone(memory)),
            _ => None,
        };
        memories.push(match reserved.or(donated) {
            Some(memory) => memory,
            // The interpreter writes from the host.
            None if is_interpreted => Arc::new(lane.idle_memory(len_bytes)?),
            None => Arc::new(lane.memory(len_bytes)?),
        });
    }
    let completion = match computation.program() {
        Some(Program::Compiled(executable)) => {
            let work = |args: &[Argument<'_>], outs: &[Argument<'_>], stream: &Stream| {
                executable.execute(args, outs, stream)
            };
            Some(lane.launch(computation.name(), &sources, &memories, work)?)
        }
        Some(Program::Interpreted) => {
            interpret(computation, arguments, &memories)?;
            None
        }
        None => return Err(Error::lowering(operation, "it was not compiled")),
    };
    for (param, _) in donations {
        if let Some(value) = arguments.get(*param) {
            value.set(ValueState::Donated);
        }
    }
    for (value, memory) in results.iter().zip(memories) {
        value.set(ValueState::Ready(memory, completion.clone()));
    }
    Ok(())
}

/// Computes a graph on the host, and waits for its arguments.
fn interpret(
    computation: &GraphComputation,
    arguments: &[&Value],
    results: &[Arc<Memory>],
) -> Result<(), Error> {
    let tensors: Result<Vec<reference::Tensor>, Error> = arguments
        .iter()
        .map(|value| Ok(reference::Tensor::from_bytes(value.ty(), &value.read()?)))
        .collect();
    let values = reference::evaluate(computation.graph(), &tensors?)?;
    for (value, memory) in values.iter().zip(results) {
        memory
            .buffer()
            .write_bytes(memory.offset(), &value.to_bytes())
            .map_err(Error::backend("writing to device memory"))?;
    }
    Ok(())
}
