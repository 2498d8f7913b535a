//! The table that cpp/lazy.h declares, filled with functions that C++ calls. Each checks what it was
//! given, and answers 0, or 1 with a message; panics stop here.
#![expect(
    unsafe_code,
    reason = "functions that C++ calls, with pointers that it holds for us"
)]

use std::any::Any;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{self, AssertUnwindSafe};
use std::slice;
use std::sync::{Arc, OnceLock};

use super::aten::{self, Value};
use super::backend::LazyBackend;
use super::data::{Data, type_of};
use super::lowering::Lowering;
use super::program::Program;
use crate::{Error, sys};

/// `StepmeshLazyType` of cpp/lazy.h.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawType {
    /// `c10::ScalarType`.
    pub(super) dtype: i32,
    /// -1 where nothing is known.
    pub(super) rank: i32,
    pub(super) dims: [i64; 8],
}

/// `StepmeshLazyHooks` of cpp/lazy.h.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Hooks {
    device_count: unsafe extern "C" fn(*mut i64, Message, usize) -> c_int,
    data_from_host: unsafe extern "C" fn(
        i64,
        *const RawType,
        *const c_void,
        u64,
        *mut *mut c_void,
        Message,
        usize,
    ) -> c_int,
    data_to_host: unsafe extern "C" fn(*const c_void, *mut c_void, u64, Message, usize) -> c_int,
    data_release: unsafe extern "C" fn(*mut c_void),
    graph_new: unsafe extern "C" fn(*const c_char, i64, *mut *mut c_void, Message, usize) -> c_int,
    graph_parameter:
        unsafe extern "C" fn(*mut c_void, *const RawType, i32, *mut u32, Message, usize) -> c_int,
    graph_int: unsafe extern "C" fn(*mut c_void, i64, *mut u32, Message, usize) -> c_int,
    graph_double: unsafe extern "C" fn(*mut c_void, f64, *mut u32, Message, usize) -> c_int,
    graph_bool: unsafe extern "C" fn(*mut c_void, i32, *mut u32, Message, usize) -> c_int,
    graph_text: unsafe extern "C" fn(*mut c_void, *const c_char, *mut u32, Message, usize) -> c_int,
    graph_none: unsafe extern "C" fn(*mut c_void, *mut u32, Message, usize) -> c_int,
    graph_list:
        unsafe extern "C" fn(*mut c_void, *const u32, u32, *mut u32, Message, usize) -> c_int,
    graph_call: unsafe extern "C" fn(
        *mut c_void,
        *const c_char,
        *const u32,
        u32,
        *const RawType,
        u32,
        *mut u32,
        Message,
        usize,
    ) -> c_int,
    graph_result: unsafe extern "C" fn(*mut c_void, u32, *const RawType, Message, usize) -> c_int,
    graph_finish: unsafe extern "C" fn(*mut c_void, *mut *mut c_void, Message, usize) -> c_int,
    graph_release: unsafe extern "C" fn(*mut c_void),
    computation_compile: unsafe extern "C" fn(*const c_void, Message, usize) -> c_int,
    computation_text:
        unsafe extern "C" fn(*const c_void, *mut c_char, u64, *mut u64, Message, usize) -> c_int,
    computation_execute: unsafe extern "C" fn(
        *const c_void,
        i64,
        *const *const c_void,
        u32,
        *mut *mut c_void,
        u32,
        Message,
        usize,
    ) -> c_int,
    computation_release: unsafe extern "C" fn(*mut c_void),
    set_rng_seed: unsafe extern "C" fn(u64, Message, usize) -> c_int,
    prepare_to_exit: unsafe extern "C" fn(Message, usize) -> c_int,
    can_translate: unsafe extern "C" fn(*const c_char) -> i32,
}

/// Where a message goes.
type Message = *mut c_char;

/// Makes `backend` the one of PyTorch's lazy core.
pub(super) fn register(backend: Arc<LazyBackend>) -> Result<(), Error> {
    if BACKEND.set(backend).is_err() {
        return Err(Error::Lazy {
            fault: "a backend was registered before; give all devices to the first call".into(),
        });
    }
    sys::lazy_register(&HOOKS)
}

/// That a backend was registered.
pub(super) fn check_registered() -> Result<(), Error> {
    match BACKEND.get() {
        Some(_) => Ok(()),
        None => Err(Error::Lazy {
            fault: "there are no lazy devices; call lazy::register first".into(),
        }),
    }
}

/// That there is a lazy device of this number.
pub(super) fn check_device(ordinal: u32) -> Result<(), Error> {
    check_registered()?;
    let count = BACKEND.get().map_or(0, |backend| backend.device_count());
    if usize::try_from(ordinal).is_ok_and(|ordinal| ordinal < count) {
        return Ok(());
    }
    Err(Error::Lazy {
        fault: format!("there is no lazy device {ordinal}; {count} were registered"),
    })
}

/// Runs `work`, and says what went wrong in `message` of `cap` bytes.
fn answer(message: Message, cap: usize, work: impl FnOnce() -> Result<(), String>) -> c_int {
    let fault = match panic::catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => return 0,
        Ok(Err(fault)) => fault,
        Err(panic) => format!("a panic in the lazy backend: {}", panic_text(&*panic)),
    };
    if let Some(room) = cap.checked_sub(1) {
        // Cut at a character, and at a NUL that C would take for the end.
        let text = fault.split('\0').next().unwrap_or_default();
        let mut len = text.len().min(room);
        while !text.is_char_boundary(len) {
            len -= 1;
        }
        // SAFETY: C++ gives `cap` bytes, more than `len`; a local text does not overlap them.
        unsafe {
            message
                .cast::<u8>()
                .copy_from_nonoverlapping(text.as_ptr(), len)
        };
        // SAFETY: `len` is below `cap`.
        let end = unsafe { message.add(len) };
        // SAFETY: as above.
        unsafe { end.write(0) };
    }
    1
}

/// What a panic said.
fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}

fn backend() -> Result<&'static LazyBackend, String> {
    let backend = BACKEND.get();
    Ok(backend
        .ok_or_else(|| "no backend is registered".to_owned())?
        .as_ref())
}

/// Writes an out parameter.
///
/// # Safety
/// - `out` is valid for writing.
unsafe fn give<T>(out: *mut T, value: T) {
    // SAFETY: the caller's promise.
    unsafe { out.write(value) };
}

/// A text of C++.
///
/// # Safety
/// - `text` ends with a NUL and lives for the call.
unsafe fn text<'a>(text: *const c_char) -> Result<&'a str, String> {
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| "a name is not UTF-8".to_owned())
}

/// A list of C++, which may have no address when it is empty.
///
/// # Safety
/// - `first` is the first of `count` items, which live for the call, or `count` is 0.
unsafe fn list<'a, T>(first: *const T, count: usize) -> &'a [T] {
    if count == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { slice::from_raw_parts(first, count) }
}

/// A graph in the making.
///
/// # Safety
/// - `graph` came from `graph_new`, was not finished, and no other call uses it.
unsafe fn lowering<'a>(graph: *mut c_void) -> &'a mut Lowering {
    // SAFETY: the caller's promise; C++ builds a graph in one thread.
    unsafe { &mut *graph.cast::<Lowering>() }
}

unsafe extern "C" fn device_count(count: *mut i64, message: Message, cap: usize) -> c_int {
    answer(message, cap, || {
        let devices = i64::try_from(backend()?.device_count()).unwrap_or(i64::MAX);
        // SAFETY: the out parameter of C++.
        unsafe { give(count, devices) };
        Ok(())
    })
}

unsafe extern "C" fn data_from_host(
    device: i64,
    ty: *const RawType,
    bytes: *const c_void,
    len: u64,
    data: *mut *mut c_void,
    message: Message,
    cap: usize,
) -> c_int {
    answer(message, cap, || {
        // SAFETY: C++ passes a live struct.
        let ty = type_of(unsafe { &*ty })?.ok_or("a value of no type")?;
        let device = usize::try_from(device).map_err(|_| format!("no lazy device {device}"))?;
        let len = usize::try_from(len).map_err(|_| "a value that is too large")?;
        // SAFETY: C++ passes the tensor's bytes.
        let bytes = unsafe { list(bytes.cast::<u8>(), len) };
        let made = backend()?.upload(device, ty, bytes)?;
        // SAFETY: the out parameter of C++.
        unsafe { give(data, Box::into_raw(Box::new(made)).cast()) };
        Ok(())
    })
}

unsafe extern "C" fn data_to_host(
    data: *const c_void,
    bytes: *mut c_void,
    len: u64,
    message: Message,
    cap: usize,
) -> c_int {
    answer(message, cap, || {
        // SAFETY: C++ holds the box of `data_from_host` or `computation_execute`.
        let data = unsafe { &*data.cast::<Data>() };
        let len = usize::try_from(len).map_err(|_| "a value that is too large")?;
        if len == 0 {
            return Ok(());
        }
        // SAFETY: C++ passes the memory of a new tensor of so many bytes.
        let bytes = unsafe { slice::from_raw_parts_mut(bytes.cast::<u8>(), len) };
        backend()?.download(data, bytes)
    })
}

unsafe extern "C" fn data_release(data: *mut c_void) {
    // SAFETY: C++ gives the box back once.
    let data = unsafe { Box::from_raw(data.cast::<Data>()) };
    drop(data);
}

unsafe extern "C" fn graph_new(
    name: *const c_char,
    device: i64,
    graph: *mut *mut c_void,
    message: Message,
    cap: usize,
) -> c_int {
    answer(message, cap, || {
        // SAFETY: a text of C++.
        let name = unsafe { text(name) }?;
        let device = usize::try_from(device).map_err(|_| format!("no lazy device {device}"))?;
        let made = Box::new(Lowering::new(name, device));
        // SAFETY: the out parameter of C++.
        unsafe { give(graph, Box::into_raw(made).cast()) };
        Ok(())
    })
}

unsafe extern "C" fn graph_parameter(
    graph: *mut c_void,
    ty: *const RawType,
    is_scalar: i32,
    value: *mut u32,
    message: Message,
    cap: usize,
) -> c_int {
    answer(message, cap, || {
        // SAFETY: C++ passes a live struct.
        let ty = type_of(unsafe { &*ty })?.ok_or("a parameter of no type")?;
        // SAFETY: C++ passes a graph that it builds.
        let number = unsafe { lowering(graph) }.parameter(ty, is_scalar != 0)?;
        // SAFETY: the out parameter of C++.
        unsafe { give(value, number) };
        Ok(())
    })
}

/// Adds a constant to a graph.
///
/// # Safety
/// - As for [`lowering`] and [`give`].
unsafe fn constant(
    graph: *mut c_void,
    known: impl FnOnce() -> Result<Value, String>,
    value: *mut u32,
    message: Message,
    cap: usize,
) -> c_int {
    answer(message, cap, || {
        // SAFETY: the caller's promise.
        let number = unsafe { lowering(graph) }.constant(known()?)?;
        // SAFETY: the caller's promise.
        unsafe { give(value, number) };
        Ok(())
    })
}

unsafe extern "C" fn graph_int(
    graph: *mut c_void,
    known: i64,
    value: *mut u32,
    message: Message,
    cap: usize,
) -> c_int {
    // SAFETY: a graph and an out parameter of C++.
    unsafe { constant(graph, || Ok(Value::Int(known)), value, message, cap) }
}

unsafe extern "C" fn graph_double(
    graph: *mut c_void,
    known: f64,
    value: *mut u32,
    message: Message,
    cap: usize,
) -> c_int {
    // SAFETY: a graph and an out parameter of C++.
    unsafe { constant(graph, || Ok(Value::Double(known)), value, message, cap) }
}

unsafe extern "C" fn graph_bool(
    graph: *mut c_void,
    known: i32,
    value: *mut u32,
    message: Message,
    cap: usize,
) -> c_int {
    // SAFETY: a graph and an out parameter of C++.
    unsafe { constant(graph, || Ok(Value::Bool(known != 0)), value, message, cap) }
}

unsafe extern "C" fn graph_text(
    graph: *mut c_void,
    known: *const c_char,
    value: *mut u32,
    message: Message,
    cap: usize,
) -> c_int {
    let known = || {
        // SAFETY: a text of C++.
        let known = unsafe { text(known) }?;
        Ok(Value::Text(known.to_owned()))
    };
    // SAFETY: a graph and an out parameter of C++.
    unsafe { constant(graph, known, value, message, cap) }
}

unsafe extern "C" fn graph_none(
    graph: *mut c_void,
    value: *mut u32,
    message: Message,
    cap: usize,
) -> c_int {
    // SAFETY: a graph and an out parameter of C++.
    unsafe { constant(graph, || Ok(Value::None), value, message, cap) }
}

unsafe extern "C" fn graph_list(
    graph: *mut c_void,
    values: *const u32,
    n: u32,
    value: *mut u32,
    message: Message,
    cap: usize,
) -> c_int {
    answer(message, cap, || {
        // SAFETY: a list of C++.
        let values = unsafe { list(values, n as usize) };
        // SAFETY: C++ passes a graph that it builds.
        let number = unsafe { lowering(graph) }.list(values)?;
        // SAFETY: the out parameter of C++.
        unsafe { give(value, number) };
        Ok(())
    })
}

unsafe extern "C" fn graph_call(
    graph: *mut c_void,
    name: *const c_char,
    inputs: *const u32,
    n_inputs: u32,
    outputs: *const RawType,
    n_outputs: u32,
    first: *mut u32,
    message: Message,
    cap: usize,
) -> c_int {
    answer(message, cap, || {
        // SAFETY: a text of C++.
        let name = unsafe { text(name) }?;
        // SAFETY: a list of C++.
        let inputs = unsafe { list(inputs, n_inputs as usize) };
        // SAFETY: a list of C++.
        let outputs = unsafe { list(outputs, n_outputs as usize) };
        let outputs = outputs.iter().map(type_of).collect::<Result<Vec<_>, _>>()?;
        // SAFETY: C++ passes a graph that it builds.
        let number = unsafe { lowering(graph) }.call(name, inputs, &outputs)?;
        // SAFETY: the out parameter of C++.
        unsafe { give(first, number) };
        Ok(())
    })
}

unsafe extern "C" fn graph_result(
    graph: *mut c_void,
    value: u32,
    ty: *const RawType,
    message: Message,
    cap: usize,
) -> c_int {
    answer(message, cap, || {
        // SAFETY: C++ passes a live struct.
        let ty = type_of(unsafe { &*ty })?.ok_or("a result of no type")?;
        // SAFETY: C++ passes a graph that it builds.
        unsafe { lowering(graph) }.result(value, ty)
    })
}

unsafe extern "C" fn graph_finish(
    graph: *mut c_void,
    computation: *mut *mut c_void,
    message: Message,
    cap: usize,
) -> c_int {
    // SAFETY: C++ gives the graph away, whatever becomes of it.
    let lowering = unsafe { Box::from_raw(graph.cast::<Lowering>()) };
    answer(message, cap, move || {
        let program = lowering.finish()?;
        // SAFETY: the out parameter of C++.
        unsafe { give(computation, Box::into_raw(Box::new(program)).cast()) };
        Ok(())
    })
}

unsafe extern "C" fn graph_release(graph: *mut c_void) {
    // SAFETY: C++ gives back once what it did not finish.
    let lowering = unsafe { Box::from_raw(graph.cast::<Lowering>()) };
    drop(lowering);
}

/// A computation that C++ holds.
///
/// # Safety
/// - `computation` came from `graph_finish` and was not released.
unsafe fn program<'a>(computation: *const c_void) -> &'a Program {
    // SAFETY: the caller's promise.
    unsafe { &*computation.cast::<Program>() }
}

unsafe extern "C" fn computation_compile(
    computation: *const c_void,
    message: Message,
    cap: usize,
) -> c_int {
    answer(message, cap, || {
        // SAFETY: C++ holds the computation.
        backend()?.compile(unsafe { program(computation) })
    })
}

unsafe extern "C" fn computation_text(
    computation: *const c_void,
    to: *mut c_char,
    text_cap: u64,
    len: *mut u64,
    message: Message,
    cap: usize,
) -> c_int {
    answer(message, cap, || {
        // SAFETY: C++ holds the computation.
        let text = unsafe { program(computation) }.text();
        // SAFETY: the out parameter of C++.
        unsafe { give(len, text.len() as u64) };
        if usize::try_from(text_cap).is_ok_and(|cap| cap >= text.len()) {
            // SAFETY: C++ gives room for `text_cap` bytes, of which this is no more.
            unsafe {
                to.cast::<u8>()
                    .copy_from_nonoverlapping(text.as_ptr(), text.len())
            };
        }
        Ok(())
    })
}

unsafe extern "C" fn computation_execute(
    computation: *const c_void,
    device: i64,
    arguments: *const *const c_void,
    n_arguments: u32,
    results: *mut *mut c_void,
    n_results: u32,
    message: Message,
    cap: usize,
) -> c_int {
    answer(message, cap, || {
        // SAFETY: C++ holds the computation.
        let program = unsafe { program(computation) };
        // SAFETY: a list of C++.
        let arguments = unsafe { list(arguments, n_arguments as usize) };
        let arguments: Vec<&Data> = arguments
            .iter()
            .map(|data| {
                // SAFETY: C++ holds each of the values for the call.
                unsafe { &*data.cast::<Data>() }
            })
            .collect();
        let device = usize::try_from(device).map_err(|_| format!("no lazy device {device}"))?;
        let made = backend()?.execute(program, device, &arguments)?;
        if usize::try_from(n_results) != Ok(made.len()) {
            return Err(format!("{} results for {n_results} places", made.len()));
        }
        for (index, data) in made.into_iter().enumerate() {
            // SAFETY: C++ has a place for each of the results, whose count was compared.
            let place = unsafe { results.add(index) };
            // SAFETY: as above.
            unsafe { give(place, Box::into_raw(Box::new(data)).cast()) };
        }
        Ok(())
    })
}

unsafe extern "C" fn computation_release(computation: *mut c_void) {
    // SAFETY: C++ gives the box back once.
    let program = unsafe { Box::from_raw(computation.cast::<Program>()) };
    drop(program);
}

unsafe extern "C" fn set_rng_seed(seed: u64, message: Message, cap: usize) -> c_int {
    answer(message, cap, || {
        backend()?.set_rng_seed(seed);
        Ok(())
    })
}

unsafe extern "C" fn prepare_to_exit(message: Message, cap: usize) -> c_int {
    answer(message, cap, || backend()?.synchronize())
}

unsafe extern "C" fn can_translate(name: *const c_char) -> i32 {
    // SAFETY: a text of C++.
    let name = unsafe { text(name) };
    i32::from(name.is_ok_and(aten::is_known))
}

static BACKEND: OnceLock<Arc<LazyBackend>> = OnceLock::new();

static HOOKS: Hooks = Hooks {
    device_count,
    data_from_host,
    data_to_host,
    data_release,
    graph_new,
    graph_parameter,
    graph_int,
    graph_double,
    graph_bool,
    graph_text,
    graph_none,
    graph_list,
    graph_call,
    graph_result,
    graph_finish,
    graph_release,
    computation_compile,
    computation_text,
    computation_execute,
    computation_release,
    set_rng_seed,
    prepare_to_exit,
    can_translate,
};

#[cfg(test)]
mod tests;
