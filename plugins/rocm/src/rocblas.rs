//! rocBLAS: products of matrices, in a library of its own, opened when it is first needed.
#![expect(unsafe_code, reason = "calls the library")]

use std::ffi::{c_int, c_uint, c_void};

use hip_sys::hiprt::hipStream_t;
use stepmesh_driver::{Answer, Blas, Element, Facts, Failure, Gemm, Library, Sums};

use crate::handles::{handle, made, stream_of, to_usize};
use crate::status::of_rocblas;

stepmesh_driver::functions! {
    /// The functions of librocblas, whose statuses are its own.
    struct Functions {
        fn rocblas_create_handle(handle: *mut *mut c_void);
        fn rocblas_destroy_handle(handle: *mut c_void);
        fn rocblas_set_stream(handle: *mut c_void, stream: hipStream_t);
        fn rocblas_set_workspace(handle: *mut c_void, workspace: *mut c_void, len: usize);
        fn rocblas_set_atomics_mode(handle: *mut c_void, mode: c_uint);
        fn rocblas_gemm_strided_batched_ex(
            handle: *mut c_void, op_a: c_uint, op_b: c_uint, m: c_int, n: c_int, k: c_int,
            alpha: *const c_void, a: *const c_void, type_a: c_uint, lda: c_int, stride_a: i64,
            b: *const c_void, type_b: c_uint, ldb: c_int, stride_b: i64, beta: *const c_void,
            c: *const c_void, type_c: c_uint, ldc: c_int, stride_c: i64, d: *mut c_void,
            type_d: c_uint, ldd: c_int, stride_d: i64, batch: c_int, compute: c_uint,
            algorithm: c_uint, solution: i32, flags: u32,
        );
    }
}

/// rocBLAS, loaded.
#[derive(Debug)]
pub struct Rocblas(Functions);

impl Rocblas {
    /// Opens the library that belongs to a version of HIP, 60200000 being 6.2. One of another would
    /// bring another HIP with it, which knows nothing of our streams.
    ///
    /// # Errors
    /// Which libraries were looked for and what the loader answered; what is wrong with what it found.
    pub fn load(hip_version: i32) -> Result<Self, String> {
        let major = hip_version / 10_000_000;
        let names: Vec<&str> = NAMES
            .iter()
            .filter(|(of, _)| *of == major)
            .map(|(_, name)| *name)
            .collect();
        if names.is_empty() {
            return Err(format!("no rocBLAS is known for HIP {major}"));
        }
        let library = Library::open(&names)?;
        let functions = Functions::of(&library);
        let lacking = NEEDED.iter().find(|name| !functions.has(name));
        match lacking {
            None => Ok(Self(functions)),
            Some(name) => Err(format!("{} has no {name}", library.name())),
        }
    }
}

impl Blas for Rocblas {
    /// `rocblas_create_handle`, `rocblas_set_atomics_mode`.
    fn create(&self) -> Answer<u64> {
        // SAFETY: the place is a local of `made`'s, and a device is current.
        let raw = of_rocblas(made(|place| unsafe { self.0.rocblas_create_handle(place) }))?;
        // Sums by atomic additions have another order each time.
        // SAFETY: made above; one of the modes there are.
        let set = unsafe {
            self.0
                .rocblas_set_atomics_mode(handle(raw), ATOMICS_NOT_ALLOWED)
        };
        if let Err(failure) = of_rocblas(set) {
            // SAFETY: made above, and told to nobody. What went wrong first is what is told.
            let _ = unsafe { self.0.rocblas_destroy_handle(handle(raw)) };
            return Err(failure);
        }
        Ok(raw)
    }

    /// `rocblas_destroy_handle`.
    unsafe fn destroy(&self, raw: u64) -> Answer<()> {
        // SAFETY: this method's contract.
        of_rocblas(unsafe { self.0.rocblas_destroy_handle(handle(raw)) })
    }

    /// What the library takes by itself.
    fn workspace_len_bytes(&self, _facts: &Facts) -> u64 {
        32 << 20
    }

    /// `rocblas_set_stream`, `rocblas_set_workspace`. The library asks that the stream before is waited
    /// for, because its workspace would be used by both; ours is another one.
    unsafe fn prepare(&self, raw: u64, stream: u64, (at, len): (u64, u64)) -> Answer<()> {
        // SAFETY: this method's contract.
        of_rocblas(unsafe { self.0.rocblas_set_stream(handle(raw), stream_of(stream)) })?;
        let (workspace, len) = (handle::<c_void>(at), to_usize(len));
        // SAFETY: this method's contract.
        let set = unsafe { self.0.rocblas_set_workspace(handle(raw), workspace, len) };
        is_done(set)
    }

    /// `rocblas_gemm_strided_batched_ex`, which reads `c` and writes `d`: here they are one.
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
        is_done(unsafe {
            self.0.rocblas_gemm_strided_batched_ex(
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
                handle::<c_void>(c.ptr).cast_const(),
                data_type(c.element),
                c.leading,
                c.stride,
                handle::<c_void>(c.ptr),
                data_type(c.element),
                c.leading,
                c.stride,
                gemm.batch,
                compute,
                ALGORITHM_STANDARD,
                0,
                0,
            )
        })
    }
}

/// Some statuses tell of success in another way than 0.
fn is_done(answer: Answer<()>) -> Answer<()> {
    match answer {
        Err(Failure::Status { status, .. }) if SUCCESSES.contains(&status) => Ok(()),
        answer => of_rocblas(answer),
    }
}

fn operation(is_transposed: bool) -> c_uint {
    if is_transposed {
        OPERATION_TRANSPOSE
    } else {
        OPERATION_NONE
    }
}

fn data_type(element: Element) -> c_uint {
    match element {
        Element::F16 => DATATYPE_F16,
        Element::F32 => DATATYPE_F32,
        Element::F64 => DATATYPE_F64,
        Element::Bf16 => DATATYPE_BF16,
    }
}

/// The number of how it is summed, and whether scalars are f64 then. AMD's way of rounding operands
/// came and went with versions, so that nothing is rounded.
fn compute_type(sums: Sums) -> (c_uint, bool) {
    match sums {
        Sums::F32 | Sums::Tf32 => (DATATYPE_F32, false),
        Sums::F64 => (DATATYPE_F64, true),
    }
}

/// The libraries, each with the major version of HIP that it is of.
const NAMES: &[(i32, &str)] = &[
    (7, "librocblas.so.5"),
    (6, "librocblas.so.4"),
    // Two names within the fifth version.
    (5, "librocblas.so.3"),
    (5, "librocblas.so.0"),
];
/// What a product takes.
const NEEDED: [&str; 6] = [
    "rocblas_create_handle",
    "rocblas_destroy_handle",
    "rocblas_set_stream",
    "rocblas_set_workspace",
    "rocblas_set_atomics_mode",
    "rocblas_gemm_strided_batched_ex",
];
/// `rocblas_operation_none`.
const OPERATION_NONE: c_uint = 111;
/// `rocblas_operation_transpose`.
const OPERATION_TRANSPOSE: c_uint = 112;
/// `rocblas_datatype_f16_r`.
const DATATYPE_F16: c_uint = 150;
/// `rocblas_datatype_f32_r`.
const DATATYPE_F32: c_uint = 151;
/// `rocblas_datatype_f64_r`.
const DATATYPE_F64: c_uint = 152;
/// `rocblas_datatype_bf16_r`.
const DATATYPE_BF16: c_uint = 168;
/// `rocblas_gemm_algo_standard`.
const ALGORITHM_STANDARD: c_uint = 0;
/// `rocblas_atomics_not_allowed`.
const ATOMICS_NOT_ALLOWED: c_uint = 0;
/// `rocblas_status_perf_degraded`, `rocblas_status_size_increased`, `rocblas_status_size_unchanged`.
const SUCCESSES: [i32; 3] = [7, 9, 10];
