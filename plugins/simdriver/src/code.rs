//! Compiled code: libraries of the host, loaded and run over the memory of simulated devices.
#![expect(unsafe_code, reason = "loads code and calls it")]

use std::ffi::{OsStr, c_void};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use libloading::os::unix;

use crate::device::Device;
use crate::memory::Memory;
use crate::{Answer, Kernel, Status, toolchain};

/// A loaded module.
#[derive(Clone, Debug)]
pub(crate) enum Module {
    /// One whose kernels are done in Rust.
    Known(Vec<Kernel>),
    /// One that was compiled.
    Compiled(Arc<Code>),
}

/// A function of a module.
#[derive(Clone, Debug)]
pub enum Function {
    /// One that is done in Rust.
    Known(Kernel),
    /// One that was compiled.
    Compiled(Entry),
}

/// A run of a function.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The function.
    pub function: Function,
    /// Blocks in each direction.
    pub grid: [u32; 3],
    /// Threads of a block in each direction.
    pub block: [u32; 3],
    /// Bytes of shared memory that a block gets beside its own.
    pub shared_len_bytes: u32,
    /// What it takes.
    pub params: Vec<u64>,
}

/// A library of the host. It stays in memory for work that comes too late, which is told so.
pub(crate) struct Code {
    library: unix::Library,
    is_unloaded: AtomicBool,
}

/// Where a function begins.
#[derive(Clone)]
pub struct Entry {
    /// Keeps it loaded.
    code: Arc<Code>,
    address: usize,
    /// The library's function that does all blocks of a launch.
    run: usize,
    param_count: usize,
}

/// `stepmesh_stand_in_run` of the header: kernel, parameters, grid, block.
type Run = unsafe extern "C" fn(usize, *const u64, *const u32, *const u32);

/// The bytes of a library as the image of a module.
pub(crate) fn image(key: &str, library: &[u8]) -> Vec<u8> {
    let mut image = MAGIC.to_vec();
    image.extend(key.as_bytes());
    image.extend((library.len() as u64).to_le_bytes());
    image.extend(library);
    image
}

/// The image at an address: text of known kernels, or [`image`]'s.
pub(crate) enum Image {
    Text(String),
    Library { key: String, bytes: Vec<u8> },
}

impl Module {
    /// # Errors
    /// `INVALID_IMAGE` if there is nothing to run in it.
    pub(crate) fn load(image: Image) -> Answer<Self> {
        match image {
            Image::Text(text) => {
                let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                let kernels: Vec<Kernel> = words.filter_map(Kernel::named).collect();
                if kernels.is_empty() {
                    return Err(Status::INVALID_IMAGE);
                }
                Ok(Self::Known(kernels))
            }
            Image::Library { key, bytes } => {
                let file = toolchain::file_of(&key, &bytes)?;
                let flags = unix::RTLD_NOW | unix::RTLD_LOCAL;
                // SAFETY: compiled of a source that a caller of the driver wants to be run.
                let library = unsafe { unix::Library::open(Some(OsStr::new(&file)), flags) };
                let library = library.map_err(|_| Status::INVALID_IMAGE)?;
                Ok(Self::Compiled(Arc::new(Code {
                    library,
                    is_unloaded: AtomicBool::new(false),
                })))
            }
        }
    }

    /// # Errors
    /// `NOT_FOUND`.
    pub(crate) fn function(&self, name: &str) -> Answer<Function> {
        match self {
            Self::Known(kernels) => {
                let kernel = Kernel::named(name).filter(|kernel| kernels.contains(kernel));
                kernel.map(Function::Known).ok_or(Status::NOT_FOUND)
            }
            Self::Compiled(code) => Entry::of(code, name).map(Function::Compiled),
        }
    }
}

impl Module {
    /// Ends it: what is queued of it and did not run yet is a fault.
    pub(crate) fn unload(&self) {
        if let Self::Compiled(code) = self {
            code.is_unloaded.store(true, Ordering::Release);
        }
    }

    /// Whether a function is one of it.
    pub(crate) fn has(&self, function: &Function) -> bool {
        match (self, function) {
            (Self::Compiled(code), Function::Compiled(entry)) => Arc::ptr_eq(code, &entry.code),
            _ => false,
        }
    }
}

impl Function {
    /// Parameters of 8 bytes that it takes.
    #[must_use]
    pub fn param_count(&self) -> usize {
        match self {
            Self::Known(kernel) => kernel.param_count(),
            Self::Compiled(entry) => entry.param_count,
        }
    }
}

impl Entry {
    /// # Errors
    /// `NOT_FOUND`; `INVALID_IMAGE` for a library that was not compiled with the stand-in header.
    fn of(code: &Arc<Code>, name: &str) -> Answer<Self> {
        let address = code.symbol(name).ok_or(Status::NOT_FOUND)?;
        let count = code
            .symbol(&format!("{name}_params"))
            .ok_or(Status::INVALID_IMAGE)?;
        let count: *const u32 = std::ptr::with_exposed_provenance(count);
        // SAFETY: the header makes a constant of this type beside each kernel.
        let param_count = usize::try_from(unsafe { count.read() }).unwrap_or(0);
        let run = code.symbol(RUN).ok_or(Status::INVALID_IMAGE)?;
        Ok(Self {
            code: Arc::clone(code),
            address,
            run,
            param_count,
        })
    }

    fn run(&self, launch: &Launch, memory: &Memory) -> Answer<()> {
        if self.code.is_unloaded.load(Ordering::Acquire) {
            return Err(Status::ILLEGAL_ADDRESS);
        }
        let params = launch.params.iter().map(|param| touchable(memory, *param));
        let params = params.collect::<Answer<Vec<u64>>>()?;
        let run = std::ptr::with_exposed_provenance::<c_void>(self.run);
        // SAFETY: the header makes a function of this name and type.
        let run = unsafe { std::mem::transmute::<*const c_void, Run>(run) };
        // SAFETY: a kernel of the same library, which `code` keeps; as many parameters as it takes. What
        // it does with them is the work of who launched it, as on a device.
        unsafe {
            run(
                self.address,
                params.as_ptr(),
                launch.grid.as_ptr(),
                launch.block.as_ptr(),
            );
        }
        Ok(())
    }
}

impl Code {
    fn symbol(&self, name: &str) -> Option<usize> {
        // SAFETY: the symbol is only looked at as an address.
        let symbol = unsafe { self.library.get::<*const c_void>(name) };
        Some(symbol.ok()?.into_raw().expose_provenance())
    }
}

/// The address through which the memory at an address of a device can be touched.
fn touchable(memory: &Memory, ptr: u64) -> Answer<u64> {
    if ptr == 0 {
        return Ok(0);
    }
    let place = memory.place(ptr, 1).map_err(|_| Status::ILLEGAL_ADDRESS)?;
    if place.kind.is_none() {
        return Err(Status::ILLEGAL_ADDRESS);
    }
    Ok(place.touchable())
}

impl Launch {
    /// Whether a device could do it at all.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let threads: u64 = self.block.iter().map(|count| u64::from(*count)).product();
        !self.grid.contains(&0) && (1..=THREADS_MAX).contains(&threads)
    }

    pub(crate) fn run(&self, device: &Device, memory: &Memory) -> Answer<()> {
        match &self.function {
            Function::Known(kernel) => kernel.run(device, memory, &self.params),
            Function::Compiled(entry) => entry.run(self, memory),
        }
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Code")
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Entry({:#x} of {:?})", self.address, self.code)
    }
}

/// The key and the length in what follows the first bytes of an image.
pub(crate) fn head(bytes: &[u8]) -> Option<(String, usize)> {
    let (key, len) = bytes.split_at_checked(KEY_LEN)?;
    let is_key = key.iter().all(u8::is_ascii_hexdigit);
    let key = std::str::from_utf8(key).ok().filter(|_| is_key)?;
    let len = u64::from_le_bytes(len.try_into().ok()?);
    let len = usize::try_from(len)
        .ok()
        .filter(|len| *len <= LIBRARY_LEN_MAX)?;
    Some((key.to_owned(), len))
}

/// The library's function that runs its kernels.
const RUN: &str = "stepmesh_stand_in_run";
/// First bytes of an image that is a library.
pub(crate) const MAGIC: &[u8] = b"SIMCODE\x01";
/// Hexadecimal digits of a library's key.
const KEY_LEN: usize = 32;
/// Bytes between the first ones and the library: its key and its length.
pub(crate) const HEAD_LEN: usize = KEY_LEN + 8;
/// No source makes a library as large as this.
const LIBRARY_LEN_MAX: usize = 1 << 30;
/// Threads of a block at most, as on all devices.
const THREADS_MAX: u64 = 1024;
