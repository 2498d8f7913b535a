//! The handler `ffn`: the feed-forward network of a transformer's layer,
//! `gelu(x·w1ᵀ + b1)·w2ᵀ + b2`, on the CPU.

use std::f64::consts::FRAC_1_SQRT_2;

use anyhow::{Context, Result};
use ndarray::{Array1, Array2, ArrayView2};
use stepmesh::{Batch, DType, Tensor};
use stepmesh_core::Device;

use super::{Handler, Unfit, wants_pulls};
use crate::input::{Input, InputError};

/// Computes the rows of all batches together, so that the weights are read once.
pub(super) struct Ffn {
    layer: Layer,
    device: Device,
    /// Where the answers lie; grows with what is asked.
    answer: Option<Tensor>,
}

/// The weights, widened: sums are kept in f64. Hidden states have outliers of some hundreds, where
/// a sum of f32 alone is off by more than the 1e-4 that the workers allow.
pub(crate) struct Layer {
    w1: Array2<f64>,
    b1: Array1<f64>,
    w2: Array2<f64>,
    b2: Array1<f64>,
}

impl Ffn {
    pub(super) fn new(input: &Input, device: &Device) -> Result<Self> {
        Ok(Self {
            layer: Layer::read(input)?,
            device: device.clone(),
            answer: None,
        })
    }

    /// Why the layer cannot be computed of a batch.
    fn check(&self, batch: &Batch) -> Result<(), Unfit> {
        wants_pulls(batch, 1)?;
        let width = u64::try_from(self.layer.width()).unwrap_or(u64::MAX);
        match batch.tensors() {
            [x] if x.dtype() == DType::F32 && matches!(x.shape().dims(), [_, w] if *w == width) => {
                Ok(())
            }
            [x] => Err(Unfit(format!(
                "it pushed {} {}, this layer takes f32 [any, {width}]",
                x.dtype(),
                x.shape()
            ))),
            other => Err(Unfit(format!(
                "it pushed {} tensors, this layer takes 1",
                other.len()
            ))),
        }
    }

    /// A tensor of `rows` rows in the memory for answers.
    fn answer(&mut self, rows: u64) -> Result<Tensor> {
        if let Some(answer) = &self.answer
            && answer.shape().rows() >= rows
        {
            return Ok(answer.rows(0, rows)?);
        }
        let dims = [rows, self.layer.width() as u64];
        let answer = Tensor::empty(&self.device, DType::F32, &dims)?;
        Ok(self.answer.insert(answer).clone())
    }
}

impl Handler for Ffn {
    fn answers(&mut self, batches: &[Batch]) -> Result<Vec<Result<Vec<Tensor>, Unfit>>> {
        let checked: Vec<_> = batches.iter().map(|batch| self.check(batch)).collect();
        let mut x = Vec::new();
        for (batch, _) in batches.iter().zip(&checked).filter(|(_, ok)| ok.is_ok()) {
            let tensor = &batch.tensors()[0];
            match tensor.as_slice::<f32>() {
                Some(values) => x.extend_from_slice(values),
                None => x.extend(tensor.to_vec::<f32>()?),
            }
        }
        let rows = x.len() / self.layer.width();
        let x = ArrayView2::from_shape((rows, self.layer.width()), &x)?;
        let y = self.layer.forward(x);
        let answer = self.answer(rows as u64)?;
        answer.write(y.as_slice().context("the answer is not contiguous")?)?;

        let mut start = 0;
        let own_rows = |(batch, checked): (&Batch, Result<(), Unfit>)| {
            if let Err(unfit) = checked {
                return Ok(Err(unfit));
            }
            let count = batch.tensors()[0].shape().rows();
            let own = answer.rows(start, count)?;
            start += count;
            Ok(Ok(vec![own]))
        };
        batches.iter().zip(checked).map(own_rows).collect()
    }
}

impl Layer {
    pub(crate) fn read(input: &Input) -> Result<Self, InputError> {
        let w1 = input.matrix("w1", None, None)?;
        let (hidden, width) = w1.dim();
        let b1 = input.vector("b1", Some(hidden))?;
        let w2 = input.matrix("w2", Some(width), Some(hidden))?;
        let b2 = input.vector("b2", Some(width))?;
        Ok(Self {
            w1: w1.mapv(f64::from),
            b1: b1.mapv(f64::from),
            w2: w2.mapv(f64::from),
            b2: b2.mapv(f64::from),
        })
    }

    /// How many values a row has, coming and going.
    fn width(&self) -> usize {
        self.w2.nrows()
    }

    /// The layer of each row of `x`.
    pub(crate) fn forward(&self, x: ArrayView2<'_, f32>) -> Array2<f32> {
        let mut hidden = x.mapv(f64::from).dot(&self.w1.t());
        hidden += &self.b1;
        hidden.mapv_inplace(gelu);
        let mut y = hidden.dot(&self.w2.t());
        y += &self.b2;
        y.mapv(narrow)
    }
}

/// The exact GELU, by the error function, as the model was trained with.
fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + libm::erf(x * FRAC_1_SQRT_2))
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "answers are f32, rounded once"
)]
fn narrow(value: f64) -> f32 {
    value as f32
}

#[cfg(test)]
mod tests {
    use super::{Layer, gelu};
    use crate::input::Input;
    use crate::input::tests::layer_path;
    use ndarray::{Axis, Slice};

    #[test]
    fn the_real_layer_gives_the_reference_of_the_real_model() {
        let input = Input::open(&layer_path()).unwrap();
        let layer = Layer::read(&input).unwrap();
        let x = input.matrix("ffn_in", None, Some(layer.width())).unwrap();
        let reference = input.matrix("ffn_out", Some(x.nrows()), None).unwrap();
        let y = layer.forward(x.view());
        let errors = y.iter().zip(&reference).map(|(y, r)| (y - r).abs());
        let largest = errors.fold(0.0, f32::max);
        assert!(largest < 2e-5, "{largest}");
        assert!(y.iter().all(|value| value.is_finite()));
    }

    #[test]
    fn rows_do_not_depend_on_each_other_and_may_be_none() {
        let input = Input::open(&layer_path()).unwrap();
        let layer = Layer::read(&input).unwrap();
        let x = input.matrix("ffn_in", None, None).unwrap();
        let all = layer.forward(x.slice_axis(Axis(0), Slice::from(..7)));
        let some = layer.forward(x.slice_axis(Axis(0), Slice::from(3..5)));
        let errors = some.iter().zip(all.slice_axis(Axis(0), Slice::from(3..5)));
        assert!(errors.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) < 1e-5);
        assert_eq!(
            layer.forward(x.slice_axis(Axis(0), Slice::from(..0))).dim(),
            (0, layer.width())
        );
    }

    #[test]
    fn gelu_is_the_exact_one() {
        assert_eq!(gelu(0.0), 0.0);
        assert!((gelu(1.0) - 0.841_344_746).abs() < 1e-8);
        assert!((gelu(-1.0) + 0.158_655_254).abs() < 1e-8);
        assert_eq!(gelu(30.0), 30.0);
    }
}
