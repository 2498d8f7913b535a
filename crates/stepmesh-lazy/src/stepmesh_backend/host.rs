//! The cpu backend, for operations that another backend lacks. When one falls back is decided in
//! `engine`.

use std::sync::{Mutex, PoisonError};

use stepmesh_core::Backend;
use stepmesh_core::config::Config;
use stepmesh_graph::{GraphBuilder, Op, TensorType};

use super::lowering::GraphComputation;
use super::{BackendOptions, StepMeshBackend};
use crate::backend::LazyBackend;
use crate::cache::Lru;
use crate::{BackendDevice, ComputationPtr, Error, HostTensor, Shape};

/// The first device of the cpu backend.
#[derive(Debug)]
pub(crate) struct Host {
    backend: StepMeshBackend,
    device: BackendDevice,
    compiled: Mutex<Lru<Call, ComputationPtr>>,
}

/// An operation, and the types it is called with.
type Call = (Op, Vec<TensorType>);

impl Host {
    /// Opens it; `None`, and a line in the log, where it cannot be had.
    pub(crate) fn open(options: &BackendOptions) -> Option<Self> {
        Self::try_open(options)
            .inspect_err(|error| {
                tracing::warn!(
                    error = error as &dyn std::error::Error,
                    "the cpu backend cannot be used: what falls back is interpreted"
                );
            })
            .ok()
    }

    fn try_open(options: &BackendOptions) -> Result<Self, Error> {
        let operation = "opening the cpu backend for operations that fall back";
        let config = Config {
            backend: NAME.to_owned(),
            ..Config::default()
        };
        let cpu = Backend::open(&config).map_err(Error::backend(operation))?;
        let first = cpu.device(0).map_err(Error::backend(operation))?;
        let backend = StepMeshBackend::new(&cpu, options.clone())?;
        Ok(Self {
            device: backend.device_of(&first)?,
            backend,
            compiled: Mutex::new(Lru::new(COMPILED_MAX, usize::MAX)),
        })
    }

    /// Computes one operation and waits for it; `None` if this backend lacks it too.
    pub(crate) fn evaluate(
        &self,
        op: &Op,
        operands: &[HostTensor],
    ) -> Result<Option<HostTensor>, Error> {
        let types: Vec<TensorType> = operands.iter().map(HostTensor::ty).collect();
        let Some(computation) = self.computation(op, types)? else {
            return Ok(None);
        };
        let upload = |operand: &HostTensor| {
            let shape = Shape::new(operand.ty());
            self.backend
                .make_computation_data_from_tensor(operand, &shape, &self.device)
        };
        let arguments: Result<Vec<_>, Error> = operands.iter().map(upload).collect();
        let results = self
            .backend
            .execute_computation(&computation, &arguments?, &self.device)?;
        let Some(result) = results.first() else {
            return Err(Error::lowering("fallback", "it gave no result"));
        };
        self.backend
            .make_tensor_from_computation_data(result, None)
            .map(Some)
    }

    fn computation(
        &self,
        op: &Op,
        types: Vec<TensorType>,
    ) -> Result<Option<ComputationPtr>, Error> {
        let call = (op.clone(), types);
        let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(computation) = compiled.get(&call) {
            return Ok(Some(computation.clone()));
        }
        let mut graph = GraphBuilder::new(op.kind().name());
        let mut operands = Vec::with_capacity(call.1.len());
        for ty in &call.1 {
            operands.push(graph.parameter(ty.dtype(), ty.shape())?);
        }
        let result = graph.node(op.clone(), &operands)?;
        let graph = graph.build(&[result])?;
        let dtype = graph.node(result).ty().dtype();
        if !self.backend.supports(&self.device, op.kind(), dtype)? {
            return Ok(None);
        }
        let computation = GraphComputation::of(graph, self.device);
        let Some(computation) = self.backend.compile(vec![computation])?.pop() else {
            return Err(Error::lowering("fallback", "it was not compiled"));
        };
        compiled.insert(call, computation.clone(), 0);
        Ok(Some(computation))
    }
}

/// The backend that every build has.
pub(crate) const NAME: &str = "cpu";
/// Compiled operations that are kept: those of many models, with a few shapes each.
const COMPILED_MAX: usize = 256;
