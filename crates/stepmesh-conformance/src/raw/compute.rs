//! The table of `stepmesh.compute.v1` as functions with checked arguments.
#![expect(unsafe_code, reason = "calls through the table of an extension")]

use std::ptr;

use stepmesh_abi::compute::SmExecutable;
use stepmesh_abi::extension::SM_EXTENSION_COMPUTE_V1;
use stepmesh_abi::{
    SmCompileOptions, SmComputeV1, SmExecutableInfo, SmFingerprint, SmGraph, SmHdr, SmNode,
    SmTensorInfo,
};
use stepmesh_graph::{Lowered, RawGraph};

use super::error_arg::{ErrorArg, ErrorMode};
use super::extensions::{call, copy_table};
use super::failure::Failure;
use super::progress;
use super::session::{Session, Stream};

/// `stepmesh.compute.v1` of an instance. Any thread may use it (class A).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Compute<'a> {
    session: &'a Session,
    table: SmComputeV1,
}

/// An executable. Any thread may use it (class A).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Executable(*mut SmExecutable);

// SAFETY: an executable is a handle that any thread may pass (class A).
unsafe impl Send for Executable {}
// SAFETY: as for `Send`.
unsafe impl Sync for Executable {}

impl Executable {
    pub(crate) const NULL: Self = Self(ptr::null_mut());
}

/// What `executable_info` said.
#[derive(Clone, Debug)]
pub(crate) struct Info {
    /// `None`: an array that cannot be.
    pub(crate) params: Option<Vec<SmTensorInfo>>,
    /// As `params`.
    pub(crate) results: Option<Vec<SmTensorInfo>>,
}

impl<'a> Compute<'a> {
    /// The extension, or why there is none.
    pub(crate) fn of(session: &'a Session) -> Result<Self, Failure> {
        let missing = SmComputeV1 {
            hdr: SmHdr::of::<SmComputeV1>(),
            supported_ops: None,
            compile: None,
            execute: None,
            executable_info: None,
            executable_text: None,
            serialize: None,
            deserialize: None,
            fingerprint: None,
            executable_destroy: None,
        };
        let table = copy_table(session, SM_EXTENSION_COMPUTE_V1, missing)?;
        Ok(Self { session, table })
    }

    pub(crate) fn supported(&self, dev: u32, op: u32, dtype: u32) -> Result<u32, Failure> {
        let mut supported = u32::MAX;
        call!(self.supported_ops(dev, op, dtype, &raw mut supported))?;
        Ok(supported)
    }

    pub(crate) fn compile(&self, dev: u32, graph: RawGraph) -> Result<Executable, Failure> {
        self.compile_with(dev, graph, SmCompileOptions::new())
    }

    pub(crate) fn compile_with(
        &self,
        dev: u32,
        graph: RawGraph,
        options: SmCompileOptions,
    ) -> Result<Executable, Failure> {
        let lowered = Lowered::new(graph);
        let graph = lowered.graph();
        let mut out = ptr::null_mut();
        call!(self.compile(dev, &raw const graph, &raw const options, &raw mut out))?;
        Ok(Executable(out))
    }

    /// Compiles structs that were spoilt: counts, sizes and null pointers. What is beyond a count is
    /// never there, so a plugin that goes by it dies of it.
    pub(crate) fn compile_spoilt(
        &self,
        dev: u32,
        graph: RawGraph,
        spoil: impl FnOnce(&mut SmGraph, &mut [SmNode]),
    ) -> Result<Executable, Failure> {
        let mut lowered = Lowered::new(graph);
        let mut graph = lowered.graph();
        spoil(&mut graph, lowered.nodes_mut());
        let mut out = ptr::null_mut();
        call!(self.compile(dev, &raw const graph, ptr::null(), &raw mut out))?;
        Ok(Executable(out))
    }

    pub(crate) fn compile_nothing(&self, dev: u32) -> Result<Executable, Failure> {
        let mut out = ptr::null_mut();
        call!(self.compile(dev, ptr::null(), ptr::null(), &raw mut out))?;
        Ok(Executable(out))
    }

    /// Executes on what is at the addresses; that it lives until the stream is done is the check's
    /// business.
    pub(crate) fn execute(
        &self,
        executable: Executable,
        args: &[u64],
        outs: &[u64],
        on: Stream,
    ) -> Result<(), Failure> {
        let count = |list: &[u64]| u32::try_from(list.len()).unwrap_or(u32::MAX);
        let (n_args, n_outs) = (count(args), count(outs));
        call!(self.execute(
            executable.0,
            args.as_ptr(),
            n_args,
            outs.as_ptr(),
            n_outs,
            on.dev,
            on.raw,
        ))
    }

    pub(crate) fn info(&self, executable: Executable) -> Result<Info, Failure> {
        let mut out = SmExecutableInfo::new();
        call!(self.executable_info(executable.0, &raw mut out))?;
        Ok(Info {
            params: tensors(out.params, out.n_params),
            results: tensors(out.results, out.n_results),
        })
    }

    /// Text with room for so many bytes; the length that it said, and what it wrote.
    pub(crate) fn text(
        &self,
        executable: Executable,
        form: u32,
        cap: usize,
    ) -> Result<(u64, Vec<u8>), Failure> {
        let (mut bytes, mut len) = (vec![FILLER; cap + 1], u64::MAX);
        let buf = bytes.as_mut_ptr().cast();
        let room = super::memory::wide(cap);
        call!(self.executable_text(executable.0, form, buf, room, &raw mut len))?;
        Ok((len, bytes))
    }

    /// The bytes of an executable with room for so many.
    pub(crate) fn serialize(
        &self,
        executable: Executable,
        cap: usize,
    ) -> Result<(u64, Vec<u8>), Failure> {
        let (mut bytes, mut len) = (vec![FILLER; cap + 1], u64::MAX);
        let buf = bytes.as_mut_ptr();
        let room = super::memory::wide(cap);
        call!(self.serialize(executable.0, buf, room, &raw mut len))?;
        Ok((len, bytes))
    }

    pub(crate) fn deserialize(&self, dev: u32, bytes: &[u8]) -> Result<Executable, Failure> {
        let mut out = ptr::null_mut();
        let len = super::memory::wide(bytes.len());
        call!(self.deserialize(dev, bytes.as_ptr(), len, &raw mut out))?;
        Ok(Executable(out))
    }

    pub(crate) fn fingerprint(&self, dev: u32) -> Result<[u8; 32], Failure> {
        let mut out = SmFingerprint::new();
        call!(self.fingerprint(dev, &raw mut out))?;
        Ok(out.bytes)
    }

    pub(crate) fn destroy(&self, executable: Executable) -> Result<(), Failure> {
        call!(self.executable_destroy(executable.0))
    }
}

/// The items of an array of the plugin's, if it can be one.
fn tensors(first: *const SmTensorInfo, count: u32) -> Option<Vec<SmTensorInfo>> {
    if count > 0 && (first.is_null() || !first.is_aligned()) {
        return None;
    }
    let mut items = Vec::new();
    let mut at = first;
    for _ in 0..count {
        // SAFETY: not null and aligned; by the ABI an item of the array, which starts with its header.
        let hdr = unsafe { at.cast::<SmHdr>().read() };
        let step = super::memory::narrow(hdr.struct_size.into());
        if step < size_of::<SmTensorInfo>() || !step.is_multiple_of(8) {
            return None;
        }
        // SAFETY: an item of the array that is at least this long.
        items.push(unsafe { at.read() });
        // SAFETY: at most the end of the array.
        at = unsafe { at.byte_add(step) };
    }
    Some(items)
}

/// What is in a buffer before a plugin writes to it, and behind its end for good.
pub(crate) const FILLER: u8 = 0xa5;
