//! A compiled graph: what is known about it, and executing it on a stream.
#![expect(
    unsafe_code,
    reason = "calls the extension, and reads arrays that a plugin gave"
)]

use std::ffi::c_char;
use std::ptr::NonNull;
use std::sync::Arc;

use stepmesh_abi::compute::{SM_COMPUTE_OPERANDS_MAX, SM_COMPUTE_RANK_MAX, SmExecutable};
use stepmesh_abi::{SmBackend, SmError, SmExecutableInfo, SmHdr, SmTensorInfo};
use stepmesh_graph::{Alias, DType, Graph, Shape, TensorType, TextForm};

use super::host::Functions;
use crate::{Buffer, Device, Error, Stream, cleanup};

/// A graph that a device has compiled. Any thread may use it, several at once; share it in an `Arc`.
/// It may be dropped while executions are in flight.
#[derive(Debug)]
pub struct Executable {
    device: Device,
    functions: Functions,
    /// `None` once released.
    raw: Option<NonNull<SmExecutable>>,
    info: ExecutableInfo,
}

// SAFETY: the functions that take the handle are of class A, or end it and then have it to
// themselves.
unsafe impl Send for Executable {}
// SAFETY: as for `Send`.
unsafe impl Sync for Executable {}

/// What is known about an executable.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExecutableInfo {
    /// Types and shapes of the parameters by their number.
    pub params: Vec<TensorType>,
    /// Types and shapes of the results by their number.
    pub results: Vec<TensorType>,
    /// Which arguments may be replaced by which results.
    pub aliases: Vec<Alias>,
    /// Device memory that one execution takes for intermediate values; 0 if unknown.
    pub scratch_len_bytes: u64,
}

/// Where an argument or a result is: so many bytes from there as its type has.
#[derive(Debug, Clone, Copy)]
pub struct Argument<'a> {
    /// The memory, of the executable's device.
    pub buffer: &'a Arc<Buffer>,
    /// Where it starts, in bytes; a multiple of the element's size.
    pub offset: u64,
}

impl<'a> From<&'a Arc<Buffer>> for Argument<'a> {
    /// From the first byte on.
    fn from(buffer: &'a Arc<Buffer>) -> Self {
        Self { buffer, offset: 0 }
    }
}

impl Executable {
    pub(super) fn new(
        device: Device,
        functions: Functions,
        raw: NonNull<SmExecutable>,
    ) -> Result<Self, Error> {
        // From here on dropping destroys.
        let mut executable = Self {
            device,
            functions,
            raw: Some(raw),
            info: ExecutableInfo::default(),
        };
        executable.info = executable.read_info()?;
        Ok(executable)
    }

    /// The device it was compiled for.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// What is known about it.
    #[must_use]
    pub fn info(&self) -> &ExecutableInfo {
        &self.info
    }

    /// Executes it in stream order and returns at once. Arguments and results stay alive until the
    /// stream is done with them. A result may be the very memory of the argument donated to it
    /// (see [`ExecutableInfo::aliases`]), and overlaps nothing else. A failure later on is the
    /// stream's, as that of a copy would be.
    ///
    /// # Errors
    /// `InvalidArgument` for a wrong count, another device, an offset that is not aligned, or
    /// overlapping results; `OutOfRange`, `ForeignHandle`, `OutOfMemory`, `Backend`.
    pub fn execute(
        &self,
        args: &[Argument<'_>],
        outs: &[Argument<'_>],
        stream: &Stream,
    ) -> Result<(), Error> {
        let dev = self.check_device("stream", stream.device())?;
        let arg_addresses = self.addresses("argument", args, &self.info.params)?;
        let out_addresses = self.addresses("result", outs, &self.info.results)?;
        self.check_overlap(&arg_addresses, &out_addresses)?;
        let (raw, instance) = (self.raw(), self.device.backend().instance());
        // Both counts were compared with those of a valid graph.
        let count = |list: &[u64]| u32::try_from(list.len()).unwrap_or(u32::MAX);
        let buffers = args.iter().chain(outs).map(|argument| argument.buffer);
        stream.submit(buffers, || {
            instance.call("compute.execute", Some(dev), |s, e| {
                // SAFETY: the executable is alive. The addresses are those of ranges of live buffers
                // of this device, as long and as aligned as the executable wants them (`addresses`),
                // which `submit` holds until the work is done; results overlap nothing but the
                // argument of their donation (`check_overlap`).
                unsafe {
                    (self.functions.execute)(
                        s,
                        raw,
                        arg_addresses.as_ptr(),
                        count(&arg_addresses),
                        out_addresses.as_ptr(),
                        count(&out_addresses),
                        dev,
                        stream.handle(),
                        e,
                    )
                }
            })
        })
    }

    /// Text about it, for people.
    ///
    /// # Errors
    /// `Unsupported` for a form that the backend has not; `Backend`, `BadAnswer`.
    pub fn text(&self, form: TextForm) -> Result<String, Error> {
        let raw = self.raw();
        let bytes = self.bytes("compute.executable_text", |s, buf, cap, len, e| {
            let (form, buf) = (form.number(), buf.cast::<c_char>());
            // SAFETY: the executable is alive, and `bytes` gives room for `cap` bytes.
            unsafe { (self.functions.text)(s, raw, form, buf, cap, len, e) }
        })?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// It as bytes, for [`Compute::deserialize`](super::Compute::deserialize).
    ///
    /// # Errors
    /// `Unsupported` if the backend cannot; `Backend`, `BadAnswer`.
    pub fn serialize(&self) -> Result<Vec<u8>, Error> {
        let raw = self.raw();
        self.bytes("compute.serialize", |s, buf, cap, len, e| {
            // SAFETY: the executable is alive, and `bytes` gives room for `cap` bytes.
            unsafe { (self.functions.serialize)(s, raw, buf, cap, len, e) }
        })
    }

    /// Gives it back and says whether that worked; dropping only logs.
    ///
    /// # Errors
    /// `Backend`.
    pub fn release(mut self) -> Result<(), Error> {
        self.destroy()
    }

    /// What the plugin says of a graph that it compiled must be true.
    pub(super) fn check_is_of(&self, graph: &Graph) -> Result<(), Error> {
        let mut aliases = graph.aliases().to_vec();
        aliases.sort_by_key(|alias| alias.param);
        let is_same = graph.param_types().eq(self.info.params.iter().copied())
            && graph.result_types().eq(self.info.results.iter().copied())
            && aliases == self.info.aliases;
        if is_same {
            return Ok(());
        }
        Err(self.bad_info(format!("{:?} for the graph\n{graph}", self.info)))
    }

    fn bad_info(&self, fault: String) -> Error {
        let instance = self.device.backend().instance();
        instance.bad_answer("compute.executable_info", fault)
    }

    fn read_info(&self) -> Result<ExecutableInfo, Error> {
        let (raw, dev) = (self.raw(), self.device.ordinal());
        let mut out = SmExecutableInfo::new();
        let instance = self.device.backend().instance();
        instance.call("compute.executable_info", Some(dev), |s, e| {
            // SAFETY: the executable is alive, the out pointer a live local whose size its header
            // tells.
            unsafe { (self.functions.info)(s, raw, &raw mut out, e) }
        })?;
        // SAFETY: the plugin's arrays, which by the ABI live as long as the executable and are as
        // long as it says.
        let params = unsafe { tensors(out.params, out.n_params) };
        let params = params.map_err(|fault| self.bad_info(fault))?;
        // SAFETY: as above.
        let results = unsafe { tensors(out.results, out.n_results) };
        let results = results.map_err(|fault| self.bad_info(fault))?;
        let aliases = aliases(&params, &results).map_err(|fault| self.bad_info(fault))?;
        if results.is_empty() {
            return Err(self.bad_info("no results".into()));
        }
        let types = |list: Vec<(TensorType, i32)>| list.into_iter().map(|(ty, _)| ty).collect();
        Ok(ExecutableInfo {
            params: types(params),
            results: types(results),
            aliases,
            scratch_len_bytes: out.scratch_len_bytes,
        })
    }

    fn check_device(&self, what: &str, other: &Device) -> Result<u32, Error> {
        let (operation, dev) = ("compute.execute", self.device.ordinal());
        let backend = self.device.backend();
        backend.check_same(other.backend(), operation)?;
        if other.ordinal() == dev {
            return Ok(dev);
        }
        let fault = format!(
            "the executable is for device {dev}, the {what} of device {}",
            other.ordinal()
        );
        Err(Error::InvalidArgument { operation, fault })
    }

    fn addresses(
        &self,
        what: &str,
        list: &[Argument<'_>],
        wanted: &[TensorType],
    ) -> Result<Vec<u64>, Error> {
        let operation = "compute.execute";
        if list.len() != wanted.len() {
            let fault = format!("{} {what}s, it has {}", list.len(), wanted.len());
            return Err(Error::InvalidArgument { operation, fault });
        }
        let mut addresses = Vec::with_capacity(list.len());
        for (number, (argument, ty)) in list.iter().zip(wanted).enumerate() {
            self.check_device(what, argument.buffer.device())?;
            let len_bytes = ty.len_bytes() as u64;
            let at = argument
                .buffer
                .range(operation, argument.offset, len_bytes)?;
            let align = ty.dtype().size_bytes() as u64;
            if len_bytes > 0 && at % align != 0 {
                let fault =
                    format!("{what} {number} is {ty}, but at {at:#x}, which is not aligned");
                return Err(Error::InvalidArgument { operation, fault });
            }
            addresses.push(if len_bytes == 0 { 0 } else { at });
        }
        Ok(addresses)
    }

    /// A result overlaps nothing but, exactly, the argument donated to it.
    fn check_overlap(&self, args: &[u64], outs: &[u64]) -> Result<(), Error> {
        let range = |(number, (at, ty)): (usize, (&u64, &TensorType))| {
            (*at, at + ty.len_bytes() as u64, number)
        };
        let overlap = |what: String, result: usize| {
            let fault = format!("the memory of {what} and of result {result} overlaps");
            let operation = "compute.execute";
            Err(Error::InvalidArgument { operation, fault })
        };
        let numbered = outs.iter().zip(&self.info.results).enumerate();
        let mut taken: Vec<_> = numbered
            .map(range)
            .filter(|(at, end, _)| at < end)
            .collect();
        taken.sort_unstable();
        for pair in taken.windows(2) {
            if pair[1].0 < pair[0].1 {
                return overlap(format!("result {}", pair[0].2), pair[1].2);
            }
        }
        let numbered = args.iter().zip(&self.info.params).enumerate();
        for (at, end, param) in numbered.map(range) {
            // Results do not overlap, so those that reach into the range are one after another.
            let first = taken.partition_point(|(_, taken_end, _)| *taken_end <= at);
            for (taken_at, _, result) in taken[first..].iter().take_while(|(from, ..)| *from < end)
            {
                let is_donated = *taken_at == at && self.is_alias(param, *result);
                if !is_donated {
                    return overlap(format!("argument {param}"), *result);
                }
            }
        }
        Ok(())
    }

    fn is_alias(&self, param: usize, result: usize) -> bool {
        let aliases = &self.info.aliases;
        let at = aliases.binary_search_by_key(&param, |alias| alias.param as usize);
        at.is_ok_and(|at| aliases[at].result as usize == result)
    }

    /// Asks for the length, then for the bytes.
    fn bytes(
        &self,
        operation: &'static str,
        slot: impl Fn(*mut SmBackend, *mut u8, u64, *mut u64, *mut SmError) -> i32,
    ) -> Result<Vec<u8>, Error> {
        let (instance, dev) = (self.device.backend().instance(), self.device.ordinal());
        let ask = |bytes: &mut [u8]| {
            let mut len = 0;
            let (at, cap) = (bytes.as_mut_ptr(), bytes.len() as u64);
            instance
                .call(operation, Some(dev), |s, e| {
                    slot(s, at, cap, &raw mut len, e)
                })
                .map(|()| len)
        };
        let len = ask(&mut [])?;
        if len > BYTES_MAX {
            return Err(instance.bad_answer(operation, format!("{len} bytes")));
        }
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
        let again = ask(&mut bytes)?;
        if again != len {
            let fault = format!("{len} bytes, then {again}");
            return Err(instance.bad_answer(operation, fault));
        }
        Ok(bytes)
    }

    fn destroy(&mut self) -> Result<(), Error> {
        let Some(raw) = self.raw.take() else {
            return Ok(());
        };
        let (instance, dev) = (self.device.backend().instance(), self.device.ordinal());
        instance.call("compute.executable_destroy", Some(dev), |s, e| {
            // SAFETY: the executable is alive, and `take` made sure that this is the only end of it.
            unsafe { (self.functions.destroy)(s, raw.as_ptr(), e) }
        })
    }

    fn raw(&self) -> *mut SmExecutable {
        self.raw
            .expect("invariant: only the end takes it, and that has the executable to itself")
            .as_ptr()
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        if let Err(error) = self.destroy() {
            cleanup::failed("compute.executable_destroy", &error);
        }
    }
}

/// The types of an array of a plugin's, each with the number of its donation's other side.
///
/// # Safety
/// - `first` is null or an array of `count` items, each of the size that the first starts with
///   saying.
unsafe fn tensors(
    first: *const SmTensorInfo,
    count: u32,
) -> Result<Vec<(TensorType, i32)>, String> {
    if count > SM_COMPUTE_OPERANDS_MAX || (count > 0 && first.is_null()) {
        return Err(format!("{count} tensors at {first:p}"));
    }
    let mut types = Vec::new();
    let mut at = first;
    for _ in 0..count {
        // SAFETY: an item of the array starts with its header.
        let step = unsafe { at.cast::<SmHdr>().read_unaligned() }.struct_size;
        let Some(step) = usize::try_from(step)
            .ok()
            .filter(|step| *step >= size_of::<SmTensorInfo>())
        else {
            return Err(format!("a tensor of {step} bytes"));
        };
        // SAFETY: an item of the array, as long as it says.
        let tensor = unsafe { at.read_unaligned() };
        types.push((tensor_type(&tensor)?, tensor.alias));
        // SAFETY: at most the end of the array.
        at = unsafe { at.byte_add(step) };
    }
    Ok(types)
}

fn tensor_type(tensor: &SmTensorInfo) -> Result<TensorType, String> {
    let fault = || format!("a tensor {tensor:?}");
    if tensor.rank > SM_COMPUTE_RANK_MAX {
        return Err(fault());
    }
    let dims = tensor.dims.iter().take(tensor.rank as usize);
    let dims: Option<Vec<usize>> = dims.map(|dim| usize::try_from(*dim).ok()).collect();
    let dtype = DType::from_number(tensor.dtype).ok_or_else(fault)?;
    let shape = Shape::new(&dims.ok_or_else(fault)?).map_err(|error| error.to_string())?;
    let ty = TensorType::new(dtype, shape).map_err(|error| error.to_string())?;
    if ty.len_bytes() as u64 != tensor.len_bytes {
        return Err(fault());
    }
    Ok(ty)
}

/// The donations that both sides name, by parameter.
fn aliases(
    params: &[(TensorType, i32)],
    results: &[(TensorType, i32)],
) -> Result<Vec<Alias>, String> {
    let mut aliases = Vec::new();
    for (param, (ty, alias)) in (0_u32..).zip(params) {
        let Ok(result) = u32::try_from(*alias) else {
            continue;
        };
        let other = results.get(result as usize);
        if other.is_none_or(|(other, back)| other != ty || u32::try_from(*back) != Ok(param)) {
            return Err(format!("parameter {param} is donated to result {result}"));
        }
        aliases.push(Alias { param, result });
    }
    let named = results.iter().filter(|(_, alias)| *alias >= 0).count();
    if named != aliases.len() {
        return Err(format!(
            "{} donations, of which {named} are results",
            aliases.len()
        ));
    }
    Ok(aliases)
}

/// Longest text or serialised executable that is believed: 4 GiB.
const BYTES_MAX: u64 = 1 << 32;
