//! The kernels compile, for devices that are far apart, and take what the backend gives them. Clang knows
//! AMD's devices without ROCm; what HIP's header declares beside that is written here. Nothing runs.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use libtest_mimic::{Completion, Failed, Trial};
use stepmesh_gpu_source::Program;
use stepmesh_graph::samples::samples;
use stepmesh_graph::{CompileOptions, DType, OpKind};

pub(crate) fn trials() -> Vec<Trial> {
    let trial = |arch: &'static str| {
        Trial::ignorable_test(format!("kernels::compile_for_{arch}"), move || {
            compile(arch)
        })
    };
    let graphs = |arch: &'static str| {
        Trial::ignorable_test(
            format!("kernels::of_graphs_compile_for_{arch}"),
            move || compile_graphs(arch),
        )
    };
    let mut trials: Vec<Trial> = ARCHS.map(trial).into();
    trials.extend(ARCHS.map(graphs));
    trials
}

fn compile(arch: &str) -> Result<Completion, Failed> {
    let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/flags.hip");
    let kernels = std::fs::read_to_string(kernels)?;
    let assembly = match assembly_of(&format!("{HEADER}{kernels}"), arch)? {
        Ok(assembly) => assembly,
        Err(absent) => return Ok(Completion::ignored_with(absent)),
    };
    for (name, params) in KERNELS {
        let kernel = format!(".amdhsa_kernel {name}");
        if !assembly.contains(&kernel) {
            return Err(format!("there is no `{kernel}`").into());
        }
        let metadata = assembly.split("- .args:").find(|part| {
            let names = part.lines().map(str::trim);
            names
                .filter_map(|line| line.strip_prefix(".name:"))
                .any(|is| is.trim() == *name)
        });
        let size = format!(".kernarg_segment_size: {}", params * 8);
        if !metadata.is_some_and(|metadata| metadata.contains(&size)) {
            return Err(format!("{name} does not take {params} words").into());
        }
    }
    Ok(Completion::Completed)
}

/// Sources of graphs, one for each operation, by turns of one type and the next.
fn compile_graphs(arch: &str) -> Result<Completion, Failed> {
    let mut refused = Vec::new();
    for (idx, op) in OpKind::ALL.iter().enumerate() {
        let dtypes = (0..DType::ALL.len()).map(|turn| DType::ALL[(idx + turn) % DType::ALL.len()]);
        let mut largest = dtypes.filter_map(|dtype| {
            // The largest, for small ones leave out what is done for large ones.
            let samples = samples(*op, dtype).unwrap().into_iter();
            samples.max_by_key(|sample| sample.args.iter().map(Vec::len).sum::<usize>())
        });
        let Some(sample) = largest.next() else {
            continue;
        };
        let program = Program::compile(&sample.graph, &CompileOptions::default())?;
        match assembly_of(&format!("{HEADER_OF_GRAPHS}{}", program.source), arch) {
            Ok(Ok(_)) => {}
            Ok(Err(absent)) => return Ok(Completion::ignored_with(absent)),
            Err(failed) => refused.push(format!("{}: {failed:?}", sample.name)),
        }
    }
    if refused.is_empty() {
        return Ok(Completion::Completed);
    }
    Err(refused.join("\n").into())
}

/// What clang makes of a source; the inner error says why there is no clang.
fn assembly_of(text: &str, arch: &str) -> Result<Result<String, String>, Failed> {
    let clang = std::env::var_os("CLANG").unwrap_or_else(|| OsString::from("clang"));
    let folder = tempfile::tempdir()?;
    let (source, assembly) = (
        folder.path().join("kernels.hip"),
        folder.path().join("kernels.s"),
    );
    std::fs::write(&source, text)?;
    let compiled = Command::new(&clang)
        .args([
            "-x",
            "hip",
            "-nogpuinc",
            "-nogpulib",
            "--cuda-device-only",
            "-std=c++17",
            "-O3",
            "-S",
        ])
        .args(["-Wall", "-Wextra", "-Werror"])
        // Of the functions that all graphs share, each uses some.
        .args(["-Wno-unused-function", "-Wno-unused-parameter"])
        .arg(format!("--offload-arch={arch}"))
        .arg("-o")
        .args([&assembly, &source])
        .output();
    let compiled = match compiled {
        Err(error) => return Ok(Err(format!("{}: {error}", clang.display()))),
        Ok(compiled) => compiled,
    };
    if !compiled.status.success() {
        return Err(String::from_utf8_lossy(&compiled.stderr)
            .into_owned()
            .into());
    }
    Ok(Ok(std::fs::read_to_string(assembly)?))
}

/// Far apart: the first with all that is used, the newest of the data centre that clang 14 knows, and one
/// of the desktop.
const ARCHS: [&str; 3] = ["gfx906", "gfx90a", "gfx1030"];

/// Names of the kernels, and how many words each takes.
const KERNELS: &[(&str, usize)] = &[
    ("stepmesh_write_flag", 2),
    ("stepmesh_wait_flag", 5),
    ("stepmesh_seq_add_one", 1),
];

/// What the run-time compiler has before a source, and the backend's own line.
const HEADER: &str = "
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
static __device__ unsigned long long wall_clock64() { return __builtin_amdgcn_s_memrealtime(); }
#define STEPMESH_TICKS_PER_MS 100000ULL
";

/// The same for graphs: what HIP's own header declares of what they use.
const HEADER_OF_GRAPHS: &str = "
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
struct Index { unsigned x, y, z; };
#define threadIdx (Index{__builtin_amdgcn_workitem_id_x(), 0, 0})
#define blockIdx (Index{__builtin_amdgcn_workgroup_id_x(), __builtin_amdgcn_workgroup_id_y(), 0})
#define blockDim (Index{__builtin_amdgcn_workgroup_size_x(), 1, 1})
#define gridDim (Index{__builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x(), 1, 1})
static __device__ void __syncthreads() { __builtin_amdgcn_s_barrier(); }
extern \"C\" {
__device__ float erfcf(float), expf(float), logf(float), powf(float, float), sqrtf(float), tanhf(float);
__device__ double cos(double), erfc(double), exp(double), log(double), pow(double, double);
__device__ double sin(double), sqrt(double), tanh(double);
}
";
