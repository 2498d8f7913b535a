//! The handler `sum`: adds the pushed tensors of a batch, element by element.

use std::ops::AddAssign;

use anyhow::Result;
use half::{bf16, f16};
use stepmesh::{Batch, DType, Element, Tensor};
use stepmesh_core::Device;

use super::{Handler, Unfit, wants_pulls};

/// Adds on the CPU, into new memory for each answer.
pub(super) struct Sum {
    device: Device,
}

impl Sum {
    pub(super) fn new(device: &Device) -> Self {
        Self {
            device: device.clone(),
        }
    }

    fn of(&self, batch: &Batch) -> Result<Result<Tensor, Unfit>> {
        if let Err(unfit) = wants_pulls(batch, 1) {
            return Ok(Err(unfit));
        }
        let terms = batch.tensors();
        let Some(first) = terms.first() else {
            return Ok(Err(Unfit("it pushed nothing to add".into())));
        };
        let differs = |term: &&Tensor| {
            term.dtype() != first.dtype() || term.shape().dims() != first.shape().dims()
        };
        if let Some(other) = terms.iter().find(differs) {
            return Ok(Err(Unfit(format!(
                "{} {} and {} {} cannot be added",
                first.dtype(),
                first.shape(),
                other.dtype(),
                other.shape()
            ))));
        }
        let sum = match first.dtype() {
            DType::F64 => self.add::<f64>(terms),
            DType::F32 => self.add::<f32>(terms),
            DType::F16 => self.add::<f16>(terms),
            DType::BF16 => self.add::<bf16>(terms),
            DType::I64 => self.add::<i64>(terms),
            DType::I32 => self.add::<i32>(terms),
            DType::U8 => self.add::<u8>(terms),
            other => return Ok(Err(Unfit(format!("{other} cannot be added here")))),
        };
        sum.map(Ok)
    }

    fn add<T: Element + AddAssign>(&self, terms: &[Tensor]) -> Result<Tensor> {
        let (first, others) = terms.split_first().expect("invariant: there is one");
        let mut sum = first.to_vec::<T>()?;
        for term in others {
            for (sum, value) in sum.iter_mut().zip(term.to_vec::<T>()?) {
                *sum += value;
            }
        }
        Ok(Tensor::from_slice(
            &self.device,
            first.shape().dims(),
            &sum,
        )?)
    }
}

impl Handler for Sum {
    fn answers(&mut self, batches: &[Batch]) -> Result<Vec<Result<Vec<Tensor>, Unfit>>> {
        batches
            .iter()
            .map(|batch| Ok(self.of(batch)?.map(|sum| vec![sum])))
            .collect()
    }
}
