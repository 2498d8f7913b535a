//! Lazy tensors on any StepMesh backend: operations are traced, and the graph that comes of them is
//! compiled once, by whichever plugin the backend is, and executed on the device's own memory.
//!
//! Choices that hold for the whole crate:
//! - Nothing runs until a value is read ([`LazyTensor::to_vec`]) or a step ends
//!   ([`LazyDevice::step`]). Then everything that is traced and alive is one graph.
//! - A graph is found again by its *canonical form*: operations, attributes, operands by number, types
//!   of the leaves. Forms are compared, not only hashed; which data a leaf holds is no part of one,
//!   and a number in a formula is a leaf. So other data and other numbers are the same graph, and
//!   no two different graphs are ever taken for one.
//! - Every compilation after the first is explained ([`LazyDevice::recompilations`]) with the line
//!   of the program that made it necessary.
//! - An operation that the backend lacks is computed by the cpu backend, only where
//!   [`Options::fallback`] allows it, and is reported ([`LazyDevice::fallbacks`]).
//! - Shapes broadcast and types promote as in PyTorch; what does not fit is an error of the call that
//!   traced it.
//! - What a backend must do is the trait [`LazyBackend`], which has every method of PyTorch's
//!   `torch::lazy::BackendImplInterface`; [`StepMeshBackend`] is the one over `stepmesh-core`.
//!
//! # Example
//! ```
//! use std::sync::Arc;
//! use stepmesh_core::{Backend, config::{Config, Sources}};
//! use stepmesh_lazy::{DType, Error, LazyDevice, Options};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let sources = Sources::from_env([("STEPMESH_BACKEND", "cpu")]);
//! let backend = Backend::open(&Config::load(&sources)?.config)?;
//! let device = LazyDevice::open(&backend.device(0)?, Options::default())?;
//!
//! // A layer, and memory that somebody else fills: a slot that a mesh received into, say.
//! let w = device.from_slice(&[2, 3], &[1.0_f32, 0.0, 1.0, 0.0, 1.0, 0.0])?;
//! let bias = device.from_slice(&[2], &[0.5_f32, -10.0])?;
//! let slot = Arc::new(backend.device(0)?.alloc(3 * 4)?);
//! let answer = Arc::new(backend.device(0)?.alloc(2 * 4)?);
//!
//! for request in 0..3_u8 {
//!     let hidden: Vec<u8> = [f32::from(request); 3].iter().flat_map(|x| x.to_le_bytes()).collect();
//!     slot.write_bytes(0, &hidden)?;
//!
//!     let x = device.wrap_buffer(&slot, 0, &[1, 3], DType::F32)?; // no copy
//!     let y = x.linear(&w, Some(&bias))?.relu()?; // nothing runs yet
//!     y.write_into(&answer, 0)?; // compiled in the first round, found in the others
//!     y.wait()?;
//!     assert_eq!(y.to_vec::<f32>()?, [2.0 * f32::from(request) + 0.5, 0.0]);
//! }
//!
//! // A training loop: one graph a step, the new weights in the memory of the old ones.
//! let mut v = device.from_slice(&[2], &[1.0_f32, 2.0])?;
//! for _ in 0..3 {
//!     v = device.step(move |_| &v - &v * 0.5)?;
//! }
//! assert_eq!(v.to_vec::<f32>()?, [0.125, 0.25]);
//! # Ok(())
//! # }
//! ```
//!
//! # Threads
//! Every type may be used from any thread. Launches of one device take turns; each device has one
//! stream, so what is launched later sees what was launched before. A step computes all that is
//! traced and alive on its device, that of other threads too: values are the same either way.
//!
//! # Errors
//! What does not fit is an error where it is traced. A graph that does not compile leaves its tensors
//! as they were. A failure on the device is told to whoever waits for one of the values, to whoever
//! uses one later, and, if nobody did, to the next step ([`Error::Execution`], [`Error::Poisoned`]).
//!
//! # Cleaning up
//! Memory of a value goes back to the device's pool with its last handle, also while launches use it:
//! they are before everything that takes it next. [`LazyDevice::clear_computation_cache`] gives back
//! what is cached.
//!
//! # What it does not do
//! It starts no threads (executions are as asynchronous as the backend's streams are), differentiates
//! nothing, and moves nothing between devices by itself.
#![forbid(unsafe_code)]

mod backend;
mod broadcast;
mod cache;
mod element;
mod engine;
mod error;
mod ir;
mod metrics;
mod promote;
mod shape;
mod stepmesh_backend;
mod tensor;

pub use backend::{
    BackendData, BackendDataPtr, BackendDevice, BackendDeviceType, BackendDevices, BackendPtr,
    BackendRegistrar, Computation, ComputationPtr, DeviceDataInfo, FallbackDevice, IrBuilder,
    LazyBackend, LoweringContext, Origin, VirtualDevice, get_backend, has_backend,
};
pub use broadcast::broadcast_shapes;
pub use element::{Element, ElementBytes, HostTensor, Scalar};
pub use engine::{
    BakeScalars, Difference, DifferenceKind, Fallback, FallbackPolicy, FallbackReport, LazyDevice,
    MemoryReport, Options, PendingStep, Recompilation, Step,
};
pub use error::Error;
pub use ir::{
    EmissionMap, EmitStatus, Node, NodeKind, NodePtr, Operands, ir_dot, ir_text, post_order,
};
pub use metrics::{Counter, Metric, Metrics};
pub use promote::{Category, promote_types, result_type};
pub use shape::Shape;
pub use stepmesh_backend::{BackendOptions, GraphLowering, StepMeshBackend};
pub use stepmesh_graph::{CompareDirection, CompileOptions, DType, OpKind, TensorType};
pub use tensor::{LazyTensor, Operand};

/// Compiles the examples of the page about lazy tensors.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/lazy.md")]
struct LazyDocument;
