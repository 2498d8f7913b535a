//! The table of `stepmesh.compute.v1`, made of a backend's [`Compute`].
#![expect(unsafe_code, reason = "functions of the C table")]

use std::ffi::c_char;
use std::sync::Arc;

use stepmesh_abi::compute::{SM_COMPUTE_RANK_MAX, SmExecutable};
use stepmesh_abi::{
    SmBackend, SmCompileOptions, SmComputeV1, SmError, SmExecutableInfo, SmFingerprint, SmGraph,
    SmHdr, SmTensorInfo,
};
use stepmesh_graph::{CompileOptions, DType, Graph, OpKind, TensorType, TextForm};

use super::blob::{self, Blob};
use super::{Compute, read};
use crate::boundary::{Struct, Value, read_sized};
use crate::instance::{Instance, Phase, slot};
use crate::{Error, Extension, Result, Stream};

impl Extension {
    /// The table of `stepmesh.compute.v1`.
    #[must_use]
    pub fn compute<B: Compute>() -> Self {
        Self::new(const { &compute_table::<B>() }, 1)
    }
}

const fn compute_table<B: Compute>() -> SmComputeV1 {
    SmComputeV1 {
        hdr: SmHdr::of::<SmComputeV1>(),
        supported_ops: Some(supported_ops::<B>),
        compile: Some(compile::<B>),
        execute: Some(execute::<B>),
        executable_info: Some(executable_info::<B>),
        executable_text: Some(executable_text::<B>),
        serialize: Some(serialize::<B>),
        deserialize: Some(deserialize::<B>),
        fingerprint: Some(fingerprint::<B>),
        executable_destroy: Some(executable_destroy::<B>),
    }
}

/// What an `SmExecutable*` points to.
struct ExecutableBox<B: Compute> {
    owner: usize,
    device: u32,
    graph: Arc<Graph>,
    options: CompileOptions,
    params: Vec<SmTensorInfo>,
    results: Vec<SmTensorInfo>,
    executable: Arc<B::Executable>,
}

impl<B: Compute> ExecutableBox<B> {
    fn new(
        instance: &Instance<B>,
        device: u32,
        graph: Arc<Graph>,
        options: CompileOptions,
        executable: B::Executable,
    ) -> Self {
        let mut params: Vec<_> = graph.param_types().map(tensor_info).collect();
        let mut results: Vec<_> = graph.result_types().map(tensor_info).collect();
        for (number, param) in (0..).zip(&mut params) {
            let alias = graph.aliases().iter().find(|alias| alias.param == number);
            param.alias = alias.map_or(-1, |alias| to_alias(alias.result));
        }
        for (number, result) in (0..).zip(&mut results) {
            let alias = graph.aliases().iter().find(|alias| alias.result == number);
            result.alias = alias.map_or(-1, |alias| to_alias(alias.param));
        }
        Self {
            owner: instance.address(),
            device,
            graph,
            options,
            params,
            results,
            executable: Arc::new(executable),
        }
    }

    fn info(&self, instance: &Instance<B>) -> SmExecutableInfo {
        // Bounded by SM_COMPUTE_OPERANDS_MAX, which the graph was checked against.
        let count = |list: &[SmTensorInfo]| u32::try_from(list.len()).unwrap_or(0);
        SmExecutableInfo {
            hdr: SmHdr::of::<SmExecutableInfo>(),
            params: self.params.as_ptr(),
            results: self.results.as_ptr(),
            n_params: count(&self.params),
            n_results: count(&self.results),
            scratch_len_bytes: instance.backend.scratch_len_bytes(&self.executable),
        }
    }
}

fn tensor_info(ty: TensorType) -> SmTensorInfo {
    let mut dims = [0; SM_COMPUTE_RANK_MAX as usize];
    for (to, from) in dims.iter_mut().zip(ty.shape().dims()) {
        *to = *from as u64;
    }
    SmTensorInfo {
        hdr: SmHdr::of::<SmTensorInfo>(),
        dtype: ty.dtype().number(),
        rank: u32::try_from(ty.shape().rank()).unwrap_or(0),
        dims,
        len_bytes: ty.len_bytes() as u64,
        alias: -1,
        pad0: 0,
    }
}

fn to_alias(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(-1)
}

/// The executable of an argument.
///
/// # Safety
/// - `raw` is null or a live executable made by an instance of `B`, and stays live for `'a`.
unsafe fn executable<'a, B: Compute>(raw: *mut SmExecutable) -> Option<&'a ExecutableBox<B>> {
    // SAFETY: this function's contract; a live executable is an `ExecutableBox<B>`, shared only.
    unsafe { raw.cast::<ExecutableBox<B>>().as_ref() }
}

fn own<'a, B: Compute>(
    instance: &Instance<B>,
    executable: Option<&'a ExecutableBox<B>>,
) -> Result<&'a ExecutableBox<B>> {
    let executable = executable.ok_or_else(|| Error::invalid_argument("the executable is null"))?;
    if executable.owner != instance.address() {
        return Err(Error::invalid_argument(
            "the executable belongs to another instance",
        ));
    }
    Ok(executable)
}

unsafe extern "C" fn supported_ops<B: Compute>(
    s: *mut SmBackend,
    dev: u32,
    op: u32,
    dtype: u32,
    supported: *mut u32,
    err: *mut SmError,
) -> i32 {
    let work = |i: &Instance<B>| {
        let dev = i.check_device(dev)?;
        Ok(match (OpKind::from_number(op), DType::from_number(dtype)) {
            (Some(op), Some(dtype)) => u32::from(is_supported(i, dev, op, dtype)),
            _ => 0,
        })
    };
    let out = Value(supported);
    // SAFETY: the table's contract for the instance, the out pointer and `err`.
    unsafe { slot::<B, _>(s, err, "compute.supported_ops", Phase::Open, out, work) }
}

fn is_supported<B: Compute>(i: &Instance<B>, dev: u32, op: OpKind, dtype: DType) -> bool {
    op.allows(dtype) && i.backend.supports(dev, op, dtype)
}

/// Refuses a graph with a node that the device does not do, naming it.
fn check_supported<B: Compute>(i: &Instance<B>, dev: u32, graph: &Graph) -> Result<()> {
    let lacking = graph.first_unsupported(|op, dtype| is_supported(i, dev, op, dtype));
    let Some((id, dtype)) = lacking else {
        return Ok(());
    };
    let node = graph.node(id);
    let at = node.location().map(|at| format!(" ({at})"));
    let why = i.backend.why_unsupported(dev, node.kind(), dtype);
    let why = why.map(|why| format!(": {why}"));
    Err(Error::unimplemented(format!(
        "backend `{}` has no {} for {dtype}, which node {}{} needs{}",
        B::NOTE.name,
        node.kind(),
        id.0,
        at.unwrap_or_default(),
        why.unwrap_or_default()
    )))
}

unsafe extern "C" fn compile<B: Compute>(
    s: *mut SmBackend,
    dev: u32,
    graph: *const SmGraph,
    options: *const SmCompileOptions,
    out: *mut *mut SmExecutable,
    err: *mut SmError,
) -> i32 {
    let work = |i: &Instance<B>| {
        let dev = i.check_device(dev)?;
        // SAFETY: the table's contract: the caller's graph, alive during the call.
        let graph = Arc::new(unsafe { read::graph(graph)? });
        // SAFETY: the table's contract: null or the caller's options.
        let options = unsafe { read_options(options)? };
        check_supported(i, dev, &graph)?;
        let executable = i.backend.compile(dev, &graph, &options)?;
        let executable = ExecutableBox::new(i, dev, graph, options, executable);
        Ok(i.add_object(executable).cast())
    };
    // SAFETY: the table's contract for the instance, the out pointer and `err`.
    unsafe { slot::<B, _>(s, err, "compute.compile", Phase::Open, Value(out), work) }
}

/// # Safety
/// - `from` is null or valid for the `hdr.struct_size` bytes that it starts with saying.
unsafe fn read_options(from: *const SmCompileOptions) -> Result<CompileOptions> {
    let mut raw = SmCompileOptions::new();
    if !from.is_null() {
        // SAFETY: not null, this function's contract; numbers only.
        unsafe { read_sized(from, &mut raw)? };
    }
    CompileOptions::from_flags(raw.flags, raw.threads_max).ok_or_else(|| {
        Error::invalid_argument(format!("compile flags {:#x} are not all known", raw.flags))
    })
}

unsafe extern "C" fn execute<B: Compute>(
    s: *mut SmBackend,
    raw: *mut SmExecutable,
    args: *const u64,
    n_args: u32,
    outs: *const u64,
    n_outs: u32,
    stream_dev: u32,
    stream: u64,
    err: *mut SmError,
) -> i32 {
    // SAFETY: the table's contract: null or a live executable.
    let executable = unsafe { executable::<B>(raw) };
    let work = |i: &Instance<B>| {
        let executable = own(i, executable)?;
        let stream = Stream::from_raw(i.check_device(stream_dev)?, stream)?;
        if stream.device != executable.device {
            return Err(Error::invalid_argument(format!(
                "the executable is for device {}, the stream of device {}",
                executable.device, stream.device
            )));
        }
        // SAFETY: the table's contract: null or as many numbers as the count says.
        let args = unsafe { addresses(args, n_args, &executable.params, "argument")? };
        // SAFETY: as above.
        let outs = unsafe { addresses(outs, n_outs, &executable.results, "result")? };
        // SAFETY: the table's contract for what is at the addresses; counts, nulls and alignment
        // were checked.
        unsafe {
            i.backend
                .execute(&executable.executable, args, outs, stream)
        }
    };
    // SAFETY: the table's contract for the instance and `err`.
    unsafe { slot::<B, _>(s, err, "compute.execute", Phase::Open, (), work) }
}

/// The addresses of an argument list, as many as there are tensors, none of them null or askew.
///
/// # Safety
/// - `first` is null or valid for `count` numbers, for `'a`.
unsafe fn addresses<'a>(
    first: *const u64,
    count: u32,
    wanted: &[SmTensorInfo],
    what: &str,
) -> Result<&'a [u64]> {
    if usize::try_from(count) != Ok(wanted.len()) || (count > 0 && first.is_null()) {
        return Err(Error::invalid_argument(format!(
            "{count} {what}s at {first:p}, the executable has {}",
            wanted.len()
        )));
    }
    if count == 0 {
        return Ok(&[]);
    }
    if !first.is_aligned() {
        return Err(Error::invalid_argument(format!("the {what}s are askew")));
    }
    // SAFETY: not null, aligned, and `count` numbers by this function's contract.
    let list = unsafe { std::slice::from_raw_parts(first, wanted.len()) };
    for (number, (address, tensor)) in list.iter().zip(wanted).enumerate() {
        let dtype = DType::from_number(tensor.dtype);
        let align = dtype.map_or(1, DType::size_bytes) as u64;
        let is_missing = *address == 0 && tensor.len_bytes > 0;
        let is_beyond = address.checked_add(tensor.len_bytes).is_none();
        if is_missing || is_beyond || address % align != 0 {
            return Err(Error::invalid_argument(format!(
                "{what} {number} is at {address:#x}, where {} bytes aligned to {align} must be",
                tensor.len_bytes
            )));
        }
    }
    Ok(list)
}

unsafe extern "C" fn executable_info<B: Compute>(
    s: *mut SmBackend,
    raw: *mut SmExecutable,
    out: *mut SmExecutableInfo,
    err: *mut SmError,
) -> i32 {
    // SAFETY: the table's contract: null or a live executable.
    let executable = unsafe { executable::<B>(raw) };
    let work = |i: &Instance<B>| Ok(own(i, executable)?.info(i));
    let name = "compute.executable_info";
    // SAFETY: the table's contract for the instance, the out struct and `err`.
    unsafe { slot::<B, _>(s, err, name, Phase::Open, Struct(out), work) }
}

unsafe extern "C" fn executable_text<B: Compute>(
    s: *mut SmBackend,
    raw: *mut SmExecutable,
    form: u32,
    buf: *mut c_char,
    cap: u64,
    len: *mut u64,
    err: *mut SmError,
) -> i32 {
    // SAFETY: the table's contract: null or a live executable.
    let executable = unsafe { executable::<B>(raw) };
    let work = |i: &Instance<B>| {
        let form = TextForm::from_number(form)
            .ok_or_else(|| Error::invalid_argument(format!("text of form {form} is unknown")))?;
        let text = i.backend.text(&own(i, executable)?.executable, form)?;
        // SAFETY: the table's contract: null or room for `cap` bytes.
        unsafe { give(text.as_bytes(), buf.cast(), cap) }
    };
    let name = "compute.executable_text";
    // SAFETY: the table's contract for the instance, the out pointer and `err`.
    unsafe { slot::<B, _>(s, err, name, Phase::Open, Value(len), work) }
}

unsafe extern "C" fn serialize<B: Compute>(
    s: *mut SmBackend,
    raw: *mut SmExecutable,
    buf: *mut u8,
    cap: u64,
    len: *mut u64,
    err: *mut SmError,
) -> i32 {
    // SAFETY: the table's contract: null or a live executable.
    let executable = unsafe { executable::<B>(raw) };
    let work = |i: &Instance<B>| {
        let executable = own(i, executable)?;
        let blob = Blob {
            fingerprint: fingerprint_of(i, executable.device)?,
            options: executable.options,
            graph: Arc::clone(&executable.graph),
            payload: i.backend.serialize(&executable.executable)?,
        };
        // SAFETY: the table's contract: null or room for `cap` bytes.
        unsafe { give(&blob.write(), buf, cap) }
    };
    // SAFETY: the table's contract for the instance, the out pointer and `err`.
    unsafe { slot::<B, _>(s, err, "compute.serialize", Phase::Open, Value(len), work) }
}

/// Writes as much as there is room for, and gives the length of the whole.
///
/// # Safety
/// - `buf` is null or valid for `cap` bytes.
unsafe fn give(bytes: &[u8], buf: *mut u8, cap: u64) -> Result<u64> {
    if cap > 0 && buf.is_null() {
        return Err(Error::invalid_argument(format!("{cap} bytes at null")));
    }
    let len = bytes.len().min(usize::try_from(cap).unwrap_or(usize::MAX));
    if len > 0 {
        // SAFETY: within `bytes` and within the caller's room, which are distinct.
        unsafe { bytes.as_ptr().copy_to_nonoverlapping(buf, len) };
    }
    Ok(bytes.len() as u64)
}

unsafe extern "C" fn deserialize<B: Compute>(
    s: *mut SmBackend,
    dev: u32,
    bytes: *const u8,
    len: u64,
    out: *mut *mut SmExecutable,
    err: *mut SmError,
) -> i32 {
    let work = |i: &Instance<B>| {
        let dev = i.check_device(dev)?;
        let len = usize::try_from(len)
            .ok()
            .filter(|len| isize::try_from(*len).is_ok());
        let len = len.ok_or_else(|| Error::invalid_argument("too many bytes"))?;
        if bytes.is_null() {
            return Err(Error::invalid_argument("the bytes are null"));
        }
        // SAFETY: the table's contract: `len` bytes, not changed during the call; not null.
        let bytes = unsafe { std::slice::from_raw_parts(bytes, len) };
        let blob = Blob::read(bytes, fingerprint_of(i, dev)?)?;
        check_supported(i, dev, &blob.graph)?;
        let Blob { graph, options, .. } = blob;
        let executable = i
            .backend
            .deserialize(dev, &graph, &options, &blob.payload)?;
        let executable = ExecutableBox::new(i, dev, graph, options, executable);
        Ok(i.add_object(executable).cast())
    };
    // SAFETY: the table's contract for the instance, the out pointer and `err`.
    unsafe { slot::<B, _>(s, err, "compute.deserialize", Phase::Open, Value(out), work) }
}

unsafe extern "C" fn fingerprint<B: Compute>(
    s: *mut SmBackend,
    dev: u32,
    out: *mut SmFingerprint,
    err: *mut SmError,
) -> i32 {
    let work = |i: &Instance<B>| {
        let mut out = SmFingerprint::new();
        out.bytes = fingerprint_of(i, i.check_device(dev)?)?;
        Ok(out)
    };
    // SAFETY: the table's contract for the instance, the out struct and `err`.
    unsafe {
        slot::<B, _>(
            s,
            err,
            "compute.fingerprint",
            Phase::Open,
            Struct(out),
            work,
        )
    }
}

fn fingerprint_of<B: Compute>(i: &Instance<B>, dev: u32) -> Result<[u8; blob::FINGERPRINT_LEN]> {
    let compatibility = i.backend.compatibility(dev)?;
    Ok(blob::fingerprint(&[
        B::NOTE.name,
        B::NOTE.version,
        B::BUILD_ID,
        &compatibility,
    ]))
}

unsafe extern "C" fn executable_destroy<B: Compute>(
    s: *mut SmBackend,
    raw: *mut SmExecutable,
    err: *mut SmError,
) -> i32 {
    let work = |i: &Instance<B>| {
        if raw.is_null() || i.remove_object::<ExecutableBox<B>>(raw.addr()) {
            return Ok(());
        }
        Err(Error::invalid_argument(format!(
            "{raw:p} is no live executable of this instance; was it destroyed already?"
        )))
    };
    let name = "compute.executable_destroy";
    // SAFETY: the table's contract for the instance and `err`.
    unsafe { slot::<B, _>(s, err, name, Phase::Ending, (), work) }
}
