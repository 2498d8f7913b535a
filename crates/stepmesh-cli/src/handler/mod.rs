//! What a server computes. How batches come and answers go is in `server`.

mod echo;
mod ffn;
mod sum;

use std::path::PathBuf;

use anyhow::Result;
use stepmesh::{Batch, Tensor};
use stepmesh_core::Device;

use crate::input::{Input, InputError};

/// Computes the answers to batches that are taken together.
pub(crate) trait Handler {
    /// The answers to each batch, in order: one tensor for each of its pulls. A batch that makes
    /// no sense to the handler does not spoil the others.
    ///
    /// Memory of earlier answers may be used again: they have been sent.
    fn answers(&mut self, batches: &[Batch]) -> Result<Vec<Result<Vec<Tensor>, Unfit>>>;
}

/// The handlers by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// Answers each pull with the tensor that was pushed in its place
    Echo,
    /// Answers with the sum of the pushed tensors, element by element
    Sum,
    /// Answers with the feed-forward network of a layer: w2·gelu(w1·x+b1)+b2
    Ffn,
}

/// Why a batch cannot be computed; the worker sees that it was released.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Unfit(String);

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Echo => "echo",
            Self::Sum => "sum",
            Self::Ffn => "ffn",
        }
    }

    /// A handler whose answers lie on `device`.
    pub(crate) fn create(
        self,
        input: Option<&PathBuf>,
        device: &Device,
    ) -> Result<Box<dyn Handler>> {
        Ok(match (self, input) {
            (Self::Echo, _) => Box::new(echo::Echo),
            (Self::Sum, _) => Box::new(sum::Sum::new(device)),
            (Self::Ffn, Some(path)) => Box::new(ffn::Ffn::new(&Input::open(path)?, device)?),
            (Self::Ffn, None) => return Err(InputError::None { handler: "ffn" }.into()),
        })
    }
}

/// The `count` tensors that a handler wants from each batch.
fn wants_pulls(batch: &Batch, count: usize) -> Result<(), Unfit> {
    let pulls = batch.pulls().len();
    if pulls == count {
        return Ok(());
    }
    Err(Unfit(format!(
        "it pulls {pulls} tensors, this handler answers with {count}"
    )))
}
