//! The source against NVIDIA's own compiler, which needs no card: every sample, and graphs of many
//! operations, become machine code. docs/testing.md says how to get it; where it is not, these tests
//! are told as ignored.

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::PathBuf;
use std::ptr::null;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use stepmesh_gpu_source::Program;
use stepmesh_graph::samples::{Sample, composed, samples};
use stepmesh_graph::{CompileOptions, DType, OpKind};

#[path = "../it/joined.rs"]
mod joined;

fn main() {
    let of_table = ARCHITECTURES.into_iter().map(|architecture| {
        Trial::ignorable_test(
            format!("samples_become_code_for::{architecture}"),
            move || compile(architecture, &table()?),
        )
    });
    let of_many = ARCHITECTURES.into_iter().map(|architecture| {
        Trial::ignorable_test(
            format!("fused_graphs_become_code_for::{architecture}"),
            move || compile(architecture, &fused()?),
        )
    });
    let trials = of_table.chain(of_many).collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// The first sample of every operation and type: others differ in their sizes and arguments.
fn table() -> Result<Vec<Sample>, Failed> {
    let mut all = Vec::new();
    for op in OpKind::ALL {
        for dtype in DType::ALL {
            all.extend(samples(*op, dtype)?.into_iter().next());
        }
    }
    Ok(all)
}

fn fused() -> Result<Vec<Sample>, Failed> {
    let types = [DType::F32, DType::F64, DType::F16, DType::BF16];
    let mut all = Vec::new();
    for dtype in types {
        for seed in 0..4 {
            all.push(composed(dtype, seed)?);
        }
    }
    Ok(all)
}

fn compile(architecture: &str, samples: &[Sample]) -> Result<Completion, Failed> {
    let Some(path) = library() else {
        let text = "no libnvrtc.so.12 in target/nvrtc, nor by STEPMESH_NVRTC_DIR";
        return Ok(Completion::ignored_with(text));
    };
    let options = CompileOptions::default();
    let programs: Result<Vec<Program>, _> = samples
        .iter()
        .map(|sample| Program::compile(&sample.graph, &options))
        .collect();
    let source = joined::joined(&programs?, 0);
    // SAFETY: NVIDIA's library; its constructors are made for being loaded so.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }?;
    let code = Nvrtc(&library).compile(&source, architecture)?;
    if !code.starts_with(b"\x7fELF") {
        return Err("what was made is no machine code".into());
    }
    Ok(Completion::Completed)
}

/// The folder that `pip install --target target/nvrtc nvidia-cuda-nvrtc-cu12` makes, or another.
fn library() -> Option<PathBuf> {
    let usual = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../target/nvrtc/nvidia/cuda_nvrtc/lib"
    );
    let folder = std::env::var_os("STEPMESH_NVRTC_DIR").map_or_else(|| usual.into(), PathBuf::from);
    let path = folder.join("libnvrtc.so.12");
    path.is_file().then_some(path)
}

/// The calls of `nvrtc.h`.
struct Nvrtc<'a>(&'a Library);

type Handle = *mut c_void;

impl Nvrtc<'_> {
    fn compile(&self, source: &str, architecture: &str) -> Result<Vec<u8>, Failed> {
        let (source, mut program): (_, Handle) = (CString::new(source)?, std::ptr::null_mut());
        let (file, none) = (c"graph.cu", null::<*const c_char>());
        self.call::<Create>("nvrtcCreateProgram", |create| {
            // SAFETY: strings that live through the call, and no headers.
            unsafe {
                create(
                    &raw mut program,
                    source.as_ptr(),
                    file.as_ptr(),
                    0,
                    none,
                    none,
                )
            }
        })?;
        let option = CString::new(format!("--gpu-architecture={architecture}"))?;
        let options = [option.as_ptr(), c"-std=c++17".as_ptr()];
        let compiled = self.call::<Compile>("nvrtcCompileProgram", |compile| {
            // SAFETY: the program made above, and two options.
            unsafe { compile(program, 2, options.as_ptr()) }
        });
        if let Err(failed) = compiled {
            let log = self.bytes(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog")?;
            let log = String::from_utf8_lossy(&log);
            let end = log.floor_char_boundary(4000);
            return Err(format!("{failed:?}\n{}", &log[..end]).into());
        }
        self.bytes(program, "nvrtcGetCUBINSize", "nvrtcGetCUBIN")
    }

    fn bytes(&self, program: Handle, len: &str, get: &str) -> Result<Vec<u8>, Failed> {
        let mut count = 0;
        self.call::<Len>(len, |len| {
            // SAFETY: the caller's program, and a local.
            unsafe { len(program, &raw mut count) }
        })?;
        let mut bytes = vec![0_u8; count];
        self.call::<Get>(get, |get| {
            // SAFETY: room for as many bytes as the call before asked for.
            unsafe { get(program, bytes.as_mut_ptr().cast()) }
        })?;
        Ok(bytes)
    }

    fn call<F>(&self, name: &str, call: impl FnOnce(&F) -> c_int) -> Result<(), Failed> {
        // SAFETY: each caller names the type that nvrtc.h gives the function.
        let function = unsafe { self.0.get::<F>(name.as_bytes()) }?;
        match call(&function) {
            0 => Ok(()),
            status => Err(format!("{name} answered {status}").into()),
        }
    }
}

type Create = unsafe extern "C" fn(
    *mut Handle,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type Compile = unsafe extern "C" fn(Handle, c_int, *const *const c_char) -> c_int;
type Len = unsafe extern "C" fn(Handle, *mut usize) -> c_int;
type Get = unsafe extern "C" fn(Handle, *mut c_char) -> c_int;

/// A datacentre's of today, and the oldest that is still common.
const ARCHITECTURES: [&str; 2] = ["sm_90", "sm_75"];
