//! push_pull with torch's tensors, in one call.
#![forbid(unsafe_code)]

use std::sync::Arc;

use stepmesh::{Handle, RequestOptions, Tensor, Worker};
use stepmesh_core::{Device, EventOptions};

use crate::{Error, device, from_torch};

/// A torch tensor under its key.
#[derive(Debug, Clone, Copy)]
pub struct Keyed<'a> {
    /// The key; unique among the tensors of one worker that are in flight together.
    pub key: u64,
    /// The tensor.
    pub tensor: &'a tch::Tensor,
}

impl<'a> Keyed<'a> {
    /// `tensor` under `key`.
    #[must_use]
    pub fn new(key: u64, tensor: &'a tch::Tensor) -> Self {
        Self { key, tensor }
    }
}

/// Pushes torch tensors to every server and pulls the answers into others, as
/// [`Worker::push_pull_with`] does with tensors of the mesh, and without a copy. Tensors of a GPU are
/// read once the work is done that torch's current stream has so far, unless `options` name an event.
///
/// The handle keeps the tensors' storages alive. Pulled tensors are complete when it was waited for.
///
/// # Errors
/// As for [`from_torch`], and [`Error::Mesh`].
pub fn push_pull(
    worker: &Worker,
    device: &Device,
    push: &[Keyed<'_>],
    pull: &[Keyed<'_>],
    mut options: RequestOptions,
) -> Result<Handle, Error> {
    if options.ready.is_none() && device::torch_device(device)?.is_cuda() {
        let event = device.create_event(EventOptions::default())?;
        event.record(&device.current_stream())?;
        options.ready = Some(Arc::new(event));
    }
    let (push_tensors, pull_tensors) = (shared(device, push)?, shared(device, pull)?);
    Ok(worker.push_pull_with(
        &keyed(push, &push_tensors),
        &keyed(pull, &pull_tensors),
        &options,
    )?)
}

fn shared(device: &Device, list: &[Keyed<'_>]) -> Result<Vec<Tensor>, Error> {
    list.iter()
        .map(|keyed| from_torch(device, keyed.tensor))
        .collect()
}

fn keyed<'t>(list: &[Keyed<'_>], tensors: &'t [Tensor]) -> Vec<stepmesh::Keyed<'t>> {
    let keys = list.iter().map(|keyed| keyed.key);
    keys.zip(tensors)
        .map(|(key, tensor)| stepmesh::Keyed::new(key, tensor))
        .collect()
}
