//! The handler `echo`: what came in goes out.

use anyhow::Result;
use stepmesh::{Batch, Tensor};

use super::{Handler, Unfit};

/// Answers straight from the slots: nothing is copied here.
pub(super) struct Echo;

impl Handler for Echo {
    fn answers(&mut self, batches: &[Batch]) -> Result<Vec<Result<Vec<Tensor>, Unfit>>> {
        Ok(batches.iter().map(echo).collect())
    }
}

fn echo(batch: &Batch) -> Result<Vec<Tensor>, Unfit> {
    let (pushed, pulls) = (batch.tensors(), batch.pulls().len());
    match pushed.get(..pulls) {
        Some(answers) => Ok(answers.to_vec()),
        None => Err(Unfit(format!(
            "it pulls {pulls} tensors but pushed {}",
            pushed.len()
        ))),
    }
}
