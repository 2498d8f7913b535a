//! Operations that a backend lacks: whether they may run on the host, and that everybody sees it.

use std::collections::BTreeMap;
use std::panic::Location;
use std::time::Instant;

use stepmesh_graph::{DType, Op, OpKind};

use super::DeviceContext;
use crate::backend::{FallbackDevice, Origin};
use crate::ir::NodePtr;
use crate::metrics::Metric;
use crate::{Error, HostTensor};

/// What to do about an operation that the backend lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Fallback {
    /// Fail, naming the operation.
    Deny,
    /// Compute it on the host, and log a warning the first time.
    #[default]
    Warn,
    /// Compute it on the host.
    Allow,
}

/// What to do about each operation that the backend lacks. All of them are warned about by default.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct FallbackPolicy {
    others: Fallback,
    ops: BTreeMap<OpKind, Fallback>,
    forced: Vec<OpKind>,
}

/// An operation that ran on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FallbackReport {
    /// The operation.
    pub op: OpKind,
    /// The type that it was first wanted for.
    pub dtype: DType,
    /// Where it was first called.
    pub location: &'static Location<'static>,
    /// How often it was called.
    pub calls: u64,
    /// What computed it the last time.
    pub computed_by: FallbackDevice,
}

impl FallbackPolicy {
    /// The same for all operations.
    #[must_use]
    pub fn all(fallback: Fallback) -> Self {
        Self {
            others: fallback,
            ..Self::default()
        }
    }

    /// The same with another rule for one operation.
    #[must_use]
    pub fn with(mut self, op: OpKind, fallback: Fallback) -> Self {
        self.ops.insert(op, fallback);
        self
    }

    /// The same, but an operation falls back even where the backend has it, as `LTC_FORCE_FALLBACK`
    /// does: to find out whether it is the one that is wrong.
    #[must_use]
    pub fn with_forced(mut self, op: OpKind) -> Self {
        self.forced.push(op);
        self
    }

    /// The rule for an operation.
    #[must_use]
    pub fn of(&self, op: OpKind) -> Fallback {
        self.ops.get(&op).copied().unwrap_or(self.others)
    }

    pub(crate) fn is_forced(&self, op: OpKind) -> bool {
        self.forced.contains(&op)
    }
}

impl DeviceContext {
    /// Runs an operation on the host: waits for its operands, copies them, computes, copies the
    /// result back.
    pub(crate) fn fall_back(
        &self,
        op: &Op,
        dtype: DType,
        operands: &[NodePtr],
        origin: Origin<'_>,
    ) -> Result<NodePtr, Error> {
        let (kind, location) = (op.kind(), origin.location());
        let policy = &self.options().fallback;
        if policy.of(kind) == Fallback::Deny && !policy.is_forced(kind) {
            return Err(Error::FallbackDenied {
                op: kind.name(),
                dtype,
                device: self.describe(),
                location,
            });
        }
        let datas = self.data_of_nodes(operands)?;
        let started = Instant::now();
        let inputs: Result<Vec<HostTensor>, Error> =
            datas.iter().map(|data| self.download(data)).collect();
        let (result, computed_by) = self.backend().evaluate_eagerly(op, &inputs?)?;
        let is_first = self.note_fallback(FallbackReport {
            op: kind,
            dtype,
            location,
            calls: 1,
            computed_by,
        });
        if is_first && policy.of(kind) == Fallback::Warn {
            tracing::warn!(
                op = kind.name(),
                dtype = dtype.name(),
                device = self.describe(),
                %computed_by,
                %location,
                "not lowered: computed on the host, each time"
            );
        }
        let data = self.upload(&result)?;
        self.metrics()
            .sample_time(Metric::EagerOpExecuteTime, started);
        Ok(self.builder().make_device_data(origin, &data))
    }
}
