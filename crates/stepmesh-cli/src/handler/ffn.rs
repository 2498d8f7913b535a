//! The handler `ffn`: the feed-forward network of a transformer's layer,
//! `gelu(x·w1ᵀ + b1)·w2ᵀ + b2`, as lazy tensors on the server's device.
//!
//! Nothing is copied here: the graph reads the slots that the workers wrote into, and writes the
//! memory that the answers are sent from.

use std::sync::Arc;

use anyhow::Result;
use stepmesh::{Batch, DType, Tensor};
use stepmesh_core::Device;
use stepmesh_lazy::{LazyDevice, LazyTensor, Options};

use super::{Handler, Unfit, wants_pulls};
use crate::input::Input;

/// Computes all batches in one graph.
pub(super) struct Ffn {
    layer: Layer,
    device: Device,
    /// Where the answers lie; grows with what is asked.
    answer: Option<Tensor>,
}

/// The weights, widened: sums are kept in f64. Hidden states have outliers of some hundreds, where
/// a sum of f32 alone is off by more than the 1e-4 that the workers allow.
pub(crate) struct Layer {
    device: LazyDevice,
    w1: LazyTensor,
    b1: LazyTensor,
    w2: LazyTensor,
    b2: LazyTensor,
    /// How many values a row has, coming and going.
    width: usize,
}

impl Ffn {
    pub(super) fn new(input: &Input, device: &Device) -> Result<Self> {
        Ok(Self {
            layer: Layer::read(input, LazyDevice::open(device, Options::default())?)?,
            device: device.clone(),
            answer: None,
        })
    }

    /// Why the layer cannot be computed of a batch.
    fn check(&self, batch: &Batch) -> Result<(), Unfit> {
        wants_pulls(batch, 1)?;
        let width = u64::try_from(self.layer.width).unwrap_or(u64::MAX);
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
        let dims = [rows, self.layer.width as u64];
        let answer = Tensor::empty(&self.device, DType::F32, &dims)?;
        Ok(self.answer.insert(answer).clone())
    }
}

impl Handler for Ffn {
    fn answers(&mut self, batches: &[Batch]) -> Result<Vec<Result<Vec<Tensor>, Unfit>>> {
        let checked: Vec<_> = batches.iter().map(|batch| self.check(batch)).collect();
        let pushed = batches.iter().zip(&checked);
        let pushed: Vec<&Tensor> = pushed
            .filter(|(_, checked)| checked.is_ok())
            .map(|(batch, _)| &batch.tensors()[0])
            .collect();
        let answer = self.answer(pushed.iter().map(|x| x.shape().rows()).sum())?;
        let mut start = 0;
        let mut own = Vec::with_capacity(pushed.len());
        for x in &pushed {
            let count = x.shape().rows();
            own.push(answer.rows(start, count)?);
            start += count;
        }
        self.layer.forward_into(&pushed, &own)?;
        let mut own = own.into_iter();
        let answers = checked
            .into_iter()
            .map(|checked| checked.map(|()| own.next().into_iter().collect()));
        Ok(answers.collect())
    }
}

impl Layer {
    pub(crate) fn read(input: &Input, device: LazyDevice) -> Result<Self> {
        let w1 = input.matrix("w1", None, None)?;
        let (hidden, width) = w1.dim();
        let b1 = input.vector("b1", Some(hidden))?;
        let w2 = input.matrix("w2", Some(width), Some(hidden))?;
        let b2 = input.vector("b2", Some(width))?;
        let widened = |dims: &[usize], values: Vec<f32>| {
            let values: Vec<f64> = values.into_iter().map(f64::from).collect();
            device.from_slice(dims, &values)
        };
        Ok(Self {
            w1: widened(&[hidden, width], w1.into_raw_vec_and_offset().0)?,
            b1: widened(&[hidden], b1.into_raw_vec_and_offset().0)?,
            w2: widened(&[width, hidden], w2.into_raw_vec_and_offset().0)?,
            b2: widened(&[width], b2.into_raw_vec_and_offset().0)?,
            width,
            device,
        })
    }

    /// The layer of the rows of each `pushed` tensor, in the memory of the answer in its place.
    fn forward_into(&self, pushed: &[&Tensor], answers: &[Tensor]) -> Result<()> {
        let mut results = Vec::with_capacity(pushed.len());
        for x in pushed {
            let dims = [usize::try_from(x.shape().rows())?, self.width];
            let dtype = stepmesh_lazy::DType::F32;
            let x = self
                .device
                .wrap_buffer(x.buffer(), x.offset_bytes(), &dims, dtype)?;
            results.push(self.forward(&x)?);
        }
        let places = answers.iter().map(|to| (to.buffer(), to.offset_bytes()));
        let targets: Vec<(&LazyTensor, &Arc<_>, u64)> = results
            .iter()
            .zip(places)
            .map(|(result, (buffer, offset))| (result, buffer, offset))
            .collect();
        self.device.sync_into(&targets)?;
        // One launch: when its first result is there, all are.
        results.first().map_or(Ok(()), LazyTensor::wait)?;
        Ok(())
    }

    /// The layer of each row of `x`, which is f32.
    pub(crate) fn forward(&self, x: &LazyTensor) -> Result<LazyTensor, stepmesh_lazy::Error> {
        let x = x.cast(stepmesh_lazy::DType::F64)?;
        // The exact GELU, by the error function, as the model was trained with.
        let hidden = x.linear(&self.w1, Some(&self.b1))?.gelu()?;
        let y = hidden.linear(&self.w2, Some(&self.b2))?;
        y.cast(stepmesh_lazy::DType::F32)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use stepmesh::{DType, Tensor};
    use stepmesh_core::Device;
    use stepmesh_core::config::{Config, Sources};
    use stepmesh_lazy::{Counter, LazyDevice, Options};

    use super::Layer;
    use crate::input::Input;
    use crate::input::tests::layer_path;

    fn cpu() -> Device {
        let sources = Sources::from_env([("STEPMESH_BACKEND", "cpu")]);
        let config = Config::load(&sources).unwrap().config;
        let backend = stepmesh_core::Backend::open(&config).unwrap();
        backend.device(0).unwrap()
    }

    /// The layer, and the rows of the real model that it is to be computed of.
    fn layer(device: &Device) -> (Layer, Vec<f32>, Vec<f32>) {
        let input = Input::open(&layer_path()).unwrap();
        let lazy = LazyDevice::open(device, Options::default()).unwrap();
        let layer = Layer::read(&input, lazy).unwrap();
        let x = input.matrix("ffn_in", None, Some(layer.width)).unwrap();
        let reference = input.matrix("ffn_out", Some(x.nrows()), None).unwrap();
        let values = |matrix: ndarray::Array2<f32>| matrix.into_raw_vec_and_offset().0;
        (layer, values(x), values(reference))
    }

    fn largest_error(found: &[f32], wanted: &[f32]) -> f32 {
        assert_eq!(found.len(), wanted.len());
        let errors = found.iter().zip(wanted).map(|(a, b)| (a - b).abs());
        errors.fold(0.0, f32::max)
    }

    #[test]
    fn the_real_layer_gives_the_reference_of_the_real_model() {
        let (layer, x, reference) = layer(&cpu());
        let dims = [x.len() / layer.width, layer.width];
        let x = layer.device.from_slice(&dims, &x).unwrap();
        let y = layer.forward(&x).unwrap().to_vec::<f32>().unwrap();
        let largest = largest_error(&y, &reference);
        assert!(largest < 2e-5, "{largest}");
        assert!(y.iter().all(|value| value.is_finite()));
        // Every operation of it is the backend's.
        assert_eq!(layer.device.fallbacks(), []);
    }

    #[test]
    fn batches_are_computed_where_they_lie_and_do_not_depend_on_each_other() {
        let device = cpu();
        let (layer, x, reference) = layer(&device);
        let width = layer.width;
        let slots = Tensor::from_slice(&device, &[7, width as u64], &x[..7 * width]).unwrap();
        let answers = Tensor::empty(&device, DType::F32, &[7, width as u64]).unwrap();
        let parts = [(0, 3), (3, 0), (3, 4)];
        let cut = |of: &Tensor| parts.map(|(start, count)| of.rows(start, count).unwrap());
        let (pushed, own) = (cut(&slots), cut(&answers));
        assert!(Arc::ptr_eq(pushed[0].buffer(), slots.buffer()));
        for _ in 0..2 {
            layer.forward_into(&pushed.each_ref(), &own).unwrap();
        }
        let y = answers.to_vec::<f32>().unwrap();
        let largest = largest_error(&y, &reference[..7 * width]);
        assert!(largest < 2e-5, "{largest}");
        let metrics = layer.device.metrics();
        assert_eq!(metrics.counter(Counter::UncachedCompile), 1);
        // The weights, once.
        assert_eq!(metrics.counter(Counter::SyncTensorsToData), 4);
        layer.forward_into(&[], &[]).unwrap();
    }
}
