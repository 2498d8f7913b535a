//! Graphs over the simulated driver with its compiler and its library of products, without them, and by
//! the real compiler, which needs no card. What a child does is in the graphs module, which the GPU
//! backends share.

use std::ffi::{c_uint, c_ulonglong, c_void};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::ExitCode;
use std::ptr::null_mut;

use libtest_mimic::{Completion, Failed, Trial};
use stepmesh_backend_cuda::{CudaBackend, Nvrtc};
use stepmesh_driver::{Compiler as _, Library};
use stepmesh_gpu_source::Program;
use stepmesh_graph::samples::samples;
use stepmesh_graph::{CompileOptions, DType, OpKind};

use crate::graphs::{self, Capturing};
use crate::judged::{self, simulated_driver};
use crate::trouble::{child, ended, scenario};

pub(crate) fn trials() -> Vec<Trial> {
    let simulated = SIMULATED.iter().map(|(name, variables)| {
        Trial::ignorable_test(
            format!("computing::{name}"),
            move || match graphs::lacks_compiler() {
                Some(reason) => Ok(Completion::ignored_with(reason)),
                None => scenario(name, &simulated_driver()?, variables),
            },
        )
    });
    let mut trials: Vec<_> = simulated.collect();
    trials.extend([
        Trial::ignorable_test("computing::a_source_that_is_refused", || {
            let folder = tempfile::tempdir()?;
            let compiler = refusing_compiler(folder.path())?;
            let variable = ("STEPMESH_SIMDRIVER_CXX", compiler.as_str());
            scenario(
                "a_source_that_is_refused",
                &simulated_driver()?,
                &[variable],
            )
        }),
        Trial::ignorable_test("computing::no_compiler", || {
            with_links("no_compiler", &["libcuda.so.1"])
        }),
        Trial::ignorable_test("computing::no_products", || {
            if let Some(reason) = graphs::lacks_compiler() {
                return Ok(Completion::ignored_with(reason));
            }
            with_links("no_products", &["libcuda.so.1", "libnvrtc.so.12"])
        }),
        Trial::ignorable_test("computing::the_real_compiler", || {
            by_the_real_compiler("the_real_compiler")
        }),
        Trial::ignorable_test("computing::the_real_compiler_on_every_operation", || {
            by_the_real_compiler("the_real_compiler_on_every_operation")
        }),
    ]);
    trials
}

/// A child that finds these libraries of the simulated driver and no others.
fn with_links(name: &str, libraries: &[&str]) -> Result<Completion, Failed> {
    let folder = tempfile::tempdir()?;
    for library in libraries {
        let file = simulated_driver()?.join("libcuda.so.1");
        symlink(file, folder.path().join(library))?;
    }
    let mut command = child(name)?;
    command.env("LD_LIBRARY_PATH", folder.path());
    ended(&mut command)
}

/// A child that finds the real compiler and nothing else.
fn by_the_real_compiler(name: &str) -> Result<Completion, Failed> {
    let Some(folder) = real_compiler() else {
        let text = "no libnvrtc.so.12 in target/nvrtc, nor by STEPMESH_NVRTC_DIR";
        return Ok(Completion::ignored_with(text));
    };
    let mut command = child(name)?;
    command.env("LD_LIBRARY_PATH", folder);
    ended(&mut command)
}

/// A program that takes the place of the compiler that the simulated one calls.
fn refusing_compiler(folder: &std::path::Path) -> Result<String, Failed> {
    use std::os::unix::fs::PermissionsExt as _;
    let file = folder.join("refuses");
    let script = "#!/bin/sh\necho 'graph.cu:1: error: no register is left' >&2\nexit 1\n";
    std::fs::write(&file, script)?;
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755))?;
    Ok(file.display().to_string())
}

/// The folder of the real compiler; docs/testing.md says how it gets there.
fn real_compiler() -> Option<PathBuf> {
    let usual = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../target/nvrtc/nvidia/cuda_nvrtc/lib"
    );
    let folder = std::env::var_os("STEPMESH_NVRTC_DIR").map_or_else(|| usual.into(), PathBuf::from);
    folder.join("libnvrtc.so.12").is_file().then_some(folder)
}

fn the_real_compiler() -> ExitCode {
    // Nothing but its own library is there: it needs no driver.
    let compiler = Nvrtc::load(12_080).unwrap();
    assert!(compiler.version().starts_with("NVRTC 12."), "{compiler:?}");
    for arch in ["sm_70", "sm_80", "sm_90", "sm_100"] {
        let code = compiler.compile(SOURCE, arch).unwrap();
        assert!(code.starts_with(b"\x7fELF"), "no machine code for {arch}");
    }
    // A card that is younger than the compiler gets PTX, as text with a NUL at its end.
    let text = compiler.compile(SOURCE, "sm_999").unwrap();
    let ptx = String::from_utf8(text).unwrap();
    assert!(ptx.contains(".entry twice") && ptx.ends_with('\0'), "{ptx}");
    let error = compiler.compile("extern \"C\" __global__ void f() { nonsense; }", "sm_90");
    let error = error.expect_err("it is nonsense");
    assert!(
        error.log.contains("identifier \"nonsense\" is undefined"),
        "{error:?}"
    );
    ExitCode::SUCCESS
}

/// Sources of graphs, one for each operation and type, become machine code.
fn the_real_compiler_on_every_operation() -> ExitCode {
    let compiler = Nvrtc::load(12_080).unwrap();
    let (mut refused, mut count) = (Vec::new(), 0);
    for (op, dtype) in OpKind::ALL
        .iter()
        .flat_map(|op| DType::ALL.map(|dtype| (*op, dtype)))
    {
        // The largest, for small ones leave out what is done for large ones.
        let largest = samples(op, dtype)
            .unwrap()
            .into_iter()
            .max_by_key(|sample| sample.args.iter().map(Vec::len).sum::<usize>());
        let Some(sample) = largest else { continue };
        let program = Program::compile(&sample.graph, &CompileOptions::default()).unwrap();
        count += 1;
        match compiler.compile(&program.source, "sm_90") {
            Ok(code) => assert!(
                code.starts_with(b"\x7fELF"),
                "{}: no machine code",
                sample.name
            ),
            Err(uncompiled) => refused.push(format!("{}: {}", sample.name, uncompiled.log)),
        }
    }
    assert!(
        refused.is_empty(),
        "{} of {count}:\n{}",
        refused.len(),
        refused.join("\n")
    );
    assert!(count > 100, "only {count} sources");
    ExitCode::SUCCESS
}

stepmesh_driver::functions! {
    /// The calls that capture and replay a graph.
    struct Functions {
        fn cuStreamBeginCapture_v2(stream: *mut c_void, mode: c_uint);
        fn cuStreamEndCapture(stream: *mut c_void, graph: *mut *mut c_void);
        fn cuGraphInstantiateWithFlags(
            exec: *mut *mut c_void, graph: *mut c_void, flags: c_ulonglong,
        );
        fn cuGraphLaunch(exec: *mut c_void, stream: *mut c_void);
        fn cuDevicePrimaryCtxRetain(context: *mut *mut c_void, device: std::ffi::c_int);
        fn cuCtxSetCurrent(context: *mut c_void);
    }
}

struct Driver;

impl Capturing for Driver {
    type Replay = Box<dyn Fn(u64)>;

    fn capture(stream: u64, work: impl FnOnce()) -> Self::Replay {
        let functions = Functions::of(&Library::open(&["libcuda.so.1"]).unwrap());
        let mut context = null_mut();
        // SAFETY: `context` is a local.
        unsafe {
            functions
                .cuDevicePrimaryCtxRetain(&raw mut context, 0)
                .unwrap()
        };
        // SAFETY: retained above.
        unsafe { functions.cuCtxSetCurrent(context).unwrap() };
        // The mode in which no thread may do what could disturb the capture.
        // SAFETY: a live stream of the scenario's.
        unsafe {
            functions
                .cuStreamBeginCapture_v2(handle(stream), 0)
                .unwrap()
        };
        work();
        let (mut graph, mut exec) = (null_mut(), null_mut());
        // SAFETY: `graph` is a local; the stream is captured.
        unsafe {
            functions
                .cuStreamEndCapture(handle(stream), &raw mut graph)
                .unwrap()
        };
        // SAFETY: `exec` is a local; the graph was made above.
        let made = unsafe { functions.cuGraphInstantiateWithFlags(&raw mut exec, graph, 0) };
        made.unwrap();
        Box::new(move |stream| {
            // SAFETY: a graph that lives until the process ends, and a live stream.
            unsafe { functions.cuGraphLaunch(exec, handle(stream)).unwrap() };
        })
    }
}

fn handle(number: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(usize::try_from(number).unwrap())
}

fn done(scenario: impl FnOnce()) -> ExitCode {
    scenario();
    ExitCode::SUCCESS
}

type Scenario = fn() -> ExitCode;

pub(crate) const SCENARIOS: &[(&str, Scenario)] = &[
    ("a_graph_that_is_executed", || {
        done(graphs::a_graph_that_is_executed::<CudaBackend>)
    }),
    ("graphs_on_many_streams", || {
        done(graphs::graphs_on_many_streams::<CudaBackend>)
    }),
    ("a_graph_that_is_captured", || {
        done(graphs::a_graph_that_is_captured::<CudaBackend, Driver>)
    }),
    ("a_source_that_is_refused", || {
        done(|| graphs::a_source_that_is_refused::<CudaBackend>("NVRTC_ERROR_COMPILATION"))
    }),
    ("a_launch_that_is_refused", || {
        done(|| graphs::a_launch_that_is_refused::<CudaBackend>("cuLaunchKernel answered"))
    }),
    ("a_product_that_is_refused", || {
        done(|| {
            let said = "cublasGemmStridedBatchedEx answered CUBLAS_STATUS_INTERNAL_ERROR";
            graphs::a_launch_that_is_refused::<CudaBackend>(said);
        })
    }),
    ("a_graph_that_breaks_the_device", || {
        done(graphs::a_graph_that_breaks_the_device::<CudaBackend>)
    }),
    ("scratch_memory_that_runs_out", || {
        done(graphs::scratch_memory_that_runs_out::<CudaBackend>)
    }),
    ("graphs_that_come_and_go", || {
        done(graphs::graphs_that_come_and_go::<CudaBackend>)
    }),
    ("bytes_that_are_no_executable", || {
        done(graphs::bytes_that_are_no_executable::<CudaBackend>)
    }),
    ("lazy_tensors", || {
        done(|| graphs::lazy_tensors(&judged::plugin().unwrap(), "cuda"))
    }),
    ("no_compiler", || {
        done(|| graphs::no_compiler::<CudaBackend>("libnvrtc.so.12"))
    }),
    ("no_products", || {
        done(|| graphs::no_products::<CudaBackend>("libcublas.so.12"))
    }),
    ("the_real_compiler", the_real_compiler),
    (
        "the_real_compiler_on_every_operation",
        the_real_compiler_on_every_operation,
    ),
];

/// Scenarios over the simulated driver, and what it is told.
const SIMULATED: &[(&str, &[(&str, &str)])] = &[
    ("a_graph_that_is_executed", &[]),
    ("graphs_on_many_streams", &[]),
    ("a_graph_that_is_captured", &[]),
    (
        "a_launch_that_is_refused",
        &[("STEPMESH_SIMDRIVER_FAULTS", "cuLaunchKernel:1@1")],
    ),
    (
        "a_product_that_is_refused",
        &[(
            "STEPMESH_SIMDRIVER_FAULTS",
            "cublasGemmStridedBatchedEx:14@2",
        )],
    ),
    (
        "a_graph_that_breaks_the_device",
        &[("STEPMESH_SIMDRIVER_FAULTS", "work.0:719@20")],
    ),
    (
        "scratch_memory_that_runs_out",
        &[("STEPMESH_SIMDRIVER_MEMORY_BYTES", "67108864")],
    ),
    (
        "graphs_that_come_and_go",
        &[("STEPMESH_SIMDRIVER_MEMORY_BYTES", "67108864")],
    ),
    ("bytes_that_are_no_executable", &[]),
    ("lazy_tensors", &[]),
];

/// What the real compiler is given.
const SOURCE: &str =
    "extern \"C\" __global__ void twice(float *value) { value[threadIdx.x] *= 2; }";
