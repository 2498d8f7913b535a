//! The trait of a backend that compiles and executes graphs.
#![expect(
    unsafe_code,
    reason = "declares a method whose caller vouches for addresses"
)]

use std::sync::Arc;

use stepmesh_graph::{CompileOptions, DType, Graph, OpKind, TextForm};

use crate::{Backend, Error, Result, Stream};

/// A backend that compiles graphs of tensor operations and executes them on its streams. Offer it
/// with `Extension::compute` in [`Backend::extension`].
///
/// Graphs are valid when a method sees them, and made only of what [`Compute::supports`] said yes to;
/// the kit reads the ABI's structs, checks every count, index, attribute and shape, and answers
/// `SM_UNIMPLEMENTED` by itself, naming op, type and place. What each operation means is written at
/// its number in `stepmesh_abi::compute`.
///
/// The kit also keeps the graph with the executable, answers `executable_info` from it, and
/// serialises it: a backend for which compiling again is cheap enough needs neither
/// [`Compute::serialize`] nor [`Compute::deserialize`].
pub trait Compute: Backend {
    /// A compiled graph. Dropping it is `executable_destroy`; executions in flight hold it.
    type Executable: Send + Sync + 'static;

    /// Whether a device does an operation for a type: that of the value, but of the operand for
    /// `compare` and `argmax`; a cast is asked for both of its types. Only asked where
    /// [`OpKind::allows`] says yes.
    fn supports(&self, device: u32, op: OpKind, dtype: DType) -> bool;

    /// Why [`Compute::supports`] says no, where there is more to say than that: what is missing, and
    /// what to do about it. It becomes part of the error of a graph that needs the operation.
    fn why_unsupported(&self, device: u32, op: OpKind, dtype: DType) -> Option<String> {
        let _ = (device, op, dtype);
        None
    }

    /// Compiles a graph for a device.
    ///
    /// # Errors
    /// If memory or the vendor's compiler fails.
    fn compile(
        &self,
        device: u32,
        graph: &Arc<Graph>,
        options: &CompileOptions,
    ) -> Result<Self::Executable>;

    /// Queues an execution and returns. Addresses are by number; there are as many as the graph has
    /// parameters and results, aligned to the size of an element, and not 0 unless the value is
    /// empty. A result whose address is that of the argument donated to it replaces it. Clone the
    /// `Arc` into what is queued. A failure later on is the stream's.
    ///
    /// # Safety
    /// - Arguments are readable and results writable by the device, for as many bytes as their types
    ///   have, until the stream did the work.
    /// - No one writes arguments or uses results meanwhile. A result overlaps no argument and no
    ///   other result, but exactly the argument of its donation.
    ///
    /// # Errors
    /// If the stream is unknown, its queue is full, or memory for intermediate values runs out.
    unsafe fn execute(
        &self,
        executable: &Arc<Self::Executable>,
        args: &[u64],
        outs: &[u64],
        stream: Stream,
    ) -> Result<()>;

    /// Memory that one execution takes for intermediate values, in bytes; 0 if unknown.
    fn scratch_len_bytes(&self, executable: &Self::Executable) -> u64 {
        let _ = executable;
        0
    }

    /// Text about an executable, for people.
    ///
    /// # Errors
    /// `SM_UNIMPLEMENTED` for a form that there is not.
    fn text(&self, executable: &Self::Executable, form: TextForm) -> Result<String> {
        let _ = executable;
        Err(Error::unimplemented(format!(
            "backend `{}` has no text of form {form:?}",
            Self::NOTE.name
        )))
    }

    /// What beside the plugin's name, version and build decides where a serialised executable can be
    /// used: the architecture of the device, the version of a driver.
    ///
    /// # Errors
    /// If the device does not answer.
    fn compatibility(&self, device: u32) -> Result<String> {
        let _ = device;
        Ok(String::new())
    }

    /// What [`Compute::deserialize`] needs beside the graph; nothing by default.
    ///
    /// # Errors
    /// `SM_UNIMPLEMENTED` if there is no such thing.
    fn serialize(&self, executable: &Self::Executable) -> Result<Vec<u8>> {
        let _ = executable;
        Ok(Vec::new())
    }

    /// Makes an executable of a graph and of the bytes that [`Compute::serialize`] gave for it, by
    /// default by compiling again. Fingerprint and checksum were compared; that keeps accidents out,
    /// not malice.
    ///
    /// # Errors
    /// As [`Compute::compile`].
    fn deserialize(
        &self,
        device: u32,
        graph: &Arc<Graph>,
        options: &CompileOptions,
        bytes: &[u8],
    ) -> Result<Self::Executable> {
        let _ = bytes;
        self.compile(device, graph, options)
    }
}
