//! cuBLAS: products of matrices, in a library of its own, opened when it is first needed.
#![expect(unsafe_code, reason = "calls the library")]

use std::ffi::{c_int, c_longlong, c_uint, c_void};
use std::ptr::null_mut;

use cudarc::cublas::sys::{
    cublasAtomicsMode_t, cublasComputeType_t, cublasGemmAlgo_t, cublasHandle_t, cublasMath_t,
    cublasOperation_t, cudaDataType,
};
use cudarc::driver::sys::CUstream;
use stepmesh_driver::{Answer, Blas, Element, Facts, Gemm, Library, Sums};

use crate::driver::{handle, to_u64, to_usize};
use crate::nvrtc::library_names;
use crate::status::of_cublas;

stepmesh_driver::functions! {
    /// The functions of libcublas, whose statuses are its own.
    struct Functions {
        fn cublasCreate_v2(handle: *mut cublasHandle_t);
        fn cublasDestroy_v2(handle: cublasHandle_t);
        fn cublasSetStream_v2(handle: cublasHandle_t, stream: CUstream);
        fn cublasSetWorkspace_v2(handle: cublasHandle_t, workspace: *mut c_void, len: usize);
        fn cublasSetMathMode(handle: cublasHandle_t, mode: c_uint);
        fn cublasSetAtomicsMode(handle: cublasHandle_t, mode: c_uint);
        fn cublasGemmStridedBatchedEx(
            handle: cublasHandle_t, op_a: c_uint, op_b: c_uint, m: c_int, n: c_int, k: c_int,
            alpha: *const c_void, a: *const c_void, type_a: c_uint, lda: c_int,
            stride_a: c_longlong, b: *const c_void, type_b: c_uint, ldb: c_int,
            stride_b: c_longlong, beta: *const c_void, c: *mut c_void, type_c: c_uint, ldc: c_int,
            stride_c: c_longlong, batch: c_int, compute: c_uint, algorithm: c_int,
        );
    }
}

/// cuBLAS, loaded.
#[derive(Debug)]
pub struct Cublas(Functions);

impl Cublas {
    /// Opens the library of the newest version that works with a driver of CUDA, 12040 being 12.4.
    ///
    /// # Errors
    /// Which libraries were looked for and what the loader answered; what is wrong with what it found.
    pub fn load(driver_version: i32) -> Result<Self, String> {
        let library = Library::open(&library_names(NAMES, driver_version))?;
        let functions = Functions::of(&library);
        let lacking = NEEDED.iter().find(|name| !functions.has(name));
        match lacking {
            None => Ok(Self(functions)),
            Some(name) => Err(format!("{} has no {name}: it is too old", library.name())),
        }
    }

    fn set_up(&self, raw: cublasHandle_t) -> Answer<()> {
        let functions = &self.0;
        // Sums of halves stay in f32 when the library splits them.
        let math = cublasMath_t::CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION as c_uint;
        // SAFETY: a live handle; one of the modes there are.
        unsafe { functions.cublasSetMathMode(raw, math)? };
        let atomics = cublasAtomicsMode_t::CUBLAS_ATOMICS_NOT_ALLOWED as c_uint;
        // SAFETY: as above.
        unsafe { functions.cublasSetAtomicsMode(raw, atomics) }
    }
}

impl Blas for Cublas {
    /// `cublasCreate`, `cublasSetMathMode`, `cublasSetAtomicsMode`.
    fn create(&self) -> Answer<u64> {
        let mut raw: cublasHandle_t = null_mut();
        // SAFETY: `raw` is a local, and a context is current.
        of_cublas(unsafe { self.0.cublasCreate_v2(&raw mut raw) })?;
        if let Err(failure) = of_cublas(self.set_up(raw)) {
            // SAFETY: made above, and told to nobody. What went wrong first is what is told.
            let _ = unsafe { self.0.cublasDestroy_v2(raw) };
            return Err(failure);
        }
        Ok(to_u64(raw.expose_provenance()))
    }

    /// `cublasDestroy`.
    unsafe fn destroy(&self, raw: u64) -> Answer<()> {
        // SAFETY: this method's contract.
        of_cublas(unsafe { self.0.cublasDestroy_v2(handle(raw)) })
    }

    /// What NVIDIA's documentation of `cublasSetWorkspace` recommends.
    fn workspace_len_bytes(&self, facts: &Facts) -> u64 {
        if facts.cc_major >= 9 {
            32 << 20
        } else {
            4 << 20
        }
    }

    /// `cublasSetStream`, `cublasSetWorkspace`, in this order, for the first undoes the second.
    unsafe fn prepare(&self, raw: u64, stream: u64, (at, len): (u64, u64)) -> Answer<()> {
        let raw: cublasHandle_t = handle(raw);
        // SAFETY: this method's contract. The default streams have the numbers of the ABI.
        of_cublas(unsafe { self.0.cublasSetStream_v2(raw, handle(stream)) })?;
        let workspace = handle::<c_void>(at);
        // SAFETY: this method's contract.
        of_cublas(unsafe { self.0.cublasSetWorkspace_v2(raw, workspace, to_usize(len)) })
    }

    /// `cublasGemmStridedBatchedEx`.
    unsafe fn multiply(&self, raw: u64, gemm: &Gemm) -> Answer<()> {
        let (compute, is_double) = compute_type(gemm.sums);
        let (one, zero) = ((1.0_f32, 1.0_f64), (0.0_f32, 0.0_f64));
        let scalar = |value: &(f32, f64)| -> *const c_void {
            if is_double {
                (&raw const value.1).cast()
            } else {
                (&raw const value.0).cast()
            }
        };
        let (a, b, c) = (&gemm.a, &gemm.b, &gemm.c);
        // SAFETY: this method's contract; both scalars are locals of the type in which is summed.
        of_cublas(unsafe {
            self.0.cublasGemmStridedBatchedEx(
                handle(raw),
                operation(a.is_transposed),
                operation(b.is_transposed),
                gemm.m,
                gemm.n,
                gemm.k,
                scalar(&one),
                handle::<c_void>(a.ptr).cast_const(),
                data_type(a.element),
                a.leading,
                a.stride,
                handle::<c_void>(b.ptr).cast_const(),
                data_type(b.element),
                b.leading,
                b.stride,
                scalar(&zero),
                handle::<c_void>(c.ptr),
                data_type(c.element),
                c.leading,
                c.stride,
                gemm.batch,
                compute,
                cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT as c_int,
            )
        })
    }
}

fn operation(is_transposed: bool) -> c_uint {
    if is_transposed {
        cublasOperation_t::CUBLAS_OP_T as c_uint
    } else {
        cublasOperation_t::CUBLAS_OP_N as c_uint
    }
}

fn data_type(element: Element) -> c_uint {
    (match element {
        Element::F16 => cudaDataType::CUDA_R_16F,
        Element::Bf16 => cudaDataType::CUDA_R_16BF,
        Element::F32 => cudaDataType::CUDA_R_32F,
        Element::F64 => cudaDataType::CUDA_R_64F,
    }) as c_uint
}

/// The number of how it is summed, and whether scalars are f64 then.
fn compute_type(sums: Sums) -> (c_uint, bool) {
    match sums {
        Sums::F32 => (cublasComputeType_t::CUBLAS_COMPUTE_32F as c_uint, false),
        Sums::Tf32 => (
            cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32 as c_uint,
            false,
        ),
        Sums::F64 => (cublasComputeType_t::CUBLAS_COMPUTE_64F as c_uint, true),
    }
}

/// The libraries, each with the major version of a driver that it works with.
const NAMES: &[(i32, &str)] = &[
    (13, "libcublas.so.13"),
    (12, "libcublas.so.12"),
    (11, "libcublas.so.11"),
    (0, "libcublas.so"),
];
/// What a product takes.
const NEEDED: [&str; 7] = [
    "cublasCreate_v2",
    "cublasDestroy_v2",
    "cublasSetStream_v2",
    "cublasSetWorkspace_v2",
    "cublasSetMathMode",
    "cublasSetAtomicsMode",
    "cublasGemmStridedBatchedEx",
];
