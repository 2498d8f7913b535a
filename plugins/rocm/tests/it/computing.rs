//! Graphs over the simulated driver with its compiler and its library of products, and without them. What
//! a child does is in the graphs module, which the GPU backends share.

use std::ffi::{c_uint, c_ulonglong, c_void};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::ExitCode;
use std::ptr::null_mut;

use libtest_mimic::{Completion, Failed, Trial};
use stepmesh_backend_rocm::RocmBackend;
use stepmesh_driver::Library;

use crate::graphs::{self, Capturing};
use crate::judged::{self, simulated_driver};
use crate::trouble::{child, ended, scenario, without};

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
            // HIP's own library has one up to version 6; here it is as in version 7.
            let folder = tempfile::tempdir()?;
            let whole = std::fs::read(simulated_driver()?.join("libamdhip64.so.6"))?;
            let file = folder.path().join("libamdhip64.so.6");
            std::fs::write(file, without(whole, &["hiprtcCompileProgram"]))?;
            alone("no_compiler", folder.path())
        }),
        Trial::ignorable_test("computing::no_products", || {
            if let Some(reason) = graphs::lacks_compiler() {
                return Ok(Completion::ignored_with(reason));
            }
            let folder = tempfile::tempdir()?;
            let file = simulated_driver()?.join("libamdhip64.so.6");
            symlink(file, folder.path().join("libamdhip64.so.6"))?;
            alone("no_products", folder.path())
        }),
    ]);
    trials
}

/// A child that finds the libraries of a folder and no others.
fn alone(name: &str, folder: &Path) -> Result<Completion, Failed> {
    let mut command = child(name)?;
    command.env("LD_LIBRARY_PATH", folder);
    ended(&mut command)
}

/// A program that takes the place of the compiler that the simulated one calls.
fn refusing_compiler(folder: &Path) -> Result<String, Failed> {
    use std::os::unix::fs::PermissionsExt as _;
    let file = folder.join("refuses");
    let script = "#!/bin/sh\necho 'graph.cu:1: error: no register is left' >&2\nexit 1\n";
    std::fs::write(&file, script)?;
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755))?;
    Ok(file.display().to_string())
}

stepmesh_driver::functions! {
    /// The calls that capture and replay a graph.
    struct Functions {
        fn hipStreamBeginCapture(stream: *mut c_void, mode: c_uint);
        fn hipStreamEndCapture(stream: *mut c_void, graph: *mut *mut c_void);
        fn hipGraphInstantiateWithFlags(
            exec: *mut *mut c_void, graph: *mut c_void, flags: c_ulonglong,
        );
        fn hipGraphLaunch(exec: *mut c_void, stream: *mut c_void);
    }
}

struct Driver;

impl Capturing for Driver {
    type Replay = Box<dyn Fn(u64)>;

    fn capture(stream: u64, work: impl FnOnce()) -> Self::Replay {
        let functions = Functions::of(&Library::open(&["libamdhip64.so.6"]).unwrap());
        // The mode in which no thread may do what could disturb the capture.
        // SAFETY: a live stream of the scenario's.
        unsafe { functions.hipStreamBeginCapture(handle(stream), 0).unwrap() };
        work();
        let (mut graph, mut exec) = (null_mut(), null_mut());
        // SAFETY: `graph` is a local; the stream is captured.
        unsafe {
            functions
                .hipStreamEndCapture(handle(stream), &raw mut graph)
                .unwrap()
        };
        // SAFETY: `exec` is a local; the graph was made above.
        let made = unsafe { functions.hipGraphInstantiateWithFlags(&raw mut exec, graph, 0) };
        made.unwrap();
        Box::new(move |stream| {
            // SAFETY: a graph that lives until the process ends, and a live stream.
            unsafe { functions.hipGraphLaunch(exec, handle(stream)).unwrap() };
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
        done(graphs::a_graph_that_is_executed::<RocmBackend>)
    }),
    ("graphs_on_many_streams", || {
        done(graphs::graphs_on_many_streams::<RocmBackend>)
    }),
    ("a_graph_that_is_captured", || {
        done(graphs::a_graph_that_is_captured::<RocmBackend, Driver>)
    }),
    ("a_source_that_is_refused", || {
        done(|| graphs::a_source_that_is_refused::<RocmBackend>("HIPRTC status 6"))
    }),
    ("a_launch_that_is_refused", || {
        done(|| graphs::a_launch_that_is_refused::<RocmBackend>("hipModuleLaunchKernel answered"))
    }),
    ("a_product_that_is_refused", || {
        done(|| {
            let said = "rocblas_gemm_strided_batched_ex answered rocblas_status_internal_error";
            graphs::a_launch_that_is_refused::<RocmBackend>(said);
        })
    }),
    ("a_graph_that_breaks_the_device", || {
        done(graphs::a_graph_that_breaks_the_device::<RocmBackend>)
    }),
    ("scratch_memory_that_runs_out", || {
        done(graphs::scratch_memory_that_runs_out::<RocmBackend>)
    }),
    ("graphs_that_come_and_go", || {
        done(graphs::graphs_that_come_and_go::<RocmBackend>)
    }),
    ("bytes_that_are_no_executable", || {
        done(graphs::bytes_that_are_no_executable::<RocmBackend>)
    }),
    ("lazy_tensors", || {
        done(|| graphs::lazy_tensors(&judged::plugin().unwrap(), "rocm"))
    }),
    ("no_compiler", || {
        done(|| graphs::no_compiler::<RocmBackend>("libhiprtc.so.6"))
    }),
    ("no_products", || {
        done(|| graphs::no_products::<RocmBackend>("librocblas.so.4"))
    }),
];

/// Scenarios over the simulated driver, and what it is told.
const SIMULATED: &[(&str, &[(&str, &str)])] = &[
    ("a_graph_that_is_executed", &[]),
    ("graphs_on_many_streams", &[]),
    ("a_graph_that_is_captured", &[]),
    (
        "a_launch_that_is_refused",
        &[("STEPMESH_SIMDRIVER_FAULTS", "hipModuleLaunchKernel:1@1")],
    ),
    (
        "a_product_that_is_refused",
        &[(
            "STEPMESH_SIMDRIVER_FAULTS",
            "rocblas_gemm_strided_batched_ex:6@2",
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
