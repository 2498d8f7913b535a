//! Runtimes that are not there, too old, empty or broken. Each case is a scenario in a process of its own,
//! with its own runtime and surroundings.

use std::path::Path;
use std::process::Command;

use libtest_mimic::{Completion, Failed, Trial};

use crate::judged::{plugin, search_path, simulated_driver};
use crate::scenarios::{ABSENT, ROLE};

pub(crate) fn trials() -> Vec<Trial> {
    let simulated = SIMULATED.iter().map(|(name, variables)| {
        Trial::ignorable_test(format!("trouble::{name}"), move || {
            scenario(name, &simulated_driver()?, variables)
        })
    });
    let mut trials: Vec<_> = simulated.collect();
    trials.extend([
        Trial::ignorable_test("trouble::a_file_that_is_no_library", || {
            let folder = tempfile::tempdir()?;
            for name in LIBRARIES {
                std::fs::write(folder.path().join(name), "no library")?;
            }
            scenario("a_file_that_is_no_library", folder.path(), &[])
        }),
        Trial::ignorable_test("trouble::a_runtime_that_is_too_old", || {
            let folder = tempfile::tempdir()?;
            compile(OLD_RUNTIME, &folder.path().join("libamdhip64.so.7"))?;
            scenario("a_runtime_that_is_too_old", folder.path(), &[])
        }),
        Trial::ignorable_test("trouble::a_runtime_without_newer_functions", || {
            let folder = tempfile::tempdir()?;
            let whole = std::fs::read(simulated_driver()?.join("libamdhip64.so.6"))?;
            let file = folder.path().join("libamdhip64.so.6");
            std::fs::write(&file, without(whole, &MISSING))?;
            scenario("a_runtime_without_newer_functions", folder.path(), &[])
        }),
        Trial::test("trouble::no_file_needs_a_library_of_a_vendor", || {
            // This program links the backend statically, and so what hip-sys asks the linker for.
            needs_no_vendor(&std::env::current_exe()?)?;
            needs_no_vendor(&plugin()?)
        }),
        Trial::ignorable_test("trouble::the_runtime_of_this_machine", || {
            let folder = tempfile::tempdir()?;
            let mut command = child("the_runtime_of_this_machine")?;
            // Whatever the machine has, and not the simulated one.
            command.env("LD_LIBRARY_PATH", folder.path());
            ended(&mut command)
        }),
    ]);
    trials
}

pub(crate) fn scenario(
    name: &str,
    runtime: &Path,
    variables: &[(&str, &str)],
) -> Result<Completion, Failed> {
    let mut command = child(name)?;
    command.env("LD_LIBRARY_PATH", search_path(runtime));
    command.envs(variables.iter().copied());
    ended(&mut command)
}

pub(crate) fn child(name: &str) -> Result<Command, Failed> {
    let mut command = Command::new(std::env::current_exe()?);
    command.env(ROLE, name);
    Ok(command)
}

pub(crate) fn ended(command: &mut Command) -> Result<Completion, Failed> {
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    match output.status.code() {
        Some(0) => Ok(Completion::Completed),
        Some(code) if code == i32::from(ABSENT) => Ok(Completion::ignored_with(said.trim())),
        _ => {
            let told = String::from_utf8_lossy(&output.stderr);
            Err(format!("{}\n{said}{told}", output.status).into())
        }
    }
}

fn needs_no_vendor(file: &Path) -> Result<(), Failed> {
    // The loader lists what it would load, and runs nothing.
    let output = Command::new(LOADER).arg("--list").arg(file).output()?;
    let listed = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() || !listed.contains("libc.so") {
        return Err(format!("{}: {listed}", output.status).into());
    }
    match listed
        .lines()
        .find(|line| VENDOR.iter().any(|name| line.contains(name)))
    {
        Some(line) => Err(format!("{} needs {}", file.display(), line.trim()).into()),
        None => Ok(()),
    }
}

fn compile(source: &str, to: &Path) -> Result<(), Failed> {
    let from = to.with_extension("c");
    std::fs::write(&from, source)?;
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let status = Command::new(compiler)
        .args(["-shared", "-fPIC", "-o"])
        .arg(to)
        .arg(&from)
        .status()?;
    if status.success() {
        return Ok(());
    }
    Err(format!("the C compiler ended with {status}").into())
}

/// A library in which nobody finds these functions: their names are other ones.
pub(crate) fn without(mut library: Vec<u8>, functions: &[&str]) -> Vec<u8> {
    for function in functions {
        let name = [b"\0", function.as_bytes(), b"\0"].concat();
        let places: Vec<usize> = library
            .windows(name.len())
            .enumerate()
            .filter(|(_, window)| *window == name)
            .map(|(at, _)| at)
            .collect();
        assert!(!places.is_empty(), "the library has no {function}");
        for at in places {
            library[at + 1] = b'x';
        }
    }
    library
}

/// Scenarios over the simulated driver, and what it is told.
const SIMULATED: &[(&str, &[(&str, &str)])] = &[
    ("devices_that_say_what_they_are", &[]),
    ("devices_that_are_hidden", &[("HIP_VISIBLE_DEVICES", "")]),
    (
        "memory_that_runs_out",
        &[("STEPMESH_SIMDRIVER_MEMORY_BYTES", "67108864")],
    ),
    (
        "work_that_fails",
        &[("STEPMESH_SIMDRIVER_FAULTS", "work.0:719@3")],
    ),
    (
        "a_device_that_is_lost_while_others_wait",
        &[(
            "STEPMESH_SIMDRIVER_FAULTS",
            "work.0:stuck@1, device.0:214@500ms",
        )],
    ),
    ("a_caller_who_is_not_disturbed", &[]),
    (
        "memory_that_is_exported",
        &[("STEPMESH_SIMDRIVER_DMABUF", "memfd")],
    ),
    (
        "dma_buf_checks_over_memory_files",
        &[("STEPMESH_SIMDRIVER_DMABUF", "memfd")],
    ),
    ("flags_in_memory", &[]),
    ("a_default_stream_that_waits", &[]),
    ("work_on_memory_that_is_gone", &[]),
    ("a_graph_that_is_replayed", &[]),
];

/// The loader as a program.
const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";
const VENDOR: [&str; 4] = ["libamdhip", "libhsa", "libhiprtc", "librocm"];

const LIBRARIES: [&str; 4] = [
    "libamdhip64.so.7",
    "libamdhip64.so.6",
    "libamdhip64.so.5",
    "libamdhip64.so",
];

/// The newer ones of those that something stands in for, and one that nothing does.
const MISSING: [&str; 6] = [
    "hipMallocAsync",
    "hipFreeAsync",
    "hipStreamWriteValue64",
    "hipIpcGetMemHandle",
    "hiprtcCompileProgram",
    "hipDeviceSynchronize",
];

const OLD_RUNTIME: &str = "
int hipRuntimeGetVersion(int *version) { *version = 40300000; return 0; }
int hipInit(unsigned flags) { return 0; }
";
