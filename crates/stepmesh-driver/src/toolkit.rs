//! What of a vendor's makes code and runs it: modules and their functions, the compiler of source, the
//! library of matrix products. A plugin implements these beside [`Driver`](crate::Driver); what a
//! backend makes of them lives in the compute module.
#![expect(
    unsafe_code,
    reason = "declares methods whose caller vouches for addresses and handles"
)]

use std::ffi::CStr;
use std::fmt::Debug;

use crate::{Answer, Facts, Failure};

/// The part of a vendor's driver that loads and runs code, and the libraries beside it.
///
/// Methods are called from any thread, and, but for the libraries', while a device is entered
/// ([`Driver::enter`](crate::Driver::enter)). None waits for work.
pub trait Toolkit: Debug + Send + Sync + Sized + 'static {
    /// The compiler of source, in a library of its own.
    type Compiler: Compiler;
    /// The products of matrices, in a library of its own.
    type Blas: Blas;

    /// The compiler, opened when it is first asked for.
    ///
    /// # Errors
    /// Which libraries were looked for and what the loader answered.
    fn compiler(&self) -> Result<&Self::Compiler, &str>;

    /// The products, opened when they are first asked for.
    ///
    /// # Errors
    /// As [`Toolkit::compiler`].
    fn blas(&self) -> Result<&Self::Blas, &str>;

    /// Loads what [`Compiler::compile`] made on the entered device.
    ///
    /// # Errors
    /// If the driver does not take it.
    fn load_module(&self, image: &[u8]) -> Answer<u64>;

    /// Unloads a module of the entered device.
    ///
    /// # Safety
    /// - The module is live, and none of its functions runs or will.
    ///
    /// # Errors
    /// If the driver refuses.
    unsafe fn unload_module(&self, module: u64) -> Answer<()>;

    /// A function of a module of the entered device; it goes with the module.
    ///
    /// # Safety
    /// - The module is live.
    ///
    /// # Errors
    /// If it has none of this name.
    unsafe fn function(&self, module: u64, name: &CStr) -> Answer<u64>;

    /// Queues a run of a function that takes as many numbers of 8 bytes as `launch` has.
    ///
    /// # Safety
    /// - Function and stream are live and of the entered device.
    /// - The numbers are what the function takes, and what they point to stays until the stream did
    ///   the work.
    ///
    /// # Errors
    /// If the driver refuses; a fault of earlier work.
    unsafe fn launch_function(&self, launch: FunctionLaunch<'_>, stream: u64) -> Answer<()>;
}

/// A run of a function.
#[derive(Debug)]
pub struct FunctionLaunch<'a> {
    /// What [`Toolkit::function`] gave.
    pub function: u64,
    /// Blocks in each direction.
    pub grid: [u32; 3],
    /// Threads of a block in each direction.
    pub block: [u32; 3],
    /// What it takes; the driver copies it.
    pub arguments: &'a mut [u64],
}

/// A compiler that makes code of source while the program runs.
pub trait Compiler: Debug + Send + Sync {
    /// Its name and version, `NVRTC 12.9`. Code of one version is not taken for that of another.
    fn version(&self) -> &str;

    /// Compiles a source, whose functions are `extern "C"`, for an architecture, which is
    /// [`Facts::arch`]. No device need be there.
    ///
    /// # Errors
    /// With what the compiler wrote about it.
    fn compile(&self, source: &str, arch: &str) -> Result<Vec<u8>, Uncompiled>;
}

/// Why a source was not compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uncompiled {
    /// The call and its status.
    pub failure: Failure,
    /// What the compiler wrote; empty if nothing.
    pub log: String,
}

impl From<Failure> for Uncompiled {
    fn from(failure: Failure) -> Self {
        Self {
            failure,
            log: String::new(),
        }
    }
}

/// A library of matrix products. Its state is in handles, each of one device and used by one thread at
/// a time.
pub trait Blas: Debug + Send + Sync {
    /// A handle for the entered device.
    ///
    /// # Errors
    /// If memory runs out.
    fn create(&self) -> Answer<u64>;

    /// Ends a handle of the entered device.
    ///
    /// # Safety
    /// - The handle is live and not used afterwards; its work is done.
    ///
    /// # Errors
    /// If the library refuses.
    unsafe fn destroy(&self, handle: u64) -> Answer<()>;

    /// Bytes of a workspace with which no product is slower than it could be; never 0.
    fn workspace_len_bytes(&self, facts: &Facts) -> u64;

    /// Lets the products that follow run on a stream, with a workspace that is theirs alone.
    ///
    /// # Safety
    /// - Handle and stream are live and of the entered device.
    /// - The workspace is memory of the device, aligned to 256 bytes, which nothing else uses between
    ///   the stream's work so far and that which is queued next, and which stays until then.
    ///
    /// # Errors
    /// If the library refuses.
    unsafe fn prepare(&self, handle: u64, stream: u64, workspace: (u64, u64)) -> Answer<()>;

    /// Queues a product. The same operands give the same bits.
    ///
    /// # Safety
    /// - The handle was prepared, and its stream and workspace are still there.
    /// - The matrices are memory of the entered device until the stream did the work.
    ///
    /// # Errors
    /// If the library does not do it; a fault of earlier work.
    unsafe fn multiply(&self, handle: u64, gemm: &Gemm) -> Answer<()>;
}

/// A batch of products `c = op(a) op(b)` of matrices that are stored by columns, as the libraries have
/// them: `op(a)` is `m` by `k`, `op(b)` is `k` by `n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gemm {
    /// Rows of `c`.
    pub m: i32,
    /// Columns of `c`.
    pub n: i32,
    /// What is summed over.
    pub k: i32,
    /// Products; matrices of each lie a stride apart.
    pub batch: i32,
    /// The left operand.
    pub a: Matrix,
    /// The right operand.
    pub b: Matrix,
    /// The result, never transposed.
    pub c: Matrix,
    /// How it is summed.
    pub sums: Sums,
}

/// One matrix of a [`Gemm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// Address of the first one.
    pub ptr: u64,
    /// Type of its elements.
    pub element: Element,
    /// Elements from one column, as it is stored, to the next.
    pub leading: i32,
    /// Elements from one matrix of the batch to the next; 0 if it is the same for all.
    pub stride: i64,
    /// Whether its transpose is meant.
    pub is_transposed: bool,
}

/// Types that the libraries multiply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// IEEE half.
    F16,
    /// bfloat16.
    Bf16,
    /// IEEE single.
    F32,
    /// IEEE double.
    F64,
}

/// How a product is summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sums {
    /// In f32, of operands as they are.
    F32,
    /// In f32, of operands rounded to 10 bits of mantissa where the device is faster then.
    Tf32,
    /// In f64.
    F64,
}
