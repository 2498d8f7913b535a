//! The kernels compile, for devices that are far apart, and take what the backend gives them. Clang knows
//! AMD's devices without ROCm; what HIP's header declares beside that is written here. Nothing runs.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use libtest_mimic::{Completion, Failed, Trial};

pub(crate) fn trials() -> Vec<Trial> {
    let trial = |arch: &'static str| {
        Trial::ignorable_test(format!("kernels::compile_for_{arch}"), move || {
            compile(arch)
        })
    };
    ["gfx906", "gfx90a", "gfx1030"].map(trial).into()
}

fn compile(arch: &str) -> Result<Completion, Failed> {
    let clang = std::env::var_os("CLANG").unwrap_or_else(|| OsString::from("clang"));
    let folder = tempfile::tempdir()?;
    let (source, assembly) = (
        folder.path().join("flags.hip"),
        folder.path().join("flags.s"),
    );
    let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/flags.hip");
    let kernels = std::fs::read_to_string(kernels)?;
    std::fs::write(&source, format!("{HEADER}{kernels}"))?;
    let compiled = Command::new(&clang)
        .args([
            "-x",
            "hip",
            "-nogpuinc",
            "-nogpulib",
            "--cuda-device-only",
            "-O3",
            "-S",
        ])
        .args(["-Wall", "-Wextra", "-Werror"])
        .arg(format!("--offload-arch={arch}"))
        .arg("-o")
        .args([&assembly, &source])
        .output();
    let compiled = match compiled {
        Err(error) => {
            let text = format!("{}: {error}", clang.display());
            return Ok(Completion::ignored_with(text));
        }
        Ok(compiled) => compiled,
    };
    if !compiled.status.success() {
        return Err(String::from_utf8_lossy(&compiled.stderr)
            .into_owned()
            .into());
    }
    let assembly = std::fs::read_to_string(assembly)?;
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
