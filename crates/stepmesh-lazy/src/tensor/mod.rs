//! Lazy tensors: what one is, how it is read. Operations are in the modules below.

mod arrange;
mod elementwise;
mod operators;
mod reduce;

use std::fmt;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stepmesh_core::Buffer;
use stepmesh_graph::{DType, TensorType};

use crate::backend::text_of_graph;
use crate::engine::DeviceContext;
use crate::ir::{NodePtr, ir_dot, ir_text};
use crate::metrics::Counter;
use crate::{BackendDataPtr, Element, Error, HostTensor, LazyDevice};

pub use elementwise::Operand;

/// A tensor that is computed when it is needed. Clones are cheap and are the same tensor.
///
/// It is in one of three states: traced (an operation on other tensors), data on the device (which
/// may still be on its way), or data of the host that was not copied yet. Reading it, or the end of
/// a step, makes data of what is traced. Any thread may use it.
#[derive(Clone)]
pub struct LazyTensor {
    inner: Arc<TensorInner>,
}

/// What the handles of a tensor share.
#[derive(Debug)]
pub(crate) struct TensorInner {
    id: u64,
    slot: usize,
    ty: TensorType,
    context: Arc<DeviceContext>,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    Traced(NodePtr),
    /// The leaf is kept, so that all uses of the tensor are one parameter.
    Data(BackendDataPtr, Option<NodePtr>),
    Host(HostTensor),
}

impl LazyTensor {
    pub(crate) fn from_node(context: &Arc<DeviceContext>, node: NodePtr) -> Self {
        let ty = node.ty();
        let state = match node.device_data().cloned() {
            Some(data) => State::Data(data, Some(node)),
            None => State::Traced(node),
        };
        Self::new(context, ty, state)
    }

    pub(crate) fn from_data(context: &Arc<DeviceContext>, data: BackendDataPtr) -> Self {
        Self::new(context, data.ty(), State::Data(data, None))
    }

    pub(crate) fn from_host(context: &Arc<DeviceContext>, tensor: HostTensor) -> Self {
        Self::new(context, tensor.ty(), State::Host(tensor))
    }

    fn new(context: &Arc<DeviceContext>, ty: TensorType, state: State) -> Self {
        context.metrics().count(Counter::CreateLtcTensor);
        let inner = Arc::new_cyclic(|weak| TensorInner {
            id: context.next_id(),
            slot: context.live().enter(weak),
            ty,
            context: Arc::clone(context),
            state: Mutex::new(state),
        });
        Self { inner }
    }

    pub(crate) fn of(inner: Arc<TensorInner>) -> Self {
        Self { inner }
    }

    pub(crate) fn inner(&self) -> &Arc<TensorInner> {
        &self.inner
    }

    pub(crate) fn into_inner(self) -> Arc<TensorInner> {
        self.inner
    }

    pub(crate) fn is_of(&self, context: &Arc<DeviceContext>) -> bool {
        Arc::ptr_eq(&self.inner.context, context)
    }

    fn context(&self) -> &Arc<DeviceContext> {
        &self.inner.context
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> LazyDevice {
        LazyDevice::of(&self.inner.context)
    }

    /// A number that no other tensor of the device has.
    #[must_use]
    pub fn unique_id(&self) -> u64 {
        self.inner.id
    }

    /// Type and shape.
    #[must_use]
    pub fn ty(&self) -> TensorType {
        self.inner.ty
    }

    /// Type of the elements.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.inner.ty.dtype()
    }

    /// Extents.
    #[must_use]
    pub fn dims(&self) -> Vec<usize> {
        self.inner.ty.shape().dims().to_vec()
    }

    /// Number of dimensions.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.inner.ty.shape().rank()
    }

    /// Number of elements.
    #[must_use]
    pub fn element_count(&self) -> usize {
        self.inner.ty.shape().element_count()
    }

    /// Whether it is traced only.
    #[must_use]
    pub fn is_traced(&self) -> bool {
        matches!(*self.inner.state(), State::Traced(_))
    }

    /// The node of the tensor's value; data of the host is copied to the device for it.
    ///
    /// # Errors
    /// `Backend` when the copy fails.
    #[track_caller]
    pub fn ir_value(&self) -> Result<NodePtr, Error> {
        self.node(Location::caller())
    }

    pub(crate) fn node(&self, location: &'static Location<'static>) -> Result<NodePtr, Error> {
        let mut state = self.inner.state();
        if let State::Host(tensor) = &*state {
            let data = self.context().upload(tensor)?;
            self.context().metrics().count(Counter::SyncTensorsToData);
            *state = State::Data(data, None);
        }
        match &mut *state {
            State::Traced(node) => Ok(Arc::clone(node)),
            State::Data(data, leaf) => Ok(Arc::clone(leaf.get_or_insert_with(|| {
                let context = self.context();
                context
                    .builder()
                    .make_device_data(context.origin(location), data)
            }))),
            State::Host(_) => Err(Error::NoValue { ty: self.inner.ty }),
        }
    }

    /// The data on the device, launched if need be; it may still be on its way.
    ///
    /// # Errors
    /// `Backend`, `TooManyCompiles`.
    #[track_caller]
    pub fn data(&self) -> Result<BackendDataPtr, Error> {
        if self.is_traced() {
            self.context().sync_tensors(&[self])?;
        }
        let node = self.node(Location::caller())?;
        match node.device_data() {
            Some(data) => Ok(Arc::clone(data)),
            // Somebody assigned to it meanwhile.
            None => Err(Error::NoValue { ty: self.inner.ty }),
        }
    }

    /// Computes it, waits, and copies it to the host.
    ///
    /// # Errors
    /// `Execution` and `Poisoned` when it could not be computed, `Timeout`, `Backend`,
    /// `TooManyCompiles`.
    #[track_caller]
    pub fn to_host(&self) -> Result<HostTensor, Error> {
        if let State::Host(tensor) = &*self.inner.state() {
            return Ok(tensor.clone());
        }
        self.context().download(&self.data()?)
    }

    /// Computes it, waits, and copies its elements to the host.
    ///
    /// # Errors
    /// As for [`LazyTensor::to_host`]; `Elements` if they are of another type.
    #[track_caller]
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, Error> {
        self.to_host()?.to_vec()
    }

    /// The element of a tensor that has just one.
    ///
    /// # Errors
    /// As for [`LazyTensor::to_vec`]; `Elements` if it has more or none.
    #[track_caller]
    pub fn item<T: Element>(&self) -> Result<T, Error> {
        match self.to_vec()?.as_slice() {
            [element] => Ok(*element),
            other => {
                let fault = format!("a tensor of {} elements is not one number", other.len());
                Err(Error::elements("item", fault))
            }
        }
    }

    /// Computes it and waits until it is there.
    ///
    /// # Errors
    /// As for [`LazyTensor::to_host`].
    #[track_caller]
    pub fn wait(&self) -> Result<(), Error> {
        self.data()?.wait()
    }

    /// Computes it into memory of the caller's, from `offset_bytes` on; does not wait, see
    /// [`LazyTensor::wait`]. The tensor is then that memory, which must not be written to while it is
    /// used.
    ///
    /// # Errors
    /// `Elements` unless it fits there, `ForeignValue` for memory of another device, and as for
    /// [`LazyTensor::data`].
    #[track_caller]
    pub fn write_into(&self, buffer: &Arc<Buffer>, offset_bytes: u64) -> Result<(), Error> {
        self.context().sync_into(&[(self, buffer, offset_bytes)])
    }

    /// Computes it, waits, and gives out the memory that holds it, with the offset in bytes.
    ///
    /// # Errors
    /// As for [`LazyTensor::to_host`].
    #[track_caller]
    pub fn to_buffer(&self) -> Result<(Arc<Buffer>, u64), Error> {
        let data = self.data()?;
        self.context().stepmesh("to_buffer")?.buffer_of(&data)
    }

    /// Makes it the value of another tensor, as an operation in place does. Tensors that were traced
    /// of it keep its value of before.
    ///
    /// # Errors
    /// `ForeignValue` for a tensor of another device, `Operation` if the types differ.
    #[track_caller]
    pub fn assign(&self, other: &Self) -> Result<(), Error> {
        let location = Location::caller();
        self.check_device("assign", other)?;
        if other.inner.ty != self.inner.ty {
            return Err(Error::Operation {
                op: "assign",
                location,
                fault: format!("{} cannot become {}", self.inner.ty, other.inner.ty),
            });
        }
        let node = other.node(location)?;
        let state = match node.device_data().cloned() {
            Some(data) => State::Data(data, Some(node)),
            None => State::Traced(node),
        };
        let before = std::mem::replace(&mut *self.inner.state(), state);
        // Outside of the lock: long chains may end with it.
        drop(before);
        Ok(())
    }

    /// What is traced of it, as text.
    ///
    /// # Errors
    /// As for [`LazyTensor::ir_value`].
    pub fn ir_text(&self) -> Result<String, Error> {
        Ok(ir_text(&[self.ir_value()?]))
    }

    /// What is traced of it, for Graphviz.
    ///
    /// # Errors
    /// As for [`LazyTensor::ir_value`].
    pub fn ir_dot(&self) -> Result<String, Error> {
        Ok(ir_dot(&[self.ir_value()?]))
    }

    /// What is traced of it, in a format of [`LazyBackend::computation_text`]: `graph`, `stablehlo`,
    /// `plan`, `source`. The last two are of a graph that is compiled for this, and not kept.
    ///
    /// # Errors
    /// As for [`LazyTensor::ir_value`], and as for [`LazyBackend::computation_text`].
    ///
    /// [`LazyBackend::computation_text`]: crate::LazyBackend::computation_text
    pub fn computation_text(&self, format: &str) -> Result<String, Error> {
        let context = self.context();
        let backend = context.backend();
        let mut lowering = backend.create_lowering_context("text", &context.device())?;
        lowering.add_result(&self.ir_value()?)?;
        let computation = lowering.build()?;
        if let Some(text) = text_of_graph(&computation, format) {
            return Ok(text);
        }
        // Before it is compiled for nothing.
        if let Err(error @ Error::UnknownFormat { .. }) =
            backend.computation_text(&computation, format)
        {
            return Err(error);
        }
        match &backend.compile(vec![computation])?[..] {
            [compiled] => backend.computation_text(compiled, format),
            _ => Err(Error::lowering("computation_text", "it was not compiled")),
        }
    }

    fn check_device(&self, operation: &'static str, other: &Self) -> Result<(), Error> {
        if self.is_of(&other.inner.context) {
            return Ok(());
        }
        Err(self.context().foreign_value(operation, other.context()))
    }
}

impl fmt::Debug for LazyTensor {
    /// Not its value: that might have to be computed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &*self.inner.state() {
            State::Traced(_) => "traced",
            State::Data(..) => "data",
            State::Host(_) => "on the host",
        };
        let device = self.context().describe();
        write!(f, "LazyTensor({}, {state}, {device})", self.inner.ty)
    }
}

impl TensorInner {
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// The node, if it is traced only.
    pub(crate) fn traced(&self) -> Option<NodePtr> {
        match &*self.state() {
            State::Traced(node) => Some(Arc::clone(node)),
            State::Data(..) | State::Host(_) => None,
        }
    }

    /// Bytes of device memory, if it has some.
    pub(crate) fn held_len_bytes(&self) -> Option<usize> {
        match &*self.state() {
            State::Data(data, _) => Some(data.len_bytes()),
            State::Traced(_) | State::Host(_) => None,
        }
    }

    /// Takes note that the value of a node is now data, unless it became another tensor meanwhile.
    pub(crate) fn computed(&self, root: &NodePtr, data: &BackendDataPtr) {
        let mut state = self.state();
        let before = match &*state {
            State::Traced(node) | State::Data(_, Some(node)) if Arc::ptr_eq(node, root) => {
                std::mem::replace(&mut *state, State::Data(Arc::clone(data), None))
            }
            _ => return,
        };
        drop(state);
        drop(before);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for TensorInner {
    fn drop(&mut self) {
        self.context.live().leave(self.slot);
        self.context.metrics().count(Counter::DestroyLtcTensor);
    }
}
